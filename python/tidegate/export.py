# SPDX-License-Identifier: Apache-2.0
"""`tidegate export`: what a trace holds, in forms that other tools read."""

import csv
import json
import math
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from . import _core
from . import report_figures as figures
from .cli import check_writable, shows, write_json
from .errors import Error
from .perfetto import timeline

Keep = Callable[[int], bool]  # whether a step is wanted


def run(arguments: Namespace) -> int:
    writers = {
        "csv": write_csv,
        "perfetto": write_perfetto,
        "tensorboard": write_tensorboard,
        "wandb": write_wandb,
    }
    chosen = {name: getattr(arguments, name) for name in writers if getattr(arguments, name)}
    if not chosen:
        raise Error("config", "export to what? Give --csv, --perfetto, --tensorboard or --wandb")
    for name in ("csv", "perfetto"):
        if name in chosen:
            check_writable(f"--{name}", chosen[name])
    if arguments.json not in (None, "-"):
        check_writable("--json", arguments.json)
    trace = _core.read_trace(arguments.trace, moments="perfetto" in chosen)
    of_steps = figures.rows(trace)
    keep = chosen_steps(arguments.steps)
    written = []
    for name, target in chosen.items():
        count = writers[name](target, trace, of_steps, keep)
        written.append({"format": name, "target": target, "steps": count})
        if shows(arguments):
            print(f"--{name}: {count} steps written to {target}{in_brief(name, trace, keep)}")
    if arguments.json:
        write_json(arguments.json, {"v": 1, "kind": "export", "written": written})
    return 0


def in_brief(name: str, trace: dict, keep: Keep) -> str:
    """Who looks at a timeline would miss the buckets of these."""
    steps = sum(each["brief"] and keep(each["step"]) for each in trace["steps"])
    return f", {steps} of them in brief, without buckets" if name == "perfetto" and steps else ""


def chosen_steps(text: str | None) -> Keep:
    if text is None:
        return lambda step: True
    first, colon, last = text.partition(":")
    try:
        low, high = int(first or 0), int(last or 2**62)
    except ValueError:
        low, high, colon = 0, 0, ""
    if not colon or low > high:
        raise Error("config", f'--steps "{text}": write FIRST:LAST, such as 100:120 or :50')
    return lambda step: low <= step <= high


# --- rows of numbers ---


def scalars(trace: dict, of_steps: list[figures.Row]) -> list[dict]:
    """One row of numbers per step; None where the trace does not tell."""
    logged: dict[int, dict[str, float]] = {}
    for log in trace["logs"]:
        logged.setdefault(log["step"], {}).update(log["figures"])
    names = sorted({name for values in logged.values() for name in values})
    table = []
    for row, each in zip(of_steps, trace["steps"], strict=True):
        rate, latency = each["link"] or (None, None)
        table.append(
            {
                "step": row.step,
                "elapsed_seconds": row.elapsed,
                "step_ms": milliseconds(row.seconds),
                "compute_ms": milliseconds(row.compute),
                "exposed_ms": milliseconds(row.exposed),
                "compress_ms": milliseconds(each["compress_seconds"]),
                "wire_ms": milliseconds(each["wire_seconds"]),
                "decode_ms": milliseconds(each["decode_seconds"]),
                "modelled_fp32_ms": milliseconds(each["modelled_seconds"]["fp32"]),
                "modelled_16bit_ms": milliseconds(each["modelled_seconds"]["bf16"]),
                "bytes_sent": row.bytes_sent,
                "fp32_bytes": row.fp32_bytes,
                "ratio": each["ratio"],
                "backlog": each["backlog"],
                "critical": each["critical"],
                "network_mbit": None if rate is None else rate * 8 / 1e6,
                "network_latency_ms": milliseconds(latency),
                "learning_rate": each.get("learning_rate"),
                "finite": None if each["finite"] is None else int(each["finite"]),
                **{name: logged.get(row.step, {}).get(name) for name in names},
            }
        )
    return table


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def write_csv(path: str, trace: dict, of_steps: list, keep: Keep) -> int:
    table = [row for row in scalars(trace, of_steps) if keep(row["step"])]
    choices = {each["step"]: " | ".join(dict.fromkeys(each["choices"])) for each in trace["steps"]}
    with open(path, "w", newline="", encoding="utf-8") as file:
        columns = [*table[0], "choices"] if table else ["step"]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in table:
            writer.writerow({**row, "choices": choices[row["step"]]})
    return len(table)


def write_perfetto(path: str, trace: dict, of_steps: list, keep: Keep) -> int:
    events = timeline(trace, of_steps, keep)
    Path(path).write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8"
    )
    return sum(keep(row.step) for row in of_steps)


# --- dashboards ---


def finite_figures(row: dict) -> dict[str, float]:
    return {
        name: value
        for name, value in row.items()
        if name != "step" and value is not None and math.isfinite(value)
    }


def write_tensorboard(folder: str, trace: dict, of_steps: list, keep: Keep) -> int:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise Error(
            "config", "--tensorboard: the package is not installed; pip install tensorboard"
        ) from None
    table = [row for row in scalars(trace, of_steps) if keep(row["step"])]
    with SummaryWriter(folder) as writer:
        for row in table:
            for name, value in finite_figures(row).items():
                writer.add_scalar(f"tidegate/{name}", value, row["step"])
    return len(table)


def write_wandb(project: str, trace: dict, of_steps: list, keep: Keep) -> int:
    try:
        import wandb
    except ImportError:
        raise Error("config", "--wandb: the package is not installed; pip install wandb") from None
    start = trace["start"]
    config = {key: start[key] for key in ("label", "policy", "options", "ranks", "hosts")}
    table = [row for row in scalars(trace, of_steps) if keep(row["step"])]
    job = wandb.init(project=project, name=start["label"] or None, config=config)
    try:
        for row in table:
            figures_of_step = finite_figures(row)
            named = {f"tidegate/{name}": value for name, value in figures_of_step.items()}
            job.log(named, step=row["step"])
    finally:
        job.finish()
    return len(table)
