# SPDX-License-Identifier: Apache-2.0
"""Policies as objects, for those who prefer them to names and option texts."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import _core, own_policy
from .errors import Error
from .own_policy import OwnPolicy

__all__ = ["Fixed", "OwnPolicy", "Policy", "Replay", "Schedule", "parse"]


@dataclass(frozen=True)
class Policy:
    """A row of the policy table with its options, as `attach(policy=...)` takes it, or a policy of
    the user's own."""

    name: str
    options: dict[str, str] = field(default_factory=dict)
    own: object = None  # see tidegate.own_policy

    def adapters(self, count: int) -> list:
        """What `count` sessions take as `own`."""
        return own_policy.adapters(self.own, count) if self.own is not None else [None] * count


class Fixed(Policy):
    """One method at one level from the first step to the last."""

    def __init__(
        self,
        method: str,
        ratio: float | None = None,
        bits: int | None = None,
        route: str = "auto",
        select: str | None = None,
    ):
        options = {"method": method, "route": route}
        if select is not None:
            options["select"] = select
        if ratio is not None:
            options["ratio"] = repr(float(ratio))
        if bits is not None:
            options["bits"] = str(bits)
        super().__init__("fixed", options)


class Schedule(Policy):
    """Levels by step: `Schedule([(0, "dense"), (100, "topk", 0.01)])`."""

    def __init__(self, levels: Iterable[tuple]):
        text = ";".join(" ".join(map(str, entry)) for entry in levels)
        super().__init__("schedule", {"levels": text})


class Replay(Policy):
    """The decisions of a recorded run, from its trace."""

    def __init__(self, file: str | os.PathLike):
        super().__init__("replay", {"file": os.fspath(file)})


def parse(text: str) -> Policy:
    """The command line's form: "name", "name:key=value,key=value" or "module:function"."""
    name, _, rest = text.partition(":")
    ours = {row["name"] for row in (*_core.policies(), *_core.methods())}
    if rest.isidentifier() and name not in ours:
        return Policy(text, own=own_policy.find(text))
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise Error(
                "config",
                f'policy option "{part}" has no value; write {name}:key=value,key=value',
            )
        options[key.strip()] = value.strip()
    return Policy(name, options)
