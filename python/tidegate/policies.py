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


class Flexible(Policy):
    """Ratio and collective by the measured link and the gain, after "Flexible communication" (Tyagi
    and Swany, 2023). `tidegate policies` says what each option is for and why it is what it is."""

    def __init__(
        self,
        *,
        lowest: float = 0.001,
        highest: float = 0.1,
        factor: float = 3,
        weight_time: float = 0.6,
        weight_gain: float = 0.4,
        gain_change: float = 0.1,
        network_change: float = 0.1,
        warmup: int = 100,
        root: str = "star",
        gain: str = "squared",
    ):
        numbers = {
            "lowest": lowest,
            "highest": highest,
            "factor": factor,
            "weight_time": weight_time,
            "weight_gain": weight_gain,
            "gain_change": gain_change,
            "network_change": network_change,
        }
        options = {key: repr(float(value)) for key, value in numbers.items()}
        options |= {"warmup": str(warmup), "root": root, "gain": gain}
        super().__init__("flexible", options)


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
