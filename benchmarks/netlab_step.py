# SPDX-License-Identifier: Apache-2.0
"""Is the modelled time of a step right? Trains the model of `tidegate demo` on a real network, dense
and compressed, and compares the time of a step with what the planner's model says of it, from a
calibration of the network and from the time that computing takes: by itself, and as the job has
measured its own while it ran (`stats()["medians"]`), which is what reports and policies go by: where
ranks share cores, exchanges that take more of them slow computing down. In turn, several times;
medians are shown.

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


def step_seconds(way: dict, data: Data, steps: int) -> tuple[float, float]:
    """Of a step, and of its computing as the job has measured it."""
    model, optimizer = job()
    handle = tidegate.attach(model, optimizer, policy="fixed", timeout=120, calibrate=True, **way)
    train(model, optimizer, data, WARM_UP, True)
    seconds = train(model, optimizer, data, steps, True)
    compute = handle.stats()["medians"]["compute_ms"] / 1e3
    handle.detach()
    return seconds, compute


def auto_seconds(data: Data, steps: int) -> tuple[float, float]:
    """Of a step under the default policy once it has settled, and as modelled while it ran (in the
    trace of rank 0; elsewhere 0)."""
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/trace.jsonl"
        model, optimizer = job()
        handle = tidegate.attach(model, optimizer, timeout=120, trace=trace, horizon=2 * steps)
        train(model, optimizer, data, steps, True)
        seconds = train(model, optimizer, data, steps, True)
        handle.detach()
        if rank != 0:
            return seconds, 0.0
        told = [
            each["modelled_seconds"]["recorded"]
            for each in _core.read_trace(trace)["steps"][steps:]
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--auto-steps", type=int, default=150, help="to settle, and to measure")
    parser.add_argument("--json", metavar="FILE")
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
    kinds = ("measured", "modelled", "compute", "running")
    seen = {name: {kind: [] for kind in kinds} for name in WAYS}
    computes = []
    for cycle in range(arguments.cycles):
        network = engine.calibrate().network
        computes.append(statistics.median(engine.gather_objects(compute_seconds(data, 20))))
        for name, way in WAYS.items():
            mine, compute = step_seconds(way, data, arguments.steps)
            everyone = engine.gather_objects((mine, compute))
            measured, running = (statistics.median(each) for each in zip(*everyone, strict=True))
            seen[name]["measured"].append(measured)
            seen[name]["compute"].append(running)
            for kind, seconds in (("modelled", computes[-1]), ("running", running)):
                times = modelled(network, seconds, ranks, speeds)
                seen[name][kind].append(times[name])
        if rank == 0:
            print(f"cycle {cycle + 1} of {arguments.cycles}", file=sys.stderr)
    everyone = engine.gather_objects(auto_seconds(data, arguments.auto_steps))
    auto_measured, auto_modelled = statistics.median(each[0] for each in everyone), everyone[0][1]
    rows = []
    for name, times in seen.items():
        row = {f"{kind}_ms": 1e3 * statistics.median(times[kind]) for kind in kinds}
        row["error"] = row["modelled_ms"] / row["measured_ms"] - 1
        row["running_error"] = row["running_ms"] / row["measured_ms"] - 1
        rows.append({"choice": name, **row})
    engine.close()
    dist.destroy_process_group()
    if rank == 0:
        show_rows(
            rows,
            {
                "choice": lambda row: row["choice"],
                "measured ms/step": lambda row: f"{row['measured_ms']:.1f}",
                "modelled": lambda row: f"{row['modelled_ms']:.1f}",
                "error": lambda row: f"{100 * row['error']:+.1f} %",
                "computing": lambda row: f"{row['compute_ms']:.1f}",
                "from the job": lambda row: f"{row['running_ms']:.1f}",
                " error": lambda row: f"{100 * row['running_error']:+.1f} %",
            },
        )
        compute = 1e3 * statistics.median(computes)
        print(f"computing: {compute:.1f} ms per step alone")
        print(
            f"auto: {1e3 * auto_measured:.1f} ms per step, modelled at {1e3 * auto_modelled:.1f} "
            f"({100 * (auto_modelled / auto_measured - 1):+.1f} %)"
        )
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                auto = {"measured_ms": 1e3 * auto_measured, "modelled_ms": 1e3 * auto_modelled}
                json.dump({"compute_ms": compute, "rows": rows, "auto": auto}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
