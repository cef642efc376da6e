# SPDX-License-Identifier: Apache-2.0
"""A job: one command per rank, run until all have ended or one has failed.

Signals are blocked and waited for, never handled in the middle of something else, so nothing that
is half built or half removed is left behind.
"""

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
WAITED_FOR = {*STOPPING, signal.SIGCHLD}
PATIENCE = 5.0  # seconds to end by oneself when asked to
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
# What `mpirun --tag-output` puts before a line.
MPI_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr|stddiag)>:")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """In a new process, before it becomes a command: it ends when netlab does, even when killed."""
    _libc.prctl(PR_SET_PDEATHSIG, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED_FOR)


@dataclass
class Member:
    """One process of a job."""

    command: list[str]
    environment: dict[str, str]
    label: str  # "rank 2"; "" for mpirun, whose lines tell their rank
    # A launcher is asked to end, so that it ends what it started; others have no choice.
    launcher: bool = False


class Job:
    def __init__(self, members: list[Member], quiet: bool, report: Callable[[str], None]):
        self._members = members
        self._quiet = quiet
        self._report = report
        self._processes: list[subprocess.Popen] = []
        self._pumps: list[threading.Thread] = []
        self._writing = threading.Lock()

    def run(self, relay: subprocess.Popen | None) -> int:
        """The exit code of the job: that of the first that failed, or 128 + the signal."""
        for member in self._members:
            self._start(member)
        while running := self._running():
            if failed := self._failed():
                self._end(signal.SIGTERM)
                return failed
            if relay and relay.poll() is not None:
                self._report("error: the relay has died, and the network with it; ending the job")
                self._end(signal.SIGTERM)
                return 2
            number = signal.sigwait(WAITED_FOR)
            if number in STOPPING:
                name = signal.Signals(number).name
                self._report(f"{name}: ending {len(running)} processes")
                self._end(number)
                return 128 + number
        return self._failed()

    def finish_output(self) -> None:
        """When nothing runs any more: shows what was still on its way."""
        for pump in self._pumps:
            pump.join(timeout=2)

    def _start(self, member: Member) -> None:
        last_wish = signal.SIGTERM if member.launcher else signal.SIGKILL
        process = subprocess.Popen(
            member.command,
            env=member.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(last_wish),
        )
        first = not self._processes
        self._processes.append(process)
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            shown = target == 2 or first or not self._quiet
            plain = target == 1 and self._quiet
            prefix = b"" if plain or not member.label else f"[{member.label}] ".encode()
            arguments = (stream, target if shown else None, prefix)
            pump = threading.Thread(target=self._pump, args=arguments, daemon=True)
            pump.start()
            self._pumps.append(pump)

    def _pump(self, stream, target: int | None, prefix: bytes) -> None:
        for line in stream:
            if target is None:
                continue
            line = prefix + MPI_TAG.sub(rb"[rank \1] ", line, count=1)
            try:
                with self._writing:
                    write_all(target, line if line.endswith(b"\n") else line + b"\n")
            except BrokenPipeError:
                # Nobody reads on: a reason to stop, but the job must not block meanwhile.
                target = None
                os.kill(os.getpid(), signal.SIGTERM)

    def _running(self) -> list[subprocess.Popen]:
        return [process for process in self._processes if process.poll() is None]

    def _failed(self) -> int:
        """The exit code of one that failed, 0 if none has."""
        for member, process in zip(self._members, self._processes, strict=True):
            code = process.returncode
            if not code:
                continue
            how = f"failed with exit code {code}"
            if code < 0:
                how = f"was killed by {signal.Signals(-code).name}"
            self._report(f"{member.label or 'mpirun'} {how}")
            return code if code > 0 else 128 - code
        return 0

    def _end(self, number: int) -> None:
        began = time.monotonic()
        self._signal(number)
        while self._running() and (left := began + PATIENCE - time.monotonic()) > 0:
            again = signal.sigtimedwait(WAITED_FOR, left)
            # Who asks twice does not want to wait; but sudo may pass one Ctrl-C on a second time.
            if again and again.si_signo in STOPPING and time.monotonic() > began + 0.5:
                break
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _signal(self, number: int) -> None:
        for process in self._running():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def write_all(target: int, text: bytes) -> None:
    while text:
        text = text[os.write(target, text) :]
