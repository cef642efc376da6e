# SPDX-License-Identifier: Apache-2.0
"""Results as files, docs/evidence/cells/NAME.json, with what is needed to judge and repeat them."""

import contextlib
import datetime
import fnmatch
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

from .cell import Cell

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "evidence"
COMMAND = ".venv/bin/python -m benchmarks.evidence"


class Store:
    def __init__(self, folder: Path = FOLDER / "cells"):
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def has(self, name: str) -> bool:
        return self.path(name).exists()

    def write(self, name: str, record: dict) -> Path:
        """Whole or not at all: a run that is stopped leaves no half of a file."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, as_text(record))
        return path

    def read(self, name: str) -> dict | None:
        path = self.path(name)
        return json.loads(path.read_text()) if path.exists() else None

    def result(self, name: str) -> dict | None:
        record = self.read(name)
        return record["result"] if record else None

    def names(self, pattern: str = "*") -> list[str]:
        found = (
            path.relative_to(self.folder).with_suffix("").as_posix()
            for path in self.folder.rglob("*.json")
        )
        return sorted(name for name in found if fnmatch.fnmatchcase(name, pattern))

    def records(self, pattern: str = "*") -> list[dict]:
        return [self.read(name) for name in self.names(pattern)]


def as_text(record: dict) -> str:
    """A list of numbers, or of pairs of them, takes one line."""
    text = json.dumps(record, indent=1, allow_nan=False)
    for pattern in (r"\[\s[^\[\]{}]*\]", r"\[\s(?:\s*\[[^\[\]{}]*\],?)+\s*\]"):
        text = re.sub(pattern, lambda found: json.dumps(json.loads(found[0])), text)
    return text + "\n"


def write_whole(path: Path, text: str) -> None:
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, 0o644)
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        raise


def measure(cell: Cell) -> dict:
    """Runs it; the record of its result."""
    began, before = time.monotonic(), cpu_times()
    result = cell.run()
    return {
        "cell": cell.name,
        "command": f"{COMMAND} --only {shlex.quote(cell.name)}",
        "seed": cell.seed,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {**machine(), "steal_percent": steal_percent(before, cpu_times())},
        "version": version(),
        "seconds": round(time.monotonic() - began, 2),
        "result": result,
    }


# --- the machine ---


def machine() -> dict:
    model = "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = " ".join(line.partition(":")[2].split())
                break
    return {"cpu": model, "cores": len(os.sched_getaffinity(0))}


def cpu_times() -> list[int]:
    """Ticks of all cores together: user, nice, system, idle, iowait, irq, softirq, steal."""
    with open("/proc/stat") as file:
        return [int(value) for value in file.readline().split()[1:9]]


def steal_percent(before: list[int], after: list[int]) -> float:
    """Of all CPU time, what the hypervisor gave to others."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return round(100 * spent[7] / max(1, sum(spent)), 2)


def version() -> str:
    """The commit of the sources; results that were committed since do not make it another one."""
    sources = [".", ":!docs/evidence", ":!README.md"]
    try:
        head = git("log", "-1", "--format=%h", "--", *sources)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *sources)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+changes" if changed else head


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(path: Path, name: str) -> None:
    git("add", "--", str(path))
    git("commit", "--quiet", "-m", f"evidence: {name}", "--", str(path))
