# SPDX-License-Identifier: Apache-2.0
"""What the papers claim, in small: the CNN on Fashion-MNIST in virtual clusters, and the published
sizes and networks where nothing needs to be trained. Learning and bytes are real.

Accordion: Agarwal et al., MLSys 2021. GraVAC: Tyagi and Swany, IEEE CLOUD 2023. Flexible: Tyagi and
Swany, IEEE BigData 2023.
"""

import csv
import statistics
from collections import Counter
from functools import partial

from . import jobs
from .cell import Cell
from .jobs import JOBS, SEEDS
from .report import Report
from .store import ROOT, Store

CNN = JOBS["cnn"]
LINK = "100mbit"
IMAGES = 60_000  # that it learns from

# --- Accordion: rates that drop, as in the paper, at a half and at five sixths of the steps ---

STEPS = 600
DROPS = (300, 500)
DETECTOR = "window=10,interval=2"  # 20 steps: a thirtieth of the run, as 10 of 300 epochs
CRITICAL = 40  # steps at the start, by hand, as 20 of 300 epochs; half of that after the first drop


def by_hand(critical: str, elsewhere: str) -> str:
    """The schedules of Fig. 2."""
    first, last = DROPS[0], DROPS[0] + CRITICAL // 2
    levels = [(0, critical), (CRITICAL, elsewhere), (first, critical), (last, elsewhere)]
    return "schedule:levels=" + ";".join(f"{step} {level}" for step, level in levels)


ACCORDION = {
    "dense": "fixed:method=dense",
    **{f"powersgd-{rank}": f"fixed:method=powersgd,rank={rank}" for rank in (4, 3, 2, 1)},
    "accordion": f"accordion:method=powersgd,weak=4,strong=1,{DETECTOR}",
    "weak-in-critical": by_hand("powersgd 4", "powersgd 1"),
    "strong-in-critical": by_hand("powersgd 1", "dense"),
    **{f"topk-{ratio:g}": f"fixed:method=topk,ratio={ratio}" for ratio in (0.99, 0.3, 0.1, 0.02)},
    "accordion-topk": f"accordion:method=topk,weak=0.99,strong=0.02,{DETECTOR}",
}

SAMPLES = 1200 * CNN.global_batch  # of the comparison of batches: equal for all
GROWTH = 4
BATCHES = {
    "small": ("fixed:method=dense", 1),
    "large": ("fixed:method=dense", GROWTH),
    "accordion-batch": (f"accordion-batch:factor={GROWTH},{DETECTOR},ramp_steps=20", 1),
}

# --- GraVAC: the job of virtual.py, whose results for top-k, Accordion and eps 0.7 serve too ---

CLIMBING = "gravac:method=randomk,min_factor=1.5,climb=geometric,window=40"

GRAVAC = {
    "gravac-0.9": "gravac:window=50,threshold=0.9",
    "gravac-0.3": "gravac:window=50,threshold=0.3",
    "gravac-dgc-0.7": "gravac:window=50,method=dgc",
    "gravac-redsync-geometric": "gravac:window=40,method=redsync,climb=geometric,max_factor=2000",
    "dgc-10x": "fixed:method=dgc,ratio=0.1",
    "dgc-1000x": "fixed:method=dgc,ratio=0.001",
    "randomk-1.5x": "fixed:method=randomk,ratio=0.6667",
    "randomk-10x": "fixed:method=randomk,ratio=0.1",
    "randomk-1000x": "fixed:method=randomk,ratio=0.001",
    "randomk-gravac-0.7": CLIMBING,
    "randomk-gravac-0.1": f"{CLIMBING},threshold=0.1",
    "randomk-accordion": "accordion:method=randomk,weak=0.6667,strong=0.001,window=20,interval=2",
}

# --- Flexible ---

ROOT_RANKS = 8
ROOTS = {
    f"{method}-{ratio:g}": f"fixed:method=artopk-{method},ratio={ratio}"
    for method in ("star", "var")
    for ratio in (0.1, 0.01, 0.001)
}
SKEWED = ("star-0.01", "var-0.01")  # also where every worker sees two classes only
PAPER_RANKS = 8
PAPER_MODELS = {
    "ResNet-18": 11_689_512,
    "ResNet-50": 25_557_032,
    "AlexNet": 61_100_840,
    "ViT": 132_863_336,
}
SYNTHETIC_STEPS = 2000


def cells() -> list[Cell]:
    made = [
        Cell("claims/flexible/collectives", 30, collectives, quick=True),
        Cell("claims/flexible/ratios", 20, ratios, quick=True),
    ]
    for seed in SEEDS:
        for name, policy in ACCORDION.items():
            quick = seed == SEEDS[0] and name in ("powersgd-4", "powersgd-1", "accordion")
            made.append(cell(f"accordion/{name}", 18, with_drops, policy, seed, quick))
        for name in BATCHES:
            made.append(cell(f"batch/{name}", 32, with_batches, name, seed, False))
        for name, policy in GRAVAC.items():
            quick = seed == SEEDS[0] and name == "gravac-0.9"
            made.append(cell(f"gravac/{name}", 14, plainly, policy, seed, quick))
        for name, policy in ROOTS.items():
            quick = seed == SEEDS[0] and name in SKEWED
            made.append(cell(f"roots/{name}", 20, by_roots, policy, seed, quick))
        for name in ("dense", *SKEWED):
            policy = ROOTS.get(name, "fixed:method=dense")
            made.append(cell(f"skewed/{name}", 20, by_roots_skewed, policy, seed, False))
    return made


