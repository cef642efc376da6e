# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, stops or raises: the others fail within the time-out, say what they know, and
exit. Nobody hangs."""

import atexit
import json
import os
import re
import signal
import threading
import time
import warnings

import pytest
import torch.distributed as dist
from ranks import results, run_ranks
from training import attach, batches, mlp, sgd, train, wrap

import tidegate

TIMEOUT = 4.0
LONG = 30.0  # for faults that are to be found long before it
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
    atexit._run_exitfuncs()  # as at the end of a script; children of multiprocessing skip it
    raise ValueError("a bug in the user's script")


class Stalls:
    """For how long the machine has not let this process run: what naps took too long, in all."""

    NAP = 0.02  # seconds

    def __init__(self):
        self.seconds = 0.0
        threading.Thread(target=self._nap, daemon=True).start()

    def _nap(self):
        while True:
            began = time.monotonic()
            time.sleep(self.NAP)
            self.seconds += time.monotonic() - began - self.NAP


def train_until_one_fails(rank, ranks, method, how):
    model = wrap(mlp())
    attach(model, method=method, timeout=TIMEOUT)
    optimizer = sgd(model)
    stalls = Stalls()
    for step, data in enumerate(batches(rank, 100)):
        if rank == VICTIM and step == LAST_STEP:
            die(how)
        began, stalled = time.monotonic(), stalls.seconds
        try:
            train(model, optimizer, [data])
        except tidegate.Error as error:
            late = time.monotonic() - began - TIMEOUT
            told = f"{late:.2f} s after the deadline, stalled {stalls.seconds - stalled:.2f} s"
            raise tidegate.Error(error.kind, f"{error} [{told}]") from error
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ("kill", "dense"),
        ("kill", "topk"),
        ("kill", "artopk-star"),
        ("raise", "topk"),
        ("stop", "dense"),
        pytest.param("stop", "topk", marks=pytest.mark.all),
    ],
)
def test_a_failing_rank_is_reported_by_the_others(how, method):
    outcomes = run_ranks(train_until_one_fails, 3, method, how, limit=90)
    for rank, outcome in enumerate(outcomes):
        if rank == VICTIM:
            continue
        assert outcome.kind in ("peer", "timeout"), outcome
        assert outcome.exit_code == 3, outcome
        where = re.search(
            rf"rank {rank} of 3 gave up in step {LAST_STEP}, "
            r"(?:bucket \d|statistics round), round 1, "
            r"(all-reduce|all-gather|broadcast) of \d+ bytes.*, after ([\d.]+) s: ",
            outcome.text,
        )
        assert where, outcome.text
        late = re.search(r"\[([-\d.]+) s after the deadline, stalled ([\d.]+) s\]", outcome.text)
        assert float(late[1]) < 1 + float(late[2]), outcome.text
        if how == "raise":
            left = rf"rank {VICTIM} (has left after 3 steps|\(step 3, .*\): has left)"
            assert re.search(left, outcome.text), outcome.text
            continue
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
    outcome = run_ranks(goes_on_after_an_error, 2, limit=90)[0]
    assert outcome.result in (["peer", "peer"], ["timeout", "timeout"]), outcome


def a_bug_in_the_policy(question):
    if question.step == LAST_STEP and dist.get_rank() == 1:
        raise ValueError("a bug in my policy")
    return "topk", 0.1


def catches_its_error_and_lives_on(rank, ranks):
    """The rank with the error stays alive, so that no connection breaks."""
    model = wrap(mlp())
    tidegate.attach(model, sgd(model), policy=a_bug_in_the_policy, timeout=LONG)
    began = time.monotonic()
    try:
        train(model, sgd(model), batches(rank, 10))
    except tidegate.Error as error:
        seconds = time.monotonic() - began
        dist.barrier()  # nobody has left when the last one gives up
        return error.kind, str(error), seconds
    raise AssertionError("no error")


def test_a_rank_that_fails_and_lives_is_told_to_the_others_long_before_the_time_out():
    outcomes = results(catches_its_error_and_lives_on, 3)
    for rank, (kind, text, seconds) in enumerate(outcomes):
        assert "a bug in my policy" in text, text
        assert seconds < LONG / 3
        if rank != 1:
            assert kind == "peer"
            assert f"rank {rank} of 3 gave up in step {LAST_STEP}, bucket " in text
            assert "rank 1 has failed: " in text


def on_rank_0_only(rank, ranks, what, method, folder):
    """As people write it who think of rank 0 as the one that writes files."""
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = attach(model, optimizer, method=method, timeout=LONG)
    train(model, optimizer, batches(rank, LAST_STEP))
    began = time.monotonic()
    try:
        if rank == 0:
            {
                "save": lambda: tidegate.save(handle, folder),
                "load": lambda: tidegate.load(handle, folder, missing_ok=True),
                "mean_state_dict": handle.mean_state_dict,
                "flush": handle.flush,
            }[what]()
        train(model, optimizer, batches(rank, 3))
    except tidegate.Error as error:
        return error.kind, str(error), time.monotonic() - began
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("what", "method"),
    [("save", "topk"), ("save", "dense"), ("load", "int8"), ("mean_state_dict", "topk"),
     ("flush", "artopk-star")],
)  # fmt: skip
def test_what_all_ranks_must_call_and_one_alone_has_called_is_told_to_all(what, method, tmp_path):
    outcomes = results(on_rank_0_only, 3, what, method, str(tmp_path))
    for rank, (kind, text, seconds) in enumerate(outcomes):
        assert kind == "peer", text
        assert seconds < LONG / 3
        if rank == 0:  # it hears of the others, or sees them go
            assert f"waits in {what} " in text or f"({what})" in text, text
            continue
        assert f"rank {rank} of 3 gave up in step {LAST_STEP}, bucket 0, round 1" in text, text
        assert f"rank 0 waits in {what} before step {LAST_STEP} for all ranks" in text, text
        assert f"Every rank must call {what}" in text


def each_something_else(rank, ranks, folder):
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = attach(model, optimizer, timeout=LONG)
    train(model, optimizer, batches(rank, 2))
    calls = (
        lambda: tidegate.save(handle, folder),
        handle.flush,
        handle.mean_state_dict,
    )
    texts = []
    for first in range(3):
        with pytest.raises(tidegate.Error) as caught:
            calls[(first + rank) % 3]()
        assert caught.value.kind == "config"
        texts.append(str(caught.value))
    tidegate.save(handle, folder)  # and they may correct themselves
    train(model, optimizer, batches(rank, 2))
    return texts


def test_ranks_that_call_different_things_are_told_so(tmp_path):
    names = ["save", "flush", "mean_state_dict"]
    for rank, texts in enumerate(results(each_something_else, 3, str(tmp_path))):
        for first, text in enumerate(texts):
            other = 0 if rank else 1
            theirs, mine = names[(first + other) % 3], names[(first + rank) % 3]
            assert f"rank {other} is in [{theirs}] and rank {rank} in [{mine}]" in text


def leaves_early(rank, ranks):
    model = wrap(mlp())
    handle = attach(model, timeout=LONG)
    train(model, sgd(model), batches(rank, 2 if rank == 1 else 4))
    if rank == 1:
        handle.detach()
    dist.barrier()


def test_a_rank_that_leaves_early_is_named_at_once():
    outcomes = run_ranks(leaves_early, 3, limit=90)
    for rank in (0, 2):
        assert outcomes[rank].kind == "peer", outcomes[rank]
        # Whoever sees the connection close first asks who has left, but waits a moment only.
        told = ("rank 1 has left after 2 steps", "closed by peer")
        assert any(words in outcomes[rank].text for words in told), outcomes[rank].text


def sometimes_slow(rank, ranks, trace):
    model = wrap(mlp())
    handle = attach(model, timeout=LONG, trace=trace)
    optimizer = sgd(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, data in enumerate(batches(rank, 8)):
            if rank == 1 and step in (3, 5):  # one episode
                time.sleep(3.5)
            train(model, optimizer, [data])
    handle.detach()
    return [str(w.message) for w in caught if "tidegate" in str(w.message)]


def test_a_slow_rank_is_reported_once_and_waited_for(tmp_path):
    trace = tmp_path / "run.jsonl"
    warned = results(sometimes_slow, 3, str(trace))
    assert not warned[1], "who is slow need not be told"
    (text,) = warned[0]
    assert re.search(r"waiting since \d\d:\d\d:\d\d in step 3, bucket \d", text), text
    assert "Behind, as last seen: rank 1 (step" in text
    assert not warned[2], "one rank's warning is enough"
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    slow = [event for event in events if event.get("fault") == "slow"]
    assert len(slow) == 1
    assert slow[0]["text"] in text


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


class SilentStore:
    """Never answers, as one whose process has been stopped."""

    def __getattr__(self, name):
        return lambda *arguments: time.sleep(LONG)


def gives_up_without_a_store(rank, ranks):
    model = wrap(mlp())
    handle = attach(model)
    train(model, sgd(model), batches(rank, 2))
    handle._progress._store = SilentStore()
    began = time.monotonic()
    handle._fail(tidegate.Error("timeout", "no answer"))
    return time.monotonic() - began


def test_rank_0_does_not_linger_for_a_store_that_does_not_answer():
    (seconds,) = results(gives_up_without_a_store, 1)
    assert seconds < 1.0


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
