# SPDX-License-Identifier: Apache-2.0
"""What one sees of a run: a bar in a terminal, else a line for every cell."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .cell import Cell, estimate


class Plain:
    """Lines, for logs. Time left is estimated from what cells say, corrected by how long those
    that are done really took."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stderr

    def begin(self, cells: Sequence[Cell], processes: int) -> None:
        self._waiting = {cell.name: cell for cell in cells}
        self._count, self._processes = len(cells), processes
        self._said = self._took = 0.0

    def start(self, cell: Cell) -> None:
        pass

    def end(self, cell: Cell, seconds: float, problem: str | None) -> None:
        del self._waiting[cell.name]
        self._said += cell.seconds
        self._took += seconds
        number = self._count - len(self._waiting)
        state = f"FAILED: {last_line(problem)}" if problem else f"{seconds:.0f} s"
        self.say(f"[{number}/{self._count}] {cell.name}: {state}; {duration(self.left())} left")

    def left(self) -> float:
        factor = self._took / self._said if self._said else 1.0
        return factor * estimate(list(self._waiting.values()), self._processes)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def tick(self) -> None:
        pass

    def finish(self) -> None:
        pass


class Bar(Plain):
    """A bar below the lines, with what is running now."""

    def begin(self, cells: Sequence[Cell], processes: int) -> None:
        super().begin(cells, processes)
        self._running: dict[str, float] = {}
        self._bar = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.description}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=len(cells))

    def start(self, cell: Cell) -> None:
        self._running[cell.name] = time.monotonic()
        self.tick()

    def end(self, cell: Cell, seconds: float, problem: str | None) -> None:
        self._running.pop(cell.name, None)
        super().end(cell, seconds, problem)
        self._bar.advance(self._task)

    def tick(self) -> None:
        now = time.monotonic()
        running = ", ".join(f"{name} {now - t:.0f} s" for name, t in self._running.items())
        text = f"{duration(self.left())} left: {running}"
        self._bar.update(self._task, description=text)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False)

    def finish(self) -> None:
        self._bar.stop()


def make() -> Plain:
    return Bar() if sys.stderr.isatty() else Plain()


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no message"
