# SPDX-License-Identifier: Apache-2.0
"""The page, the plots and the README's table of sockets.py's cells."""

import statistics

import torch

from .overhead_job import Overhead
from .report import MISSING, Report, provenance, table
from .socket_job import Settings, make_model
from .socket_run import LOOPBACK
from .sockets import (
    BLIND,
    CHECKED,
    LINKS,
    OVERHEAD_NAME,
    RIVALS,
    SEEDS,
    STATIC,
    STEPS,
    TIMED,
    cells,
    check_name,
    learning_name,
    policy_name,
    timed_name,
)
from .sockets_changing import changing_goals, changing_table, changing_words, timed_words
from .sockets_plots import curve_plot, reaction_plot
from .sockets_rows import (
    FURTHER,
    LINK_NAMES,
    NAMES,
    NEVER,
    WARM_UP,
    Quality,
    Row,
    best_static,
    count,
    counted,
    judged,
    lacking,
    megabytes,
    milliseconds,
    named,
    percent,
    quality,
    reached,
    results,
    rows_of,
    seconds,
    seconds_after,
    spread,
    verdict,
)
from .store import Store

CLOSE = 0.05  # auto may take so much longer than the best static choice
LEAST_SPEED = 0.98  # of plain DDP on loopback
WELL_MODELLED = 0.1
WELL_TIMED = 0.1
GOALS = {"fp32": 20.0, "fp16": 10.0, "powersgd-torch": 1.5}  # times as long as auto
TORCH_POWERSGD = [way for way in RIVALS if way.startswith("powersgd")]
README_WAYS = (*RIVALS, "int4", "powersgd-8", "powersgd-4", "topk-0.01", "auto")


def times(value: float | None, other: float | None) -> str:
    """How many times as long the other takes."""
    if value is None or other is None:
        return MISSING
    if value == NEVER:
        return "never there"
    return "never there itself" if other == NEVER else ratio_words(other / value)


def link_table(rows: dict[str, Row | None]) -> str:
    rival = {name: rows[name].to_target if rows[name] else None for name in ("fp32", "fp16")}
    shown = []
    for way, row in rows.items():
        if row is None:
            shown.append([NAMES[way], *[MISSING] * 7])
            continue
        mark = "*" if row.warned else ""
        mine = row.to_target
        shown.append(
            [
                named(row),
                f"{milliseconds(row.ms)}{mark} ({milliseconds(row.p99)})",
                megabytes(row.sent),
                spread(row.steps, count),
                spread(row.seconds, seconds),
                times(mine, rival["fp32"]),
                times(mine, rival["fp16"]),
                spread(row.finals, percent),
            ]
        )
    header = ["", "ms a step (p99)", "MB sent a step", "steps to 86 %", "time to 86 %"]
    return table([*header, "fp32 takes", "fp16 takes", "accuracy at the end"], shown)


def goal_rows(store: Store, all_rows: dict[str, dict], good: Quality | None) -> list[list[str]]:
    rows = all_rows["100mbit"]
    shown = [target_goal(rows, name) for name in GOALS]
    shown += [further_row(rows, name) for name in GOALS]
    shown += [whole_row(rows, "100mbit", name) for name in GOALS]
    shown += [whole_row(all_rows[LOOPBACK], LOOPBACK, name) for name in ("fp32", "fp16")]
    shown += [constant_goal(all_rows[link], link, good) for link in LINKS]
    shown += changing_goals(store, good)
    shown += overhead_goals(store)
    shown += [modelled_goal(store, link) for link in LINKS]
    shown += [check_goal(store, way, link) for way, link in CHECKED]
    return shown


def rival_of(rows: dict[str, Row | None], name: str) -> tuple[str, Row | None, str]:
    """As it is called, its row, and what lacks for a verdict on `auto` against it."""
    if name != "powersgd-torch":
        return NAMES[name], rows[name], lacking(rows, (name, "auto"))
    found = [rows[way] for way in TORCH_POWERSGD if rows[way] and rows[way].seconds]
    best = min(found, key=lambda row: row.to_target, default=None)
    rank = f" (rank {RIVALS[best.way]['rank']})" if best else ""
    return f"the best torch PowerSGD{rank}", best, lacking(rows, (*TORCH_POWERSGD, "auto"))


