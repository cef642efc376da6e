# SPDX-License-Identifier: Apache-2.0
"""`tidegate simulate`: trains a task in virtual clusters, one per policy and seed, beside dense
fp32 and bf16, and compares. Learning and bytes are real, seconds are modelled.
"""

import contextlib
import math
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import _core, tasks
from .cli import check_writable, write_json
from .errors import Error
from .runs import (
    BASELINES,
    DEFAULT_POLICY,
    Run,
    check_range,
    choose_links,
    choose_runs,
    number,
    parse_seconds,
)
from .virtual_cluster import Outcome, VirtualCluster

MOST_RANKS, MOST_STEPS, MOST_SEEDS = 1024, 10**7, 1000
SHOW_EVERY = 0.2  # seconds
WIDE = 100  # columns; a narrower bar leaves out which choices are being made
TOLERANCE = 0.005  # of the figure; a run that ends further on the wrong side of fp32 has lost


@dataclass
class Plan:
    seeds: list[int]
    runs: list[Run]
    links: "_core.LinkSchedule"
    compute: float | None  # seconds; None = to be measured
    figure: str  # that counts; "" = the first one, or the training loss
    lower_is_better: bool


def run(arguments: Namespace) -> int:
    plan = check(arguments)
    compute = plan.compute
    console = Console(stderr=True, highlight=False)
    outcomes: dict[str, list[Outcome]] = {}
    with one_thread(), make_progress(console, arguments.quiet) as progress:
        for each in plan.runs:
            outcomes[each.name] = []
            for seed in plan.seeds:
                outcome = train(each, seed, plan.links, compute, arguments, progress)
                outcomes[each.name].append(outcome)
                # Measured once, so that runs differ by what they send and not by the measurement.
                compute = outcome.compute_seconds
    summary = summarise(arguments, plan, outcomes)
    if arguments.json:
        write_json(arguments.json, summary)
    if arguments.json != "-":
        show(summary)
    return 0


# --- what it was given ---


def check(arguments: Namespace) -> Plan:
    """All mistakes are found here, before the first step."""
    check_range("--ranks", arguments.ranks, 1, MOST_RANKS)
    check_range("--steps", arguments.steps, 1, MOST_STEPS)
    links = choose_links(arguments)
    seeds = choose_seeds(arguments)
    compute = None if arguments.compute is None else parse_seconds("--compute", arguments.compute)
    runs = choose_runs(
        arguments,
        lambda policy: _core.Session(
            0, arguments.ranks, policy.name, policy.options, own=policy.adapters(1)[0]
        ),
    )
    if arguments.json not in (None, "-"):
        check_writable("--json", arguments.json)
    if arguments.trace:
        check_writable("--trace", arguments.trace)
    if os.getcwd() not in sys.path:  # for module:function in the user's folder
        sys.path.insert(0, os.getcwd())
    task = tasks.find(arguments.task, seeds[0], arguments.steps)
    return Plan(seeds, runs, links, compute, task.figure, task.lower_is_better)


def choose_seeds(arguments: Namespace) -> list[int]:
    if arguments.seed and arguments.seeds is not None:
        raise Error("config", "--seed and --seeds: give one of them")
    if arguments.seeds is not None:
        check_range("--seeds", arguments.seeds, 1, MOST_SEEDS)
        return list(range(arguments.seeds))
    seeds = arguments.seed or [0]
    for seed in seeds:
        check_range("--seed", seed, 0, 2**31 - 1)
    if len(set(seeds)) < len(seeds):
        raise Error("config", "--seed: the same seed twice would count as two runs")
    return seeds


# --- training ---


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A worker computes in one thread, as torchrun has it, unless OMP_NUM_THREADS says more."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    each: Run,
    seed: int,
    links: _core.LinkSchedule,
    compute: float | None,
    arguments: Namespace,
    progress: Progress,
) -> Outcome:
    task = tasks.find(arguments.task, seed, arguments.steps)
    cluster = VirtualCluster(
        task,
        arguments.ranks,
        links,
        policy=each.policy,
        compute_seconds=compute,
        seed=seed,
        horizon=arguments.steps,
        trace=None if each.baseline else trace_path(arguments, each.name, seed),
    )
    bar = Bar(progress, f"{each.name}, seed {seed}", arguments.steps, cluster)
    outcome = cluster.run(arguments.steps, bar.advance)
    bar.stop()
    if task.figure and task.figure not in outcome.figures:
        known = ", ".join(outcome.figures) or "none"
        raise Error(
            "config", f'the task\'s figure "{task.figure}" is not evaluated; known: {known}'
        )
    return outcome


