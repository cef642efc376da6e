# SPDX-License-Identifier: Apache-2.0
"""What does the hook cost when nothing is compressed?

Step time of dense DDP through `tidegate.attach`, against plain DDP, a second plain DDP as control
and torch's own all-reduce hook, on unshaped loopback. They are stepped in random order in the same
processes, so that noise of the machine hits all alike. The control shows how much of a difference
is noise; torch's hook, what any hook costs: without one DDP divides each gradient as it fills a
bucket, with one it leaves that to the hook, a pass more over everything.

    .venv/bin/python benchmarks/hook_overhead.py --steps 150
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

import tidegate

VARIANTS = {
    "plain": "plain DDP",
    "control": "plain DDP again",
    "torch": "torch's allreduce_hook",
    "hook": "dense through the hook",
}


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers)


def measure(rank: int, args, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if args.pin and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {rank % os.cpu_count()})
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=args.ranks
    )
    steppers = {}
    for variant in VARIANTS:
        model = DDP(
            make_model(args.width), bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=args.view
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if variant == "torch":
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        if variant == "hook":
            tidegate.attach(model, optimizer, policy="fixed", method="dense")
        steppers[variant] = (model, optimizer)
    inputs = torch.randn(args.batch, args.width)
    times = {variant: [] for variant in VARIANTS}
    cpu_times = {variant: [] for variant in VARIANTS}  # of all threads of this process
    order = random.Random(1)  # the same on all ranks
    for step in range(args.steps + 5):
        for variant in order.sample(list(VARIANTS), len(VARIANTS)):
            model, optimizer = steppers[variant]
            dist.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            optimizer.zero_grad(set_to_none=True)
            model(inputs).square().mean().backward()
            optimizer.step()
            if step >= 5:
                times[variant].append(time.perf_counter() - began)
                cpu_times[variant].append(time.process_time() - cpu)
    if rank == 0:
        with open(f"{folder}/times.json", "w") as file:
            json.dump([times, cpu_times], file)
    dist.destroy_process_group()


def ratio(times: dict, variant: str) -> dict:
    """Of medians, and of pairs of the same round: median and a 95 % interval of that median."""
    pairs = sorted(a / b for a, b in zip(times[variant], times["plain"], strict=True))
    n = len(pairs)
    half = 0.98 * n**0.5  # ranks of the interval of a median, normal approximation
    return {
        "of_medians": statistics.median(times[variant]) / statistics.median(times["plain"]),
        "paired": statistics.median(pairs),
        "interval": [pairs[max(0, int(n / 2 - half))], pairs[min(n - 1, int(n / 2 + half))]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--width", type=int, default=1000, help="10 layers of WIDTH^2 (1000: 10 M)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--bucket-mb", type=float, default=5.0)
    parser.add_argument("--view", action="store_true", help="gradient_as_bucket_view")
    parser.add_argument("--pin", action="store_true", help="one core per rank")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (args, folder), nprocs=args.ranks)
        with open(f"{folder}/times.json") as file:
            times, cpu_times = json.load(file)
    result = {variant: ratio(times, variant) for variant in VARIANTS if variant != "plain"}
    result["plain_ms"] = 1e3 * statistics.median(times["plain"])
    result["cpu_ms"] = {
        variant: 1e3 * statistics.median(seconds) for variant, seconds in cpu_times.items()
    }
    for variant, name in VARIANTS.items():
        if variant == "plain":
            continue
        row = result[variant]
        low, high = row["interval"]
        cpu = result["cpu_ms"][variant] / result["cpu_ms"]["plain"]
        print(
            f"{name:24} / plain DDP: {row['of_medians']:.3f} of medians, "
            f"{row['paired']:.3f} paired ({low:.3f} to {high:.3f}), CPU time {cpu:.3f}"
        )
    print(f"plain DDP: {result['plain_ms']:.1f} ms a step, {args.ranks} ranks, {args.steps} steps")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