def cell(name: str, seconds: float, function, argument, seed: int, quick: bool) -> Cell:
    run = partial(function, argument, seed)
    return Cell(f"claims/{name}/seed{seed}", seconds, run, quick=quick, seed=seed)


def report(store: Store) -> Report:
    from .claims_report import make_report  # which knows this module

    return make_report(store)


# --- training ---


def policy_of(text: str):
    from tidegate.policies import parse

    if text.startswith("schedule:"):  # whose levels have commas of their own
        from tidegate.policies import Policy

        return Policy("schedule", {"levels": text.partition("levels=")[2]})
    return parse(text)


def plainly(policy: str, seed: int) -> dict:
    return jobs.train(CNN, 4, seed, LINK, policy=policy_of(policy))


def with_drops(policy: str, seed: int) -> dict:
    return jobs.train(
        CNN, 4, seed, LINK, steps=STEPS, make=task_with_drops, policy=policy_of(policy)
    )


def task_with_drops(job, ranks: int, seed: int, steps: int):
    import torch

    task = jobs.make_task(job, ranks, seed, steps)

    def factor(step: int) -> float:
        return 0.1 ** sum(step >= drop for drop in DROPS)

    for group in task.optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    task.scheduler = torch.optim.lr_scheduler.LambdaLR(task.optimizer, factor)
    return task


def with_batches(name: str, seed: int) -> dict:
    """Until equally many samples have been seen. The rate falls with the samples, not the steps."""
    import torch

    from tidegate.tasks import fashion_mnist

    torch.set_num_threads(1)
    policy, factor = BATCHES[name]
    ranks, batch = 4, factor * CNN.global_batch // 4
    task = fashion_mnist.make_task(seed, None, batch=batch, lr=0.05 * factor)
    seen = Counter()
    loss = task.loss

    def counted(model, data):
        seen["samples"] += batch
        return loss(model, data)

    task.loss = counted
    ramp = 60 if factor > 1 else 0  # a large rate needs a start: with 20 it diverged

    def rate(step: int) -> float:
        left = max(0.0, 1 - seen["samples"] / SAMPLES)
        return min(1.0, 2 * left, (step + 1) / (ramp + 1))

    task.scheduler = torch.optim.lr_scheduler.LambdaLR(task.optimizer, rate)
    cluster = jobs.make_cluster(
        task,
        ranks,
        jobs.segments(LINK, 1),
        seed,
        SAMPLES // batch // ranks,
        policy=policy_of(policy),
    )
    steps = 0
    while seen["samples"] < SAMPLES:
        cluster.step()
        steps += 1
    outcome = cluster.run(0)
    # A step of the large batch computes as long as so many small ones.
    more = (factor - 1) * jobs.compute_seconds(ranks) * steps
    return {
        "figure": outcome.figures[CNN.figure],
        "bytes_sent": outcome.bytes_sent,
        "seconds": jobs.rounded(outcome.modelled_seconds + more),
        "steps": steps,
        "samples": seen["samples"],
    }


def by_roots(policy: str, seed: int) -> dict:
    return jobs.train(CNN, ROOT_RANKS, seed, LINK, policy=policy_of(policy))


def by_roots_skewed(policy: str, seed: int) -> dict:
    return jobs.train(
        CNN, ROOT_RANKS, seed, LINK, make=task_with_few_classes, policy=policy_of(policy)
    )


def task_with_few_classes(job, ranks: int, seed: int, steps: int):
    """Images sorted by their class are dealt out in runs: a worker sees two classes, or three."""
    import torch

    from tidegate.tasks import Batches, fashion_mnist

    task = jobs.make_task(job, ranks, seed, steps)
    images, labels = fashion_mnist.load("train")
    by_class = torch.argsort(labels, stable=True).chunk(ranks)
    batch = job.global_batch // ranks

    def batches(worker: int, workers: int, epoch: int) -> Batches:
        shuffle = torch.Generator().manual_seed(1000 * seed + 10 * epoch + worker)
        mine = by_class[worker]
        order = mine[torch.randperm(len(mine), generator=shuffle)].split(batch)
        return Batches(
            len(images) // workers // batch, lambda i: (images[order[i]], labels[order[i]])
        )

    task.batches = batches
    return task


# --- Flexible, without training ---


