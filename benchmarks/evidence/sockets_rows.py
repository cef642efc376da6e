# SPDX-License-Identifier: Apache-2.0
"""What sockets.py's cells found, by way and link, and how it is put into words."""

import math
import statistics
from dataclasses import dataclass, field

from .report import MISSING
from .socket_run import LOOPBACK
from .sockets import (
    FAR,
    POLICIES,
    REPEATED,
    RIVALS,
    SEEDS,
    SLOW,
    STATIC,
    STEPS,
    learning_name,
    policy_name,
    seeds_of,
    timed_name,
)
from .store import Store

TARGET = 0.86
FURTHER = 0.87
WARM_UP = 5  # steps of a job that are not counted in times of steps
LINK_NAMES = {
    "100mbit": "100 Mbit/s",
    "200mbit": "200 Mbit/s",
    "1gbit": "1 Gbit/s",
    FAR: "1 Gbit/s, 20 ms",
    SLOW: "20 Mbit/s, 20 ms",
    LOOPBACK: "unshaped loopback",
}
NAMES = {
    "fp32": "DDP fp32",
    "fp16": "torch fp16 hook",
    **{f"powersgd-torch-{rank}": f"torch PowerSGD hook, rank {rank}" for rank in (4, 2, 1)},
    **{f"powersgd-{rank}": f"static PowerSGD, rank {rank}, 16 bits" for rank in (8, 4)},
    "topk-0.1": "static top-k 10 %",
    "topk-0.01": "static top-k 1 %",
    "topk-0.001": "static top-k 0.1 %",
    "int8": "static int8",
    "int4": "static int4",
    **{policy: f"policy `{policy}`" for policy in POLICIES},
}
NEVER = math.inf


