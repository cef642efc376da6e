# SPDX-License-Identifier: Apache-2.0
"""Every job on every link with every method and policy, in virtual clusters: what is learned and
sent is real, seconds are modelled (jobs.py says how jobs are scaled).

A static choice learns the same on any link and, but for the rounding of sums, on any machine, so it
is trained once. A policy is trained on every link. What steps take is measured apart: of all static
choices of a job, and of all that `auto` has made of it, in turn, on every link that there is at
some time, so that a machine that is slow for a while is slow for all. Other policies choose among
so many levels that their seconds are those of their own runs.
"""

from functools import partial

from . import jobs
from .cell import Cell
from .jobs import JOBS, LINKS, SEEDS
from .report import Report
from .store import Store

RANKS = (4, 16)
MANY = 64  # ranks, for few methods
# Of `auto` and static choices, by ranks; dense, whose spread is the noise, has three with 16 ranks,
# and the CNN, whose seeds differ by more than what is lost, more of all.
SEEDS_OF = {4: SEEDS, 16: SEEDS[:2], MANY: SEEDS[:1]}
NOISY = "cnn"
NOISY_SEEDS_OF = {4: (*SEEDS, 63, 64, 65), 16: SEEDS, MANY: SEEDS}
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
# Dense, 16 bits, and what is the best with 16 ranks on some link.
STATIC_OF_MANY = {
    "cnn": ("dense", "bf16", "int8", "int4", "powersgd-8", "powersgd-4", "powersgd-2"),
    "gpt": ("dense", "bf16", "int4"),
    "lstm": ("dense", "bf16", "int4", "topk-0.1-owner"),
}

POLICIES = {
    "auto": "auto",
    "gravac": "gravac:window=50",
    "flexible": "flexible:warmup=50",
    "accordion": "accordion:method=powersgd,weak=4,strong=1,window=20,interval=2",
}
BLIND = ("accordion",)  # do not look at the link
# Where policies other than `auto` have more than one seed, with 4 ranks.
REPEATED = {
    "gravac": (TRAINED_ON, "100mbit", "C2"),
    "flexible": (TRAINED_ON, "C2"),
    "accordion": (TRAINED_ON,),
}

# Seconds of a run: measured with two at a time.
TRAINING = {
    "cnn": {4: 10, 16: 15, 64: 38},
    "gpt": {4: 20, 16: 25, 64: 40},
    "lstm": {4: 10, 16: 17, 64: 40},
}
TIMING = {4: 3, 16: 8, 64: 17}  # of one choice
PLANS = 6  # of `auto`, most of them on few links, take as long as so many choices

QUICK_STATIC = {
    "cnn": ("dense", "bf16", "int4", "topk-0.1", "topk-0.01", "powersgd-4"),
    "gpt": ("dense", "int4"),
    "lstm": ("dense", "int4"),
}
QUICK_AUTO = {"cnn": ("1gbit", "100mbit", "C2"), "gpt": ("100mbit",), "lstm": ("100mbit",)}


def cells() -> list[Cell]:
    made = []
    places = [(ranks, name) for ranks in (*RANKS, MANY) for name in JOBS]
    for ranks, name in places:
        made += [
            static_cell(name, ranks, choice, seed)
            for choice in choices_of(name, ranks)
            for seed in seeds_of_choice(name, ranks, choice)
        ]
        made += [
            policy_cell(name, ranks, policy, link, seed)
            for policy in policies_of(ranks)
            for link in LINKS
            for seed in seeds_of_policy(name, ranks, policy, link)
        ]
    # Last: they time what `auto` has chosen.
    return made + [times_cell(name, ranks) for ranks, name in places]


def choices_of(name: str, ranks: int) -> tuple[str, ...]:
    return STATIC_OF_MANY[name] if ranks == MANY else tuple(STATIC)


def policies_of(ranks: int) -> tuple[str, ...]:
    return ("auto",) if ranks == MANY else tuple(POLICIES)


def seeds_of(name: str, ranks: int) -> tuple[int, ...]:
    return (NOISY_SEEDS_OF if name == NOISY else SEEDS_OF)[ranks]


