# SPDX-License-Identifier: Apache-2.0
"""Trains the CNN of `tidegate demo` on Fashion-MNIST with every method of the table in a virtual
cluster, some also by owners, and shows how far each ends from dense.

    python benchmarks/train_methods.py                        # all methods, about ten minutes
    python benchmarks/train_methods.py --methods topk int8    # some
    python benchmarks/train_methods.py --seeds 0 1 2 --json methods.json
"""

import argparse
import json
import statistics

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import tidegate
from tidegate import _core
from tidegate.tasks.fashion_mnist import make_task

BUCKET_MB = 0.25  # the convolutions in a bucket of their own, as in the demo


def runs(arguments) -> list[dict]:
    """Options of every run: each method by its default route, and by owners if it can; dgc with
    its momentum correction too."""
    found = []
    for row in _core.methods():
        if arguments.methods and row["name"] not in (*arguments.methods, "dense"):
            continue
        options = {"method": row["name"]}
        if row["level"] == "ratio":
            options["ratio"] = arguments.ratio
        if row["level"] == "rank":
            options["rank"] = arguments.rank
        if row["name"] in ("int8", "int4"):
            options["route"] = "allgather"  # not what "auto" means from three ranks on
        found.append(options)
        if row["name"] in ("topk", "int8", "int4", "sign", "onebit"):
            found.append({**options, "route": "owner"})
        if row["name"] == "dgc":
            found.append({**options, "momentum": 0.9})
    return found


def train(options: dict, seed: int, arguments, progress) -> tidegate.virtual_cluster.Outcome:
    momentum = options.get("momentum", 0.0)
    # Momentum that the method takes over must not be applied twice.
    task = make_task(seed, arguments.steps, arguments.batch, momentum=0.9 - momentum)
    policy = "fixed:" + ",".join(f"{key}={value}" for key, value in options.items())
    cluster = tidegate.VirtualCluster(task, arguments.ranks, policy=policy, bucket_mb=BUCKET_MB)
    return cluster.run(arguments.steps, progress=progress)


def result_of(options: dict, outcomes: list) -> dict:
    return {
        "options": options,
        "accuracy": statistics.mean(o.figures["accuracy"] for o in outcomes),
        "accuracies": [o.figures["accuracy"] for o in outcomes],
        "loss": statistics.mean(o.loss for o in outcomes),
        "bytes_sent": outcomes[0].bytes_sent,
        "dense_bytes": outcomes[0].dense_bytes,
        "seconds": sum(o.seconds for o in outcomes),
    }


def name_of(options: dict) -> str:
    level = options.get("ratio", options.get("rank"))
    text = options["method"] + (f" {level:g}" if level is not None else "")
    if "route" in options:
        text += f", {options['route']}"
    if "momentum" in options:
        text += f", momentum {options['momentum']:g}"
    return text


def show(results: list[dict], arguments) -> None:
    dense = next(r for r in results if r["options"]["method"] == "dense")
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("method", "accuracy", "from dense", "loss", "bytes sent", "of dense"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for result in results:
        table.add_row(
            name_of(result["options"]),
            f"{100 * result['accuracy']:.2f} %",
            f"{100 * (result['accuracy'] - dense['accuracy']):+.2f}",
            f"{result['loss']:.3f}",
            f"{result['bytes_sent'] / 1e6:.1f} MB",
            f"{result['bytes_sent'] / result['dense_bytes']:.4f}",
        )
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print(
        f"{arguments.ranks} virtual workers, {arguments.steps} steps of {arguments.batch} images "
        f"each, SGD, mean of {len(arguments.seeds)} seed(s); bytes that one rank sends."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these, and dense")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step")
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    todo = runs(arguments)
    results = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeRemainingColumn(), transient=True) as bars:
            bar = bars.add_task("", total=len(todo) * len(arguments.seeds) * arguments.steps)
            for options in todo:
                bars.update(bar, description=f"{name_of(options):32}")
                outcomes = [
                    train(options, seed, arguments, lambda step, loss: bars.advance(bar))
                    for seed in arguments.seeds
                ]
                results.append(result_of(options, outcomes))
    except KeyboardInterrupt:
        if not results:  # not even dense, to compare with
            raise SystemExit("interrupted") from None
        print("interrupted; what was finished:")
    show(results, arguments)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"v": 1, "settings": vars(arguments), "runs": results}, file, indent=2)


if __name__ == "__main__":
    main()
