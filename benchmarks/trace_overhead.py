# SPDX-License-Identifier: Apache-2.0
"""What does a trace cost?

Real jobs on this machine, with steps as short as they can be: how long the exchange thread of rank
0 computed for writing, as the end of a trace says itself. The budget (0.4 % of the time, and a
tenth of a step once) leaves many steps of such jobs in brief.

    .venv/bin/python benchmarks/trace_overhead.py
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tidegate

WIDTH = 128
BUCKET_MB = WIDTH * WIDTH * 4 / 2**20  # one layer
SHORT = 100  # steps
AT_ONCE = 20  # steps between two looks at the clock


def train(rank: int, ranks: int, buckets: int, seconds: float, trace: str, port: int) -> None:
    """One rank; as many steps as fit, the same on all. Without seconds a short job."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(buckets)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    handle = tidegate.attach(model, optimizer, trace=trace)
    batch = torch.randn(4, WIDTH)
    began, steps, enough = time.monotonic(), 0, torch.zeros(1)
    while not enough.item():
        for _ in range(AT_ONCE):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        steps += AT_ONCE
        enough.fill_(steps >= SHORT and time.monotonic() - began >= seconds)
        dist.broadcast(enough, 0)
    handle.detach()
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def job(ranks: int, buckets: int, seconds: float, folder: str) -> dict:
    trace = Path(folder) / "job.jsonl"
    arguments = (ranks, buckets, seconds, str(trace), free_port())
    torch.multiprocessing.spawn(train, arguments, nprocs=ranks)
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    times = [event["step_ms"] for event in events if event["kind"] == "step"][1:]
    cost = events[-1]["trace"]
    return {
        "buckets": max(len(event.get("buckets", ())) for event in events),
        "steps": len(times),
        "brief_steps": cost["brief_steps"],
        "median_step_ms": statistics.median(times),
        "kilobytes_a_step": 1e-3 * trace.stat().st_size / len(times),
        "writing_ms": cost["ms"],
        "share": cost["ms"] / sum(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--buckets", type=int, nargs="+", default=[2, 10, 40])
    parser.add_argument("--seconds", type=float, default=60, help="of a long job")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for buckets in args.buckets:
            for seconds in (0.0, args.seconds):
                row = {"ranks": args.ranks, **job(args.ranks, buckets, seconds, folder)}
                rows.append(row)
                print(
                    f"{row['buckets']:4} buckets, {args.ranks} ranks: {row['steps']:6} steps of "
                    f"{row['median_step_ms']:5.1f} ms, {row['brief_steps']:6} in brief; writing "
                    f"took {1e3 * row['writing_ms'] / row['steps']:5.1f} us a step, "
                    f"{row['share']:.2%}, {row['kilobytes_a_step']:.1f} kB"
                )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
