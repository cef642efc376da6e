# SPDX-License-Identifier: Apache-2.0
"""Arrivals: a thread that waits for collectives, so that another need not look after them."""

import queue
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tidegate.arrivals import Arrivals
from tidegate.engine import STEP_OF_WAIT, UNWATCHED, Operation

SOON = 5.0  # seconds; nothing here takes nearly as long


class Work:
    """torch's, of a collective that comes to its end when it is told to."""

    def __init__(self):
        self.over = threading.Event()
        self.error: RuntimeError | None = None

    def is_completed(self):
        return self.over.is_set()

    def wait(self, timeout: timedelta = timedelta(seconds=SOON)):
        if not self.over.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise self.error
        return True


def operation(work: Work) -> Operation:
    engine = SimpleNamespace(link=None, timeout=60.0)
    return Operation(engine, lambda: work, (), None, 0, -1, "a collective", 0)


@pytest.fixture
def told():
    return queue.SimpleQueue()


@pytest.fixture
def arrivals(told):
    made = Arrivals("arrivals", lambda: told.put(time.monotonic()))
    yield made
    made.close()
    assert not made._thread.is_alive()


def test_it_tells_once_for_every_collective(arrivals, told):
    works = [Work(), Work()]
    watched = [operation(work) for work in works]
    for each in watched:
        arrivals.watch(each)
        assert each.until_next_look() == STEP_OF_WAIT
    assert told.empty()
    works[0].over.set()
    told.get(timeout=SOON)
    assert watched[0].until_next_look() == 0.0
    assert watched[1].until_next_look() == STEP_OF_WAIT
    works[1].over.set()
    told.get(timeout=SOON)
    assert told.empty()


def test_what_is_performed_out_of_order_is_told_of_all_the_same(arrivals, told):
    works = [Work(), Work()]
    for work in works:
        arrivals.watch(operation(work))
    works[1].over.set()
    time.sleep(0.05)
    assert told.empty()
    works[0].over.set()
    for _ in works:
        told.get(timeout=SOON)


def test_a_collective_that_failed_has_arrived_too(arrivals, told):
    work = Work()
    work.error = RuntimeError("Connection closed by peer")
    watched = operation(work)
    arrivals.watch(watched)
    work.over.set()
    told.get(timeout=SOON)
    with pytest.raises(Exception, match="closed by peer"):
        watched.done(0.0)


def test_an_arrival_that_was_told_of_is_prompt(arrivals, told):
    work = Work()
    watched = operation(work)
    watched.began -= 1.0  # it has been under way for long, and nobody has looked after it
    arrivals.watch(watched)
    work.over.set()
    told.get(timeout=SOON)
    assert watched.done(0.0)
    assert watched.prompt


def test_it_ends_while_a_collective_is_still_under_way(told):
    arrivals = Arrivals("arrivals", lambda: told.put(None))
    arrivals.watch(operation(Work()))
    began = time.monotonic()
    arrivals.close()
    assert not arrivals._thread.is_alive()
    assert time.monotonic() - began < SOON


def test_what_nobody_watches_is_looked_after_often():
    assert operation(Work()).until_next_look() == UNWATCHED