def trace_path(arguments: Namespace, name: str, seed: int) -> str | None:
    """The file that was named; with several policies or seeds, one for each."""
    if not arguments.trace:
        return None
    policies = arguments.policy or [DEFAULT_POLICY]
    seeds = arguments.seeds or len(arguments.seed or [0])
    if len(policies) == 1 and seeds == 1:
        return arguments.trace
    path = Path(arguments.trace)
    return str(path.with_name(f"{path.stem}.{policies.index(name) + 1}-seed{seed}{path.suffix}"))


# --- progress ---


def make_progress(console: Console, quiet: bool) -> Progress:
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.fields[figures]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    ]
    if console.width >= WIDE:
        columns.append(TextColumn("{task.fields[doing]}"))
    return Progress(*columns, console=console, disable=quiet)


class Bar:
    """What is seen of a run under way."""

    def __init__(self, progress: Progress, name: str, steps: int, cluster: VirtualCluster):
        self._progress, self._steps, self._cluster = progress, steps, cluster
        self._task = progress.add_task(name, total=steps, figures="", doing="")
        self._shown_at = -math.inf
        self._choices: dict[str, int] = {}  # made until then

    def advance(self, step: int, loss: float) -> None:
        self._progress.update(self._task, completed=step)
        now = time.monotonic()
        if now - self._shown_at > SHOW_EVERY or step == self._steps:
            self._shown_at = now
            figures, doing = self._figures(loss)
            self._progress.update(self._task, figures=figures, doing=doing)

    def stop(self) -> None:
        self._progress.stop_task(self._task)

    def _figures(self, loss: float) -> tuple[str, str]:
        counts = self._cluster.counts
        before, self._choices = self._choices, counts["choices"]
        made = [name for name, times in self._choices.items() if times > before.get(name, 0)]
        figures = [f"loss {loss:.3f}", f"{1e3 * self._cluster.last_step_seconds:.1f} ms modelled"]
        if counts["dense_bytes"]:
            saved = 1 - counts["bytes_sent"] / counts["dense_bytes"]
            figures.append(f"{100 * saved:.0f} % saved")
        return "  ".join(figures), "; ".join(made)


# --- the result ---


def summarise(arguments: Namespace, plan: Plan, outcomes: dict[str, list[Outcome]]) -> dict:
    first = outcomes[plan.runs[0].name][0]
    figure = plan.figure or next(iter(first.figures), "")
    rows = [row_of(each, outcomes[each.name], figure) for each in plan.runs]
    for row in rows:
        if not row["baseline"] and arguments.trace:
            row["traces"] = [trace_path(arguments, row["name"], seed) for seed in plan.seeds]
    by_name = {row["name"]: row for row in rows}
    for row in rows:
        for short, name in zip(("fp32", "bf16"), BASELINES, strict=True):
            rival = by_name.get(name)
            row[f"speedup_vs_{short}"] = speedup(rival, row) if rival else None
    return {
        "v": 1,
        "task": arguments.task,
        "ranks": arguments.ranks,
        "steps": arguments.steps,
        "seeds": plan.seeds,
        "modelled_link": plan.links.describe(),
        "compute_seconds": first.compute_seconds,
        "compute_measured": plan.compute is None,
        "figure": figure or "training loss",
        "lower_is_better": plan.lower_is_better or not figure,
        "runs": rows,
    }


def mean(modelled: Iterable[float | None]) -> float:
    """Of what there is wherever a link is described, as it is here."""
    return statistics.fmean(seconds for seconds in modelled if seconds is not None)


