# SPDX-License-Identifier: Apache-2.0
"""Runs a job (socket_job.py, overhead_job.py) in four processes, on a link made by tools/netlab or
on unshaped loopback, with a limit on how long that may take.

    .venv/bin/python -m benchmarks.evidence.socket_run LINK SETTINGS [TRACE]      one by hand
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tidegate import _core, explain

ROOT = Path(__file__).resolve().parents[2]
NETLAB = [*(["sudo", "-n"] if os.geteuid() else []), str(ROOT / "tools" / "netlab")]
AWAKE = str(ROOT / "tools" / "awake")  # so that a hypervisor does not take what ranks wait with
RANKS = 4
LOOPBACK = "loopback"
GRACE = 15.0  # seconds from the job's own limit to ours, and from asking to killing


class JobError(RuntimeError):
    """A job that failed, with what it wrote last."""


def run_job(
    link: str,
    job: str = "socket_job",
    seconds: float = 285.0,
    trace: Path | None = None,
    **settings,
) -> dict:
    """What rank 0 found out; see the job's Settings. With `warning` if netlab had one and, if there
    was a trace, what was chosen when."""
    with tempfile.TemporaryDirectory(prefix="evidence") as folder:
        out = Path(folder, "result.json")
        told = {**settings, "out": str(out), "folder": folder, "seconds": seconds}
        if trace is not None:
            told["trace"] = str(trace)
        errors = Path(folder, "errors.txt")
        name = f"evidence{os.getpid()}"
        with errors.open("wb") as sink:
            processes = _start(link, name, job, json.dumps(told), sink)
        try:
            _follow(processes, Path(folder), name, settings.get("changes", []), seconds + GRACE)
        finally:
            _end(processes)
        said = errors.read_text(encoding="utf-8", errors="replace")
        if not out.exists():
            raise JobError(f"{settings.get('way')} on {link}: {said[-2000:]}")
        result = json.loads(out.read_text(encoding="utf-8"))
    result["link"] = link
    result["warning"] = next(
        (line.split("WARNING: ")[1] for line in said.splitlines() if "WARNING: " in line), None
    )
    return result


def traced(link: str, **settings) -> dict:
    """run_job, with what its trace tells."""
    with tempfile.TemporaryDirectory(prefix="evidence") as folder:
        trace = Path(folder, "trace.jsonl")
        return {**run_job(link, trace=trace, **settings), **told_by(trace)}


def told_by(trace: Path) -> dict:
    """From which step on what was chosen, and why; what was sent; what the network was taken to be;
    and what the model of a step said it would take."""
    read = _core.read_trace(str(trace))
    steps = read["steps"]
    story = [each for each in explain.tell(read) if each["what"] == "decision"]
    modelled = [(each["modelled_seconds"] or {}).get("recorded") for each in steps]
    modelled = [value for value in modelled if value is not None]
    return {
        "choices": _changes((each["step"], _choice(each["choices"])) for each in steps),
        "reasons": [(each["step"], each["text"]) for each in story],
        "network": _changes((each["step"], each["network"]) for each in steps),
        "bytes": _changes((each["step"], each["bytes_sent"]) for each in steps),
        "modelled_ms": 1e3 * statistics.median(modelled) if modelled else None,
    }


def _choice(of_buckets: list[str]) -> str:
    """Of all buckets; most often they go the same way."""
    return "; ".join(dict.fromkeys(of_buckets))


def _changes(values: Iterable[tuple[int, object]]) -> list[tuple[int, object]]:
    """Only where the value is another than before."""
    changes: list[tuple[int, object]] = []
    for step, value in values:
        if not changes or changes[-1][1] != value:
            changes.append((step, value))
    return changes


def _start(link: str, name: str, job: str, told: str, sink) -> list[subprocess.Popen]:
    command = [sys.executable, "-m", f"{__package__}.{job}", told]
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": sink, "cwd": ROOT}
    if link != LOOPBACK:
        lab = [AWAKE, *NETLAB, "run", "--ranks", str(RANKS), "--link", link, "--name", name]
        return [subprocess.Popen([*lab, "--quiet", "--", *command], **how)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    commands = [[AWAKE, *command], *([command] * (RANKS - 1))]
    return [
        subprocess.Popen(each, env={**shared, "RANK": str(rank)}, **how)
        for rank, each in enumerate(commands)
    ]


def _follow(processes, folder: Path, name: str, changes: list, seconds: float) -> None:
    """Until all have ended or one has failed, or time is up; changes the link when it is asked."""
    waiting = {f"ask-{step}": (f"done-{step}", link) for step, link in changes}
    limit = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        if time.monotonic() > limit or any(process.returncode for process in processes):
            return
        for asked in [asked for asked in waiting if (folder / asked).exists()]:
            done, link = waiting.pop(asked)
            command = [*NETLAB, "set", "--name", name, "--link", link]
            subprocess.run(command, check=True, timeout=GRACE, capture_output=True)
            (folder / done).touch()
        time.sleep(0.02)


def _end(processes: list[subprocess.Popen]) -> None:
    """Those that still run; netlab removes its lab when it is asked to end."""
    running = [process for process in processes if process.poll() is None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            with suppress(ProcessLookupError):
                process.send_signal(number)
        limit = time.monotonic() + GRACE
        while any(process.poll() is None for process in running) and time.monotonic() < limit:
            time.sleep(0.05)


def main() -> None:
    link, told = sys.argv[1], json.loads(sys.argv[2])
    trace = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(run_job(link, trace=trace, **told)))


if __name__ == "__main__":
    main()
