# SPDX-License-Identifier: Apache-2.0
"""The emulated link holds real collectives back by at least its price, keeps order, and shows up as
emulated. Of seconds only lower bounds are asserted: a loaded machine may always be slower. Of
links that change, what they compute."""

import time

import pytest
import torch
import torch.distributed as dist
from ranks import results, run_ranks
from training import batches, digest, mlp, sgd, train, wrap

import tidegate
from tidegate import _core, baselines
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


# --- links that change ---

FAST, SLOW = "10gbit,0ms", "1gbit,50ms"
CHANGE = 2  # the step from which on the link is slow
CHANGING = f"0 {FAST}\n{CHANGE} {SLOW}"


def test_a_schedule_says_what_the_link_is_at_a_step():
    schedule = _core.LinkSchedule.from_text(CHANGING)
    assert schedule.changes
    assert schedule.segments == [(0, 1.25e9, 0.0), (CHANGE, 1.25e8, 0.05)]
    assert [schedule.at(step) for step in (0, 1, 2, 99)] == [(1.25e9, 0.0)] * 2 + [
        (1.25e8, 0.05)
    ] * 2
    assert schedule.describe() == "10 Gbit/s, 0 ms from step 0; 1 Gbit/s, 50 ms from step 2"
    assert schedule.describe_at(7) == "1 Gbit/s, 50 ms"
    assert _core.LinkSchedule(schedule.segments).segments == schedule.segments
    assert not _core.LinkSchedule(LINK).changes
    assert len(_core.find_link_schedule("C2*0.01", 500).segments) == 11


def test_a_schedule_that_is_none_is_told():
    for make in (
        lambda: _core.LinkSchedule("fast"),
        lambda: _core.LinkSchedule([(1, 1e6, 0.0)]),
        lambda: _core.LinkSchedule.from_text("0 fast"),
        lambda: _core.find_link_schedule("C3", 100),
    ):
        with pytest.raises(tidegate.Error) as caught:
            make()
        assert caught.value.kind == "config"


class Watched:
    """A paced link that writes down the step of every collective, and how many seconds after the
    last rank's beginning it is due."""

    def __init__(self, link):
        self.link, self.description = link, link.description
        self.steps, self.delays = [], []

    def start(self, collective, nbytes, step, group):
        self.steps.append(step)
        return self.link.start(collective, nbytes, step, group)

    def due(self, number, collective, nbytes, root, group):
        assert root == -1
        due = self.link.due(number, collective, nbytes, root, group)
        began = self.link._table.view(torch.int64).view(dist.get_world_size(), -1)[:, number]
        self.delays.append((due - began.max().item()) / 1e9)
        return due


def one_after_another(rank, ranks):
    engine = Engine(dist.group.WORLD, 20.0, _core.LinkSchedule.from_text(CHANGING))
    engine.link = Watched(engine.link)
    for step in range(4):
        operation = engine.all_reduce(torch.ones(MEGABYTE), "test", step)
        while not operation.done(0.2):
            pass
    return engine.link.delays


def test_a_collective_takes_what_the_link_of_its_step_takes():
    fast, slow = 1e6 / 1.25e9, 2 * 0.05 + 1e6 / 1.25e8  # a ring of two: 2 messages, 1 MB
    for delays in results(one_after_another, 2):
        assert delays == pytest.approx([fast, fast, slow, slow], abs=1e-8)


def test_the_statistics_of_a_step_count_for_the_one_that_follows():
    gradient = torch.ones(4)
    session = _core.Session(0, 2, "fixed", {"method": "dense"})
    session.lay_out(0, [("weight", 4, 0)])
    for step in range(2):
        session.submit(gradient.data_ptr(), gradient.nbytes)
        issue = session.next()
        assert (issue.bucket, issue.step) == (0, step)
        session.complete(issue.bucket, issue.round)
        if step == 0:  # how often more of them follow depends on what they cost
            statistics = session.next()
            assert statistics.bucket < 0
            assert statistics.step == 1


def train_while_it_changes(rank, ranks, kind):
    model = wrap(mlp())
    link = _core.LinkSchedule.from_text(CHANGING)
    if kind == "tidegate":
        fixed = {"method": "topk", "ratio": 0.05}
        handle = _attach(model, sgd(model), policy="fixed", fixed=fixed, timeout=20, link=link)
        assert handle.stats()["emulated"] == link.describe()
    else:
        handle = baselines.AllReduceHook(model, kind, link=link, timeout=20)
    watched = handle._engine.link = Watched(handle._engine.link)
    train(model, sgd(model), batches(rank, 4))
    getattr(handle, "detach", getattr(handle, "close", None))()
    return watched.steps, watched.delays


@pytest.mark.parametrize("kind", ["fp32", "bf16", "tidegate"])
def test_hooks_tell_the_link_which_step_a_collective_belongs_to(kind):
    outcomes = results(train_while_it_changes, 2, kind)
    assert outcomes[0][0] == outcomes[1][0]
    for steps, delays in outcomes:
        assert steps == sorted(steps)
        assert {0, 1, 2, 3} <= set(steps)
        for step, delay in zip(steps, delays, strict=True):
            assert delay >= 0.05 if step >= CHANGE else delay < 0.001