def row_of(each: Run, outcomes: list[Outcome], figure: str) -> dict:
    values = [o.figures[figure] if figure else o.loss for o in outcomes]
    return {
        "name": each.name,
        "baseline": each.baseline,
        "policy": each.policy.name,
        "options": each.policy.options,
        "figure": finite(statistics.fmean(values)),
        "spread": finite(statistics.stdev(values)) if len(values) > 1 else None,
        "figures": [{k: finite(v) for k, v in o.figures.items()} for o in outcomes],
        "loss": finite(statistics.fmean(o.loss for o in outcomes)),
        "bytes_sent": statistics.fmean(o.bytes_sent for o in outcomes),
        "dense_bytes": outcomes[0].dense_bytes,
        "ratio": statistics.fmean(o.ratio for o in outcomes),
        "modelled_seconds": mean(o.modelled_seconds for o in outcomes),
        "modelled_wire_seconds": mean(o.modelled_wire_seconds for o in outcomes),
        "modelled_exposed_seconds": mean(o.modelled_exposed_seconds for o in outcomes),
        "seconds": sum(o.seconds for o in outcomes),
        "choices": outcomes[0].choices,
    }


def speedup(rival: dict, row: dict) -> float | None:
    seconds = row["modelled_seconds"]
    return rival["modelled_seconds"] / seconds if seconds > 0 else None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show(summary: dict) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    figure = summary["figure"].replace("_", " ")
    headings = (figure, "loss", "MB sent", "of dense", "modelled s", "vs fp32", "vs bf16")
    for heading in headings:
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in summary["runs"]:
        table.add_row(
            row["name"],
            with_spread(summary["figure"], row),
            number(row["loss"], ".3f"),
            number(row["bytes_sent"] / 1e6, ".1f"),
            number(row["ratio"], ".4f"),
            number(row["modelled_seconds"], ".1f"),
            number(row["speedup_vs_fp32"], ".2f", "x"),
            number(row["speedup_vs_bf16"], ".2f", "x"),
        )
    console = Console(markup=False, highlight=False)
    console.print(table)
    for line in remarks(summary):
        console.print(line, soft_wrap=True)


def with_spread(figure: str, row: dict) -> str:
    value, spread = row["figure"], row["spread"]
    if figure == "accuracy" and value is not None:
        return f"{100 * value:.2f} %" + (f" ± {100 * spread:.2f}" if spread is not None else "")
    return number(value, ".3f") + (f" ± {spread:.3f}" if spread is not None else "")


def remarks(summary: dict) -> list[str]:
    """What a reader of the table must know. A defeat is said as plainly as a victory."""
    seeds = len(summary["seeds"])
    compute = f"{1e3 * summary['compute_seconds']:.3g} ms of computing per step"
    lines = [
        f"{summary['task']}, {summary['ranks']} virtual workers, {summary['steps']} steps"
        + (f"; mean ± standard deviation of {seeds} seeds." if seeds > 1 else ", one seed."),
        f"Seconds are MODELLED: a link of {summary['modelled_link']} per rank and direction and "
        f"{compute} ({'measured here' if summary['compute_measured'] else 'given'}), "
        "overlapped as in a real job; compression as measured here. What was learned and sent (per "
        "rank) is real.",
    ]
    return [*lines, *defeats(summary)]


def defeats(summary: dict) -> list[str]:
    rivals = [row for row in summary["runs"] if row["baseline"]]
    lines = []
    for row in summary["runs"]:
        if row["baseline"]:
            continue
        for rival in rivals:
            if row["modelled_seconds"] > rival["modelled_seconds"]:
                lines.append(
                    f"{row['name']} LOST time against {rival['name']}: modelled "
                    f"{row['modelled_seconds']:.1f} s instead of {rival['modelled_seconds']:.1f} s."
                )
        lines += lost_figure(summary, row, rivals)
    return lines


def lost_figure(summary: dict, row: dict, rivals: list[dict]) -> list[str]:
    figure = summary["figure"].replace("_", " ")
    if row["figure"] is None or row["loss"] is None:
        return [f"{row['name']} LOST everything: it ended with a {figure} that is not finite."]
    if not rivals or rivals[0]["figure"] is None:
        return []
    best, name = rivals[0]["figure"], rivals[0]["name"]
    missing = (row["figure"] - best) * (1 if summary["lower_is_better"] else -1)
    if missing <= TOLERANCE * abs(best):
        return []
    shown = f"{missing:.3f} {'above' if summary['lower_is_better'] else 'below'}"
    if figure == "accuracy":
        shown = f"{100 * missing:.1f} points below"
    return [
        f"{row['name']} LOST {figure}: {shown} {name} after the same number of steps. A milder "
        "level or more --steps loses less."
    ]
