# SPDX-License-Identifier: Apache-2.0
"""The emulated link holds real collectives back by at least its price, keeps order, and shows up as
emulated. Only lower bounds are asserted: a loaded machine may always be slower."""

import time

import torch
import torch.distributed as dist
from ranks import results, run_ranks
from training import batches, digest, mlp, sgd, train, wrap

from tidegate import baselines
from tidegate.attach import _attach
from tidegate.engine import Engine

LINK = "100mbit,2ms"
MEGABYTE = 250_000  # floats


def timed_collectives(rank, ranks):
    engine = Engine(dist.group.WORLD, 20.0, LINK)
    seconds = []
    for count in (1, 3):
        dist.barrier()
        began = time.monotonic()
        operations = [engine.all_reduce(torch.ones(MEGABYTE), "test", 0) for _ in range(count)]
        for operation in operations:
            while not operation.done(0.2):
                pass
        seconds.append(time.monotonic() - began)
        assert all(op.tensors[0][0] == ranks for op in operations)
    return seconds


def test_collectives_take_at_least_the_price_of_the_link():
    for single, three in results(timed_collectives, 2):
        # Ring of two: 2 messages of 2 ms, and 1 MB at 12.5 MB/s.
        price = 2 * 0.002 + 1e6 / 12.5e6
        assert single >= price
        # One after another they share the wire but not the latency.
        assert three >= price + 2 * 1e6 / 12.5e6


def train_on_the_link(rank, ranks, kind):
    model = wrap(mlp())
    if kind == "tidegate":
        fixed = {"method": "topk", "ratio": 0.05}
        handle = _attach(model, sgd(model), policy="fixed", fixed=fixed, timeout=20, link=LINK)
    else:
        handle = baselines.AllReduceHook(model, kind, link=LINK, timeout=20)
    began = time.monotonic()
    train(model, sgd(model), batches(rank, 5))
    seconds = time.monotonic() - began
    emulated = handle.stats()["emulated"] if kind == "tidegate" else LINK
    return digest(model), seconds, emulated


def test_hooks_on_the_link_train_and_say_that_it_is_emulated():
    plain = results(plain_ddp, 2)
    for kind in ("fp32", "bf16", "tidegate"):
        outcome = results(train_on_the_link, 2, kind)
        assert len({bits for bits, _, _ in outcome}) == 1
        assert all(emulated == LINK for _, _, emulated in outcome)
        if kind == "fp32":
            assert outcome[0][0] == plain[0], "the fp32 baseline is plain DDP"


def plain_ddp(rank, ranks):
    model = wrap(mlp())
    train(model, sgd(model), batches(rank, 5))
    return digest(model)


def bad_link(rank, ranks):
    model = wrap(mlp())
    _attach(model, sgd(model), policy="fixed", fixed={"method": "dense"}, link="fast", timeout=5)


def test_a_link_that_is_none_is_told():
    for outcome in run_ranks(bad_link, 2):
        assert outcome.kind == "config"
        assert 'link "fast"' in outcome.text
        assert "100mbit,2ms" in outcome.text