def target_goal(rows: dict[str, Row | None], name: str) -> list[str]:
    label, other, lack = rival_of(rows, name)
    auto = rows["auto"]
    what, goal = f"time to 86 % at 100 Mbit/s, {label} against `auto`", f"{GOALS[name]:g}x"
    if not (auto and auto.seconds and other and other.seconds):
        return [what, goal, MISSING, MISSING]
    text = times(auto.to_target, other.to_target)
    if NEVER not in (auto.to_target, other.to_target):
        started = times(auto.from_start_up, other.from_start_up)
        text += f"{by_seed(auto.seconds, other.seconds, lack)}; {started} with start-up"
    return judged(what, goal, text, other.to_target / auto.to_target >= GOALS[name], lack)


def further_row(rows: dict[str, Row | None], name: str) -> list[str]:
    """Not a goal: whether ratios hang on the target."""
    label, other, lack = rival_of(rows, name)
    what = f"time to {100 * FURTHER:.0f} % at 100 Mbit/s, {label} against `auto`"
    return ratio_row(what, rows["auto"], other, lambda row: row.further, lack)


def whole_row(rows: dict[str, Row | None], link: str, name: str) -> list[str]:
    """Not a goal: it does not depend on when accuracy was looked at."""
    label, other, lack = rival_of(rows, name)
    what = f"time of all {STEPS} steps at {LINK_NAMES[link]}, {label} against `auto`"
    return ratio_row(what, rows["auto"], other, lambda row: row.whole, lack)


def ratio_row(what: str, auto: Row | None, other: Row | None, values, lack: str) -> list[str]:
    if not (auto and values(auto) and other and values(other)):
        return [what, "-", MISSING, ""]
    text = times(statistics.median(values(auto)), statistics.median(values(other)))
    text += by_seed(values(auto), values(other), lack)
    return [what, "-", f"{text}; {lack}" if lack else text, ""]


def by_seed(mine: list[float], others: list[float], lack: str) -> str:
    """From which to which ratio, of the same seeds."""
    if lack:
        return ""
    if NEVER in (*mine, *others):
        return " (with some seeds never there)"
    ratios = [other / each for each, other in zip(mine, others, strict=True)]
    return f" ({ratio_words(min(ratios))} to {ratio_words(max(ratios))} by seed)"


def ratio_words(value: float) -> str:
    return f"{value:.2f}x" if value < 2 else f"{value:.1f}x"


def constant_goal(rows: dict[str, Row | None], link: str, good: Quality | None) -> list[str]:
    best = best_static(rows, good, lambda row: row.to_target)
    auto = rows["auto"]
    what = f"{LINK_NAMES[link]}: `auto` against the fastest static choice as good as fp32"
    goal = f"at most {1 + CLOSE:.2f} of its time to 86 %"
    if best is None or auto is None:
        return [what, goal, MISSING, MISSING]
    lack = lacking(rows, (*STATIC, "auto"))
    if auto.to_target == NEVER:
        return judged(what, goal, "never there", False, lack)
    ratio = auto.to_target / best.to_target
    text = f"{ratio:.2f} ({NAMES[best.way]}); {good.beside(auto, best)}"
    return judged(what, goal, text, ratio <= 1 + CLOSE and good.as_good(auto), lack)


