# SPDX-License-Identifier: Apache-2.0
"""Steps of several batches, by adding up gradients without exchanging them (DDP's no_sync), as
many as the policy says; and learning rates that grow with the batch.

    for micro in handle.micro_batches(loader, scheduler):
        with micro:
            (loss_fn(micro.batch) * micro.scale).backward()
        if micro.last:
            optimizer.step()
            optimizer.zero_grad()
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch

# In the optimizer's groups, so that it is saved and loaded together with the rates it is part of.
SCALE = "tidegate_rate_scale"
GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
SCHEDULER_RATES = ("base_lrs", "max_lrs")


class MicroBatch:
    """One batch of a step. Forward and backward belong inside `with micro:`."""

    def __init__(self, batch: Any, scale: float, last: bool, no_sync: Callable) -> None:
        self.batch = batch
        self.scale = scale  # one over the number of batches in the step
        self.last = last  # of the step: gradients are exchanged in its backward
        self._context = contextlib.nullcontext() if last else no_sync()

    def __enter__(self) -> "MicroBatch":
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def micro_batches(
    loader: Iterable[Any],
    begin_step: Callable[[], int],
    no_sync: Callable = contextlib.nullcontext,
    end_epoch: Callable[[], None] = lambda: None,
) -> Iterator[MicroBatch]:
    """begin_step() = batches of the next step; asked when the step before is over. What is left
    at the loader's end makes a step, too: how many that are must be known when the first of them is
    handed out, so a loader without a length is read a whole step ahead, others by one batch."""
    batches, left = iter(loader), _length(loader)
    while True:
        size = begin_step()
        if left > 0:
            size = min(size, left)
            step: Iterable[Any] = islice(batches, size)
        else:  # also what a loader has beyond its length
            step = ahead = list(islice(batches, size))
            size = len(ahead)
        left -= size
        ended = True
        for batch, last in _with_last(step):
            ended = False
            yield MicroBatch(batch, 1 / size, last, no_sync)
        if ended:
            break
    end_epoch()


def _length(loader: Iterable[Any]) -> int:
    """0 = unknown."""
    try:
        return len(loader) if isinstance(loader, Sized) else 0
    except TypeError:  # a DataLoader of an iterable dataset has the method alone
        return 0


def _with_last(items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Items, each with whether it is the last one."""
    items = iter(items)
    nothing = object()
    item = next(items, nothing)
    while item is not nothing:
        following = next(items, nothing)
        yield item, following is nothing
        item = following


def scale_rates(optimizer: torch.optim.Optimizer, scheduler: Any, scale: float) -> None:
    """Learning rates become `scale` times those that the user has set, now and in what a scheduler
    makes of them later on."""
    factors = [scale / group.get(SCALE, 1.0) for group in optimizer.param_groups]
    if all(factor == 1 for factor in factors):
        return
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        group.update({key: group[key] * factor for key in GROUP_RATES if key in group})
        group[SCALE] = scale
    for each in _with_parts(scheduler):
        for key in SCHEDULER_RATES:
            rates = getattr(each, key, None)
            if rates is not None:
                setattr(each, key, [r * f for r, f in zip(rates, factors, strict=True)])


def _with_parts(scheduler: Any) -> Iterator:
    """A scheduler, and those that it is made of (SequentialLR, ChainedScheduler)."""
    if scheduler is None:
        return
    yield scheduler
    for part in getattr(scheduler, "_schedulers", []):
        yield from _with_parts(part)
