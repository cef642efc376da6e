# SPDX-License-Identifier: Apache-2.0
"""Policies as objects, for those who prefer them to names and option texts."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from . import _core, own_policy
from .errors import Error
from .own_policy import OwnPolicy

__all__ = [
    "Accordion",
    "AccordionBatch",
    "Auto",
    "Fixed",
    "Flexible",
    "Gravac",
    "OwnPolicy",
    "Policy",
    "Replay",
    "Schedule",
    "parse",
]


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


class Auto(Policy):
    """The fastest training that does not slow down learning, from what is measured: `Auto()`, or
    with options by name, such as `Auto(goal="time-to-target")`. `tidegate policies` says what each
    is for and why it is what it is. `attach` adds the optimizer and the horizon it was given."""

    def __init__(self, **options: object) -> None:
        super().__init__("auto", _texts(**options))


class Fixed(Policy):
    """One method at one level from the first step to the last: `Fixed("topk", 0.01)`,
    `Fixed("powersgd", rank=4)`, `Fixed("qsgd", bits=4)`."""

    def __init__(
        self,
        method: str,
        ratio: float | None = None,
        bits: int | None = None,
        route: str = "auto",
        select: str | None = None,
        *,
        rank: int | None = None,
        warmup: int | None = None,
        momentum: float | None = None,
        clip: float | None = None,
    ):
        super().__init__(
            "fixed",
            _texts(
                method=method,
                ratio=None if ratio is None else float(ratio),
                rank=rank,
                bits=bits,
                route=route,
                select=select,
                warmup=warmup,
                momentum=momentum,
                clip=clip,
            ),
        )


class Schedule(Policy):
    """Levels by step: `Schedule([(0, "dense"), (100, "topk", 0.01)])`, or those of a file of lines
    `STEP METHOD [LEVEL] [ROUTE]`: `Schedule(file="levels.txt")`."""

    def __init__(
        self,
        levels: Iterable[tuple] | None = None,
        *,
        file: str | os.PathLike | None = None,
    ):
        if levels is not None and file is None:
            text = ";".join(" ".join(map(str, entry)) for entry in levels)
            super().__init__("schedule", {"levels": text})
        elif file is not None and levels is None:
            super().__init__("schedule", {"file": os.fspath(file)})
        else:
            raise Error(
                "config",
                'Schedule needs either levels, such as [(0, "dense"), (100, "topk", 0.01)], or '
                'file="levels.txt"',
            )


class Accordion(Policy):
    """Two levels of a method (or two methods): the weak one for parameters whose gradients change
    fast, at the start, and after a learning rate dropped: `Accordion(method="topk", weak=0.99,
    strong=0.1)`. `window` = "epoch" or a number of steps; `interval` = windows between the two
    that are compared; `threshold` = the change that counts."""

    def __init__(
        self,
        method: str | None = None,
        weak: float | None = None,
        strong: float | None = None,
        *,
        weak_method: str | None = None,
        strong_method: str | None = None,
        interval: int = 10,
        threshold: float = 0.5,
        window: int | str = "epoch",
        whole: bool = False,
        zero_residual: bool = False,
        route: str = "auto",
    ):
        super().__init__(
            "accordion",
            _texts(
                method=method,
                weak=weak,
                strong=strong,
                weak_method=weak_method,
                strong_method=strong_method,
                interval=interval,
                threshold=threshold,
                window=window,
                whole=whole,
                zero_residual=zero_residual,
                route=route,
            ),
        )


class AccordionBatch(Policy):
    """`factor` batches a step from the end of the first critical regime on, by
    `handle.micro_batches`; learning rates grow alike, at once or over a ramp. Gradients are sent by
    one method at one level."""

    def __init__(
        self,
        factor: int = 8,
        *,
        interval: int = 10,
        threshold: float = 0.5,
        window: int | str = "epoch",
        scale_lr: bool = True,
        ramp_steps: int = 0,
        ramp_epochs: int = 0,
        method: str = "dense",
        ratio: float | None = None,
        rank: int | None = None,
        bits: int | None = None,
        route: str = "auto",
    ):
        super().__init__(
            "accordion-batch",
            _texts(
                factor=factor,
                interval=interval,
                threshold=threshold,
                window=window,
                scale_lr=scale_lr,
                ramp_steps=ramp_steps,
                ramp_epochs=ramp_epochs,
                method=method,
                ratio=ratio,
                rank=rank,
                bits=bits,
                route=route,
            ),
        )


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


def _texts(**options: Any) -> dict[str, str]:
    """As the table of policies reads them, without those that are not given."""
    words = {True: "yes", False: "no"}
    return {
        key: words[value] if isinstance(value, bool) else str(value)
        for key, value in options.items()
        if value is not None
    }


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