def overhead_goals(store: Store) -> list[list[str]]:
    result = store.result(OVERHEAD_NAME)
    shown = []
    for name, words in (("auto", "`auto`"), ("dense", "dense through `attach`")):
        what = f"unshaped loopback: speed of {words}, DDP fp32 = 1"
        if result is None:
            shown.append([what, f"{LEAST_SPEED}", MISSING, MISSING])
            continue
        blocks = result["block_ms"]
        middle, low, high = speed(blocks["plain"], blocks[name])
        control = speed(blocks["plain"], blocks["control"])
        text = (
            f"{middle:.3f} ({low:.3f} to {high:.3f}; control {control[0]:.3f}, "
            f"{control[1]:.3f} to {control[2]:.3f})"
        )
        # Beyond what the control shows to be noise.
        noise = max(0.0, 1 - control[1])
        shown.append([what, f"{LEAST_SPEED}", text, verdict(middle >= LEAST_SPEED - noise)])
    return shown


def speed(plain: list[float], other: list[float]) -> tuple[float, float, float]:
    """Of the other, in pairs of the same round: median, and a 95 % interval of that median."""
    pairs = sorted(a / b for a, b in zip(plain, other, strict=True))
    half = 0.98 * len(pairs) ** 0.5
    middle = len(pairs) / 2
    low, high = max(0, int(middle - half)), min(len(pairs) - 1, int(middle + half))
    return statistics.median(pairs), pairs[low], pairs[high]


def modelled_goal(store: Store, link: str) -> list[str]:
    what = f"{LINK_NAMES[link]}: modelled time of `auto`'s steps against real"
    goal = f"within {100 * WELL_MODELLED:.0f} %"
    found = results(store, [policy_name(link, "auto", seed) for seed in SEEDS])
    ratios = [
        each["modelled_ms"] / statistics.median(counted(each))
        for each in found
        if each["modelled_ms"]
    ]
    if not ratios:
        return [what, goal, MISSING, MISSING]
    worst = max(abs(ratio - 1) for ratio in ratios)
    lack = "" if len(ratios) == len(SEEDS) else f"{len(ratios)} of {len(SEEDS)} seeds"
    text = spread(ratios, lambda r: f"{r:.2f}")
    return judged(what, goal, text, worst <= WELL_MODELLED, lack)


def check_goal(store: Store, way: str, link: str) -> list[str]:
    what = f"whole run of {NAMES[way]} at {LINK_NAMES[link]} against its timed steps"
    goal = f"within {100 * WELL_TIMED:.0f} %"
    found = checked(store, way, link)
    if found is None:
        return [what, goal, MISSING, MISSING]
    real, by_timed = found
    text = f"{real / by_timed:.2f} ({real:.1f} s against {by_timed:.1f} s)"
    return judged(what, goal, text, abs(real / by_timed - 1) <= WELL_TIMED)


def checked(store: Store, way: str, link: str) -> tuple[float, float] | None:
    """Seconds of a whole run: as it was, and by timed steps."""
    found, timed = store.result(check_name(way, link)), store.result(timed_name(link, way))
    if not (found and timed):
        return None
    return sum(found["step_ms"]) / 1e3, seconds_after(timed, STEPS)


def choice_words(store: Store) -> str:
    """What auto did, on every link."""
    lines = []
    for link in LINKS:
        found = store.result(policy_name(link, "auto", 0))
        if found is None:
            lines.append(f"* {LINK_NAMES[link]}: {MISSING}")
            continue
        ends = [step for step, _ in found["choices"][1:]] + [len(found["step_ms"])]
        shares: dict[str, int] = {}
        for (step, choice), end in zip(found["choices"], ends, strict=True):
            shares[choice] = shares.get(choice, 0) + end - step
        most = sorted(shares.items(), key=lambda item: -item[1])
        words = ", ".join(f"{choice} {steps} steps" for choice, steps in most[:4])
        more = f", and {len(most) - 4} others" if len(most) > 4 else ""
        lines.append(f"* {LINK_NAMES[link]}: {words}{more}; {len(ends) - 1} changes")
    return "\n".join(lines) + "\n"


def check_words(store: Store) -> str:
    """Is what timed steps say what a run takes?"""
    said = [check_sentence(store, way, link) for way, link in CHECKED]
    return f"Is that what a whole run takes? {' '.join(said)}\n"


