# SPDX-License-Identifier: Apache-2.0
"""`tidegate simulate --synthetic`: jobs of thousands of ranks without gradients. Policies, routes
and prices are those of a real job (tidegate/sim/synthetic.h); all times are modelled.
"""

import math
import resource
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from . import _core
from .errors import Error
from .policies import Policy
from .runs import BASELINES, Run, check_range, choose_links, choose_runs, number, parse_seconds

if TYPE_CHECKING:
    from rich.progress import Progress

DEFAULT_COMPUTE = "80ms"
# An engine's all-reduce is priced as a ring, whose latency grows with the ranks. Good engines have
# trees, so a baseline goes by whichever is faster.
BASELINE_ROUTES = ("engine", "tree")
MOST_RANKS, MOST_STEPS, MOST_PARAMETERS = 2**17, 10**7, 10**11
MEGABYTE = 1e6
LEAST_WIDTH = 120


def add_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("with --synthetic")
    add = group.add_argument
    add("--synthetic", action="store_true", help="no task: ranks exist only as numbers")
    add("--parameters", type=float, metavar="N", help="of the model (25e6)")
    add("--spread", type=float, metavar="S", help="of ranks' speeds (0.03)")
    add(
        "--stragglers",
        type=float,
        metavar="P",
        help="chance that a rank takes three times as long in a step (1e-5)",
    )
    add("--noise", type=float, metavar="S", help="of transfers (0.05)")
    add(
        "--lr-drop",
        type=int,
        action="append",
        metavar="STEP",
        help="the learning rate, and with it the gradients, get smaller here; may be repeated",
    )


DEFAULTS = {"parameters": 25e6, "spread": 0.03, "stragglers": 1e-5, "noise": 0.05, "lr_drop": []}


def fill_in(arguments: Namespace) -> None:
    for option, value in DEFAULTS.items():
        if getattr(arguments, option) is None:
            setattr(arguments, option, value)


def check_absent(arguments: Namespace) -> None:
    """Of a job that is not synthetic: nothing that was given may go unheard."""
    for option in DEFAULTS:
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise Error("config", f"--{name} goes with --synthetic; add that, or leave it out")


def run(arguments: Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from .cli import write_json

    fill_in(arguments)
    memory_before = peak_memory()
    job, runs = check(arguments)
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=14), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=arguments.quiet) as progress:
        rows = [
            best(each, job, progress) if each.baseline else simulate(each, job, progress)
            for each in runs
        ]
    summary = summarise(arguments, job, rows, memory_before)
    if arguments.json:
        write_json(arguments.json, summary)
    if arguments.json != "-":
        show(summary)
    return 0


# --- what it was given ---


def check(arguments: Namespace) -> tuple[dict, list[Run]]:
    """The job, and the policies to run it with. All mistakes are found here."""
    from .cli import check_writable

    for option in ("task", "trace", "seeds"):
        if getattr(arguments, option) is not None:
            raise Error("config", f"--{option}: a synthetic job has none; leave it out")
    check_range("--ranks", arguments.ranks, 1, MOST_RANKS)
    check_range("--steps", arguments.steps, 1, MOST_STEPS)
    check_range("--parameters", arguments.parameters, 1, MOST_PARAMETERS)
    seeds = arguments.seed or [0]
    if len(seeds) > 1:
        raise Error("config", "--seed: a synthetic job takes one seed")
    check_range("--seed", seeds[0], 0, 2**31 - 1)
    for step in arguments.lr_drop or []:
        check_range("--lr-drop", step, 0, arguments.steps)
    if arguments.json not in (None, "-"):
        check_writable("--json", arguments.json)
    job = {
        "ranks": arguments.ranks,
        "steps": arguments.steps,
        "buckets": _core.ddp_buckets(int(arguments.parameters)),
        "links": choose_links(arguments),
        "compute": parse_seconds("--compute", arguments.compute or DEFAULT_COMPUTE),
        "spread": arguments.spread,
        "stragglers": arguments.stragglers,
        "lr_drops": arguments.lr_drop or [],
        "noise": arguments.noise,
        "seed": seeds[0],
    }
    if job["compute"] == 0:
        raise Error("config", "--compute 0: ranks must compute; write for example 30ms")

    def check_policy(policy: Policy) -> None:  # one step raises what is wrong, also with the job
        own = policy.adapters(1)[0]
        _core.simulate_synthetic(policy.name, policy.options, **{**job, "steps": 1}, own=own)

    return job, choose_runs(arguments, check_policy)


