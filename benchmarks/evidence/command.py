# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.evidence`."""

import argparse
import fnmatch
import signal
import sys

from . import progress, tables
from .cell import Cell, all_cells, estimate, in_order
from .runner import run_cells
from .store import Store

# Imported once, before the processes of the cells are forked off.
PRELOAD = ("torch", "tidegate", "tidegate.tasks")


def main(
    argv: list[str] | None = None,
    cells: list[Cell] | None = None,
    store: Store | None = None,
    preload: tuple[str, ...] = PRELOAD,
) -> int:
    arguments = parse(argv)
    store = store or Store()
    if arguments.check:
        return tables.check(store)
    if arguments.tables:
        tables.write(store)
        return 0
    cells = in_order(all_cells() if cells is None else cells)
    named = [cell for cell in cells if chosen(cell, arguments)]
    if not named:
        print("no cell has such a name; --list shows all", file=sys.stderr)
        return 2
    if arguments.list:
        show(named, store)
        return 0
    missing = [c for c in named if not store.has(c.name) or matches(c.name, arguments.again)]
    say_first(named, missing, arguments.processes)
    tally = run_cells(
        missing,
        store,
        processes=arguments.processes,
        budget=60 * arguments.budget,
        commits=arguments.commit,
        progress=progress.make(),
        preload=preload,
    )
    say_last(tally)
    if not arguments.no_tables:
        tables.write(store)
    if tally.interrupted:
        return 130
    return 1 if tally.failed else 0


def end_in_good_order_when_asked() -> None:
    """Also where it runs in the background, where a shell has interrupts ignored: cells must not
    leave processes and networks behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.evidence",
        description="Runs the cells that have no result yet, then writes tables and plots.",
        epilog="Patterns are like those of a shell: --only 'virtual/cnn/4/*'.",
    )
    parser.add_argument("--quick", action="store_true", help="a part of all, in ten minutes")
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="these cells (repeatable)"
    )
    parser.add_argument(
        "--again",
        metavar="PATTERN",
        action="append",
        default=[],
        help="these also if they have a result (repeatable)",
    )
    parser.add_argument("--list", action="store_true", help="names the cells and does nothing")
    parser.add_argument("--processes", type=positive, default=2, help="cells at a time (2)")
    parser.add_argument(
        "--budget",
        metavar="MINUTES",
        type=float,
        default=float("inf"),
        help="starts no cell after that",
    )
    parser.add_argument(
        "--commit", action="store_true", help="commits each result to git when it is there"
    )
    parser.add_argument("--tables", action="store_true", help="writes tables and plots only")
    parser.add_argument("--no-tables", action="store_true", help="writes results only")
    parser.add_argument(
        "--check",
        action="store_true",
        help="fails if pages, plots or the README's tables are not those of the results",
    )
    return parser.parse_args(argv)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def chosen(cell: Cell, arguments) -> bool:
    if arguments.quick and not cell.quick:
        return False
    patterns = [*arguments.only, *(() if arguments.only else arguments.again)]
    return not patterns or matches(cell.name, patterns)


def matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def show(cells: list[Cell], store: Store) -> None:
    for cell in cells:
        marks = [
            "done" if store.has(cell.name) else "    ",
            "quick" if cell.quick else "     ",
            "alone" if cell.exclusive else "     ",
        ]
        print(f"{' '.join(marks)} {cell.seconds:6.0f} s  {cell.name}")


def say_first(named: list[Cell], missing: list[Cell], processes: int) -> None:
    time = progress.duration(estimate(missing, processes))
    print(
        f"{len(missing)} of {len(named)} cells to run, about {time} "
        f"({processes} at a time where they can share the machine)",
        file=sys.stderr,
        flush=True,
    )


def say_last(tally) -> None:
    for name, problem in tally.failed.items():
        print(f"\n{name} FAILED:\n{problem}", file=sys.stderr)
    words = [f"{len(tally.done)} done", f"{len(tally.failed)} failed", f"{tally.left} left"]
    if tally.interrupted:
        words.append("interrupted; the same command goes on from here")
    print(", ".join(words), file=sys.stderr, flush=True)
