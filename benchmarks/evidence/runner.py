# SPDX-License-Identifier: Apache-2.0
"""Runs cells, each in a process of its own, and stores every result at once."""

import contextlib
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from .cell import Cell, in_order
from .progress import Plain
from .store import Store, commit, measure

GRACE = 20.0  # seconds in which a cell that was interrupted may clean up


@dataclass
class Tally:
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # name -> what happened
    left: int = 0  # never started
    interrupted: bool = False


@dataclass
class Running:
    cell: Cell
    process: multiprocessing.Process
    answer: Connection
    began: float


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    processes: int = 2,
    budget: float = math.inf,
    commits: bool = False,
    progress=None,
    preload: Sequence[str] = (),
) -> Tally:
    """`budget` in seconds: after that no cell is started any more. `preload` names modules that
    are imported once for all cells."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    waiting, running, tally = in_order(list(cells)), [], Tally()
    progress = progress or Plain()
    progress.begin(waiting, processes)
    stop_at = time.monotonic() + budget

    def finish(ready: Sequence[Running]) -> None:
        for each in ready:
            running.remove(each)
            problem = settle(each, store, commits)
            if problem:
                tally.failed[each.cell.name] = problem
            else:
                tally.done.append(each.cell.name)
            progress.end(each.cell, time.monotonic() - each.began, problem)

    try:
        while running or (waiting and time.monotonic() < stop_at):
            while waiting and may_start(waiting[0], running, processes):
                if time.monotonic() >= stop_at:
                    break
                cell = waiting.pop(0)
                progress.start(cell)
                running.append(start(cell, context))
            ready = wait([each.answer for each in running], timeout=1.0)
            finish([each for each in running if each.answer in ready])
            progress.tick()
    except KeyboardInterrupt:
        tally.interrupted = True
        end(running)
    finally:
        progress.finish()
    tally.left = len(waiting) + len(running)
    return tally


def may_start(cell: Cell, running: Sequence[Running], processes: int) -> bool:
    if cell.exclusive or any(each.cell.exclusive for each in running):
        return not running
    if cell.last and not all(each.cell.last for each in running):
        return False
    return len(running) < processes


def start(cell: Cell, context) -> Running:
    answer, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(cell, theirs), name=cell.name)
    process.start()
    theirs.close()
    return Running(cell, process, answer, time.monotonic())


def work(cell: Cell, answer: Connection) -> None:
    try:
        answer.send(measure(cell))
    except KeyboardInterrupt:
        answer.send("interrupted")
    except BaseException:
        answer.send(traceback.format_exc())


def settle(each: Running, store: Store, commits: bool) -> str | None:
    """Stores the result; or says what went wrong."""
    try:
        record = each.answer.recv()
    except EOFError:
        each.process.join()
        return f"its process died with exit code {each.process.exitcode}"
    each.process.join()
    if isinstance(record, str):
        return record
    try:
        path = store.write(each.cell.name, record)
        if commits:
            commit(path, each.cell.name)
    except Exception:
        return traceback.format_exc()
    return None


def end(running: Sequence[Running]) -> None:
    """As Ctrl-C would, so that cells can stop what they started; what does not listen is killed."""
    with contextlib.suppress(KeyboardInterrupt):
        for each in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.process.pid, signal.SIGINT)
        limit = time.monotonic() + GRACE
        for each in running:
            each.process.join(max(0.0, limit - time.monotonic()))
    for each in running:
        if each.process.is_alive():
            each.process.kill()
