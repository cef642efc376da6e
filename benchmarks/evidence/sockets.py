# SPDX-License-Identifier: Apache-2.0
"""The same job over real sockets: four ranks by gloo, on links made by tools/netlab (100 Mbit/s,
200 Mbit/s, 1 Gbit/s, one that changes) and on unshaped loopback.

What a static choice learns does not depend on the link: it is trained once per seed, on loopback,
and its first 5 steps and 30 more are timed on every link, loopback too. The same goes for a policy
that does not look at the link. Others are trained on every link.
"""

from functools import partial

from .cell import Cell
from .report import Report
from .socket_run import LOOPBACK, run_job, traced
from .store import Store

STEPS = 400
SEEDS = (0, 1, 2)
LINKS = ("100mbit", "200mbit", "1gbit", LOOPBACK)
TIMED = 30  # steps

# A link that changes: steps from which on it is what. On a fast one that is far few rounds count,
# on a slow one few bytes.
FAR, SLOW = "1gbit,20ms", "20mbit,20ms"
CHANGING = ((0, FAR), (150, SLOW), (250, FAR))
PHASE_STEPS, PHASE_SECONDS = 12, 30  # timed; so many, or what is done in so long
LONG = 900.0  # seconds that a whole run may take there: not every policy copes with it
OVERHEAD_SECONDS = 500.0  # that the comparison with plain DDP may take


def static(method: str, **options) -> dict:
    return {"kind": "tidegate", "policy": "fixed", "method": method, "calibrate": True, **options}


RIVALS = {
    "fp32": {"kind": "ddp"},
    "fp16": {"kind": "fp16"},
    **{f"powersgd-torch-{rank}": {"kind": "powersgd", "rank": rank} for rank in (4, 2, 1)},
}
OWN = {
    **{f"powersgd-{rank}": static("powersgd", rank=rank, bits=16) for rank in (8, 4)},
    **{f"topk-{ratio:g}": static("topk", ratio=ratio) for ratio in (0.1, 0.01, 0.001)},
    "int8": static("int8"),
    "int4": static("int4"),
}
STATIC = {**RIVALS, **OWN}
# The authors' windows are parts of much longer trainings; these are the same shares of this one.
POLICIES = {
    "auto": {"policy": "auto", "horizon": STEPS},
    "gravac": {"policy": "gravac:window=40"},
    "flexible": {"policy": "flexible:warmup=40"},
    "accordion": {"policy": "accordion:window=20,interval=1"},
}
BLIND = ("accordion",)  # do not look at the link; trained on REPEATED only
REPEATED = "100mbit"
# Trained on a shaped link as well, to see whether timed steps tell what a run takes.
CHECKED = (("powersgd-torch-4", "100mbit"), ("powersgd-8", "100mbit"))

WHOLE = 90  # seconds of a cell that trains
WHOLE_CHANGING = {"auto": 165, "gravac": 300, "flexible": 155, "accordion": 370}
# Seconds of a step, for estimates; others take about 0.2.
STEP = {
    "100mbit": {"fp32": 2.9, "fp16": 1.5, "int8": 0.8, "int4": 0.5, "topk-0.1": 0.6},
    "200mbit": {"fp32": 1.5, "fp16": 0.8, "int8": 0.5, "int4": 0.35, "topk-0.1": 0.4},
    FAR: {"fp32": 0.7, "fp16": 0.6},
    SLOW: {"fp32": 13, "fp16": 7, "int8": 4.5, "int4": 2.5, "topk-0.1": 2},
}
USUAL_STEP, START = 0.2, 15.0


def cells() -> list[Cell]:
    made = [overhead_cell(), *(check_cell(way, link) for way, link in CHECKED)]
    made += [timed_cell(link, way) for link in LINKS for way in STATIC]
    made += [timed_cell(link, way) for link in LINKS if link != REPEATED for way in BLIND]
    made += [phase_cell(link, way) for link in (FAR, SLOW) for way in STATIC]
    made += [changing_cell(policy, seed) for policy in POLICIES for seed in changing_seeds(policy)]
    for seed in SEEDS:
        made += [learning_cell(way, seed) for way in STATIC]
        made += [
            policy_cell(link, policy, seed)
            for link in LINKS
            for policy in POLICIES
            if seed in seeds_of(link, policy)
        ]
    return made


