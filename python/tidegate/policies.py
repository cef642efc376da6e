# SPDX-License-Identifier: Apache-2.0
"""Policies as objects, for those who prefer them to names and option texts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from .errors import Error


@dataclass(frozen=True)
class Policy:
    """A row of the policy table with its options, as `attach(policy=...)` takes it."""

    name: str
    options: dict[str, str] = field(default_factory=dict)


def Fixed(method: str, ratio: float | None = None, route: str = "auto") -> Policy:
    """One method at one level from the first step to the last."""
    options = {"method": method, "route": route}
    if ratio is not None:
        options["ratio"] = repr(float(ratio))
    return Policy("fixed", options)


def Schedule(levels: Iterable[tuple]) -> Policy:
    """Levels by step: `Schedule([(0, "dense"), (100, "topk", 0.01)])`."""
    return Policy("schedule", {"levels": ";".join(" ".join(map(str, entry)) for entry in levels)})


def parse(text: str) -> Policy:
    """The command line's form: "name" or "name:key=value,key=value"."""
    name, _, rest = text.partition(":")
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
