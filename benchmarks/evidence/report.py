# SPDX-License-Identifier: Apache-2.0
"""What a module shows of its cells: pages, plots and tables of the README, from stored results.

    def report(store: Store) -> Report: ...

What has no result yet is shown as missing (`MISSING`), never left out and never made up.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .store import COMMAND

MISSING = "missing"


@dataclass(frozen=True)
class Plot:
    """`draw(figure)` on an empty matplotlib Figure. `data` is all it draws: what JSON can hold."""

    draw: Callable
    data: object
    size: tuple[float, float] = (9.0, 5.0)


@dataclass
class Report:
    """By name: pages become docs/evidence/NAME.md, plots NAME.svg beside them, and tables stand in
    README.md between <!-- evidence: NAME --> and <!-- /evidence -->."""

    pages: dict[str, str] = field(default_factory=dict)
    plots: dict[str, Plot] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown."""
    header = list(header)
    lines = [header, ["---"] * len(header), *map(list, rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def provenance(records: Iterable[dict | None], only: str) -> str:
    """Command, seeds, machine, dates and version of what a page shows."""
    found = [record for record in records if record]
    if not found:
        return f"No results yet. They are made by `{COMMAND} --only '{only}'`.\n"
    seeds = sorted({record["seed"] for record in found})
    machines = sorted({f"{r['machine']['cpu']}, {r['machine']['cores']} cores" for r in found})
    steals = [record["machine"]["steal_percent"] for record in found]
    dates = sorted(record["date"][:10] for record in found)
    hours = sum(record["seconds"] for record in found) / 3600
    return (
        f"Made by `{COMMAND} --only '{only}'`: {len(found)} cells of "
        f"{hours:.1f} hours in all, seeds {', '.join(map(str, seeds))}; "
        f"{span(dates)}; {versions_of(found)}; {'; '.join(machines)}, of whose time the "
        f"hypervisor kept {span([f'{s:.0f}' for s in sorted(steals)])} % while a cell ran. "
        "The raw results are in `cells/`.\n"
    )


def versions_of(records: list[dict]) -> str:
    """All are in the cells; on a page the first and the last will do."""
    in_turn = [r["version"] for r in sorted(records, key=lambda record: record["date"])]
    count = len(set(in_turn))
    words = f"version {span(in_turn)}"
    return words if count < 3 else f"{words} ({count} in all)"


def span(values: list[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
