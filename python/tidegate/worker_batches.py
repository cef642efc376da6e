# SPDX-License-Identifier: Apache-2.0
"""One batch or more per worker and step, epoch after epoch, from a place that two numbers describe.

Whatever a task draws from torch's random numbers while it makes a batch depends on the seed, on
that place and on the worker only, so that going back gives the same batches again.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .errors import Error

MISSING = object()  # in place of a batch


def seed_of(*what: object) -> int:
    """A seed for torch, made of anything that tells one use of random numbers from another."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_torch(*what: object) -> None:
    torch.default_generator.manual_seed(seed_of(*what))


class WorkerBatches:
    def __init__(self, batches: Callable[[int, int, int], Iterable[Any]], workers: int, seed: int):
        self._batches = batches
        self._workers = workers
        self._seed = seed
        self._sources: list[Sequence[Any] | Iterator[Any]] | None = (
            None  # of the epoch; None = to be opened
        )
        self.epoch = 0
        self.index = 0  # of the next batch in the epoch

    def next(self) -> list:
        """The next batch of every worker."""
        found = self._take()
        if found is None:
            if self.index == 0:
                raise Error("config", f"the task has no batches for {self._workers} workers")
            self.go_to(self.epoch + 1, 0)
            return self.next()
        self.index += 1
        return found

    def next_step(self, count: int) -> list[list]:
        """`count` batches of every worker, fewer at the end of an epoch: [batch][worker]."""
        step = [self.next()]
        while len(step) < count and (found := self._take()) is not None:
            self.index += 1
            step.append(found)
        return step

    def go_to(self, epoch: int, index: int) -> None:
        self.epoch, self.index, self._sources = epoch, index, None

    def _take(self) -> list | None:
        """None at the end of the epoch."""
        if self._sources is None:
            self._sources = [self._open(worker) for worker in range(self._workers)]
        found = [self._fetch(worker, source) for worker, source in enumerate(self._sources)]
        short = [worker for worker, batch in enumerate(found) if batch is MISSING]
        if not short:
            return found
        if len(short) < self._workers:
            raise Error(
                "config",
                f"worker {short[0]} of {self._workers} has fewer batches than others; every worker "
                "must have equally many",
            )
        return None

    def _open(self, worker: int) -> Sequence[Any] | Iterator[Any]:
        """The batches of a worker in the epoch: by number, or an iterator at the present place."""
        seed_torch(self._seed, "epoch", self.epoch, worker)
        source = self._batches(worker, self._workers, self.epoch)
        return source if isinstance(source, Sequence) else self._skip(worker, iter(source))

    def _skip(self, worker: int, source: Iterator[Any]) -> Iterator[Any]:
        for index in range(self.index):
            seed_torch(self._seed, "batch", self.epoch, index, worker)
            next(source, None)
        return source

    def _fetch(self, worker: int, source: Sequence[Any] | Iterator[Any]) -> Any:
        seed_torch(self._seed, "batch", self.epoch, self.index, worker)
        if isinstance(source, Sequence):
            return source[self.index] if self.index < len(source) else MISSING
        return next(source, MISSING)
