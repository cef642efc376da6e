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


class Gravac(Policy):
    """Climbs to stronger compression while enough of the gradient's energy is kept and it pays, and
    falls back to `min_factor` or dense when less is. Factors say how many times less is sent.

    Reacts two steps after a change at the earliest. `tidegate policies` tells what the options mean
    and why they are what they are.
    """

    def __init__(
        self,
        method: str = "topk",
        min_factor: float = 10,
        max_factor: float = 1000,
        climb: str = "exponential",
        threshold: float = 0.7,
        window: int = 500,
        saturation: float = 0.01,
        gain: str = "squared",
        smooth: str = "ratio",
        ewma_window: int = 25,
        smoothing: float | None = None,
    ):
        given = {
            "method": method,
            "min_factor": min_factor,
            "max_factor": max_factor,
            "climb": climb,
            "threshold": threshold,
            "window": window,
            "saturation": saturation,
            "gain": gain,
            "smooth": smooth,
            "ewma_window": ewma_window,
        }
        if smoothing is not None:  # by default it depends on the number of ranks
            given["smoothing"] = smoothing
        super().__init__("gravac", {key: str(value) for key, value in given.items()})


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
