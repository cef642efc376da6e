# SPDX-License-Identifier: Apache-2.0
"""What a report says in numbers, from a trace as `_core.read_trace` gives it. Pure arithmetic."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

BASELINES = {"dense": "fp32", "bf16": "16-bit", "fp16": "16-bit"}  # by their only method
FP32_BYTES = 4
TRUSTED = 0.25  # a model that misses what was done by more says nothing of what was not


@dataclass
class Row:
    """One step. Seconds are None where the trace does not tell them."""

    step: int
    elapsed: float  # seconds from the first step's beginning to this one's
    seconds: float | None  # that it took; the last step's is never known
    compute: float | None  # of these, spent computing
    bytes_before: float  # sent by this rank in all steps before
    bytes_sent: float
    fp32_bytes: float  # that an all-reduce in fp32 would have sent

    @property
    def exposed(self) -> float | None:
        """Seconds in which the step did nothing but wait for the exchange."""
        if self.seconds is None or self.compute is None:
            return None
        return max(0.0, self.seconds - self.compute)


def rows(trace: dict) -> list[Row]:
    """Step by step. A trace tells what a step took together with the step after it."""
    ranks = trace["start"]["ranks"]
    found: list[Row] = []
    elapsed = sent = 0.0
    for each, after in zip(trace["steps"], [*trace["steps"][1:], None], strict=False):
        seconds = after["step_seconds"] if after and after["step_seconds"] > 0 else None
        found.append(
            Row(
                step=each["step"],
                elapsed=elapsed,
                seconds=seconds,
                compute=after["compute_seconds"] if seconds is not None else None,
                bytes_before=sent,
                bytes_sent=each["bytes_sent"],
                fp32_bytes=all_reduce_bytes(each["elements"], ranks),
            )
        )
        elapsed += seconds or 0.0
        sent += each["bytes_sent"]
    return found


def all_reduce_bytes(elements: float, ranks: int) -> float:
    """That a rank sends in fp32, by any all-reduce that sends no more than it must."""
    return 2 * (ranks - 1) / ranks * FP32_BYTES * elements


def _times(modelled: float | None, real: float | None) -> float | None:
    return modelled / real if modelled is not None and real else None


@dataclass
class Savings:
    steps: int
    bytes_sent: float
    fp32_bytes: float
    half_bytes: float
    step_seconds: float | None  # median
    # Of the steps that could be modelled and were timed, in all; None if there is none.
    timed_steps: int
    seconds: float | None
    modelled_seconds: float | None  # of what was done: how far the model can be trusted
    fp32_seconds: float | None
    half_seconds: float | None

    @property
    def speedup_fp32(self) -> float | None:
        return _times(self.fp32_seconds, self.seconds)

    @property
    def speedup_half(self) -> float | None:
        return _times(self.half_seconds, self.seconds)

    @property
    def model_error(self) -> float | None:
        """The share by which the model misses what the steps really took."""
        ratio = _times(self.modelled_seconds, self.seconds)
        return None if ratio is None else abs(ratio - 1)

    @property
    def trusted(self) -> bool:
        """Whether modelled times of what was not done may be told at all."""
        return self.model_error is not None and self.model_error <= TRUSTED


def savings(trace: dict, of_steps: list[Row]) -> Savings:
    fp32_bytes = sum(row.fp32_bytes for row in of_steps)
    timed = [row.seconds for row in of_steps if row.seconds is not None]
    pairs = [
        (row.seconds, each["modelled_seconds"])
        for row, each in zip(of_steps, trace["steps"], strict=True)
        if row.seconds is not None and None not in each["modelled_seconds"].values()
    ]

    def modelled(name: str) -> float | None:
        return sum(times[name] for _, times in pairs) if pairs else None

    return Savings(
        steps=len(of_steps),
        bytes_sent=sum(row.bytes_sent for row in of_steps),
        fp32_bytes=fp32_bytes,
        half_bytes=fp32_bytes / 2,
        step_seconds=statistics.median(timed) if timed else None,
        timed_steps=len(pairs),
        seconds=sum(seconds for seconds, _ in pairs) if pairs else None,
        modelled_seconds=modelled("recorded"),
        fp32_seconds=modelled("fp32"),
        half_seconds=modelled("bf16"),
    )


def baseline(trace: dict) -> str | None:
    """ "fp32" or "16-bit" if the run did nothing else from its first to its last step."""
    used = {bucket["method"] for each in trace["steps"] for bucket in each["buckets"]}
    kinds = {BASELINES.get(method) for method in used - {"foreign"}}
    return kinds.pop() if len(kinds) == 1 else None


def comparable(trace: dict, other: dict) -> bool:
    """Whether two runs differ only by what they sent, as far as traces tell."""

    def kind(each: dict) -> tuple:
        start = each["start"]
        elements = each["steps"][-1]["elements"] if each["steps"] else 0
        return start["ranks"], start["hosts"], start["emulated_link"], start["modelled"], elements

    return kind(trace) == kind(other)


# --- shares ---


def shares(trace: dict) -> dict[str, dict[str, float]]:
    """Shares of steps by method, by method and level, and by route. Inside of a step a bucket
    counts by its elements. Largest first."""
    sums: dict[str, dict[str, float]] = {"method": {}, "level": {}, "route": {}}
    counted = 0
    for each in trace["steps"]:
        buckets = [b for b in each["buckets"] if b["method"] != "foreign" and b["elements"] > 0]
        elements = sum(bucket["elements"] for bucket in buckets)
        counted += bool(buckets)
        for bucket in buckets:
            weight = bucket["elements"] / elements
            for key, name in (
                ("method", bucket["method"]),
                ("level", level_name(bucket)),
                ("route", bucket["route"]),
            ):
                sums[key][name] = sums[key].get(name, 0.0) + weight
    return {
        key: dict(sorted(((n, s / counted) for n, s in by.items()), key=lambda item: -item[1]))
        for key, by in sums.items()
    }


def level_name(bucket: dict) -> str:
    """ "topk 1 %", "powersgd rank 4", "int8"."""
    level = bucket["level"]
    if level is None:
        return bucket["method"]
    if isinstance(level, int):
        return f"{bucket['method']} rank {level}"
    return f"{bucket['method']} {100 * level:.3g} %"


def stretches(trace: dict) -> dict[str, list[tuple[int, int]]]:
    """From which to which step every method and level was in use, by its name."""
    open_until: dict[str, list[list[int]]] = defaultdict(list)
    before: set[str] = set()
    for each in trace["steps"]:
        now = {level_name(bucket) for bucket in each["buckets"]}
        for name in now:
            if name in before:
                open_until[name][-1][1] = each["step"]
            else:
                open_until[name].append([each["step"], each["step"]])
        before = now
    return {name: [(a, b) for a, b in runs] for name, runs in open_until.items()}


def regimes(trace: dict) -> list[tuple[int, int]]:
    """First and last steps of stretches in which most of the model was in a critical regime."""
    found: list[list[int]] = []
    before = False
    for each in trace["steps"]:
        critical = each["critical"] is not None and each["critical"] >= 0.5
        if critical and before:
            found[-1][1] = each["step"]
        elif critical:
            found.append([each["step"], each["step"]])
        before = critical
    return [(first, last) for first, last in found]


# --- times ---


def phases(trace: dict, of_steps: list[Row]) -> dict[str, float]:
    """Mean seconds of a step: computing, waiting for the exchange alone, and, beside the
    computation or not, compressing, on the wire, decoding."""
    timed = [
        (row.compute, row.exposed)
        for row in of_steps
        if row.compute is not None and row.exposed is not None
    ]
    found = {}
    if timed:
        found["computing"] = statistics.fmean(compute for compute, _ in timed)
        found["waiting"] = statistics.fmean(exposed for _, exposed in timed)
    if trace["steps"]:
        for phase in ("compress", "wire", "decode"):
            name = {"compress": "compressing", "wire": "on the wire", "decode": "decoding"}[phase]
            found[name] = statistics.fmean(each[f"{phase}_seconds"] for each in trace["steps"])
    return found


def efficiency(trace: dict, of_steps: list[Row]) -> dict[str, float] | None:
    """Of N ranks, how many would do the same work without a network: as it was, and modelled for
    plain all-reduces. All of the same steps."""
    sums = {"compute": 0.0, "run": 0.0, "fp32": 0.0, "16-bit": 0.0}
    for row, each in zip(of_steps, trace["steps"], strict=True):
        modelled = each["modelled_seconds"]
        if row.compute is None or row.seconds is None or None in modelled.values():
            continue
        sums["compute"] += row.compute
        sums["run"] += row.seconds
        sums["fp32"] += modelled["fp32"]
        sums["16-bit"] += modelled["bf16"]
    compute = sums.pop("compute")
    if not compute:
        return None
    return {name: min(1.0, compute / seconds) for name, seconds in sums.items()}


# --- curves ---


def logged(trace: dict, of_steps: list[Row]) -> dict[str, list[tuple[int, float, float, float]]]:
    """What the user logged, by name: (step, seconds, bytes sent, value), each as of the end of the
    step. What is not finite is left out."""
    by_step = {row.step: row for row in of_steps}
    curves: dict[str, list] = defaultdict(list)
    for log in trace["logs"]:
        row = by_step.get(log["step"])
        if row is None:
            continue
        seconds = row.elapsed + (row.seconds or 0.0)
        for name, value in log["figures"].items():
            if math.isfinite(value):
                point = (log["step"], seconds, row.bytes_before + row.bytes_sent, value)
                curves[name].append(point)
    return dict(curves)


def thin(points: list[tuple], most: int) -> list[tuple]:
    """At most so many points: each the mean of its neighbours, so that noise becomes a line."""
    if len(points) <= most:
        return points
    thinned = []
    for i in range(most):
        part = points[i * len(points) // most : (i + 1) * len(points) // most]
        thinned.append(tuple(mean_of(column) for column in zip(*part, strict=True)))
    return thinned


def mean_of(values: tuple) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def smooth(values: list[float], span: int) -> list[float]:
    """Each the mean of the last `span` up to it."""
    return [statistics.fmean(values[max(0, i + 1 - span) : i + 1]) for i in range(len(values))]


def gain_curves(trace: dict, most: int = 3) -> list[tuple[int, list[tuple[float, float]]]]:
    """(step, [(ratio, gain), ...]) of the first, the last and some between of those that know."""
    known = [(each["step"], each["gains"]) for each in trace["steps"] if each["gains"]]
    if len(known) <= most:
        return known
    return [known[round(i * (len(known) - 1) / (most - 1))] for i in range(most)]
