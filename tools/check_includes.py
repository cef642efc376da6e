#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes in tidegate/ go one way: a folder uses only folders to its left.

base < kernels, comm < wire, feedback, network < compressors < policies < session, sim
                comm < mpi
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ARROW = (
    ("base",),
    ("kernels", "comm"),
    ("wire", "feedback", "network"),
    ("compressors",),
    ("policies",),
    ("session", "sim"),
)
# A library of its own, which uses the arrow up to this folder and is used by no folder.
BESIDE = {"mpi": "comm"}
POSITION = {folder: position for position, step in enumerate(ARROW) for folder in step}
POSITION |= {library: POSITION[last] + 1 for library, last in BESIDE.items()}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# The library serves every release of these because it does not know them.
OUTSIDERS = re.compile(r"^(torch|ATen|c10|nanobind|pybind11)/|^Python\.h$")


def fault(folder: str, included: str) -> str | None:
    """What is wrong with this include in a file of that folder, and what to do; None if nothing."""
    if OUTSIDERS.match(included):
        return "the library knows neither torch nor Python; move this to python/bindings.cpp"
    if included.startswith("."):
        return 'write the path from the root: "tidegate/<folder>/<file>"'
    if not included.startswith("tidegate/"):
        return None
    other = included.split("/")[1]
    if other == folder:
        return None
    if other in BESIDE:
        return f"{other} is a library of its own that the others must not need; pass it in"
    if other not in POSITION:
        return f"{other} is no folder of the arrow in tools/check_includes.py"
    if POSITION[other] < POSITION[folder]:
        return None
    left = (f for f in POSITION if POSITION[f] < POSITION[folder] and f not in BESIDE)
    allowed = ", ".join([*left, folder])
    return f"{folder} may include only {allowed}; move the shared part to the left, or pass it in"


def faults(root: Path) -> Iterator[str]:
    for path in sorted((root / "tidegate").glob("*/**/*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        name = path.relative_to(root)
        folder = name.parts[1]
        if folder not in POSITION:
            yield f"{name}:1: folder {folder} has no place in the arrow; add it to {__file__}"
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            include = INCLUDE.match(line)
            text = include and fault(folder, include[1])
            if text:
                yield f"{name}:{number}: {line.strip()}: {text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    found = list(faults(parser.parse_args().root.resolve()))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