def check_sentence(store: Store, way: str, link: str) -> str:
    found, learned = checked(store, way, link), store.result(learning_name(way, 0))
    if not (found and learned):
        return f"{NAMES[way]}, trained at {LINK_NAMES[link]}: {MISSING}."
    real, by_timed = found
    there, then = reached(store.result(check_name(way, link)))
    return (
        f"{NAMES[way]} was also trained at {LINK_NAMES[link]}: {STEPS} steps took {real:.1f} s, by "
        f"{WARM_UP} + {TIMED} timed steps it would be {by_timed:.1f} s; 86 % after {count(there)} "
        f"steps ({seconds(then)}), on loopback after {count(reached(learned)[0])}."
    )


def date_words(store: Store) -> str:
    """When steps of static choices were timed and `auto` was trained, by link."""
    lines = []
    for link in LINKS:
        names = [timed_name(link, way) for way in (*STATIC, *BLIND)]
        names += [policy_name(link, "auto", seed) for seed in SEEDS]
        dates = sorted(record["date"] for record in map(store.read, names) if record)
        lines.append(f"* {LINK_NAMES[link]}: {between(dates) if dates else MISSING}")
    return "\n".join(lines) + "\n"


def between(dates: list[str]) -> str:
    """Of dates like 2026-11-19 22:10 UTC."""
    first, last = dates[0], dates[-1]
    if first == last:
        return first
    same_day = first[:10] == last[:10]
    return f"{first[:16]} to {last[11:] if same_day else last}"


def missing_words(store: Store) -> str:
    every = [cell.name for cell in cells()]
    lacking = [name for name in every if not store.has(name)]
    return f"{len(lacking)} of {len(every)} cells are missing.\n" if lacking else ""


def model_words() -> str:
    with torch.device("meta"):
        weights = list(make_model(0).parameters())
    largest = max(weights, key=torch.numel)
    rows, columns = largest.shape
    share = largest.numel() / sum(weight.numel() for weight in weights)
    return (
        f"**One matrix of {columns} x {rows} is {100 * share:.0f} % of the model**, so low rank "
        "has it easy here; other models need not behave so.\n"
    )


def goal_words() -> str:
    """How goals are measured and judged, and what speaks against them."""
    every, begin = Settings.evaluate_every, Settings.evaluate_from
    return (
        f"Accuracy is looked at every {every} steps, from step {begin} on. So times to 86 % are "
        f"known to {every} steps only: of 300 steps they are off by up to {every}, "
        f"{100 * every / 300:.0f} %. Times of all steps do not depend on that, and times to "
        f"{100 * FURTHER:.0f} % tell whether ratios hang on the target: 86 % is what PowerSGD of "
        "low ranks still gets to, and fp32 ends above 87 %. Ratios are of "
        "medians; in brackets, from the smallest to the largest ratio of the same seed. "
        '"With start-up" '
        "counts what lies between making the model and the first step too: of `auto`, what "
        "`attach` measures, and of all, waiting for the slowest rank.\n\n"
        f"Speed on loopback is the median over pairs of blocks of {Overhead.block} steps, in "
        f"brackets its 95 % interval. The goal is met if it is at least {LEAST_SPEED} less what "
        "the control (plain DDP again) shows to be noise: that by which the lower end of the "
        "control's interval is below 1. These blocks are of untraced jobs in turn; runs of "
        "policies in the tables are single ones that write a trace.\n\n"
        "Choices that end about one noise below fp32 are told apart as good or not by a few "
        "images of 10,000: three seeds cannot tell more. So it is printed how far both end from "
        "fp32, with the standard error of the difference of the same seeds.\n\n"
        "Constants of `auto` were chosen on this job among others, some on the changing link and "
        'at 1 Gbit/s (docs/POLICIES.md, "How constants were chosen"). So these figures are not of '
        "a job that `auto` had never seen.\n\n"
        "Where fewer seeds were measured than planned, or not all static choices, there is no "
        "verdict.\n"
    )


