#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the code in our Markdown files, so that tests can run all of it.

Code is fenced (```python) and names its language. Indented code is for no test to find, so it is
counted only to be refused (tests/python/test_snippets.py)."""

import argparse
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIX = {"cpp": ".cpp", "python": ".py"}

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`]*)$")
ITEM = re.compile(r"^ *([*+-]|\d+[.)]) +")


@dataclass(frozen=True)
class Block:
    """One piece of fenced code."""

    document: str  # path, from the root of the repository
    line: int  # of its first line of code
    section: str  # the heading it stands under
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    def placed_text(self) -> str:
        """After so many empty lines that error messages give the line of the Markdown file."""
        return "\n" * (self.line - 1) + self.text


def documents(root: Path = ROOT) -> list[Path]:
    """Everything that we publish as Markdown."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]


def blocks(document: Path, root: Path = ROOT) -> list[Block]:
    """All fenced code of a file, in order."""
    found, section, name = [], "", str(document.relative_to(root))
    lines = iter(enumerate(document.read_text().splitlines(), start=1))
    for number, line in lines:
        if line.startswith("#"):
            section = line.lstrip("# ").strip()
        if opening := FENCE.match(line):
            text = _until(opening, lines, f"{name}:{number}")
            found.append(Block(name, number + 1, section, opening["info"].strip(), text))
    return found


def _until(opening: re.Match, lines, place: str) -> str:
    """The lines up to the closing fence, as far to the left as the fence."""
    inside, indent = [], opening["indent"]
    for _, line in lines:
        if line.strip() == opening["ticks"]:
            return "".join(f"{line}\n" for line in inside)
        inside.append(line.removeprefix(indent))
    raise ValueError(f"{place}: this fence is never closed")


def prose(document: Path) -> list[tuple[int, str]]:
    """The lines, with their numbers, that are in no fence."""
    outside, ticks = [], None
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if ticks is None and fence:
            ticks = fence["ticks"]
        elif ticks is None:
            outside.append((number, line))
        elif line.strip() == ticks:
            ticks = None
    return outside


def indented_code(document: Path) -> list[int]:
    """The lines at which Markdown begins an indented block of code: four columns further to the
    right than the text around, after an empty line."""
    found, margin, before = [], 0, ""
    for number, line in prose(document):
        width = len(line) - len(line.lstrip())
        if line and not before:
            if width >= margin + 4:
                found.append(number)
            elif width < margin:
                margin = 0
        if item := ITEM.match(line):
            margin = item.end()
        before = line.strip()
    return found


def inline_code(document: Path) -> list[tuple[int, str]]:
    """What stands between `ticks` in a paragraph, with the line it begins at."""
    text = "\n".join(line for _, line in prose(document))
    numbers = [number for number, _ in prose(document)]
    return [
        (numbers[text.count("\n", 0, match.start())], " ".join(match[1].split()))
        for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text)
    ]


def commands(text: str) -> list[list[str]]:
    """The words of every command in a piece of shell: continued lines are joined, comments left
    out, and a line of several commands is taken apart."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.wordchars += "{}[]=,:@%+$!^"
        command: list[str] = []
        for word in reader:
            if set(word) <= set("&|;<>"):
                found.append(command)
                command = []
            else:
                command.append(word)
        found.append(command)
    return [command for command in found if command]


def write(found: list[Block], output: Path) -> None:
    """A file for each, such as docs-GUIDE-12.py."""
    files = {}
    for block in found:
        name = block.document.removesuffix(".md").replace("/", "-")
        path = output / f"{name}-{block.line}{SUFFIX[block.language]}"
        files[path] = block.placed_text()
    output.mkdir(parents=True, exist_ok=True)
    for stale in set(output.iterdir()) - files.keys():
        stale.unlink()
    for path, text in files.items():
        # An unchanged file keeps its time, and is not compiled again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--language", choices=SUFFIX, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--list", action="store_true", help="print which files they are from")
    arguments = parser.parse_args()
    found = [block for document in documents() for block in blocks(document)]
    write([block for block in found if block.language == arguments.language], arguments.output)
    if arguments.list:
        print(*documents(), sep=";", end="")  # a list of CMake's


if __name__ == "__main__":
    main()