def paper_gains() -> dict[int, list[float]]:
    """Of LWTopk at 0.001, 0.01 and 0.1, by parameters: Fig. 3."""
    path = ROOT / "tests" / "policies" / "paper_gains.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return {
        int(row["parameters"]): [float(row[f"gain_{ratio}"]) for ratio in ("0.001", "0.01", "0.1")]
        for row in csv.DictReader(lines)
    }


def paper_seconds(parameters: int, rate: float, latency: float, ratio: float) -> dict[str, float]:
    """Of each collective by the paper's formulas (8 workers); rate in bytes per second."""
    workers, logarithm = PAPER_RANKS, 3
    sent = 4 * parameters * ratio / rate
    ring = 2 * (workers - 1)
    return {
        "all-gather": latency * logarithm + 2 * sent * (workers - 1),
        "ring": latency * (ring + logarithm) + sent * (ring / workers + logarithm),
        "tree": 3 * latency * logarithm + 3 * sent * logarithm,
    }


def collectives() -> dict:
    """Shares of steps per collective on C1 and C2: by the paper's prices at the best ratio of every
    phase; and as `flexible` chose in a job without gradients, whose links it must measure."""
    from tidegate import _core
    from tidegate.policies import parse

    found = {}
    for model, parameters in PAPER_MODELS.items():
        for network in jobs.CHANGING:
            links = _core.find_link_schedule(network, SYNTHETIC_STEPS)
            policy = parse("flexible:warmup=200")
            outcome = _core.simulate_synthetic(
                policy.name,
                policy.options,
                ranks=PAPER_RANKS,
                steps=SYNTHETIC_STEPS,
                buckets=_core.ddp_buckets(parameters),
                links=links,
                compute=0.05,
                seed=0,
            )
            found[f"{model} {network}"] = {
                "paper_prices": priced_shares(parameters, links),
                "flexible": shares(outcome["choices"]),
                "changes_noticed": len(outcome["changes"]),
                "modelled_seconds": jobs.rounded(sum(outcome["step_seconds"])),
            }
    return found


def priced_shares(parameters: int, links) -> dict[str, float]:
    from tidegate import _core

    grid = [0.001 * 100 ** (i / 199) for i in range(200)]
    gains = paper_gains()[parameters]
    curve = [_core.interpolate_gain([0.001, 0.01, 0.1], gains, ratio) for ratio in grid]
    count = Counter()
    segments = [tuple(segment) for segment in links.segments]
    ends = [segment[0] for segment in segments[1:]] + [SYNTHETIC_STEPS]
    for (first, rate, latency), end in zip(segments, ends, strict=True):
        times = [min(paper_seconds(parameters, rate, latency, c).values()) for c in grid]
        best = _core.best_ratio(grid, times, curve)
        prices = paper_seconds(parameters, rate, latency, best)
        count[min(prices, key=prices.get)] += end - first
    return {name: steps / SYNTHETIC_STEPS for name, steps in count.items()}


def shares(choices: dict[str, int]) -> dict[str, float]:
    """Of steps: a choice counts once in a step, for however many buckets it was made. The engine's
    own all-reduce is taken to be a ring."""
    count = Counter()
    for choice, steps in choices.items():
        if choice.startswith("dense"):
            count["everything (warm-up)"] += steps
        elif choice.startswith("topk"):
            count["all-gather"] += steps
        else:
            count["tree" if "by tree" in choice else "ring"] += steps
    total = sum(count.values())
    return jobs.rounded({name: steps / total for name, steps in count.items()}, 4)


def ratios() -> dict:
    """The best ratio on every link of C1 and C2: directly, and by NSGA-II, on the same curves."""
    import numpy as np

    from tidegate import _core

    from .genetic import genetic_ratio

    found = {}
    grid = [0.001 * 100 ** (i / 199) for i in range(200)]
    for model, parameters in PAPER_MODELS.items():
        gains = paper_gains()[parameters]

        def gain(ratio: float, gains=gains) -> float:
            return _core.interpolate_gain([0.001, 0.01, 0.1], gains, ratio)

        for network in jobs.CHANGING:
            segments = {
                tuple(segment)[1:]
                for segment in _core.find_link_schedule(network, SYNTHETIC_STEPS).segments
            }
            for rate, latency in sorted(segments):
                link = _core.Network(PAPER_RANKS, PAPER_RANKS, (rate, latency))
                times = [
                    min(cost[2] for cost in _core.collective_costs(link, [parameters], ratio))
                    for ratio in grid
                ]
                direct = _core.best_ratio(grid, times, [gain(ratio) for ratio in grid])
                genetic = genetic_ratio(lambda c, t=times: float(np.interp(c, grid, t)), gain)
                name = f"{model} {network} {jobs.segment_key((rate, latency))}"
                found[name] = jobs.rounded({"direct": direct, "genetic": genetic})
    gaps = [abs(one["genetic"] / one["direct"] - 1) for one in found.values()]
    return {
        "ratios": found,
        "largest_gap": jobs.rounded(max(gaps)),
        "median_gap": jobs.rounded(statistics.median(gaps)),
    }
