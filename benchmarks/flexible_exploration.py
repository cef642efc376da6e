# SPDX-License-Identifier: Apache-2.0
"""The gains that policy "flexible" reads off the gradient in use, against those that its paper
measures by trying every ratio for ten steps from a snapshot; the ratios that follow from both; and
how these answer to the link. A virtual cluster with real gradients; times on the wire are modelled.

    python benchmarks/flexible_exploration.py
    python benchmarks/flexible_exploration.py --one-bucket
    python benchmarks/flexible_exploration.py --task char-gpt --ranks 8 --at 60 --at 200
"""

import argparse
import json

import numpy as np
import torch

import tidegate
from tidegate import _core, exploration, tasks
from tidegate.policies import Flexible

RATES = ["10mbit", "100mbit", "1gbit", "10gbit", "100gbit"]
LATENCIES = ["0.05ms", "1ms", "50ms"]


def make_cluster(arguments) -> tidegate.VirtualCluster:
    # gain_change=0: gains are taken anew at every look, so that they are those of the step at hand.
    policy = Flexible(warmup=arguments.warmup, gain_change=0)
    task = tasks.find(arguments.task, 0)
    names = [name for name, parameter in task.model.named_parameters() if parameter.requires_grad]
    return tidegate.VirtualCluster(
        task,
        arguments.ranks,
        arguments.link,
        policy=policy,
        buckets=[names] if arguments.one_bucket else None,
        compute_seconds=0.1,
    )


def compare(cluster, step: int, steps: int) -> dict:
    """Both ways at one step."""
    cluster.run(step - len(cluster.losses))
    notes = cluster.snapshot()["sessions"][0]["policy"]
    found = exploration.explore(cluster, steps=steps)
    ratios = [tried.ratio for tried in found.tried]
    wire = [tried.modelled_seconds for tried in found.tried]
    return {
        "step": step,
        "ratio_in_use": notes["ratio"][0],
        "ratios": ratios,
        "curve_gains": notes["gains"],
        "tried_gains": [tried.gain for tried in found.tried],
        "collectives": [f"{tried.method} by {tried.route}" for tried in found.tried],
        "wire_ms": [1e3 * seconds for seconds in wire],
        "compress_ms": [1e3 * tried.compress_seconds for tried in found.tried],
        "curve_ratio": _core.best_ratio(ratios, wire, notes["gains"]),
        "tried_ratio": found.best_ratio(compressing=False),
        "tried_ratio_with_compressing": found.best_ratio(),
    }


def answer_to_links(ratios: list[float], gains: list[float], ranks: int, elements: int) -> list:
    """The ratio that these gains lead to on other links."""
    rows = []
    fine = np.geomspace(ratios[0], ratios[-1], 200).tolist()
    fine_gains = [_core.interpolate_gain(ratios, gains, ratio) for ratio in fine]
    for latency in LATENCIES:
        for rate in RATES:
            network = _core.Network(ranks, ranks, f"{rate},{latency}")

            def cheapest(ratio, network=network):
                costs = _core.collective_costs(network, [elements], ratio)
                return min(costs, key=lambda cost: cost[2])

            ratio = _core.best_ratio(fine, [cheapest(one)[2] for one in fine], fine_gains)
            method, route, seconds = cheapest(ratio)
            rows.append(
                {
                    "link": f"{rate}, {latency}",
                    "ratio": ratio,
                    "collective": f"{method} by {route}",
                    "wire_ms": 1e3 * seconds,
                }
            )
    return rows


def show_answers(title: str, rows: list[dict]) -> None:
    print(f"\n{title}")
    print("| link | ratio | collective | modelled wire ms |")
    print("|---|---|---|---|")
    for row in rows:
        wire = f"{row['wire_ms']:.3g}"
        print(f"| {row['link']} | {row['ratio']:.4f} | {row['collective']} | {wire} |")


def show(found: dict) -> None:
    print(f"\nStep {found['step']}, ratio in use {found['ratio_in_use']:.3g}")
    print("| ratio | gain, curve | gain, tried | collective | modelled wire ms | compress ms |")
    print("|---|---|---|---|---|---|")
    columns = ("ratios", "curve_gains", "tried_gains", "collectives", "wire_ms", "compress_ms")
    for ratio, curve, tried, collective, wire, compress in zip(
        *(found[column] for column in columns), strict=True
    ):
        numbers = f"{ratio:.3g} | {curve:.3f} | {tried:.3f}"
        print(f"| {numbers} | {collective} | {wire:.2f} | {compress:.2f} |")
    print(
        f"best ratio: {found['curve_ratio']:.4f} by the curve, {found['tried_ratio']:.4f} tried, "
        f"{found['tried_ratio_with_compressing']:.4f} tried, with compressing"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="fashion-mnist")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--link", default="100mbit,1ms")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--at", type=int, action="append", help="step; may be repeated")
    parser.add_argument("--steps", type=int, default=exploration.STEPS, help="with each ratio")
    parser.add_argument(
        "--one-bucket", action="store_true", help="one selection over all of the gradient"
    )
    parser.add_argument("--json", help="file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cluster = make_cluster(arguments)
    results = []
    for step in sorted(arguments.at or [arguments.warmup + 10, 400]):
        results.append(compare(cluster, step, arguments.steps))
        show(results[-1])
    last = results[-1]
    elements = sum(parameter.numel() for parameter in cluster.task.model.parameters())
    answers = {
        f"The gains of step {last['step']} on other links": answer_to_links(
            last["ratios"], last["curve_gains"], arguments.ranks, elements
        ),
        "ResNet-50 with the gains of Fig. 3 of arXiv 2312.02493, 8 ranks": answer_to_links(
            [0.001, 0.01, 0.1], [0.1371, 0.3398, 0.7953], 8, 25557032
        ),
    }
    for title, rows in answers.items():
        show_answers(title, rows)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"steps": results, "links": answers}, file, indent=2)


if __name__ == "__main__":
    main()
