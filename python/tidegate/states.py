# SPDX-License-Identifier: Apache-2.0
"""States of ranks as dictionaries that torch.save and torch.distributed.checkpoint can store, and
whether one fits a model.

A key names the rank, because torch.distributed.checkpoint keeps one value of every key. The value
is a tensor of bytes in a tuple: a bare one could only be loaded into another of the same size.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from . import _core
from .errors import Error
from .same_names import same_names

MEAN = "mean of all ranks"
MOST_NAMES = 20  # in one message


def key_of(rank: int, ranks: int) -> str:
    return f"rank {rank} of {ranks}"


def to_dict(key: str, state: "_core.State") -> dict:
    return {key: (torch.frombuffer(bytearray(state.to_bytes()), dtype=torch.uint8),)}


def from_dict(states: dict, rank: int, ranks: int) -> "_core.State":
    """The state for this rank: its own, a mean, or the mean of all ranks' if all are there."""
    if not isinstance(states, dict):
        raise Error(
            "checkpoint", f"a {type(states).__name__} is no state_dict of a Tidegate handle"
        )
    for key in (key_of(rank, ranks), MEAN):
        if key in states:
            return read(states[key], key)
    named = [re.fullmatch(r"rank (\d+) of (\d+)", str(key)) for key in states]
    found = sorted((int(match[2]), int(match[1])) for match in named if match)
    if not found:
        raise Error(
            "checkpoint",
            f"no state of a Tidegate handle among {sorted(map(str, states))[:MOST_NAMES]}; one "
            "that was saved under TIDEGATE_DISABLE=1 is empty: then leave load_state_dict out",
        )
    saved = found[0][0]
    if found == [(saved, one) for one in range(saved)]:
        return _core.State.mean(
            [read(states[key_of(r, saved)], key_of(r, saved)) for r in range(saved)]
        )
    there = ", ".join(key_of(one, of) for of, one in found[:MOST_NAMES])
    raise Error(
        "checkpoint",
        f"this is the state of {there}, but this is {key_of(rank, ranks)}. Every rank loads what "
        "it saved itself. If only rank 0's state is kept, or the number of ranks changes, save "
        "handle.mean_state_dict() (on all ranks), or use tidegate.save and tidegate.load",
    )


def read(value: Any, key: str) -> "_core.State":
    value = value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() == 1:
        value = value.cpu().contiguous().numpy()
    elif not isinstance(value, bytes):
        raise Error("checkpoint", f'the state of "{key}" is a {type(value).__name__}, not bytes')
    return _core.State.from_bytes(value)


@dataclass
class Misfit:
    """How the parameters of a state differ from those of a model."""

    removed: list[str]  # only in the state
    added: list[str]  # only in the model
    resized: list[str]  # in both, of other sizes

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.resized)

    def __str__(self) -> str:
        parts = [
            f"{what} {in_short(names)}"
            for what, names in (
                ("the state has, and the model has not:", self.removed),
                ("the model has, and the state has not:", self.added),
                ("of another size:", self.resized),
            )
            if names
        ]
        return "; ".join(parts)


def in_short(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def adapt(state: "_core.State", sizes: dict[str, int], strict: bool) -> Misfit:
    """Renames the layers of a state to the names of a model with such parameters, and drops what
    the model does not have; if strict, that is an error instead."""
    saved = {name: elements for layers in state.layout for name, elements, _ in layers}
    saved.update(state.residuals)
    same = same_names(saved, sizes)
    misfit = Misfit(
        removed=[name for name in saved if name not in same],
        added=[name for name in sizes if name not in same.values()] if saved else [],
        resized=[
            f"{new} ({saved[old]} elements saved, {sizes[new]} now)"
            for old, new in same.items()
            if saved[old] != sizes[new]
        ],
    )
    if misfit and strict:
        raise Error(
            "checkpoint",
            f"the state is one of other parameters; {misfit}. Load the state of this model, or "
            "load with strict=False: then what waits for parameters that are gone is dropped",
        )
    for name in saved:
        if name not in same or saved[name] != sizes[same[name]]:
            state.drop(name)
        elif same[name] != name:
            state.rename(name, same[name])
    return misfit


def warn_of(misfit: Misfit) -> None:
    warnings.warn(
        f"the state is one of other parameters; {misfit}. What waited for those that are gone or "
        "have another size is dropped",
        stacklevel=4,
    )
