# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model as (name, elements, rows), from a number, a file or a factory. Rows are
the first dimension of what has two or more, and 0 of vectors."""

import csv
import importlib
import json
import math
import os
import sys
from pathlib import Path

from .errors import Error

Layer = tuple[str, int, int]
MATRIX_ROWS = 1024  # of the matrices that stand for an unknown model
MOST_PARAMETERS = 10**10
FIRST_ROWS = 512  # of its last one, which DDP's first bucket has room for


def from_count(parameters: int) -> list[Layer]:
    """So many parameters as square matrices of up to a million elements."""
    layers: list[Layer] = []
    left = parameters
    while left:
        most = MATRIX_ROWS if layers else FIRST_ROWS
        rows = min(most, math.isqrt(left))
        elements = rows * rows if rows == most else left - left % rows  # the last is not square
        layers.append((f"matrix {len(layers)}", elements, rows))
        left -= elements
        if rows < most and left:
            layers.append((f"vector {len(layers)}", left, 0))
            left = 0
    return layers[::-1]  # backward begins with the last


def from_file(path: str) -> list[Layer]:
    """A JSON list of [name, [dims]], or lines such as conv1.weight,64x3x7x7."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise Error(
            "config", f'--shapes "{path}": cannot be read ({why}); name a file of names and sizes'
        ) from None
    shapes = _from_json(path, text) if text.lstrip().startswith("[") else _from_csv(path, text)
    if not shapes:
        raise Error("config", f'--shapes "{path}": holds no parameters')
    layers = [_layer(name, dims) for name, dims in shapes]
    if sum(elements for _, elements, _ in layers) > MOST_PARAMETERS:
        raise Error(
            "config", f'--shapes "{path}": more than {MOST_PARAMETERS:g} parameters are too many'
        )
    return layers


def from_model(place: str) -> list[Layer]:
    """What module:function() returns: a torch module."""
    module_name, colon, function = place.partition(":")
    if not (module_name and colon and function):
        raise Error("config", f'--model "{place}": write module:function')
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise Error(
            "config", f'--model "{place}": {error}; write module:function, and look at PYTHONPATH'
        ) from None
    finally:
        sys.path.pop(0)
    model = factory()
    if not hasattr(model, "named_parameters"):
        raise Error(
            "config",
            f'--model "{place}": returned {type(model).__name__}; a torch.nn.Module is needed',
        )
    layers = [
        _layer(name, list(p.shape)) for name, p in model.named_parameters() if p.requires_grad
    ]
    if not layers:
        raise Error("config", f'--model "{place}": no parameter requires a gradient')
    return layers


def _layer(name: str, dims: list[int]) -> Layer:
    return name, math.prod(dims), dims[0] if len(dims) > 1 else 0


def _from_json(path: str, text: str) -> list[tuple[str, list[int]]]:
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise Error("config", f'--shapes "{path}": is no JSON: {error}') from None
    shapes = []
    for number, entry in enumerate(entries):
        match entry:
            case [str(name), list(dims)] if all(_is_dimension(d) for d in dims):
                shapes.append((name, dims))
            case _:
                raise Error(
                    "config",
                    f'--shapes "{path}": entry {number} is {json.dumps(entry)[:80]}; write '
                    '["conv1.weight", [64, 3, 7, 7]]',
                )
    return shapes


def _from_csv(path: str, text: str) -> list[tuple[str, list[int]]]:
    shapes = []
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row or row == ["name", "dims"]:
            continue
        dims = [int(d) for d in row[-1].strip().split("x") if d.isascii() and d.isdecimal()]
        if len(row) != 2 or not all(dims) or "x".join(map(str, dims)) != row[-1].strip():
            raise Error(
                "config",
                f'--shapes "{path}", line {number}: "{",".join(row)[:80]}" is not a name and its '
                "dimensions; write conv1.weight,64x3x7x7",
            )
        shapes.append((row[0], dims))
    return shapes


def _is_dimension(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
