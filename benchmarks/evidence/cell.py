# SPDX-License-Identifier: Apache-2.0
"""One measurement, and all of them."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from . import MODULES


@dataclass(frozen=True)
class Cell:
    """
    name       like a path: virtual/cnn/4/topk-0.01/seed0
    seconds    that it takes, roughly; for the estimate of time left
    run        returns a result that JSON can hold. It runs in a process of its own, so it must be a
               function that can be imported, or a functools.partial of one
    quick      part of --quick
    exclusive  needs the machine for itself; others run two at a time
    seed       of all cells that share the first part of their names, the first seed runs first
    last       looks at what others have found: starts when all of these have ended
    """

    name: str
    seconds: float
    run: Callable[[], dict]
    quick: bool
    exclusive: bool = False
    seed: int = 0
    last: bool = False


def modules() -> list[ModuleType]:
    """Those of the table that are there."""
    names = [f"{__package__}.{name}" for name in MODULES]
    return [importlib.import_module(name) for name in names if importlib.util.find_spec(name)]


def all_cells() -> list[Cell]:
    return check([cell for module in modules() for cell in module.cells()])


def check(cells: list[Cell]) -> list[Cell]:
    names = [cell.name for cell in cells]
    doubles = {name for name in names if names.count(name) > 1}
    if doubles:
        raise ValueError(f"cells of one name: {', '.join(sorted(doubles))}")
    return cells


def in_order(cells: list[Cell]) -> list[Cell]:
    """The first seed of everything first; of one seed, what needs the machine for itself last. What
    is to be last is."""
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(family(cell), set()).add(cell.seed)
    turns = {name: sorted(found) for name, found in seeds.items()}
    return sorted(
        cells,
        key=lambda cell: (cell.last, turns[family(cell)].index(cell.seed), cell.exclusive),
    )


def family(cell: Cell) -> str:
    return cell.name.partition("/")[0]


def estimate(cells: Sequence[Cell], processes: int) -> float:
    """Seconds, by what the cells say."""
    alone = sum(cell.seconds for cell in cells if cell.exclusive)
    shared = [cell.seconds for cell in cells if not cell.exclusive]
    return alone + max(sum(shared) / processes, max(shared, default=0.0))
