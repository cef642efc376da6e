# SPDX-License-Identifier: Apache-2.0
"""What jobs leave behind on this machine: processes, also dead ones that nobody has waited for, the
ports they listen on, and files in shared memory. Read off /proc."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "TIDEGATE_FAULTS"  # in the environment of whoever descends from this process
LISTENING = "0A"  # in /proc/net/tcp
SETTLE = 3.0  # seconds for the dying to be gone


@dataclass(frozen=True)
class Leftovers:
    processes: frozenset[tuple[int, str]] = frozenset()  # and what each is, in words
    ports: frozenset[int] = frozenset()
    files: frozenset[str] = frozenset()

    def __sub__(self, before: "Leftovers") -> "Leftovers":
        known = {pid for pid, _ in before.processes}
        return Leftovers(
            frozenset(each for each in self.processes if each[0] not in known),
            self.ports - before.ports,
            self.files - before.files,
        )

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.files)

    def __str__(self) -> str:
        parts = {
            "processes": [f"{pid} ({what})" for pid, what in sorted(self.processes)],
            "listening on": sorted(self.ports),
            "in /dev/shm": sorted(self.files),
        }
        return "; ".join(
            f"{what} {', '.join(map(str, found))}" for what, found in parts.items() if found
        )


def mark_descendants() -> None:
    """Call it before any process is started."""
    os.environ[MARK] = str(os.getpid())


def look() -> Leftovers:
    ours = list(_descendants())
    return Leftovers(
        frozenset((pid, f"{name}, state {state}") for pid, name, state in ours),
        frozenset(port for pid, _, _ in ours for port in _ports_of(pid)),
        frozenset(
            name for name in os.listdir("/dev/shm") if name.startswith(("tidegate", "torch_"))
        ),
    )


def since(before: Leftovers) -> Leftovers:
    """What has come since and does not go away."""
    end = time.monotonic() + SETTLE
    while (left := look() - before) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _descendants() -> Iterator[tuple[int, str, str]]:
    """Of all processes: those that carry our mark; and dead ones, whose environment is gone, if
    their parents do."""
    mark = f"{MARK}={os.getpid()}".encode()
    marked, dead = {os.getpid()}, []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(") ")
            state, parent = tail.split()[:2]
            found = int(folder.name), head.partition("(")[2], state
            if state in "ZX":
                dead.append((int(parent), found))
            elif mark in (folder / "environ").read_bytes().split(b"\0"):
                marked.add(found[0])
                yield found
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    yield from (found for parent, found in dead if parent in marked)


def _ports_of(pid: int) -> set[int]:
    """As its network namespace has them."""
    listening = {}
    try:
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING:
                    listening[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
        held = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    return {listening[name] for name in held if name in listening}
