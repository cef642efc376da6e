# SPDX-License-Identifier: Apache-2.0
"""Is the modelled time of a step right? Trains the model of `tidegate demo` on a real network, dense
and compressed, and compares the time of a step with what is modelled: by the job itself from what it
has measured while it ran, which is what policies go by (`auto` too is run), and by the planner, from
a calibration of the network and the time that computing takes without exchanges. The planner does
not know that ranks share processors. In turn, several times; medians are shown.

    sudo tools/netlab run --ranks 4 --link 100mbit --quiet -- .venv/bin/python benchmarks/netlab_step.py
"""  # noqa: E501

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tidegate
from tidegate import _core, bucket_table
from tidegate.cli import show_rows
from tidegate.demo_worker import BUCKET_MB, Data, make_model, make_optimizer
from tidegate.engine import Engine

# As the table of candidates describes them, and as attach takes them.
WAYS = {
    "dense by engine": {"method": "dense", "route": "engine"},
    "bf16 by engine": {"method": "bf16", "route": "engine"},
    "int8 by owner": {"method": "int8", "route": "owner"},
    "topk 0.1 in 16 bits by allgather": {"method": "topk", "ratio": 0.1},
    "topk 0.01 in 16 bits by allgather": {"method": "topk", "ratio": 0.01},
    "artopk-star 0.1 by engine": {
        "method": "artopk-star",
        "ratio": 0.1,
        "route": "engine",
    },
}
WARM_UP = 5  # steps: DDP cuts its buckets anew after the first
SETTLED = 24  # steps until ranks have told each other about some that were not the first


def train(model, optimizer, data: Data, steps: int, synchronise: bool) -> float:
    """Seconds per step, from barrier to barrier."""
    dist.barrier()
    began = time.monotonic()
    for step in range(steps):
        images, labels = data.batch(step)
        optimizer.zero_grad()
        if synchronise:
            cross_entropy(model(images), labels).backward()
        else:
            with model.no_sync():
                cross_entropy(model(images), labels).backward()
        optimizer.step()
    dist.barrier()
    return (time.monotonic() - began) / steps


def job() -> tuple:
    module = make_model(0)
    model = DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    return model, make_optimizer(model)


def compute_seconds(data: Data, steps: int) -> float:
    model, optimizer = job()
    train(model, optimizer, data, WARM_UP, False)
    return train(model, optimizer, data, steps, False)


def step_seconds(
    way: dict, data: Data, before: int, steps: int, keep_as: str | None
) -> tuple[float, float]:
    """Of a step after so many, and as modelled while it ran (in the trace of rank 0; elsewhere
    0)."""
    with tempfile.TemporaryDirectory() as folder:
        trace = keep_as or f"{folder}/trace.jsonl"
        model, optimizer = job()
        handle = tidegate.attach(
            model, optimizer, timeout=120, trace=trace, horizon=before + steps, **way
        )
        train(model, optimizer, data, before, True)
        seconds = train(model, optimizer, data, steps, True)
        handle.detach()
        if dist.get_rank() != 0:
            return seconds, 0.0
        told = [
            each["modelled_seconds"]["recorded"]
            for each in _core.read_trace(trace)["steps"][before:]
            if each["modelled_seconds"] and each["modelled_seconds"]["recorded"] is not None
        ]
    return seconds, statistics.median(told)


def modelled(network, compute: float, ranks: int, speeds) -> dict[str, float]:
    parameters = dict(reversed(list(make_model(0).named_parameters())))
    buckets = [
        [(n, parameters[n].numel(), parameters[n].shape[0]) for n in names]
        for names in bucket_table.cut(parameters, BUCKET_MB)
    ]
    fits = [
        (name, fit["mbit"] * 1e6 / 8, fit["latency_ms"] / 1e3, fit["origin"], fit["hidden"])
        for name, fit in network.fits().items()
    ]
    choices = [choice for choice in _core.candidates() if str(choice) in WAYS]
    plan = _core.Plan(buckets, ranks, ranks, fits, compute, 2, choices, speeds)
    return {row["choice"]: row["modelled_step_seconds"] for row in plan.rows}


def error(row: dict, kind: str) -> str:
    return f"{100 * row[f'{kind}_error']:+.1f} %" if f"{kind}_error" in row else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--auto-steps", type=int, default=150, help="to settle, and to measure")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--traces",
        metavar="FOLDER",
        help="keep every job's trace there: what is modelled can be read off it again, by a "
        "version whose model has other constants",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    settings = {
        "seed": 0,
        "batch": 64,
        "steps": max(arguments.steps, arguments.auto_steps),
        "steps_per_epoch": 100,
    }
    data = Data(rank, ranks, settings)
    engine = Engine(dist.group.WORLD, 120)
    speeds = _core.SpeedTable()
    for choice in _core.candidates():
        if str(choice) in WAYS:
            speeds.measure(choice)
    kinds = ("measured", "modelled", "planned")
    ways: dict[str, dict] = {
        name: {"policy": "fixed", "calibrate": True, **way} for name, way in WAYS.items()
    }
    ways["auto"] = {}
    seen = {name: {kind: [] for kind in kinds} for name in ways}
    computes = []
    for cycle in range(arguments.cycles):
        network = engine.calibrate().network
        computes.append(statistics.median(engine.gather_objects(compute_seconds(data, 20))))
        planned = modelled(network, computes[-1], ranks, speeds)
        for name, way in ways.items():
            before, steps = (
                (arguments.auto_steps, arguments.auto_steps)
                if name == "auto"
                else (SETTLED, arguments.steps)
            )
            keep_as = (
                f"{arguments.traces}/{cycle}-{name.replace(' ', '_')}.jsonl"
                if arguments.traces
                else None
            )
            everyone = engine.gather_objects(step_seconds(way, data, before, steps, keep_as))
            seen[name]["measured"].append(statistics.median(each[0] for each in everyone))
            seen[name]["modelled"].append(everyone[0][1])
            if name in planned:
                seen[name]["planned"].append(planned[name])
        if rank == 0:
            print(f"cycle {cycle + 1} of {arguments.cycles}", file=sys.stderr)
    rows = []
    for name, times in seen.items():
        row = {f"{kind}_ms": 1e3 * statistics.median(times[kind]) for kind in kinds if times[kind]}
        for kind in ("modelled", "planned"):
            if times[kind]:
                row[f"{kind}_error"] = row[f"{kind}_ms"] / row["measured_ms"] - 1
        row["cycles_ms"] = {kind: [1e3 * each for each in times[kind]] for kind in kinds}
        rows.append({"choice": name, **row})
    engine.close()
    dist.destroy_process_group()
    if rank == 0:
        show_rows(
            rows,
            {
                "choice": lambda row: row["choice"],
                "measured ms/step": lambda row: f"{row['measured_ms']:.1f}",
                "modelled by the job": lambda row: f"{row['modelled_ms']:.1f}",
                "error": lambda row: error(row, "modelled"),
                "by the planner": lambda row: (
                    f"{row['planned_ms']:.1f}" if "planned_ms" in row else ""
                ),
                " error": lambda row: error(row, "planned"),
            },
        )
        compute = 1e3 * statistics.median(computes)
        print(f"computing: {compute:.1f} ms per step alone")
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({"compute_ms": compute, "rows": rows}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
