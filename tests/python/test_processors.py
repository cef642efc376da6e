# SPDX-License-Identifier: Apache-2.0
"""How many processors a rank has for itself, and what follows from it."""

import os
import time

import pytest
import torch.distributed as dist
from ranks import results
from training import batches, mlp, sgd, train, wrap

import tidegate
from tidegate import engine
from tidegate.engine import processors_of

ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    "places, expected",
    [
        ([("a", ALL)], [4]),
        ([("a", ALL), ("a", ALL)], [2, 2]),
        ([("a", ALL), ("b", ALL)], [4, 4]),  # numbers of another machine's
        ([("a", [0, 1]), ("a", [2, 3])], [2, 2]),  # each bound to its own
        ([("a", [0]), ("a", ALL)], [0.5, 3.5]),
        ([("a", [0, 1])] * 4 + [("b", [0])], [0.5] * 4 + [1]),
    ],
)
def test_processors_are_shared_by_those_who_may_run_on_them(places, expected):
    assert [processors_of(places, rank) for rank in range(len(places))] == expected


def priorities_of_arrivals():
    found = []
    for thread in map(int, os.listdir("/proc/self/task")):
        with open(f"/proc/self/task/{thread}/comm") as file:
            if file.read().strip() == "gloo_tcp_loop":
                found.append(os.getpriority(os.PRIO_PROCESS, thread))
    return sorted(found)


def thread_of_an_engine(rank, ranks, bound_to):
    if bound_to:
        os.sched_setaffinity(0, {bound_to[rank]})
    before = priorities_of_arrivals()
    made = engine.Engine(dist.group.WORLD, 30)
    after = priorities_of_arrivals()
    made.close()
    return made.processors, before, after


def test_arrivals_go_last_where_processors_are_short():
    usable = sorted(os.sched_getaffinity(0))
    for processors, before, after in results(thread_of_an_engine, 2, [usable[0], usable[0]]):
        assert processors == 0.5
        assert set(before) == {0}
        assert after == [*before, engine.LOWEST_PRIORITY]  # the others are not ours


def thread_with_processors_to_spare(rank, ranks):
    engine.FEW_PROCESSORS = 0
    return thread_of_an_engine(rank, ranks, [])


def test_arrivals_go_with_all_others_where_there_are_enough():
    # Two ranks: a thread has its name when it has connected them.
    for _, before, after in results(thread_with_processors_to_spare, 2):
        assert after == [*before, 0]


def processor_time_of_a_job(rank, ranks, processor):
    os.sched_setaffinity(0, {processor})
    told = []

    def listen(question):
        if question.fresh and question.bucket == 0:
            told.append((question.training_seconds, question.exchanging_seconds))
        return "topk", 0.1

    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model), policy=listen, timeout=30)
    began = time.process_time()
    train(model, sgd(model), batches(rank, 60))
    handle.detach()
    return told, time.process_time() - began


def test_a_job_counts_processor_time_where_ranks_share_processors():
    processor = sorted(os.sched_getaffinity(0))[0]
    (told, mine), (told_there, theirs) = results(processor_time_of_a_job, 2, processor)
    assert told == told_there, "all ranks are told the same"
    known = [each for each in told if min(each[0]) > 0]
    assert known
    for rank, processed in ((0, mine), (1, theirs)):
        counted = [training[rank] + exchanging[rank] for training, exchanging in known]
        # Of a processor for each has one half, of which others may have taken some.
        assert 0 < sum(counted) < 2 * processed / 0.5
