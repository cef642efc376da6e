# SPDX-License-Identifier: Apache-2.0
"""`tidegate bench`: kernels, messages and exchanges beside what they are held against."""

import ctypes
import os
import platform
from argparse import Namespace
from typing import Any

import numpy
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from . import __version__, _bench
from .cli import check_writable, write_json
from .errors import Error

QUICK_SECONDS, QUICK_LARGEST = 0.15, 1_000_000
LEAST_WIDTH = 150
LEAST_ELEMENTS = 10_000


def run(arguments: Namespace) -> int:
    if arguments.json and arguments.json != "-":
        check_writable("--json", arguments.json)
    seconds, largest = arguments.seconds, int(arguments.largest)
    if arguments.quick:
        seconds, largest = QUICK_SECONDS, QUICK_LARGEST
    if largest < LEAST_ELEMENTS:
        raise Error("config", f"--largest {largest}: at least {LEAST_ELEMENTS} elements are needed")
    console = Console(stderr=True, highlight=False)
    rows = []

    def on_row(row: dict) -> None:
        rows.append(row)
        if not arguments.quiet:
            console.print(one_line(row), markup=False)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread against one thread
    try:
        _bench.run(arguments.suite, seconds, largest, on_row, torch_does)
    finally:
        torch.set_num_threads(threads)
    if arguments.json:
        write_json(arguments.json, {"v": 1, "suite": arguments.suite, **machine(), "rows": rows})
    if arguments.json != "-":
        show(arguments.suite, rows)
    return 0


def torch_does(what: str, arrays: list[tuple[int, int]]) -> None:
    """Torch's way of doing the same, on the same memory."""
    if what == "top-k":
        gradient, residual = (tensor_at(*array) for array in arrays[:2])
        residual += gradient
        indices = residual.abs().topk(arrays[2][1], sorted=False).indices
        residual[indices].clone()
        residual[indices] = 0
    elif what == "int8":
        gradient, residual = (tensor_at(*array).view(-1, 256) for array in arrays)
        residual += gradient
        scale = residual.abs().amax(1, keepdim=True) / 127
        codes = (residual / scale).round().to(torch.int8)
        residual -= codes * scale
    elif what == "low rank":
        (_, rows), (_, columns) = arrays[2:]
        matrix = tensor_at(*arrays[0]).view(rows, columns)
        right = tensor_at(*arrays[1]).view(-1, columns)
        left, _ = torch.linalg.qr(matrix @ right.T)
        right.copy_((matrix.T @ left).T)
    elif what == "add":
        sums, values = tensor_at(*arrays[0]), tensor_at(*arrays[2])
        indices = tensor_at(*arrays[1], kind=ctypes.c_int32)
        sums.zero_().index_add_(0, indices, values, alpha=0.125)
    else:
        tensor_at(*arrays[0]).to({"fp16": torch.float16, "bf16": torch.bfloat16}[what])


def tensor_at(address: int, n: int, kind: Any = ctypes.c_float) -> torch.Tensor:
    return torch.from_numpy(numpy.ctypeslib.as_array((kind * n).from_address(address)))


def machine() -> dict:
    name = platform.processor() or "unknown"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
        name = names[0] if names else name
    except OSError:
        pass
    return {
        "tidegate": __version__,
        "torch": torch.__version__,
        "processor": name,
        "processors": os.cpu_count(),
    }


def figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def verdict(row: dict) -> str:
    return {True: "met", False: "short", None: ""}[row["met"]]


def one_line(row: dict) -> str:
    ratio = "" if row["ratio"] is None else f" at {100 * row['ratio']:g} %"
    goal = "" if row["goal"] is None else f" (goal {row['goal']:g}, {verdict(row)})"
    return f"{row['name']}, n = {row['n']:,}{ratio}: {figure(row['value'])} {row['unit']}{goal}"


def show(suite: str, rows: list[dict]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"tidegate bench {suite}")
    table.add_column("what", no_wrap=True)
    for heading in ("n", "share", "value"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("10-90 %", "p99 ms", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        spread = "" if row["low"] is None else f"{figure(row['low'])}-{figure(row['high'])}"
        table.add_row(
            row["name"],
            f"{row['n']:,}",
            "" if row["ratio"] is None else f"{100 * row['ratio']:g} %",
            figure(row["value"]),
            row["unit"],
            spread,
            "" if row["p99_milliseconds"] is None else figure(row["p99_milliseconds"]),
            "" if row["goal"] is None else figure(row["goal"], 4),
            verdict(row),
        )
    console = Console(markup=False, highlight=False)
    console.width = max(console.width, LEAST_WIDTH)  # a row that is cut says nothing
    console.print(table)
    goals = [row for row in rows if row["goal"] is not None]
    met = f"{sum(row['met'] for row in goals)} of {len(goals)} goals met. " if goals else ""
    console.print(
        f"{met}Ratios are medians of pairs that ran in turn in one process, on one thread unless "
        "said otherwise."
    )
