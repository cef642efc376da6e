# SPDX-License-Identifier: Apache-2.0
"""What a virtual cluster trains: a model, its data, and how to tell whether it has learned."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import nn


@dataclass
class Task:
    """A training job, described for any number of workers.

    model        the model, on the CPU
    optimizer    steps it
    batches      batches(worker, workers, epoch) -> the batches of one worker in one epoch; every
                 worker must have equally many, and the same ones whenever it is asked. A Sequence
                 (with an index) lets a snapshot find its place without reading what lies before
    loss         loss(model, batch) -> a scalar tensor
    evaluate     evaluate(model) -> figures by name, such as {"accuracy": 0.87}; optional
    scheduler    stepped after every optimizer step; optional
    before_step  before_step(model), when gradients are averaged: clipping, for example; optional
    figure       the figure that counts; the first one if it is not named
    lower_is_better  what is good for that figure: False for an accuracy, True for a loss
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Callable[[int, int, int], Iterable[Any]]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    scheduler: Any = None
    name: str = "task"
    before_step: Callable[[nn.Module], None] | None = None
    figure: str = ""
    lower_is_better: bool = False


class Batches(Sequence):
    """Batches that are made when they are asked for, by number."""

    def __init__(self, count: int, make: Callable[[int], Any]):
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._make(index)


def decay(
    optimizer: torch.optim.Optimizer, steps: int | None, warm_up: int = 0
) -> torch.optim.lr_scheduler.LambdaLR | None:
    """A schedule over `steps` steps, or none: full for the first half, then down to zero. With
    warm_up, the first steps come up to it."""
    if not steps:
        return None

    def factor(step: int) -> float:
        return min(1.0, 2 * max(0.0, 1 - step / steps), (step + 1) / (warm_up + 1))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
