# SPDX-License-Identifier: Apache-2.0
"""What `tidegate plan` says: a table, a conclusion and its conditions, or JSON."""

from argparse import Namespace

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from . import _core
from .buckets import BUCKET_MB, FIRST_BUCKET_MB
from .cli import megabytes
from .plan_network import bandwidth, goes_by_host

TELLING = 1.03  # a smaller gain is within what the model can tell
LEAST_WIDTH = 160


def as_json(arguments: Namespace, job: dict, network: dict, plan: _core.Plan) -> dict:
    rows = plan.rows
    sent, step, exposed = plan.parameter_server
    return {
        "v": 1,
        "kind": "plan",
        "parameters": job["parameters"],
        "buckets": len(job["buckets"]),
        "ranks": network["ranks"],
        "hosts": network["hosts"],
        "network": {
            name: {
                "mbit": rate * 8 / 1e6,
                "latency_ms": latency * 1e3,
                "hidden": hidden,
                "origin": origin,
            }
            for name, (rate, latency, origin, hidden) in network["fits"].items()
        },
        "compute_seconds": job["compute"],
        "compression": arguments.compression,
        "convergence": "not modelled",
        "best": None if plan.best is None else rows[plan.best],
        "gentlest": None if plan.gentlest is None else rows[plan.gentlest],
        "baselines": {
            "fp32": plan.fp32,
            "bf16": plan.bf16,
            "parameter_server": {
                "bytes_sent": sent,
                "modelled_step_seconds": step,
                "modelled_exposed_seconds": exposed,
            },
        },
        "rows": rows,
    }


def show(arguments: Namespace, job: dict, network: dict, plan: _core.Plan) -> None:
    console = Console(markup=False, highlight=False)
    console.width = max(console.width, LEAST_WIDTH)
    console.print(table_of(arguments, plan))
    print(*conclusions(plan), "", *conditions(arguments, job, network), sep="\n")


