#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation: gathers what is written and what is generated, and has mkdocs make
pages of it. `make docs` runs it.

Pages keep the places that they have in the repository, so that a link works in both: README.md,
docs/*.md. Where one leads to something else (an example, a folder of the library), a page is made
of that."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cpp_reference
import python_reference

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/evidence/*.md")
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".txt": "text", "": "text"}
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def gather(target: Path) -> None:
    """Everything that mkdocs reads."""
    shutil.rmtree(target, ignore_errors=True)
    for document in (path for pattern in WRITTEN for path in sorted(ROOT.glob(pattern))):
        place = target / document.relative_to(ROOT)
        put(place, linked(document, target))
    shutil.copytree(ROOT / "docs/images", target / "docs/images")
    for plot in (ROOT / "docs/evidence").glob("*.svg"):
        shutil.copy(plot, target / "docs/evidence")
    shutil.copy(Path(__file__).with_name("site.css"), target)
    reference = target / "docs/reference"
    put(reference / "python.md", python_reference.page())
    put(reference / "command-line.md", python_reference.command_line_page())
    for name, text in cpp_reference.pages(ROOT).items():
        put(reference / "cpp" / name, text)
    add_source(ROOT / "examples/quickstart.cpp", target)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def linked(document: Path, target: Path) -> str:
    """Its text. Links that leave what is written lead to pages that are made for them."""

    def replace(match: re.Match) -> str:
        before, link, anchor, after = match.groups(default="")
        leads_to = (document.parent / link).resolve()
        if "://" in link or link.endswith((".md", ".svg", ".png")) or not leads_to.exists():
            return match[0]  # mkdocs says what is wrong with it, if anything is
        if leads_to.is_dir():
            page = target / f"docs/reference/cpp/{leads_to.name}.md"
        else:
            page = add_source(leads_to, target)
        start = (target / document.relative_to(ROOT)).parent
        return f"{before}{os.path.relpath(page, start)}{anchor}{after}"

    return LINK.sub(replace, document.read_text())


def add_source(path: Path, target: Path) -> Path:
    """A page that shows a file of the repository."""
    name = path.relative_to(ROOT)
    page = target / f"{name}.md"
    put(page, f"# {name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text().rstrip()}\n```\n")
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gather", action="store_true", help="only gather, do not build")
    only_gather = parser.parse_args().gather
    gather(ROOT / "build/docs")
    if only_gather:
        return 0
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    # mkdocs-material tells of itself on standard error, and would be heard as a complaint.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if code == 0:
        print("build/site/index.html; with search: python3 -m http.server --directory build/site")
    return code


if __name__ == "__main__":
    sys.exit(main())
