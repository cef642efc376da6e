# SPDX-License-Identifier: Apache-2.0
"""Every job on every link with every method and policy, in virtual clusters: what is learned and
sent is real, seconds are modelled (jobs.py says how jobs are scaled).

A static choice learns the same on any link, so it is trained once, and its step is timed on every
link that there is at some time. A policy is trained on every link.

Steps are timed with gradients that do not change. Between the passes of a real training compressing
takes longer, by up to a sixth of a step: that is measured once for every choice, and added.
"""

from functools import partial

from . import jobs
from .cell import Cell
from .jobs import JOBS, LINKS, SEEDS
from .report import Report
from .store import Store

RANKS = (4, 16)
MANY = 64  # ranks, for few methods and one seed
TRAINED_ON = "1gbit"  # static choices, and what does not look at the link

STATIC = {
    "dense": {"method": "dense"},
    "fp16": {"method": "fp16"},
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "int4": {"method": "int4"},
    **{f"topk-{r:g}": {"method": "topk", "ratio": r} for r in (0.1, 0.01, 0.001)},
    **{f"topk-{r:g}-owner": {"method": "topk", "ratio": r, "route": "owner"} for r in (0.1, 0.01)},
    "artopk-star-0.1": {"method": "artopk-star", "ratio": 0.1},
    **{f"powersgd-{r}": {"method": "powersgd", "rank": r, "bits": 16} for r in (8, 4, 2, 1)},
}
# What frameworks offer: by their own all-reduce, or by a tree where that is faster.
PLAIN = ("dense", "fp16", "bf16")
STATIC_OF_MANY = ("dense", "bf16", "int4", "powersgd-8", "powersgd-4")

POLICIES = {
    "auto": "auto",
    "gravac": "gravac:window=50",
    "flexible": "flexible:warmup=50",
    "accordion": "accordion:method=powersgd,weak=4,strong=1,window=20,interval=2",
}
BLIND = ("accordion",)  # do not look at the link
# Where policies other than `auto` have more than one seed.
REPEATED = {
    "gravac": (TRAINED_ON, "C2"),
    "flexible": (TRAINED_ON, "C2"),
    "accordion": (TRAINED_ON,),
}

# Seconds of a run: measured with two at a time.
TRAINING = {
    "cnn": {4: 16, 16: 30, 64: 95},
    "gpt": {4: 20, 16: 29, 64: 80},
    "lstm": {4: 20, 16: 34, 64: 90},
}
TIMING = {4: 3, 16: 8, 64: 40}

QUICK_STATIC = {
    "cnn": ("dense", "bf16", "int4", "topk-0.1", "topk-0.01", "powersgd-4"),
    "gpt": ("dense", "int4"),
    "lstm": ("dense", "int4"),
}
QUICK_AUTO = {"cnn": ("1gbit", "100mbit", "C2"), "gpt": ("100mbit",), "lstm": ("100mbit",)}


def cells() -> list[Cell]:
    made = []
    for ranks in RANKS:
        for name in JOBS:
            for seed in SEEDS:
                made += [static_cell(name, ranks, choice, seed) for choice in STATIC]
                made += [
                    policy_cell(name, ranks, policy, link, seed)
                    for policy in POLICIES
                    for link in LINKS
                    if seed in seeds_of(policy, link)
                ]
            made += [passes_cell(name, ranks, choice) for choice in STATIC]
    for name in JOBS:
        made += [static_cell(name, MANY, choice, SEEDS[0]) for choice in STATIC_OF_MANY]
        made += [passes_cell(name, MANY, choice) for choice in STATIC_OF_MANY]
        made += [policy_cell(name, MANY, "auto", link, SEEDS[0]) for link in LINKS]
    return made


def seeds_of(policy: str, link: str) -> tuple[int, ...]:
    return SEEDS if link in REPEATED.get(policy, LINKS) else SEEDS[:1]


def static_cell(name: str, ranks: int, choice: str, seed: int) -> Cell:
    return Cell(
        static_name(name, ranks, choice, seed),
        TRAINING[name][ranks] + TIMING[ranks] * (2 if choice in PLAIN else 1),
        partial(train_static, name, ranks, choice, seed),
        quick=ranks == 4 and seed == SEEDS[0] and choice in QUICK_STATIC[name],
        seed=seed,
    )


def passes_cell(name: str, ranks: int, choice: str) -> Cell:
    return Cell(
        passes_name(name, ranks, choice),
        5 + TRAINING[name][ranks] * jobs.TIMED / JOBS[name].steps,
        partial(time_passes, name, ranks, choice),
        quick=ranks == 4 and choice in QUICK_STATIC[name],
        seed=SEEDS[0],
    )


def policy_cell(name: str, ranks: int, policy: str, link: str, seed: int) -> Cell:
    return Cell(
        policy_name(name, ranks, policy, link, seed),
        1.2 * TRAINING[name][ranks],
        partial(train_policy, name, ranks, policy, link, seed),
        quick=(ranks, seed, policy) == (4, SEEDS[0], "auto") and link in QUICK_AUTO[name],
        seed=seed,
    )


def static_name(name: str, ranks: int, choice: str, seed: int) -> str:
    return f"virtual/{name}/{ranks}/{choice}/seed{seed}"


def passes_name(name: str, ranks: int, choice: str) -> str:
    return f"virtual/{name}/{ranks}/{choice}/passes"


def policy_name(name: str, ranks: int, policy: str, link: str, seed: int) -> str:
    return f"virtual/{name}/{ranks}/{policy}/{link}/seed{seed}"


def report(store: Store) -> Report:
    from .virtual_report import make_report  # which knows this module

    return make_report(store)


def train_static(name: str, ranks: int, choice: str, seed: int) -> dict:
    job, options = JOBS[name], {"policy": "fixed", **STATIC[choice]}
    result = jobs.train(job, ranks, seed, TRAINED_ON, **options)
    for key in ("seconds", "seconds_at"):  # of the one link it was trained on
        del result[key]
    if choice in PLAIN:
        routes = [
            jobs.time_steps(job, ranks, seed, route=route, **options)
            for route in ("engine", "tree")
        ]
        timed = {link: min(route[link] for route in routes) for link in routes[0]}
    else:
        timed = jobs.time_steps(job, ranks, seed, **options)
    return {**result, "step_seconds": timed}


def time_passes(name: str, ranks: int, choice: str) -> dict:
    import torch

    torch.set_num_threads(1)
    options = {"policy": "fixed", **STATIC[choice]}
    return jobs.time_between_passes(JOBS[name], ranks, SEEDS[0], **options)


def train_policy(name: str, ranks: int, policy: str, link: str, seed: int) -> dict:
    from tidegate.policies import parse

    return jobs.train(JOBS[name], ranks, seed, link, policy=parse(POLICIES[policy]))
