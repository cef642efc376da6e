# SPDX-License-Identifier: Apache-2.0
"""What every engine must do (tests/comm/contract.h), for the engine over torch.distributed."""

import os
import random
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import results

from tidegate.engine import DTYPES, Engine

PATIENCE = 20.0  # seconds; no healthy run comes near it


class Job:
    """A collective with data of its own that knows what must come out of it. Which one, of what
    size and from which root follows from `number`, equally on all ranks."""

    kinds = ("all-reduce", "all-gather", "broadcast", "all-to-all", "send-receive")

    def __init__(self, rank, ranks, number, size=None, element="fp32"):
        self.rank, self.ranks, self.number = rank, ranks, number
        self.kind = self.kinds[number % len(self.kinds)]
        self.size = 1 + number * 7 % 50 if size is None else size
        self.root = number % ranks
        self.step = 1 + number % ranks  # send-receive: so many ranks further
        self.element = element
        dtype = DTYPES[element] if self.kind == "all-reduce" else torch.float32
        parts = ranks if self.kind == "all-to-all" else 1
        self.mine = torch.cat([self.value(rank, part) for part in range(parts)]).to(dtype)
        gathers = self.kind in ("all-gather", "all-to-all")
        self.target = torch.zeros(self.size * ranks if gathers else self.size)

    def value(self, rank, part=0):
        """Whole numbers: their sums are exact in any order, also in 16 bits."""
        return torch.arange(self.size) % 8 + 2.0 * rank + 16.0 * part

    def issue(self):
        whole = self.kind in ("all-reduce", "broadcast")
        return SimpleNamespace(
            step=0,
            collective=self.kind,
            group="all",
            element=self.element if self.kind == "all-reduce" else "uint8",
            address=self.mine.data_ptr(),
            bytes=self.mine.nbytes,
            target=0 if whole else self.target.data_ptr(),
            target_bytes=0 if whole else self.target.nbytes,
            root=self.root,
            to=(self.rank + self.step) % self.ranks,
            source=(self.rank - self.step) % self.ranks,
            priced=self.kind,
            priced_bytes=self.mine.nbytes,
            text=f"{self.kind} number {self.number}",
        )

    def is_right(self):
        everyone = [self.value(rank) for rank in range(self.ranks)]
        if self.kind == "all-reduce":
            return torch.equal(self.mine.float(), sum(everyone))
        if self.kind == "broadcast":
            return torch.equal(self.mine, everyone[self.root])
        if self.kind == "all-gather":
            return torch.equal(self.target, torch.cat(everyone))
        if self.kind == "all-to-all":
            parts = [self.value(rank, self.rank) for rank in range(self.ranks)]
            return torch.equal(self.target, torch.cat(parts))
        return torch.equal(self.target, everyone[(self.rank - self.step) % self.ranks])


def wait(operation):
    while not operation.done(0.2):
        pass


def contract(rank, ranks):
    engine = Engine(dist.group.WORLD, PATIENCE)
    assert (engine.rank, engine.ranks) == (rank, ranks)
    # One after another; nothing, and much.
    for number in range(30):
        for size in (None, 0) if number < 5 else (None,):
            job = Job(rank, ranks, number, size)
            wait(engine.start(job.issue()))
            assert job.is_right(), job.issue()
    for number in range(5):
        job = Job(rank, ranks, number, 1 << 18)
        wait(engine.start(job.issue()))
        assert job.is_right(), job.issue().text
    # 16-bit sums.
    for element in ("fp16", "bf16"):
        job = Job(rank, ranks, 0, 17, element)
        wait(engine.start(job.issue()))
        assert job.is_right(), element
    # Many in flight, waited for in an order of one's own.
    jobs = [Job(rank, ranks, number) for number in range(40)]
    operations = [engine.start(job.issue()) for job in jobs]
    random.Random(rank).shuffle(operations)
    for operation in operations:
        wait(operation)
    assert all(job.is_right() for job in jobs)
    engine.close()
    return True


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_engine_keeps_the_contract(ranks):
    assert all(results(contract, ranks))


def groups(rank, ranks, hosts):
    os.environ["TIDEGATE_HOST"] = f"host {hosts[rank]}"
    engine = Engine(dist.group.WORLD, PATIENCE)
    engine.form_host_groups()
    mates = [r for r in range(ranks) if hosts[r] == hosts[rank]]
    leaders = sorted({hosts.index(host) for host in hosts})
    data = torch.full((5,), float(rank))

    def issue(group, collective):
        return SimpleNamespace(
            step=0,
            collective=collective,
            group=group,
            element="fp32",
            address=data.data_ptr() if collective != "idle" else 0,
            bytes=data.nbytes if collective != "idle" else 0,
            target=0,
            target_bytes=0,
            root=0,
            to=-1,
            source=-1,
            priced="all-reduce",
            priced_bytes=data.nbytes,
            text=group,
        )

    wait(engine.start(issue("host", "all-reduce")))
    assert data.tolist() == [float(sum(mates))] * 5
    wait(engine.start(issue("leaders", "all-reduce" if rank in leaders else "idle")))
    if rank in leaders:
        assert data.tolist() == [float(sum(range(ranks)))] * 5
    wait(engine.start(issue("host", "broadcast")))
    assert data.tolist() == [float(sum(range(ranks)))] * 5
    engine.close()
    return engine.hosts


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1, 0], [0, 0, 1, 1]], ids=str)
def test_groups_by_host(hosts):
    expected = [hosts.index(host) for host in hosts]
    assert results(groups, len(hosts), hosts) == [expected] * len(hosts)
