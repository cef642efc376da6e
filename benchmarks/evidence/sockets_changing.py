# SPDX-License-Identifier: Apache-2.0
"""The link that changes: what static choices would take, what policies took."""

import statistics
from dataclasses import dataclass

from .report import MISSING, table
from .sockets import (
    CHANGING,
    PHASE_SECONDS,
    PHASE_STEPS,
    POLICIES,
    SEEDS,
    STATIC,
    STEPS,
    TIMED,
    changing_name,
    changing_seeds,
    learning_name,
    phase_name,
)
from .sockets_rows import (
    LINK_NAMES,
    NAMES,
    NEVER,
    Quality,
    counted,
    judged,
    lacking,
    named,
    percent,
    reached,
    results,
    seconds,
    seconds_after,
    spread,
)
from .store import Store

DIFFERENT = 0.2  # between the best static choices of two phases, for a link to count as changing


@dataclass
class Changing:
    """One way on the link that changes."""

    way: str
    phases: list[list[float]]  # seconds of each; by seed, or once if timed steps tell them
    seconds: list[float | None]  # to the target, by seed; None if it was evaluated at the end only
    finals: list[float]  # accuracy, by seed
    planned: int

    @property
    def totals(self) -> list[float]:
        return [sum(each) for each in self.phases]

    @property
    def total(self) -> float:
        """Seconds of all steps; median over seeds."""
        return statistics.median(self.totals)

    @property
    def final(self) -> float:
        return statistics.median(self.finals)

    @property
    def gets_there(self) -> bool:
        return bool(self.seconds) and statistics.median(self.seconds) != NEVER


def phases() -> list[tuple[int, int, str]]:
    """From, to, link."""
    ends = [step for step, _ in CHANGING[1:]] + [STEPS]
    return [(step, end, link) for (step, link), end in zip(CHANGING, ends, strict=True)]


def on_changing(store: Store, way: str) -> Changing | None:
    return (static_on_changing if way in STATIC else policy_on_changing)(store, way)


def static_on_changing(store: Store, way: str) -> Changing | None:
    """From timed steps on each link, and from where it was trained."""
    timed = timed_phases(store, way)
    if None in timed.values():
        return None
    learned = results(store, [learning_name(way, seed) for seed in SEEDS])
    return Changing(
        way,
        [[phase_seconds(timed[link], start, end) for start, end, link in phases()]],
        [seconds_until(timed, reached(each)[0]) for each in learned],
        [each["curve"][-1][2] for each in learned],
        len(SEEDS),
    )


def timed_phases(store: Store, way: str) -> dict[str, dict | None]:
    return {link: store.result(phase_name(link, way)) for _, link in CHANGING}


def phase_seconds(timed: dict, start: int, end: float) -> float:
    """The first steps of the first phase are those of a job that begins."""
    if start == 0:
        return seconds_after(timed, end)
    return (end - start) * statistics.mean(counted(timed)) / 1e3


def seconds_until(timed: dict[str, dict], steps: float) -> float:
    if steps == NEVER:
        return NEVER
    begun = [(start, min(end, steps), link) for start, end, link in phases() if start < steps]
    return sum(phase_seconds(timed[link], start, end) for start, end, link in begun)


def policy_on_changing(store: Store, policy: str) -> Changing | None:
    seeds = changing_seeds(policy)
    found = results(store, [changing_name(policy, seed) for seed in seeds])
    if not found:
        return None
    return Changing(
        policy,
        [[sum(each["step_ms"][start:end]) / 1e3 for start, end, _ in phases()] for each in found],
        [reached(each)[1] if len(each["curve"]) > 1 else None for each in found],
        [each["curve"][-1][2] for each in found],
        len(seeds),
    )


def changing_table(store: Store) -> str:
    header = [f"steps {start} to {end - 1}: {LINK_NAMES[link]}" for start, end, link in phases()]
    header = ["", *header, "all", "time to 86 %", "accuracy at the end"]
    shown = []
    for way in (*STATIC, *POLICIES):
        row = on_changing(store, way)
        if row is None:
            shown.append([NAMES[way], *[MISSING] * (len(header) - 1)])
            continue
        each = [spread(list(values), seconds) for values in zip(*row.phases, strict=True)]
        there = MISSING if None in row.seconds else spread(row.seconds, seconds)
        total, finals = spread(row.totals, seconds), spread(row.finals, percent)
        shown.append([named(row), *each, total, there, finals])
    return table(header, shown)


