# SPDX-License-Identifier: Apache-2.0
"""Are prices right? On a real network: calibrates as a job would, predicts what the rounds of every
method and route take, performs them (with zeros in place of gradients, back to back), and compares.
All of it several times in turn, because machines are noisy: medians are shown, without the cycles in
which a hypervisor took more than 3 % of the machine's time; at most three times as many are tried.
From the second time on there is a second prediction: of a running estimate that starts from the
calibration and has seen the transfers of the times before, as that of a job has.

    sudo tools/awake tools/netlab run --ranks 4 --link 100mbit --quiet -- .venv/bin/python benchmarks/netlab_prices.py
    sudo tools/awake tools/netlab run --ranks 4 --link 1gbit --quiet -- .venv/bin/python benchmarks/netlab_prices.py

or under torchrun on the machines of a cluster. Exits with 1 if the mean error of the calibrated prices
is above 10 %, or if their winner is not the measured one where the two differ by more than 15 %.
"""  # noqa: E501

import argparse
import json
import statistics
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress

from tidegate import _core
from tidegate.cli import show_rows
from tidegate.engine import Engine

# Exchanges that could stand in for each other: (method, level, routes).
GROUPS = {
    "dense": [("dense", 1.0, ("engine", "ring", "tree"))],
    "bf16": [("bf16", 1.0, ("engine", "ring", "tree"))],
    "sparse 1 %": [
        ("topk", 0.01, ("allgather", "owner")),
        ("artopk-star", 0.01, ("engine", "ring", "tree")),
    ],
    "sparse 10 %": [
        ("topk", 0.1, ("allgather", "owner")),
        ("artopk-star", 0.1, ("engine", "ring", "tree")),
    ],
    "int8": [("int8", 1.0, ("allgather", "owner"))],
}
MEAN_ERROR, WORTH_TELLING = 0.10, 0.15
MOST_STOLEN, PATIENCE = 0.03, 3
LEAST_TIMES, MOST_TIMES, SECONDS_PER_ROW = 2, 60, 0.3  # in one cycle


def measure(engine: Engine, rounds, route: str, times: int) -> tuple[float, list]:
    """Seconds of the whole: the mean over repetitions, the median over ranks. And its transfers, as
    a job would learn of them."""
    rehearsal = _core.Rehearsal(engine.rank, engine.ranks, rounds, route, times)
    engine.perform(rehearsal)
    # The first time opens connections and windows, and waits for ranks that are not there yet.
    mine = rehearsal.seconds[len(rounds) :]
    everyone = engine.gather_objects(mine)
    whole = statistics.median(sum(seconds) / (times - 1) for seconds in everyone)
    took = [_core.time_of_transfer(same) for same in zip(*everyone, strict=True)]
    transfers = [
        (*rounds[index % len(rounds)], route, seconds) for index, seconds in enumerate(took)
    ]
    return whole, [transfer for transfer in transfers if transfer[0] != "broadcast"]


def rows_of(engine: Engine, calibrated, learned, elements: int, advance) -> tuple[list, list]:
    """One row for every way, and all transfers."""
    rows, seen = [], []
    layers = [("gradient", elements, 0)]
    for group, choices in GROUPS.items():
        for method, level, routes in choices:
            for route in routes:
                rounds = [
                    (collective, nbytes)
                    for collective, nbytes, _ in _core.rounds(
                        method, level, route, 0, layers, engine.ranks
                    )
                ]
                way = (method, level, route, elements)
                predicted = learned.price_of(*way)
                times = min(MOST_TIMES, max(LEAST_TIMES, round(SECONDS_PER_ROW / predicted)))
                measured, transfers = measure(engine, rounds, route, 1 + times)
                seen += transfers[: len(rounds) * 2]
                rows.append(
                    {
                        "elements": elements,
                        "group": group,
                        "method": method,
                        "level": level,
                        "route": route,
                        "calibrated_ms": 1e3 * calibrated.price_of(*way),
                        "predicted_ms": 1e3 * predicted,
                        "measured_ms": 1e3 * measured,
                    }
                )
                advance()
    return rows, seen


def processor_times() -> list[int]:
    """In ticks, of all processors: user, nice, system, idle, iowait, irq, softirq, steal."""
    with open("/proc/stat", encoding="ascii") as file:
        return [int(ticks) for ticks in file.readline().split()[1:9]]


def stolen_since(before: list[int]) -> float:
    passed = [now - then for now, then in zip(processor_times(), before, strict=True)]
    return passed[-1] / max(1, sum(passed))


