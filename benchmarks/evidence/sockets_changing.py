# SPDX-License-Identifier: Apache-2.0
"""The link that changes: what static choices would take, what policies took."""

import statistics

from .report import MISSING, table
from .sockets import (
    CHANGING,
    POLICIES,
    STATIC,
    STEPS,
    changing_name,
    learning_name,
    phase_name,
)
from .sockets_rows import (
    LINK_NAMES,
    NAMES,
    Quality,
    Row,
    counted,
    percent,
    seconds,
    seconds_after,
    verdict,
)
from .store import Store

DIFFERENT = 0.2  # between the best static choices of two phases, for a link to count as changing


def phases() -> list[tuple[int, int, str]]:
    """From, to, link."""
    ends = [step for step, _ in CHANGING[1:]] + [STEPS]
    return [(step, end, link) for (step, link), end in zip(CHANGING, ends, strict=True)]


def static_on_changing(store: Store, way: str) -> dict | None:
    """Seconds per phase, from timed steps on each link; the first steps of the first are those of a
    job that begins."""
    timed = {link: store.result(phase_name(link, way)) for _, link in CHANGING}
    if None in timed.values():
        return None
    learned = store.result(learning_name(way, 0))

    def phase(start: int, end: int, link: str) -> float:
        if start == 0:
            return seconds_after(timed[link], end)
        return (end - start) * statistics.mean(counted(timed[link])) / 1e3

    return {
        "seconds": [phase(*each) for each in phases()],
        "final": learned["curve"][-1][2] if learned else None,
    }


def policy_on_changing(store: Store, policy: str) -> dict | None:
    found = store.result(changing_name(policy))
    if found is None:
        return None
    return {
        "seconds": [sum(found["step_ms"][start:end]) / 1e3 for start, end, _ in phases()],
        "final": found["curve"][-1][2],
    }


def changing_table(store: Store) -> str:
    shown = []
    for way in (*STATIC, *POLICIES):
        found = (static_on_changing if way in STATIC else policy_on_changing)(store, way)
        if found is None:
            shown.append([NAMES[way], *[MISSING] * 5])
            continue
        final = MISSING if found["final"] is None else percent(found["final"])
        each = [seconds(value) for value in found["seconds"]]
        shown.append([NAMES[way], *each, seconds(sum(found["seconds"])), final])
    header = [f"steps {start} to {end - 1}: {LINK_NAMES[link]}" for start, end, link in phases()]
    return table(["", *header, "all", "accuracy at the end"], shown)


def changing_goal(store: Store, rows: dict[str, Row | None], good: Quality | None) -> list[str]:
    what, goal = "changing link: `auto` against the fastest static choice as good as fp32", "ahead"
    auto = policy_on_changing(store, "auto")
    statics = {
        way: found
        for way in STATIC
        if good and good.as_good(rows[way]) and (found := static_on_changing(store, way))
    }
    if auto is None or not statics:
        return [what, goal, MISSING, MISSING]
    best = min(statics, key=lambda way: sum(statics[way]["seconds"]))
    ratio = sum(auto["seconds"]) / sum(statics[best]["seconds"])
    return [what, goal, f"{ratio:.2f} of its time ({NAMES[best]})", verdict(ratio < 1)]


def changing_words(store: Store, rows: dict[str, Row | None], good: Quality | None) -> str:
    """Whether the best static choices of the phases differ by enough."""
    statics = {
        way: found
        for way in STATIC
        if good and good.as_good(rows[way]) and (found := static_on_changing(store, way))
    }
    if not statics:
        return ""
    lines = []
    for index, (_, _, link) in enumerate(phases()[:2]):
        best = min(statics, key=lambda way: statics[way]["seconds"][index])
        lines.append((LINK_NAMES[link], best))
    (fast, first), (slow, second) = lines
    there = statics[first]["seconds"][1] / statics[second]["seconds"][1] - 1
    here = statics[second]["seconds"][0] / statics[first]["seconds"][0] - 1
    enough = "more" if max(there, here) > DIFFERENT else "**not more**"
    return (
        f"Of the static choices as good as fp32, {NAMES[first]} is the fastest at {fast} and "
        f"{NAMES[second]} at {slow}; at {slow} the first takes {100 * there:.0f} % longer than the "
        f"second, at {fast} the second {100 * here:.0f} % longer than the first: {enough} than the "
        f"{100 * DIFFERENT:.0f} % from which on a link counts as changing here.\n"
    )
