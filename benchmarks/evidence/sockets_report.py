# SPDX-License-Identifier: Apache-2.0
"""The page, the plots and the README's table of sockets.py's cells."""

import statistics

from .report import MISSING, Report, provenance, table
from .socket_run import LOOPBACK
from .sockets import (
    CHECKED,
    LINKS,
    OVERHEAD_NAME,
    RIVALS,
    SEEDS,
    STEPS,
    TIMED,
    check_name,
    learning_name,
    policy_name,
    timed_name,
)
from .sockets_changing import changing_goal, changing_table, changing_words
from .sockets_plots import curve_plot, reaction_plot
from .sockets_rows import (
    LINK_NAMES,
    NAMES,
    NEVER,
    WARM_UP,
    Quality,
    Row,
    best_static,
    count,
    counted,
    megabytes,
    milliseconds,
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
GOALS = {"fp32": 20.0, "fp16": 10.0, "powersgd-torch": 1.5}  # times as long as auto


def times(value: float | None, other: float | None) -> str:
    """How many times as long the other takes."""
    if value is None or other is None:
        return MISSING
    if value == NEVER:
        return "never there"
    return "never there itself" if other == NEVER else f"{other / value:.1f}x"


def best_powersgd(rows: dict[str, Row | None]) -> float | None:
    found = [rows[way].to_target for way in RIVALS if way.startswith("powersgd") and rows[way]]
    found = [value for value in found if value is not None]
    return min(found, default=None)


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
                NAMES[way],
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
    auto = rows["auto"].to_target if rows["auto"] else None
    shown = []
    for name, goal in GOALS.items():
        if name == "powersgd-torch":
            other = best_powersgd(rows)
        else:
            other = rows[name].to_target if rows[name] else None
        met = None if auto is None or other is None else other / auto >= goal
        label = "the best torch PowerSGD" if name == "powersgd-torch" else NAMES[name]
        what = f"time to 86 % at 100 Mbit/s, {label} against `auto`"
        shown.append([what, f"{goal:g}x", times(auto, other), verdict(met)])
    for link in LINKS:
        shown.append(constant_goal(all_rows[link], link, good))
    shown.append(changing_goal(store, all_rows["1gbit"], good))
    shown += overhead_goals(store)
    shown += [modelled_goal(store, link) for link in LINKS]
    return shown


def constant_goal(rows: dict[str, Row | None], link: str, good: Quality | None) -> list[str]:
    best = best_static(rows, good, lambda row: row.to_target)
    auto = rows["auto"]
    what = f"{LINK_NAMES[link]}: `auto` against the fastest static choice as good as fp32"
    goal = f"at most {1 + CLOSE:.2f} of its time to 86 %"
    if best is None or auto is None:
        return [what, goal, MISSING, MISSING]
    if auto.to_target == NEVER:
        return [what, goal, "never there", verdict(False)]
    ratio = auto.to_target / best.to_target
    worse = "" if good.as_good(auto) else "; `auto` ends worse than fp32"
    text = f"{ratio:.2f} ({NAMES[best.way]}){worse}"
    return [what, goal, text, verdict(ratio <= 1 + CLOSE and not worse)]


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
    return [what, goal, spread(ratios, lambda r: f"{r:.2f}"), verdict(worst <= WELL_MODELLED)]


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


def check_words(store: Store, rows: dict[str, Row | None]) -> str:
    """Is what timed steps say what a run takes?"""
    way, link = CHECKED
    found, row = store.result(check_name()), rows[way]
    learned = store.result(learning_name(way, 0))
    if not (found and row and learned):
        return f"A whole run on a shaped link, to hold it against timed steps: {MISSING}.\n"
    real, (steps, _) = sum(found["step_ms"]) / 1e3, reached(learned)
    combined = seconds_after(store.result(timed_name(link, way)), STEPS)
    there, then = reached(found)
    return (
        f"Is that what a whole run takes? {NAMES[way]} was also trained at {LINK_NAMES[link]}: "
        f"{STEPS} steps took {real:.1f} s, by {WARM_UP} + {TIMED} timed steps it would be "
        f"{combined:.1f} s; 86 % after {count(there)} steps ({seconds(then)}), on loopback after "
        f"{count(steps)}.\n"
    )


# --- all of it ---


def readme_table(all_rows: dict[str, dict]) -> str:
    """To 86 %, on every link where `auto` was measured, beside whatever else was."""
    links = [link for link in LINKS if all_rows[link]["auto"]]
    shown = []
    for way in (*RIVALS, "int4", "powersgd-4", "auto"):
        rows = [all_rows[link][way] for link in links]
        cells = [spread(row.seconds, seconds) if row else MISSING for row in rows]
        if any(cell != MISSING for cell in cells):
            finals = next(spread(row.finals, percent) for row in rows if row)
            shown.append([NAMES[way], *cells, finals])
    header = ["time to 86 %", *(LINK_NAMES[link] for link in links), "accuracy at the end"]
    return table(header, shown)


def make_report(store: Store) -> Report:
    all_rows = {link: rows_of(store, link) for link in LINKS}
    good = quality(all_rows[LOOPBACK]["fp32"])
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
        "**How static choices are timed.** What they learn does not depend on the link. They are "
        f"trained once per seed on loopback; on every other link their first {WARM_UP} steps "
        f"and {TIMED} more are timed, and their time to 86 % is that of the first and the mean of "
        "the others for every step that follows. Policies are trained on each link, and their time "
        "is that of the clock. Policies other than `auto` have three seeds at 100 Mbit/s and one "
        "elsewhere; "
        "`accordion`, which does not look at the link, is trained at 100 Mbit/s only and timed "
        "elsewhere.\n",
        "**What takes processor time depends on the hour**, by up to 15 % for the same steps of "
        "the same choice. So `auto`, PowerSGD, int4 and top-k 1 % on constant shaped links are of "
        "one hour; what the wire bounds, and what is learned, may be of others.\n",
        check_words(store, all_rows[CHECKED[1]]),
        "## Goals\n",
        table(["figure", "goal", "measured", ""], goal_rows(store, all_rows, good)),
        "![accuracy over time](sockets-100mbit.svg)\n",
    ]
    for link in LINKS:
        parts += [f"## {LINK_NAMES[link]}\n", link_table(all_rows[link])]
    parts += [
        "\\* while a cell of this row ran, the hypervisor kept more than 5 % of the machine's CPU "
        "time.\n",
        "## What `auto` chose (seed 0)\n",
        choice_words(store),
        "## A link that changes\n",
        "Static choices: from timed steps on the link of each phase, accuracy of seed 0 on "
        "loopback. Policies: one whole run.\n",
        changing_table(store),
        changing_words(store, all_rows["1gbit"], good),
        "![reaction](sockets-changing.svg)\n",
        "## Where the figures come from\n",
        provenance(store.records("sockets/*"), "sockets/*"),
    ]
    return Report(
        pages={"sockets": "\n".join(part for part in parts if part)},
        plots={
            "sockets-100mbit": curve_plot(store, all_rows["100mbit"], "100mbit"),
            "sockets-changing": reaction_plot(store),
        },
        tables={"sockets": readme_table(all_rows)},
    )