def medians(rows: tuple[dict, ...]) -> dict:
    names = ("calibrated_ms", "predicted_ms", "measured_ms")
    row = {**rows[0], **{name: statistics.median(r[name] for r in rows) for name in names}}
    row["calibrated_error"] = row["calibrated_ms"] / row["measured_ms"] - 1
    row["error"] = row["predicted_ms"] / row["measured_ms"] - 1
    return row


def wrong_winners(rows: list[dict]) -> list[str]:
    wrong = []
    for elements, group in dict.fromkeys((row["elements"], row["group"]) for row in rows):
        rivals = [row for row in rows if (row["elements"], row["group"]) == (elements, group)]
        fastest = min(rivals, key=lambda row: row["measured_ms"])
        chosen = min(rivals, key=lambda row: row["calibrated_ms"])
        loss = chosen["measured_ms"] / fastest["measured_ms"] - 1
        if loss > WORTH_TELLING:
            wrong.append(
                f"{group}, {elements} elements: {chosen['method']} by {chosen['route']} was "
                f"predicted to win, but {fastest['method']} by {fastest['route']} did, by "
                f"{100 * loss:.0f} %"
            )
    return wrong


def show(result: dict) -> None:
    columns = {
        "elements": lambda row: f"{row['elements']:,}",
        "method": lambda row: row["method"] + (f" {row['level']:g}" if row["level"] < 1 else ""),
        "route": lambda row: row["route"],
        "measured ms": lambda row: f"{row['measured_ms']:.1f}",
        "calibrated": lambda row: f"{row['calibrated_ms']:.1f}",
        "error": lambda row: f"{100 * row['calibrated_error']:+.1f} %",
        "learned": lambda row: f"{row['predicted_ms']:.1f}",
        " error": lambda row: f"{100 * row['error']:+.1f} %",
    }
    network = [{"collective": name, **fit} for name, fit in result["network"].items()]
    show_rows(
        network,
        {
            "collective": lambda row: row["collective"],
            "Mbit/s": lambda row: f"{row['mbit']:.1f}",
            "latency ms": lambda row: f"{row['latency_ms']:.3f}",
            "origin": lambda row: row["origin"],
        },
    )
    show_rows(result["rows"], columns)
    print(
        f"mean error {100 * result['calibrated_mean_error']:.1f} % as calibrated, "
        f"{100 * result['mean_error']:.1f} % as learned; medians of {result['cycles']} cycles "
        f"({result['disturbed_cycles']} disturbed ones left out), each calibrated in "
        f"{result['seconds']:.2f} s at most; the network is the learned one"
    )
    print(
        "\n".join(result["wrong_winners"]) or "every predicted winner won, or lost by 15 % at most"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, nargs="+", default=[2_000_000, 6_553_600])
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    engine = Engine(dist.group.WORLD, 120)
    total = len(arguments.elements) * sum(len(r) for g in GROUPS.values() for _, _, r in g)
    console = Console(stderr=True, quiet=engine.rank != 0)
    cycles, calibrations, disturbed = [], [], 0
    with Progress(console=console) as progress:
        bar = progress.add_task("exchanges", total=total * (1 + arguments.cycles))
        estimate = None
        while len(cycles) < 1 + arguments.cycles:
            before = processor_times()
            calibration = engine.calibrate()
            estimate = estimate or _core.NetworkEstimate(calibration.network)
            cycle, step = [], []
            for elements in arguments.elements:
                rows, transfers = rows_of(
                    engine,
                    calibration.network,
                    estimate.network,
                    elements,
                    lambda: progress.advance(bar),
                )
                cycle += rows
                step += transfers
            stolen = max(engine.gather_objects(stolen_since(before)))
            if cycles and stolen > MOST_STOLEN and disturbed < PATIENCE * arguments.cycles:
                disturbed += 1
                progress.advance(bar, -total)
                continue
            estimate.observe(step)
            cycles.append(cycle)
            calibrations.append(calibration)
    rows = [medians(same) for same in zip(*cycles[1:], strict=True)]
    result = {
        "ranks": engine.ranks,
        "cycles": arguments.cycles,
        "disturbed_cycles": disturbed,
        "seconds": max(calibration.seconds for calibration in calibrations),
        "network": estimate.network.fits(),
        "rows": rows,
        "mean_error": statistics.mean(abs(row["error"]) for row in rows),
        "calibrated_mean_error": statistics.mean(abs(row["calibrated_error"]) for row in rows),
        "wrong_winners": wrong_winners(rows),
    }
    engine.close()
    dist.destroy_process_group()
    if engine.rank == 0:
        show(result)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=2)
    return int(result["calibrated_mean_error"] > MEAN_ERROR or bool(result["wrong_winners"]))


if __name__ == "__main__":
    sys.exit(main())
