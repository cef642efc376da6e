# SPDX-License-Identifier: Apache-2.0
"""tools/awake: loops of idle priority, one per processor, for as long as a command runs."""

import os
import signal
import subprocess
import time
from pathlib import Path

AWAKE = str(Path(__file__).parents[2] / "tools" / "awake")
POLICY = 41 - 3  # field of /proc/PID/stat, counted after the name


def children(parent: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def policy(process: int) -> int:
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return int(after_name[POLICY])


def wait_for(condition) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_loops_of_idle_priority_end_with_the_command_however_that_ends():
    command = subprocess.Popen([AWAKE, "sleep", "60"])
    try:
        processors = len(os.sched_getaffinity(0))
        assert wait_for(lambda: len(children(command.pid)) == processors)
        loops = children(command.pid)
        assert wait_for(lambda: all(policy(loop) == os.SCHED_IDLE for loop in loops))
        # Their class counts inside a session only; of several the kernel may be fair to each.
        assert all(os.getsid(loop) == loop for loop in loops)
        if Path("/proc/self/autogroup").exists():
            shares = [Path(f"/proc/{loop}/autogroup").read_text() for loop in loops]
            assert all(share.endswith("nice 19\n") for share in shares), shares
    finally:
        command.send_signal(signal.SIGKILL)
        command.wait()
    assert wait_for(lambda: not any(Path(f"/proc/{loop}").exists() for loop in loops))


def test_the_exit_code_is_that_of_the_command():
    assert subprocess.run([AWAKE, "sh", "-c", "exit 7"], check=False).returncode == 7


def test_a_command_that_does_not_exist_is_one_line():
    run = subprocess.run([AWAKE, "no-such-command"], check=False, capture_output=True, text=True)
    assert run.returncode == 127
    assert run.stderr == "awake: cannot start no-such-command: No such file or directory\n"


def test_without_a_command_it_says_what_it_does():
    run = subprocess.run([AWAKE], check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert "tools/awake COMMAND" in run.stdout