ROUTE_WORDS = (
    "Routes: by engine, gloo's own all-reduce; by ring and by tree, all-reduces made of messages "
    "between two ranks; by allgather, every rank gets the messages of all; by owner, every rank "
    "adds up a part of the elements for all and returns the sums.\n"
)


# --- all of it ---


def readme_table(all_rows: dict[str, dict]) -> str:
    """To 86 %, on every link where `auto` was measured, beside whatever else was."""
    links = [link for link in LINKS if all_rows[link]["auto"]]
    shown = []
    for way in README_WAYS:
        rows = [all_rows[link][way] for link in links]
        cells = [spread(row.seconds, seconds) if row else MISSING for row in rows]
        finals = [final for row in rows if row for final in row.finals]
        if finals:
            shown.append([NAMES[way], *cells, spread(finals, percent)])
    header = ["time to 86 %", *(LINK_NAMES[link] for link in links), "accuracy at the end"]
    return table(header, shown)


def make_report(store: Store) -> Report:
    all_rows = {link: rows_of(store, link) for link in LINKS}
    good = quality(all_rows["100mbit"]["fp32"])  # which ends the same on every link
    parts = [
        "# Real sockets\n",
        "Generated from `cells/sockets`; do not edit.\n",
        "A CNN of 5.3 million parameters on Fashion-MNIST, 4 ranks over gloo, 32 images per rank, "
        f"SGD with momentum, {STEPS} steps (learning rate full for half of them, then linearly to "
        "zero), seeds 0, 1, 2. Every rank has a network namespace of its own with a real, shaped "
        "link (docs/NETLAB.md); the four share the cores of one machine. Only steps are on the "
        "clock, not evaluations and start-up. Medians over seeds, in brackets the smallest and the "
        "largest. Bytes are those that the interface counted, with all headers; those of DDP and "
        "torch's hooks are of the whole run on loopback, because their first steps are unlike the "
        "others.\n",
        model_words(),
        "**How static choices are timed.** What they learn does not depend on the link. They are "
        f"trained once per seed on loopback; on every link, loopback too, their first {WARM_UP} "
        f"steps and {TIMED} more are timed, and their time to 86 % is that of the first and the "
        "mean of the others for every step that follows. Policies are trained on each link, "
        "and their time is that of the clock; only `accordion`, which does not look at "
        "the link, is trained at 100 Mbit/s and timed elsewhere.\n",
        check_words(store),
        "**What takes processor time depends on the hour**, by up to 15 % for the same steps of "
        "the same choice. When steps of static choices were timed and `auto` was trained:\n",
        date_words(store),
        "## Goals\n",
        goal_words(),
        table(["figure", "goal", "measured", ""], goal_rows(store, all_rows, good)),
        "![accuracy over time](sockets-100mbit.svg)\n",
        'In the tables of the links, "fp32 takes" and "fp16 takes" are how many times as long '
        "DDP fp32 and torch's fp16 hook take to 86 % on that link.\n",
    ]
    for link in LINKS:
        parts += [f"## {LINK_NAMES[link]}\n", link_table(all_rows[link])]
    parts += [
        "\\* while a cell of this row ran, the hypervisor kept more than 5 % of the machine's CPU "
        "time.\n",
        "## What `auto` chose (seed 0)\n",
        ROUTE_WORDS,
        choice_words(store),
        "## A link that changes\n",
        "Static choices: from timed steps on the link of each phase; steps to 86 % and accuracy "
        "from loopback. Policies: whole runs, of `auto` with three seeds and of others with seed "
        "0.\n",
        changing_table(store),
        timed_words(store),
        changing_words(store, good),
        "![reaction](sockets-changing.svg)\n",
        "## Where the figures come from\n",
        provenance(store.records("sockets/*"), "sockets/*"),
        missing_words(store),
    ]
    return Report(
        pages={"sockets": "\n".join(part for part in parts if part)},
        plots={
            "sockets-100mbit": curve_plot(store, all_rows["100mbit"], "100mbit"),
            "sockets-changing": reaction_plot(store),
        },
        tables={"sockets": readme_table(all_rows)},
    )
