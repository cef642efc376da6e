# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a rank at once: in the middle of a step, and while it waits in a save for a rank that
does not answer. No thread is left, and the exit code is that of Ctrl-C."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "interrupted_job.py"
PROMPT = 4.0  # seconds; without a look at who has gone, a rank takes twice its 5 s of patience
LIMIT = 60  # seconds for a process to end, its start and a busy machine included


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(what: str, folder) -> list[subprocess.Popen]:
    """Two ranks, both of which have taken a few steps."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, JOB, str(rank), port, folder, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n", rank.communicate()[1]
    except BaseException:
        end(ranks)
        raise
    return ranks


def end(ranks) -> None:
    for rank in ranks:
        rank.kill()
        rank.communicate()


def check_left(rank: subprocess.Popen) -> None:
    said, complaints = rank.communicate(timeout=LIMIT)
    assert rank.returncode == -signal.SIGINT, (rank.returncode, complaints)
    assert "KeyboardInterrupt" in complaints
    left = re.search(r"left after ([\d.]+) s with threads \[\]\n", said)
    assert left, (said, complaints)
    assert float(left[1]) < PROMPT, said


@pytest.mark.parametrize(  # wherever in a step that is
    "pause", [*(pytest.param(pause, marks=pytest.mark.all) for pause in (0.0, 0.1)), 0.31]
)
def test_ctrl_c_while_training_ends_all_ranks(pause, tmp_path):
    ranks = start("train", tmp_path)
    try:
        time.sleep(pause)
        for rank in ranks:  # as a terminal does
            rank.send_signal(signal.SIGINT)
        for rank in ranks:
            check_left(rank)
    finally:
        end(ranks)


def test_ctrl_c_while_saving_with_a_rank_that_has_stopped(tmp_path):
    ranks = start("save", tmp_path)
    try:
        ranks[1].send_signal(signal.SIGSTOP)
        ranks[0].stdin.write("save\n")
        ranks[0].stdin.flush()
        assert ranks[0].stdout.readline() == "saving\n"
        time.sleep(1)  # it waits for the other rank by now
        ranks[0].send_signal(signal.SIGINT)
        check_left(ranks[0])
    finally:
        end(ranks)