def table_of(arguments: Namespace, plan: _core.Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    columns: dict[str, JustifyMethod] = {
        "method": "left",
        "level": "right",
        "route": "left",
        "what is\nleft out": "left",
        "sent\nper step": "right",
        "modelled\nstep": "right",
        "modelled\nexposed": "right",
        "against\nfp32": "right",
        "against\nbf16": "right",
        "beats fp32\nbelow": "right",
        "beats bf16\nbelow": "right",
    }
    for heading, side in columns.items():
        table.add_column(heading, justify=side, no_wrap=True)
    rows = plan.rows if arguments.all else by_fastest_route(plan.rows)[: arguments.top]
    for row in rows:
        table.add_row(*cells(row))
    table.add_section()
    for name, row in (("dense fp32", plan.fp32), ("dense bf16", plan.bf16)):
        table.add_row(name, *cells(row)[1:])
    sent, step, exposed = plan.parameter_server
    ratio = [f"{row['modelled_step_seconds'] / step:.3g}x" for row in (plan.fp32, plan.bf16)]
    times = (milliseconds(step), milliseconds(exposed))
    table.add_row("dense fp32", "", "parameter server", "nothing", megabytes(sent), *times, *ratio)
    return table


def by_fastest_route(rows: list[dict]) -> list[dict]:
    fastest: dict[tuple, dict] = {}
    for row in rows:  # fastest first
        fastest.setdefault((row["method"], level_of(row), row["delivers_less"]), row)
    return list(fastest.values())


def cells(row: dict) -> list[str]:
    fate = "waits" if row["error_feedback"] else "nothing" if row["without_loss"] else "is lost"
    return [
        row["method"],
        level_of(row),
        row["route"] + (" *" if row["delivers_less"] else ""),
        fate,
        megabytes(row["bytes_sent"]),
        milliseconds(row["modelled_step_seconds"]),
        milliseconds(row["modelled_exposed_seconds"]),
        f"{row['speedup_fp32']:.3g}x",
        f"{row['speedup_bf16']:.3g}x",
        bandwidth(row["break_even_fp32_mbit"]),
        bandwidth(row["break_even_bf16_mbit"]),
    ]


def level_of(row: dict) -> str:
    if row["ratio"] is not None:
        return f"{row['ratio']:g}"
    if row["rank"] is not None:
        return f"rank {row['rank']}"
    return f"{row['bits']} bits" if row["bits"] is not None else ""


def conclusions(plan: _core.Plan) -> list[str]:
    assert plan.best is not None and plan.gentlest is not None, "some methods lose nothing"
    best, gentlest = plan.rows[plan.best], plan.rows[plan.gentlest]
    step = milliseconds(best["modelled_step_seconds"])
    if best["speedup_fp32"] <= 1:
        return ["Nothing beats dense fp32 here (modelled): leave the gradients as they are."]
    if best["speedup_fp32"] < TELLING:
        return [
            "Nothing beats dense fp32 here by more than this model can tell: leave the gradients "
            "as they are.",
            f"Fastest of those that lose nothing: {best['choice']}, {step} per step instead of "
            f"{milliseconds(plan.fp32['modelled_step_seconds'])} (modelled).",
        ]
    lines = [
        f"Fastest of those that lose nothing: {best['choice']}: {step} per step (modelled),",
        f"{best['speedup_fp32']:.3g} times as fast as dense fp32 and "
        f"{best['speedup_bf16']:.3g} times as fast as dense bf16.",
    ]
    advised = gentlest
    if best["speedup_bf16"] < TELLING:
        lines.append("Against bf16 that is less than this model can tell: bf16 is as good.")
        advised = plan.bf16
    elif level_of(gentlest) != level_of(best):
        lines.append(
            f"At {level_of(gentlest)} by {gentlest['route']} it would send more and take at most "
            f"5 % longer: {milliseconds(gentlest['modelled_step_seconds'])}."
        )
    others = peers_of(best, plan.rows)
    if others:
        lines.append(f"Within 5 % of it at some level: {', '.join(others)}.")
    return [*lines, f"    tidegate.attach(model, optimizer, {as_options(advised)})"]


def peers_of(best: dict, rows: list[dict]) -> list[str]:
    """Other methods that lose nothing and take hardly longer: measured times scatter as much."""
    longest = _core.HARDLY_LONGER * best["modelled_step_seconds"]
    close = (r for r in rows if r["advisable"] and r["modelled_step_seconds"] <= longest)
    return [name for name in dict.fromkeys(r["method"] for r in close) if name != best["method"]]


def as_options(row: dict) -> str:
    options = {"policy": "fixed", "method": row["method"]}
    options |= {key: row[key] for key in ("ratio", "rank") if row[key] is not None}
    options["route"] = row["route"]
    return ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in options.items())


def conditions(arguments: Namespace, job: dict, network: dict) -> list[str]:
    compression = {
        "measured": "What compressing takes was measured on this machine, on one thread, and is "
        "taken to run beside the computation.",
        "none": "Compressing is taken to take no time (--compression none).",
    }[arguments.compression]
    lines = [
        f"{job['parameters']:,} parameters ({job['source']}) in {len(job['buckets'])} buckets as "
        f"DDP cuts them ({FIRST_BUCKET_MB:g} MB, then {BUCKET_MB:g} MB).",
        f"{network['ranks']} rank(s) on {network['hosts']} host(s); network: {network['text']}.",
        f"{milliseconds(job['compute'])} of computation per step, a third of it forward; backward "
        "fills the buckets evenly, and they are sent meanwhile.",
        compression,
        "All times are modelled. How well a model learns is not: what waits is sent later, what is "
        "lost is lost,",
        "and a smaller level learns more slowly per step. Try it with tidegate.VirtualCluster.",
        "Beats ... below: with all rates of the network scaled alike, from 1 kbit/s to 1 Tbit/s.",
        "* By owner these deliver less per step than by other routes at the same level.",
    ]
    if goes_by_host(network):
        lines.append(
            "By hosts: bytes are those of the rank that speaks for its host; what stays inside a "
            "host is taken to cost nothing."
        )
    if not arguments.all:
        lines.append("Of routes that deliver the same only the fastest is shown; --all shows all.")
    return lines


def milliseconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds * 1e3:.4g} ms"
