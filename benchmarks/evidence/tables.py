# SPDX-License-Identifier: Apache-2.0
"""Writes docs/evidence/*.md, the plots, and the README's tables from stored results; or looks
whether they still are what the results say."""

import re
import sys
from pathlib import Path

from . import plots
from .cell import modules
from .report import Report
from .store import FOLDER, ROOT, Store, write_whole

README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- evidence: ([\w-]+) -->\n).*?(<!-- /evidence -->)", re.DOTALL)


def gather(store: Store) -> Report:
    whole = Report()
    for module in modules():
        if not hasattr(module, "report"):
            continue
        part = module.report(store)
        for mine, theirs in (
            (whole.pages, part.pages),
            (whole.plots, part.plots),
            (whole.tables, part.tables),
        ):
            if mine.keys() & theirs.keys():
                raise ValueError(f"two of the name {', '.join(mine.keys() & theirs.keys())}")
            mine.update(theirs)
    return whole


def write(
    store: Store, report: Report | None = None, folder: Path = FOLDER, readme: Path = README
) -> None:
    report = report or gather(store)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in report.pages.items():
        write_if_new(folder / f"{name}.md", text)
    for name, plot in report.plots.items():
        path = folder / f"{name}.svg"
        if not (path.exists() and plots.digest_in(path.read_text()) == plots.digest(plot)):
            write_whole(path, plots.render(plot))
    write_if_new(readme, filled(readme.read_text(), report.tables))


def check(
    store: Store, report: Report | None = None, folder: Path = FOLDER, readme: Path = README
) -> int:
    """0 if everything is as `write` would leave it; else says what is not."""
    report = report or gather(store)
    problems = []
    for name, text in report.pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            problems.append(f"{path.name} is not what the results say")
    for name, plot in report.plots.items():
        path = folder / f"{name}.svg"
        if not path.exists() or plots.digest_in(path.read_text()) != plots.digest(plot):
            problems.append(f"{path.name} was drawn from other results")
    text = readme.read_text()
    try:
        if filled(text, report.tables) != text:
            problems.append(f"tables of {readme.name} are not what the results say")
    except KeyError as error:
        problems.append(f"{readme.name}: {error.args[0]}")
    for name in unmarked(text, report.tables):
        problems.append(f"{readme.name} has no marks <!-- evidence: {name} --> for a table")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("`.venv/bin/python -m benchmarks.evidence --tables` writes them", file=sys.stderr)
    return 1 if problems else 0


def unmarked(text: str, tables: dict[str, str]) -> list[str]:
    """Tables that nobody would see."""
    marked = {name for _, name, _ in MARKED.findall(text)}
    return [name for name in tables if name not in marked]


def filled(text: str, tables: dict[str, str]) -> str:
    def replace(match: re.Match) -> str:
        name = match.group(2)
        if name not in tables:
            known = ", ".join(sorted(tables)) or "none"
            raise KeyError(f'no table is called "{name}"; known: {known}')
        return match.group(1) + tables[name].rstrip("\n") + "\n" + match.group(3)

    if text.count("<!-- evidence:") != len(MARKED.findall(text)):
        raise KeyError("a mark <!-- evidence: NAME --> is not closed by <!-- /evidence -->")
    return MARKED.sub(replace, text)


def write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_whole(path, text)
