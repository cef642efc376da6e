# SPDX-License-Identifier: Apache-2.0
"""How many steps per second a virtual cluster makes on one core, and where the time goes. Policies
take turns, so that whatever else the machine does meets all of them.

    python benchmarks/virtual_cluster.py
    python benchmarks/virtual_cluster.py --task char-gpt --ranks 8 --steps 20
    python benchmarks/virtual_cluster.py --policy "fixed:method=int8" --json virtual.json
"""

import argparse
import json
import statistics
import time

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import tidegate
from tidegate import tasks

POLICIES = ["fixed:method=dense", "fixed:method=topk,ratio=0.01"]
WARM_UP = 5  # steps
TURN = 10  # steps of one policy before the next
PARTS = {  # what is timed, by the name of its row
    "batches": ("_batches", "next"),
    "zeroing": ("_gradients", "clear"),
    "collecting": ("_gradients", "collect"),
    "exchange": ("", "_average"),
    "handing out": ("_gradients", "hand_out"),
    "optimizer": ("task.optimizer", "step"),
}


class Stopwatch:
    """Sums up what calls of a function take."""

    def __init__(self, function):
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments, **options):
        began = time.perf_counter()
        try:
            return self._function(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - began


def watch(cluster) -> dict[str, Stopwatch]:
    watches = {}
    for name, (path, attribute) in PARTS.items():
        owner = cluster
        for part in filter(None, path.split(".")):
            owner = getattr(owner, part)
        watches[name] = Stopwatch(getattr(owner, attribute))
        setattr(owner, attribute, watches[name])
    return watches


class Run:
    """A cluster with one policy, and what its steps took."""

    def __init__(self, policy: str, arguments):
        task = tasks.find(arguments.task, steps=arguments.steps + WARM_UP)
        self.policy = policy
        self._cluster = tidegate.VirtualCluster(task, arguments.ranks, "1gbit,1ms", policy=policy)
        for _ in range(WARM_UP):  # buckets are final and memory is there
            self._cluster.step()
        self._watches = watch(self._cluster)
        self._durations: list[float] = []

    def turn(self, steps: int) -> None:
        for _ in range(steps):
            began = time.perf_counter()
            self._cluster.step()
            self._durations.append(time.perf_counter() - began)

    def result(self) -> dict:
        whole, steps = sum(self._durations), len(self._durations)
        parts = {name: watch.seconds for name, watch in self._watches.items()}
        parts["forward, backward"] = whole - sum(parts.values())
        return {
            "policy": self.policy,
            "steps_per_second": 1 / statistics.median(self._durations),
            "best_steps_per_second": 1 / statistics.quantiles(self._durations, n=10)[0],
            "ms": {name: 1e3 * seconds / steps for name, seconds in parts.items()},
        }


def show(results: list[dict], arguments) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for result in results:
        table.add_column(result["policy"], justify="right", no_wrap=True)
    table.add_row("steps/s, median", *(f"{r['steps_per_second']:.1f}" for r in results))
    table.add_row("steps/s, best tenth", *(f"{r['best_steps_per_second']:.1f}" for r in results))
    for part in results[0]["ms"]:
        table.add_row(f"ms {part}", *(f"{result['ms'][part]:.2f}" for result in results))
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print(
        f"{arguments.task}, {arguments.ranks} virtual workers, {arguments.steps} steps, torch in "
        "one thread; ms per step, of all workers together, mean."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="fashion-mnist", help="(%(default)s)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--policy", action="append", metavar="NAME:KEY=VALUE,...")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [Run(policy, arguments) for policy in arguments.policy or POLICIES]
    for _ in range(0, arguments.steps, TURN):
        for run in runs:
            run.turn(TURN)
    results = [run.result() for run in runs]
    show(results, arguments)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"v": 1, "settings": vars(arguments), "runs": results}, file, indent=2)


if __name__ == "__main__":
    main()