def timed_words(store: Store) -> str:
    """How many steps were timed, where that is few."""
    lines = []
    for link in dict.fromkeys(link for _, link in CHANGING):
        found = {way: store.result(phase_name(link, way)) for way in STATIC}
        counts = {way: len(counted(each)) for way, each in found.items() if each}
        few = {way: count for way, count in counts.items() if count < TIMED}
        if few:
            most = max(few.values())
            fewer = [f"{count} of {NAMES[way]}" for way, count in few.items() if count < most]
            but = f", but {', '.join(fewer)}" if fewer else ""
            lines.append(f"* {LINK_NAMES[link]}: {most}{but}")
    if not lines:
        return ""
    limits = f"{PHASE_STEPS} steps, or as many as {PHASE_SECONDS} s hold"
    return f"Of static choices {limits}, were timed:\n\n" + "\n".join(lines) + "\n"


def changing_goals(store: Store, good: Quality | None) -> list[list[str]]:
    rows = {way: on_changing(store, way) for way in (*STATIC, "auto")}
    lack = lacking(rows, rows)
    statics = [rows[way] for way in STATIC if rows[way]]
    as_good = [row for row in statics if good and good.as_good(row)]
    return [
        as_good_goal(rows["auto"], as_good, good, lack),
        every_goal(rows["auto"], statics, lack),
    ]


def as_good_goal(
    auto: Changing | None, statics: list[Changing], good: Quality | None, lack: str
) -> list[str]:
    what, goal = "changing link: `auto` against the fastest static choice as good as fp32", "ahead"
    if auto is None or not statics:
        return [what, goal, MISSING, MISSING]
    best = fastest(statics)
    text = f"{share(auto, best)} of its time ({NAMES[best.way]}); {good.beside(auto, best)}"
    return judged(what, goal, text, auto.total < best.total and good.as_good(auto), lack)


def every_goal(auto: Changing | None, statics: list[Changing], lack: str) -> list[str]:
    what = "changing link: `auto` against every static choice, whatever it loses"
    if auto is None or not statics:
        return [what, "ahead", MISSING, MISSING]
    best, there = fastest(statics), fastest([row for row in statics if row.gets_there])
    text = f"{share(auto, best)} of its time {ends(best)}"
    if there and there is not best:
        text += f"; of the fastest that gets to 86 %: {share(auto, there)} {ends(there)}"
    return judged(what, "ahead", text, auto.total < best.total, lack)


def fastest(rows: list[Changing]) -> Changing | None:
    return min(rows, key=lambda row: row.total, default=None)


def share(auto: Changing, other: Changing) -> str:
    """Of the other's time, for all steps."""
    return spread([each / other.total for each in auto.totals], lambda value: f"{value:.2f}")


def ends(row: Changing) -> str:
    where = f", ends at {100 * row.final:.1f} %" if row.finals else ""
    return f"({NAMES[row.way]}{where})"


def changing_words(store: Store, good: Quality | None) -> str:
    """Whether the best static choices of the phases differ by enough."""
    found = {way: static_on_changing(store, way) for way in STATIC}
    statics = {way: row.phases[0] for way, row in found.items() if good and good.as_good(row)}
    if not statics:
        return ""
    lines = []
    for index, (_, _, link) in enumerate(phases()[:2]):
        best = min(statics, key=lambda way: statics[way][index])
        lines.append((LINK_NAMES[link], best))
    (fast, first), (slow, second) = lines
    there = statics[first][1] / statics[second][1] - 1
    here = statics[second][0] / statics[first][0] - 1
    enough = "more" if max(there, here) > DIFFERENT else "**not more**"
    return (
        f"Of the static choices as good as fp32, {NAMES[first]} is the fastest at {fast} and "
        f"{NAMES[second]} at {slow}; at {slow} the first takes {100 * there:.0f} % longer than the "
        f"second, at {fast} the second {100 * here:.0f} % longer than the first: {enough} than the "
        f"{100 * DIFFERENT:.0f} % from which on a link counts as changing here.\n"
    )
