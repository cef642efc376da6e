# SPDX-License-Identifier: Apache-2.0
"""The short forms of `make faults` and `make soak`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=TOOLS, capture_output=True, text=True, timeout=280
    )


@pytest.mark.all
def test_a_fault_that_takes_no_time_out_ends_as_it_must():
    done = run("faults.py", "--only", "caught")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 faults ended as they must" in done.stdout
    assert "ended with equal bits" in done.stdout


@pytest.mark.all  # it lasts as long as the time-out, and judges what comes a second later
def test_a_stopped_rank_is_reported_within_a_second_of_the_deadline():
    done = run("faults.py", "--only", "stop,stop 0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 faults ended as they must" in done.stdout


LISTENS = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    os._exit(0)  # and nobody waits for it
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_processes_dead_ones_and_ports_that_are_left_behind_are_found(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import faults_leftovers

    monkeypatch.setattr(faults_leftovers, "SETTLE", 0.5)
    monkeypatch.setenv(faults_leftovers.MARK, "")  # so that it is as it was afterwards
    faults_leftovers.mark_descendants()
    before = faults_leftovers.look()
    process = subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline())
        left = faults_leftovers.since(before)
        found = dict(left.processes)
        assert "state Z" not in found.pop(process.pid)
        assert [text.rpartition(", ")[2] for text in found.values()] == ["state Z"]
        assert left.ports == {port}
        assert f"listening on {port}" in str(left)
        os.kill(process.pid, 9)
        assert str(process.pid) in str(faults_leftovers.since(before)), "nobody has waited for it"
    finally:
        process.kill()
        process.communicate()
    assert not faults_leftovers.since(before)


def test_a_rank_that_ends_badly_is_found_by_a_soak(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import soak

    assert soak.bad_ends(["told", "told"], [0, 0]) == []
    assert soak.bad_ends(["told", None, "told"], [0, 0, -11]) == [
        "rank 1 ended with exit code 0 before its last step",
        "rank 2 ended with exit code -11",
    ]


def test_unknown_faults_are_an_error():
    done = run("faults.py", "--only", "flood")
    assert done.returncode == 2
    assert "unknown: flood; see --list" in done.stderr


@pytest.mark.all
def test_a_short_soak_finds_nothing():
    done = run("soak.py", "--lockstep", "510", "--processes", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 lost steps" in done.stdout
    assert "ranks equal; exit codes [0, 0]" in done.stdout