# --- the runs ---


def best(each: Run, job: dict, progress: "Progress") -> dict:
    rows = [
        simulate(
            Run(each.name, Policy("fixed", {**each.policy.options, "route": route}), True),
            job,
            progress,
        )
        for route in BASELINE_ROUTES
    ]
    fastest = min(rows, key=lambda row: row["modelled_step_seconds"])
    return {**fastest, "seconds": sum(row["seconds"] for row in rows)}


def simulate(each: Run, job: dict, progress: "Progress") -> dict:
    bar = progress.add_task(each.name, total=job["steps"])
    began = time.monotonic()
    outcome = _core.simulate_synthetic(
        each.policy.name,
        each.policy.options,
        **job,
        progress=lambda done: progress.update(bar, completed=done),
        own=each.policy.adapters(1)[0],
    )
    seconds = outcome.pop("step_seconds")
    steps = job["steps"]
    rounds = outcome["record_rounds"]
    return {
        "name": each.name,
        "baseline": each.baseline,
        "policy": each.policy.name,
        "options": each.policy.options,
        "modelled_step_seconds": sum(seconds) / steps,
        "modelled_step_seconds_p99": sorted(seconds)[math.ceil(0.99 * steps) - 1],
        "bytes_sent_per_step": outcome["bytes_sent"] / steps,
        "ratio": outcome["bytes_sent"] / outcome["dense_bytes"] if outcome["dense_bytes"] else 1.0,
        "backlog": outcome["backlog"],
        "choices": outcome["choices"],
        "decisions": outcome["decisions"],
        "changes_seen": outcome["changes"],
        "priced_well": outcome["steps_priced_well"] / steps,
        "network": outcome["network"],
        "statistics_rounds": rounds,
        "modelled_statistics_seconds": outcome["record_seconds"] / rounds if rounds else 0.0,
        "statistics_bytes_per_step": outcome["record_bytes"] / steps,
        "seconds": time.monotonic() - began,
    }


