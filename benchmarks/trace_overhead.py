# SPDX-License-Identifier: Apache-2.0
"""What does a trace cost?

Two virtual clusters take the same steps in turn, one of which writes a trace. The CPU time of a
step differs by what rank 0 spends on it: the median of the pairs is shown, for models of few and
many buckets, beside the shortest step of which that is less than half a per cent.

    .venv/bin/python benchmarks/trace_overhead.py
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import tidegate

GOAL = 0.005  # of a step's time
WIDTH = 128
WARM_UP = 10


def make_task(layers: int) -> tidegate.Task:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    batch = torch.randn(4, WIDTH)

    def batches(worker: int, workers: int, epoch: int):
        del worker, workers, epoch
        return [batch] * 100

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return tidegate.Task(model, optimizer, batches, lambda m, b: m(b).square().mean())


def make_cluster(buckets: int, ranks: int, trace: Path | None) -> tidegate.VirtualCluster:
    names = [[f"{layer}.weight"] for layer in range(buckets)]
    return tidegate.VirtualCluster(
        make_task(buckets),
        ranks,
        "100mbit,1ms",
        policy="auto",
        trace=trace,
        buckets=names,
        compute_seconds=0.05,
    )


def measure(buckets: int, ranks: int, steps: int, folder: str) -> dict:
    trace = Path(folder) / f"{buckets}.jsonl"
    clusters = [make_cluster(buckets, ranks, trace), make_cluster(buckets, ranks, None)]
    pairs = []
    for step in range(steps + WARM_UP):
        seconds = {}
        for number in (0, 1) if step % 2 else (1, 0):
            began = time.process_time()
            clusters[number].step()
            seconds[number] = time.process_time() - began
        if step >= WARM_UP:
            pairs.append(seconds[0] - seconds[1])
    cost = statistics.median(pairs)
    written = trace.stat().st_size / (steps + WARM_UP)
    return {
        "buckets": buckets,
        "ranks": ranks,
        "microseconds": 1e6 * cost,
        "bytes_per_step": written,
        "least_step_ms": 1e3 * cost / GOAL,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--buckets", type=int, nargs="+", default=[2, 10, 40])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for buckets in args.buckets:
            row = measure(buckets, args.ranks, args.steps, folder)
            rows.append(row)
            print(
                f"{buckets:4} buckets, {args.ranks} ranks: {row['microseconds']:6.0f} us and "
                f"{row['bytes_per_step'] / 1e3:5.1f} kB a step; below {100 * GOAL:g} % of steps "
                f"from {row['least_step_ms']:.0f} ms on"
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