def seeds_of_choice(name: str, ranks: int, choice: str) -> tuple[int, ...]:
    seeds = seeds_of(name, ranks)
    return max(SEEDS, seeds, key=len) if choice == "dense" and ranks in RANKS else seeds


def seeds_of_policy(name: str, ranks: int, policy: str, link: str) -> tuple[int, ...]:
    if policy == "auto":
        return seeds_of(name, ranks)
    return SEEDS if ranks == RANKS[0] and link in REPEATED[policy] else SEEDS[:1]


def times_cell(name: str, ranks: int) -> Cell:
    return Cell(
        times_name(name, ranks),
        TIMING[ranks] * (len(choices_of(name, ranks)) + PLANS),
        partial(time_choices, name, ranks),
        quick=ranks == 4,
        seed=SEEDS[0],
        last=True,
    )


def static_cell(name: str, ranks: int, choice: str, seed: int) -> Cell:
    return Cell(
        static_name(name, ranks, choice, seed),
        TRAINING[name][ranks],
        partial(train_static, name, ranks, choice, seed),
        quick=ranks == 4 and seed == SEEDS[0] and choice in QUICK_STATIC[name],
        seed=seed,
    )


def policy_cell(name: str, ranks: int, policy: str, link: str, seed: int) -> Cell:
    return Cell(
        policy_name(name, ranks, policy, link, seed),
        1.2 * TRAINING[name][ranks],
        partial(train_policy, name, ranks, policy, link, seed),
        quick=(ranks, seed, policy) == (4, SEEDS[0], "auto") and link in QUICK_AUTO[name],
        seed=seed,
    )


def times_name(name: str, ranks: int) -> str:
    return f"virtual/{name}/{ranks}/times"


def static_name(name: str, ranks: int, choice: str, seed: int) -> str:
    return f"virtual/{name}/{ranks}/{choice}/seed{seed}"


def policy_name(name: str, ranks: int, policy: str, link: str, seed: int) -> str:
    return f"virtual/{name}/{ranks}/{policy}/{link}/seed{seed}"


def report(store: Store) -> Report:
    from .virtual_report import make_report  # which knows this module

    return make_report(store)


def train_static(name: str, ranks: int, choice: str, seed: int) -> dict:
    result = jobs.train(JOBS[name], ranks, seed, TRAINED_ON, **fixed(choice))
    for key in ("seconds", "seconds_at"):  # of the one link it was trained on
        del result[key]
    return result


def fixed(choice: str) -> dict:
    return {"policy": "fixed", **STATIC[choice]}


def time_choices(name: str, ranks: int) -> dict:
    """By choice: seconds of a step on every link, and how much longer one takes in a training.
    "plans": the same of what `auto` has done, where it has."""
    ways = {}
    for choice in choices_of(name, ranks):
        routes = ("engine", "tree") if choice in PLAIN else (None,)
        ways[choice] = [fixed(choice) | ({"route": route} if route else {}) for route in routes]
    plans = plans_of_auto(Store(), name, ranks)
    ways |= {plan: [jobs.way_of_plan(plan)] for plan in plans}
    times = jobs.time_steps(JOBS[name], ranks, SEEDS[0], ways, only=plans)
    return {choice: times[choice] for choice in choices_of(name, ranks)} | {
        "plans": {plan: times[plan] for plan in plans}
    }


def plans_of_auto(store: Store, name: str, ranks: int) -> dict[str, set[tuple[float, float]]]:
    """In all its runs, and on which links they are wanted."""
    wanted: dict[str, set[tuple[float, float]]] = {}
    steps = JOBS[name].steps
    for link in LINKS:
        links = jobs.segment_of_steps(link, steps)
        for seed in seeds_of_policy(name, ranks, "auto", link):
            result = store.result(policy_name(name, ranks, "auto", link, seed))
            if result is None or "plans" not in result:
                continue
            plans = jobs.plan_of_steps(result["plans"], steps)
            for plan, segment in zip(plans, links, strict=True):
                wanted.setdefault(plan, set()).add(segment)
    return wanted


def train_policy(name: str, ranks: int, policy: str, link: str, seed: int) -> dict:
    from tidegate.policies import parse

    return jobs.train(
        JOBS[name],
        ranks,
        seed,
        link,
        policy=parse(POLICIES[policy]),
        tell_plans=policy == "auto",
    )