def seeds_of(link: str, policy: str) -> tuple[int, ...]:
    """With which it is trained there."""
    return () if policy in BLIND and link != REPEATED else SEEDS


def changing_seeds(policy: str) -> tuple[int, ...]:
    return SEEDS if policy == "auto" else (0,)


def way_of(name: str) -> dict:
    return STATIC[name] if name in STATIC else {"kind": "tidegate", **POLICIES[name]}


# --- names ---


def learning_name(way: str, seed: int) -> str:
    return f"sockets/learning/{way}/seed{seed}"


def timed_name(link: str, way: str) -> str:
    return f"sockets/timed/{link}/{way}"


def policy_name(link: str, policy: str, seed: int) -> str:
    return f"sockets/{link}/{policy}/seed{seed}"


def phase_name(link: str, way: str) -> str:
    return f"sockets/changing/{link.replace(',', '-')}/{way}"


def changing_name(policy: str, seed: int) -> str:
    return f"sockets/changing/{policy}/seed{seed}"


def check_name(way: str, link: str) -> str:
    return f"sockets/check/{link}/{way}"


OVERHEAD_NAME = "sockets/overhead"


# --- cells ---


def alone(name: str, seconds: float, run, seed: int = 0, quick: bool = False) -> Cell:
    return Cell(name, seconds, run, quick=quick, exclusive=True, seed=seed)


def learning_cell(way: str, seed: int) -> Cell:
    """A whole run on loopback."""
    run = partial(run_job, LOOPBACK, way=STATIC[way], steps=STEPS, seed=seed)
    return alone(learning_name(way, seed), WHOLE, run, seed)


def timed_cell(link: str, way: str) -> Cell:
    run = partial(run_job, link, way=way_of(way), timed=TIMED, steps=STEPS)
    seconds = START + TIMED * STEP.get(link, {}).get(way, USUAL_STEP)
    quick = link == "100mbit" and way in ("fp32", "fp16", "powersgd-torch-4")
    return alone(timed_name(link, way), seconds, run, quick=quick)


def policy_cell(link: str, policy: str, seed: int) -> Cell:
    run = partial(traced, link, way=way_of(policy), steps=STEPS, seed=seed)
    quick = link == "100mbit" and policy == "auto" and seed == 0
    return alone(policy_name(link, policy, seed), WHOLE, run, seed, quick)


def check_cell(way: str, link: str) -> Cell:
    run = partial(run_job, link, way=STATIC[way], steps=STEPS)
    return alone(check_name(way, link), WHOLE, run)


def phase_cell(link: str, way: str) -> Cell:
    """Timed steps of one phase; the link becomes so after the warm-up, which might take long."""
    step = STEP[link].get(way, 0.5)
    seconds = START + max(3 * step, min(PHASE_STEPS * step, PHASE_SECONDS))
    return alone(phase_name(link, way), seconds, partial(time_phase, link, way))


def time_phase(link: str, way: str) -> dict:
    from .socket_job import WARM_UP

    return run_job(
        CHANGING[0][1],
        way=STATIC[way],
        steps=STEPS,
        timed=PHASE_STEPS,
        within=PHASE_SECONDS,
        changes=[] if link == CHANGING[0][1] else [(WARM_UP, link)],
    )


def changing_cell(policy: str, seed: int) -> Cell:
    run = partial(
        traced,
        CHANGING[0][1],
        way=way_of(policy),
        steps=STEPS,
        seed=seed,
        changes=CHANGING[1:],
        seconds=LONG,
    )
    return alone(changing_name(policy, seed), WHOLE_CHANGING[policy], run, seed)


def overhead_cell() -> Cell:
    ways = {
        "plain": RIVALS["fp32"],
        "control": RIVALS["fp32"],
        "dense": {**static("dense"), "calibrate": None},
        "auto": {"kind": "tidegate", "policy": "auto"},
    }
    run = partial(run_job, LOOPBACK, job="overhead_job", ways=ways, seconds=OVERHEAD_SECONDS)
    return alone(OVERHEAD_NAME, 155, run)


def report(store: Store) -> Report:
    from .sockets_report import make_report  # which knows this module

    return make_report(store)
