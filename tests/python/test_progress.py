# SPDX-License-Identifier: Apache-2.0
"""Who lags behind is told from the store, and a store that does not answer holds nobody up."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from tidegate import progress as progress_module
from tidegate.progress import STORE_PATIENCE, Progress

SERVER = """
import time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(100)
"""


@pytest.fixture
def patient(monkeypatch):
    """For what is about answers, not about their time."""
    monkeypatch.setattr(progress_module, "STORE_PATIENCE", 30.0)


@pytest.fixture
def server():
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()


def progress_of(rank: int, port: int) -> Progress:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    return Progress(SimpleNamespace(get_group_store=lambda: store), "job", rank, 3)


def test_those_behind_and_those_that_gave_up_are_named(server, patient):
    first, second, third = (progress_of(rank, server[1]) for rank in range(3))
    second.note((4, 1, 1))
    third.note((5, 0, 1), "timeout in all-gather of 8 bytes")
    assert first.laggards((5, 0, 1)) == (
        "Behind, as last seen: rank 1 (step 4, bucket 1, round 1). "
        "Gave up: rank 2 (step 5, bucket 0, round 1): timeout in all-gather of 8 bytes."
    )
    assert first.behind((5, 0, 1))[0] == [1]
    second.note((5, 0, 1))
    third.note((5, 0, 1))
    assert "No rank is known to be behind" in first.laggards((5, 0, 1))


def hear(progress, position):
    """What there is to hear: a call asks, a later one has the answer."""
    for _ in range(2):  # the first may have the answer to an older question
        progress.hear(position)
        progress._asking.join()
    return progress.hear(position)


def test_the_first_failure_is_heard_by_the_others_and_not_by_its_own_rank(server, patient):
    first, second, third = (progress_of(rank, server[1]) for rank in range(3))
    assert hear(first, (5, 0, 1)) is None
    second.tell_failure((5, 0, 0), "numeric", "", "a bug in its policy")
    third.tell_failure((5, 0, 1), "peer", " in all-gather", "rank 1 has failed")
    for rank in (first, third):
        news = hear(rank, (5, 0, 1))
        assert news.text == "rank 1 has failed: a bug in its policy"
        assert news.is_cause
    assert hear(second, (5, 0, 1)) is None


def test_who_was_only_left_waiting_is_not_the_cause(server, patient):
    first, second = (progress_of(rank, server[1]) for rank in range(2))
    second.tell_failure((5, 0, 1), "peer", " in all-gather", "Connection closed by peer")
    assert not hear(first, (5, 0, 1)).is_cause


def test_who_left_is_named_rather_than_who_was_left_waiting(server, patient):
    first, second, third = (progress_of(rank, server[1]) for rank in range(3))
    second.tell_failure((5, 0, 1), "peer", " in all-gather", "Connection closed by peer")
    third.tell_leave(5)
    assert first.find_cause((5, 0, 1)).text.startswith("rank 2 has left after 5 steps")
    assert hear(first, (5, 0, 1)).is_cause


def test_a_rank_that_left_is_waited_for_only_in_steps_that_it_took(server, patient):
    first, second = (progress_of(rank, server[1]) for rank in range(2))
    second.tell_leave(5)
    assert hear(first, (4, 1, 2)) is None
    assert hear(first, (5, 0, 0)) is None  # the statistics of the step before
    assert "rank 1 has left after 5 steps" in hear(first, (5, 0, 1)).text


def test_who_waits_between_two_steps_is_told_to_those_who_went_on(server, patient):
    first, second = (progress_of(rank, server[1]) for rank in range(2))
    first.asides = None
    first.tell_aside(2, 5, "save")
    second.asides = 2
    assert hear(second, (4, 1, 1)) is None  # will come
    assert hear(second, (5, 0, 0)) is None  # the statistics of the step before
    news = hear(second, (5, 0, 1))
    assert news.is_cause
    assert news.text.startswith(
        "rank 0 waits in save before step 5 for all ranks, and rank 1 has gone on to step 5"
    )
    third = progress_of(2, server[1])
    third.tell_failure((5, 0, 1), "peer", " in all-gather", news.text)  # left waiting, too
    assert second.find_cause((5, 0, 1)).text == news.text
    second.asides = 3  # they have met since
    assert second.find_cause((5, 0, 1)) is None
    second.asides = None  # or are about to
    assert second.find_cause((5, 0, 1)) is None
    assert first.find_cause((5, 0, 1)) is None


def stop(process) -> None:
    """Waits until every thread has stopped: until then one of them may still answer."""
    process.send_signal(signal.SIGSTOP)
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        while (thread / "stat").read_text().rpartition(") ")[2][0] not in "Tt":
            time.sleep(0.01)


def test_a_stopped_store_holds_nobody_up(server, monkeypatch):
    process, port = server
    with monkeypatch.context() as patient:
        patient.setattr(progress_module, "STORE_PATIENCE", 30.0)
        progress, *_ = (progress_of(rank, port) for rank in range(3))
    stop(process)
    began = time.monotonic()
    assert "does not answer" in progress.laggards((1, 0, 0))
    for _ in range(100):
        assert progress.hear((2, 0, 0)) is None
    progress.note((2, 0, 0))
    # Far less than if every call had waited; a busy machine may take its time over the threads.
    assert time.monotonic() - began < 20 * STORE_PATIENCE
    process.send_signal(signal.SIGCONT)
    progress._asking.join(60)
    # And is asked again when it does.
    monkeypatch.setattr(progress_module, "STORE_PATIENCE", 30.0)
    assert "Behind, as last seen: rank 1" in progress.laggards((3, 0, 0))
