#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the fenced code blocks of a Markdown file into one file each, so tests can run them."""

import argparse
import re
from pathlib import Path

SUFFIX = {"cpp": ".cpp", "python": ".py"}


def blocks(markdown: str, language: str) -> dict[int, str]:
    """The text of each block in that language, keyed by the line of the file it begins at."""
    fence = re.compile(rf"^```{language}[^\n`]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
    return {
        markdown.count("\n", 0, match.start(1)) + 1: match[1] for match in fence.finditer(markdown)
    }


def write(found: dict[int, str], suffix: str, output: Path) -> None:
    # The empty lines before it make error messages give the line of the Markdown file.
    files = {
        output / f"line_{line}{suffix}": "\n" * (line - 1) + text for line, text in found.items()
    }
    output.mkdir(parents=True, exist_ok=True)
    for stale in set(output.glob(f"line_*{suffix}")) - files.keys():
        stale.unlink()
    for path, text in files.items():
        # An unchanged file keeps its time, and is not compiled again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("markdown", nargs="?", type=Path, default=Path("README.md"))
    parser.add_argument("--language", choices=SUFFIX, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    found = blocks(arguments.markdown.read_text(), arguments.language)
    write(found, SUFFIX[arguments.language], arguments.output)


if __name__ == "__main__":
    main()