@dataclass
class Row:
    """One way on one link; lists have one entry per seed."""

    way: str
    ms: float  # median of steps
    p99: float
    sent: float | None  # bytes per rank and step, with all headers
    steps: list[float] = field(default_factory=list)  # to the target
    seconds: list[float] = field(default_factory=list)  # to the target
    further: list[float] = field(default_factory=list)  # seconds to a higher one
    whole: list[float] = field(default_factory=list)  # seconds of all steps
    start_up: list[float] = field(default_factory=list)  # seconds before the first step
    finals: list[float] = field(default_factory=list)  # accuracy
    planned: int = len(SEEDS)
    warned: bool = False

    @property
    def to_target(self) -> float | None:
        """Median over seeds, in seconds."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def from_start_up(self) -> float | None:
        """To the target, with what comes before the first step; median over seeds, in seconds."""
        both = [a + b for a, b in zip(self.start_up, self.seconds, strict=True)]
        return statistics.median(both) if both else None


def counted(result: dict) -> list[float]:
    return result["step_ms"][WARM_UP:]


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def reached(result: dict, target: float = TARGET) -> tuple[float, float]:
    """Steps and seconds until the first evaluation at the target."""
    for steps, seconds, accuracy in result["curve"]:
        if accuracy >= target:
            return steps, seconds
    return NEVER, NEVER


def results(store: Store, names) -> list[dict]:
    return list(filter(None, map(store.result, names)))


def seconds_after(timed: dict, steps: float) -> float:
    """What so many steps take: the first as they were timed, the others like the mean of those that
    followed, because a run is as long as the sum of its steps. (The first are not like the others:
    PowerSGD of torch sends two whole gradients before it begins.)"""
    if steps == NEVER:
        return NEVER
    first = timed["step_ms"][: min(int(steps), WARM_UP)]
    return (sum(first) + (steps - len(first)) * statistics.mean(counted(timed))) / 1e3


def static_row(store: Store, link: str, way: str) -> Row | None:
    """Of what does not look at the link: steps from where it was trained, and timed steps."""
    learned = results(store, [trained_name(way, seed) for seed in SEEDS])
    timed = store.result(timed_name(link, way))
    if timed is None:
        return None
    steps = [reached(each)[0] for each in learned]
    return row_of(
        way,
        link,
        [timed],
        learned,
        steps=steps,
        seconds=[seconds_after(timed, each) for each in steps],
        further=[seconds_after(timed, reached(each, FURTHER)[0]) for each in learned],
        whole=[seconds_after(timed, STEPS)] * len(learned),
        start_up=[timed["start_up_seconds"]] * len(learned),
    )


def trained_name(way: str, seed: int) -> str:
    return learning_name(way, seed) if way in STATIC else policy_name(REPEATED, way, seed)


def policy_row(store: Store, link: str, policy: str) -> Row | None:
    if not seeds_of(link, policy):
        return static_row(store, link, policy)
    found = results(store, [policy_name(link, policy, seed) for seed in seeds_of(link, policy)])
    if not found:
        return None
    return row_of(
        policy,
        link,
        found,
        found,
        steps=[reached(each)[0] for each in found],
        seconds=[reached(each)[1] for each in found],
        further=[reached(each, FURTHER)[1] for each in found],
        whole=[sum(each["step_ms"]) / 1e3 for each in found],
        start_up=[each["start_up_seconds"] for each in found],
    )


def row_of(way: str, link: str, timed: list[dict], learned: list[dict], **by_seed) -> Row:
    times = [ms for each in timed for ms in counted(each)]
    return Row(
        way,
        statistics.median(times),
        p99(times),
        # Rivals send the same on every link, but their first steps are unlike others.
        bytes_of(learned, LOOPBACK) if way in RIVALS else bytes_of(timed, link),
        finals=[each["curve"][-1][2] for each in learned],
        warned=any(each["warning"] for each in timed),
        **by_seed,
    )


def bytes_of(found: list[dict], link: str) -> float | None:
    """Loopback is one interface for all four ranks."""
    if not found:
        return None
    return statistics.mean(each["wire_bytes"] for each in found) / (4 if link == LOOPBACK else 1)


def rows_of(store: Store, link: str) -> dict[str, Row | None]:
    rows = {way: static_row(store, link, way) for way in STATIC}
    return rows | {policy: policy_row(store, link, policy) for policy in POLICIES}


@dataclass
class Quality:
    """Of fp32 at the end; noise is its standard deviation over seeds."""

    finals: list[float]  # of fp32, by seed

    @property
    def mean(self) -> float:
        return statistics.mean(self.finals)

    @property
    def noise(self) -> float:
        return statistics.stdev(self.finals)

    def as_good(self, row) -> bool:
        return bool(row and row.finals) and statistics.mean(row.finals) >= self.mean - self.noise

    def away(self, row) -> str:
        """From fp32 of the same seeds, in points, with the standard error."""
        text = f"{100 * (statistics.mean(row.finals) - self.mean):+.2f}"
        if len(row.finals) < len(self.finals):
            return text
        pairs = [100 * (a - b) for a, b in zip(row.finals, self.finals, strict=True)]
        return f"{text} ± {statistics.stdev(pairs) / len(pairs) ** 0.5:.2f}"

    def beside(self, auto, other) -> str:
        """How far both end from fp32."""
        return (
            f"ends {self.away(auto)} points from fp32, that choice {self.away(other)}, "
            f"noise {100 * self.noise:.2f}"
        )


def quality(fp32: Row | None) -> Quality | None:
    if fp32 is None or seeds_lacking(fp32):
        return None
    return Quality(fp32.finals)


def best_static(rows: dict[str, Row | None], good: Quality | None, key) -> Row | None:
    candidates = [rows[way] for way in STATIC if good and good.as_good(rows[way])]
    return min(candidates, key=key, default=None)


# --- words ---


def seeds_lacking(row) -> str:
    """How many seeds there are, if that is fewer than were planned."""
    return "" if len(row.finals) == row.planned else f"{len(row.finals)} of {row.planned} seeds"


def named(row) -> str:
    lack = seeds_lacking(row)
    return f"{NAMES[row.way]} ({lack})" if lack else NAMES[row.way]


def lacking(rows: dict, ways) -> str:
    """The first of the ways that was not measured with all its seeds, if there is one: then nobody
    knows which is the fastest, nor what the median is."""
    for way in ways:
        lack = MISSING if rows[way] is None else seeds_lacking(rows[way])
        if lack:
            return f"{NAMES[way]}: {lack}"
    return ""


def judged(what: str, goal: str, text: str, met: bool, lack: str = "") -> list[str]:
    """A row of the goals; without a verdict where something lacks."""
    if lack:
        return [what, goal, f"{text}; {lack}", verdict(None)]
    return [what, goal, text, verdict(met)]


def spread(values: list[float], form) -> str:
    """Median, and from where to where if there are several."""
    if not values:
        return MISSING
    text = form(statistics.median(values))
    ends = form(min(values)), form(max(values))
    return text if len(values) == 1 or ends[0] == ends[1] else f"{text} ({ends[0]} to {ends[1]})"


def count(value: float) -> str:
    return "never" if value == NEVER else f"{value:.0f}"


def seconds(value: float) -> str:
    return "never" if value == NEVER else f"{value:.0f} s" if value >= 20 else f"{value:.1f} s"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def milliseconds(value: float) -> str:
    return f"{value:.0f}"


def megabytes(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value / 1e6:.2g}" if value < 1e7 else f"{value / 1e6:.0f}"


def verdict(met: bool | None) -> str:
    return {True: "met", False: "**short**", None: MISSING}[met]
