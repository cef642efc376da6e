# SPDX-License-Identifier: Apache-2.0
"""The short forms of `make faults` and `make soak`."""

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=TOOLS, capture_output=True, text=True, timeout=280
    )


def test_a_fault_that_takes_no_time_out_ends_as_it_must():
    done = run("faults.py", "--only", "caught")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 faults ended as they must" in done.stdout
    assert "ended with equal bits" in done.stdout


def test_unknown_faults_are_an_error():
    done = run("faults.py", "--only", "flood")
    assert done.returncode == 2
    assert "unknown: flood; see --list" in done.stderr


def test_a_short_soak_finds_nothing():
    done = run("soak.py", "--lockstep", "510", "--processes", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 lost steps" in done.stdout
    assert "ranks equal; exit codes [0, 0]" in done.stdout
