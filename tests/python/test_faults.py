# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, stops or raises: the others fail within the time-out, say what they know, and
exit. Nobody hangs."""

import os
import re
import signal
import time

import pytest
from ranks import run_ranks
from training import attach, batches, mlp, sgd, train, wrap

TIMEOUT = 4.0
VICTIM = 2
LAST_STEP = 3


def die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        # Wakes itself up long after the others have given up, so that nothing is left behind.
        if os.fork() == 0:
            time.sleep(TIMEOUT + 3)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    raise ValueError("a bug in the user's script")


def train_until_one_fails(rank, ranks, method, how):
    model = wrap(mlp())
    attach(model, method=method, timeout=TIMEOUT)
    optimizer = sgd(model)
    for step, data in enumerate(batches(rank, 100)):
        if rank == VICTIM and step == LAST_STEP:
            die(how)
        train(model, optimizer, [data])
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ("kill", "dense"),
        ("kill", "topk"),
        ("kill", "artopk-star"),
        ("raise", "topk"),
        ("stop", "dense"),
        ("stop", "topk"),
    ],
)
def test_a_failing_rank_is_reported_by_the_others(how, method):
    outcomes = run_ranks(train_until_one_fails, 3, method, how, limit=45)
    for rank, outcome in enumerate(outcomes):
        if rank == VICTIM:
            continue
        assert outcome.kind in ("peer", "timeout"), outcome
        assert outcome.exit_code == 3, outcome
        assert outcome.seconds < TIMEOUT + 20  # start-up and exit included, on a busy machine
        assert re.search(
            rf"rank {rank} of 3 gave up in step {LAST_STEP}, bucket \d, round 1, "
            r"(all-reduce|all-gather|broadcast) of \d+ bytes.*, after \d",
            outcome.text,
        ), outcome.text
        behind = re.search(r"Behind, as last seen: (.*?)\.", outcome.text)
        assert behind, outcome.text
        assert f"rank {VICTIM} (step" in behind[1]
        assert f"rank {1 - rank} (step" not in behind[1], "a healthy rank is no laggard"
    if how != "stop":
        assert outcomes[VICTIM].exit_code == {"kill": -9, "raise": 4}[how]


def goes_on_after_an_error(rank, ranks):
    """A user who catches the error sees it again, and never a hang or a broken DDP."""
    model = wrap(mlp())
    handle = attach(model, timeout=TIMEOUT)
    optimizer = sgd(model)
    train(model, optimizer, batches(rank, 2))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    kinds = []
    for data in batches(rank, 2):
        try:
            train(model, optimizer, [data])
        except RuntimeError as error:
            kinds.append(getattr(error, "kind", repr(error)))
    handle.detach()
    return kinds


def test_an_error_stays():
    outcome = run_ranks(goes_on_after_an_error, 2, limit=40)[0]
    assert outcome.result in (["peer", "peer"], ["timeout", "timeout"]), outcome


def ends_without_a_word(rank, ranks):
    """Neither detach nor destroy_process_group: leaving is enough."""
    model = wrap(mlp())
    attach(model)
    train(model, sgd(model), batches(rank, 3))
    raise SystemExit(0)


def test_exit_without_detach_is_clean():
    for outcome in run_ranks(ends_without_a_word, 3):
        assert outcome.exit_code == 0, outcome
        assert outcome.seconds < 20


def corrupted(rank, ranks):
    model = wrap(mlp())
    handle = attach(model, timeout=TIMEOUT)
    start = handle._engine.start

    def damage(issue):
        if rank == 1 and handle._session.step == 2:
            import ctypes

            ctypes.c_uint8.from_address(issue.address + 70).value ^= 0xFF
        return start(issue)

    handle._engine.start = damage
    train(model, sgd(model), batches(rank, 6))


def test_a_damaged_message_is_found_on_every_rank():
    for outcome in run_ranks(corrupted, 2, limit=40):
        assert outcome.kind == "wire", outcome
        assert "message from rank 1 (step 2" in outcome.text
        assert "checksum" in outcome.text