def peak_memory() -> int:
    """Bytes that this process held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summarise(arguments: Namespace, job: dict, rows: list[dict], memory_before: int) -> dict:
    scheduled = [step for step, _, _ in job["links"].segments if 0 < step < job["steps"]]
    by_name = {row["name"]: row for row in rows}
    for row in rows:
        row["changes_found"] = found(scheduled, row["changes_seen"], job["steps"])
        for short, name in zip(("fp32", "bf16"), BASELINES, strict=True):
            row[f"speedup_vs_{short}"] = (
                by_name[name]["modelled_step_seconds"] / row["modelled_step_seconds"]
                if name in by_name
                else None
            )
    return {
        "v": 1,
        "synthetic": True,
        "ranks": job["ranks"],
        "steps": job["steps"],
        "parameters": int(arguments.parameters),
        "buckets": len(job["buckets"]),
        "modelled_link": job["links"].describe(),
        "compute_seconds": job["compute"],
        "compression_cost_modelled": False,
        "changes_scheduled": scheduled,
        "runs": rows,
        "seconds": sum(row["seconds"] for row in rows),
        "peak_memory_bytes": peak_memory(),
        "peak_memory_bytes_before": memory_before,
    }


def found(scheduled: list[int], seen: list[dict], steps: int) -> int:
    """How many of the scheduled changes were followed by one that was seen before the next."""
    ends = [*scheduled[1:], steps]
    return sum(
        any(begin <= change["step"] < end for change in seen)
        for begin, end in zip(scheduled, ends, strict=False)
    )


# --- the result ---


def show(summary: dict) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    headings = ("modelled s/step", "p99 s", "vs fp32", "vs bf16", "MB/step", "of dense")
    for heading in (*headings, "backlog", "changes seen", "prices right", "wall s"):
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in summary["runs"]:
        table.add_row(
            row["name"],
            f"{row['modelled_step_seconds']:.4g}",
            f"{row['modelled_step_seconds_p99']:.4g}",
            number(row["speedup_vs_fp32"], ".2f", "x"),
            number(row["speedup_vs_bf16"], ".2f", "x"),
            f"{row['bytes_sent_per_step'] / MEGABYTE:,.4g}",
            f"{row['ratio']:.4f}",
            number(row["backlog"], ".2f"),
            changes(summary, row),
            f"{100 * row['priced_well']:.0f} %",
            f"{row['seconds']:.1f}",
        )
    console = Console(markup=False, highlight=False)
    console.width = max(console.width, LEAST_WIDTH)  # a row that is cut says nothing
    console.print(table)
    for line in (*choice_lines(summary), *remarks(summary)):
        console.print(line, soft_wrap=True)


def changes(summary: dict, row: dict) -> str:
    more = len(row["changes_seen"]) - row["changes_found"]
    text = f"{row['changes_found']} of {len(summary['changes_scheduled'])}"
    return text + (f" +{more}" if more else "")


def choice_lines(summary: dict) -> list[str]:
    """What was chosen, and for how long: steps in which a bucket was averaged so."""
    lines = []
    for row in summary["runs"]:
        used = sorted(row["choices"].items(), key=lambda item: -item[1])
        text = ", ".join(f"{choice} in {steps}" for choice, steps in used)
        lines.append(f"{row['name']}: {text} of {summary['steps']} steps")
    return lines


def remarks(summary: dict) -> list[str]:
    """What a reader of the table must know. A defeat is said as plainly as a victory."""
    last = summary["runs"][-1]
    lines = [
        "",
        f"{summary['ranks']} synthetic ranks, {summary['parameters']:,} parameters in "
        f"{summary['buckets']} buckets, {summary['steps']} steps. Times are MODELLED: a link of "
        f"{summary['modelled_link']} per rank and direction, "
        f"{1e3 * summary['compute_seconds']:.3g} ms of computing, overlapped; compression cost not "
        "modelled. MB sent per rank. An engine's all-reduce is taken to be a ring; dense fp32 and "
        "bf16 go by ring or tree, whichever is faster.",
        f"Statistics of all ranks, with {last['name']}: {last['statistics_rounds']} rounds of "
        f"modelled {1e3 * last['modelled_statistics_seconds']:.3g} ms, "
        f"{last['statistics_bytes_per_step'] / MEGABYTE:.3g} MB per rank and step besides the "
        "gradients.",
        "Backlog: energy that waits at the end, in gradients, of magnitudes that are made up; "
        "- = not modelled for this method.",
        f"This took {summary['seconds']:.1f} s; peak memory "
        f"{summary['peak_memory_bytes'] / MEGABYTE:.0f} MB, of which "
        f"{summary['peak_memory_bytes_before'] / MEGABYTE:.0f} MB before the first run.",
    ]
    if summary["changes_scheduled"]:
        lines.append(
            "Changes seen: scheduled changes of the link that raised an alarm before the next one; "
            "+ = alarms besides. Prices right: steps in which what was learned of the link prices "
            "the transfers within 25 %; a link that gets faster is followed without an alarm."
        )
    return [*lines, *defeats(summary)]


def defeats(summary: dict) -> list[str]:
    rivals = [row for row in summary["runs"] if row["baseline"]]
    return [
        f"{row['name']} LOST time against {rival['name']}: modelled "
        f"{row['modelled_step_seconds']:.4g} s per step instead of "
        f"{rival['modelled_step_seconds']:.4g} s."
        for row in summary["runs"]
        if not row["baseline"]
        for rival in rivals
        if row["modelled_step_seconds"] > rival["modelled_step_seconds"]
    ]
