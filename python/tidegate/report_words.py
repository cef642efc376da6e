# SPDX-License-Identifier: Apache-2.0
"""What a report says in words: what was saved, and how that is known."""

from .explain import brief, scale_bytes
from .report_figures import Savings, baseline, comparable, logged, savings, smooth
from .report_plots import Run

LAST_LOSSES = 20
TELLING = 1.03  # a smaller difference of times is within what the model can tell


def headline(run: Run, saved: Savings) -> str:
    """One sentence for a run."""
    if not saved.steps:
        return f"{run.name} holds no step: there is nothing to report yet."
    sent = scale_bytes(saved.bytes_sent)
    if not saved.fp32_bytes:
        return f"{run.name}: nothing had to be sent by a job of one rank."
    kind = baseline(run.trace)
    if kind:
        return f"A run by plain {kind} all-reduce: {sent} sent in {saved.steps} steps."
    share = f"{sent} sent instead of {scale_bytes(saved.fp32_bytes)}"
    speedup = saved.speedup_fp32
    if speedup is None or not saved.trusted:
        return f"{share}: {percent(saved.bytes_sent / saved.fp32_bytes)} of what fp32 would have."
    if speedup < 1:
        return f"{share}, and yet steps were {1 / speedup:.3g} times as slow as by fp32 (modelled)."
    if speedup < TELLING:
        return f"{share}, but steps were no faster than by fp32 (modelled)."
    return f"{share}, and steps {speedup:.3g} times as fast as by fp32 (modelled)."


def how_known(run: Run, saved: Savings, others: list[Run]) -> list[str]:
    """Where the numbers come from, one fact a line. A defeat is said as plainly as a victory."""
    if not saved.steps:
        return []
    start = run.trace["start"]
    lines = [
        f"Bytes are counted: those of rank {start['rank']} of {start['ranks']} in {saved.steps} "
        f"steps. By all-reduce fp32 would have sent {scale_bytes(saved.fp32_bytes)}, 16 bits "
        f"{scale_bytes(saved.half_bytes)}."
    ]
    if saved.step_seconds is None:
        lines.append("No step was timed: that takes two.")
    else:
        lines.append(f"A step took {duration(saved.step_seconds)} (median, {run.times}).")
    if not baseline(run.trace):
        lines += modelled_lines(saved)
    lines += [line for other in others for line in beside(run, saved, other)]
    if in_brief := sum(each["brief"] for each in run.trace["steps"]):
        lines.append(brief(in_brief, saved.steps))
    return lines


def modelled_lines(saved: Savings) -> list[str]:
    modelled, error = saved.modelled_seconds, saved.model_error
    fp32, half = saved.fp32_seconds, saved.half_seconds
    if not saved.seconds or modelled is None or error is None or fp32 is None or half is None:
        return [
            "What dense would have taken cannot be modelled: the run did not learn its network and "
            "what computing takes. Policy auto does, others with calibrate=True."
        ]
    took = f"{saved.timed_steps} steps took {duration(saved.seconds)}"
    misses = f"{duration(modelled)}, {percent(error)} off"
    if not saved.trusted:
        return [
            f"What dense would have taken cannot be told: {took}, and for what was really done the "
            f"model gives {misses}. The run's estimates of its network or of its own times were "
            "wrong, or the machine was busy with something else."
        ]
    lines = [
        f"{took}. On the network as the run knew it, plain all-reduces would have taken "
        f"{duration(fp32)} in fp32 and {duration(half)} in 16 bits "
        "(modelled; conversion taken to be free): "
        f"{fp32 / saved.seconds:.3g} and {half / saved.seconds:.3g} times as long.",
        f"For what was really done the model gives {misses}: trust its other times no further.",
    ]
    if half < saved.seconds:
        lines.append(
            f"LOST against 16 bits: {duration(saved.seconds)} instead of "
            f"{duration(half)} (modelled). 16-bit all-reduce would have done here."
        )
    return lines


def beside(run: Run, saved: Savings, other: Run) -> list[str]:
    """A baseline that was really run says more than any model."""
    kind = baseline(other.trace)
    if kind is None or baseline(run.trace) or not comparable(run.trace, other.trace):
        return []
    rival = savings(other.trace, other.rows)
    if not rival.step_seconds or not saved.step_seconds:
        return []
    speedup = rival.step_seconds / saved.step_seconds
    verdict = f"{speedup:.3g} times as fast" if speedup >= 1 else f"LOST: {speedup:.3g} times"
    return [
        f"Beside the {kind} run {other.name} ({other.times}): "
        f"{duration(saved.step_seconds)} instead of {duration(rival.step_seconds)} a step, "
        f"{verdict}."
    ]


def tiles(run: Run, saved: Savings, share: dict[str, float] | None) -> list[tuple[str, str]]:
    """(figure, what it is) of a run, only those that are known."""
    if not saved.steps:
        return []
    found = []
    if saved.fp32_bytes:
        found = [
            (percent(saved.bytes_sent / saved.fp32_bytes), "of the bytes of fp32, counted"),
            (percent(saved.bytes_sent / saved.half_bytes), "of those of 16 bits, counted"),
        ]
    if saved.step_seconds is not None:
        found.append((duration(saved.step_seconds), f"per step, median, {run.times}"))
    if saved.trusted and not baseline(run.trace):
        found.append((f"{saved.speedup_fp32:.3g}x", "as fast as fp32, modelled"))
        found.append((f"{saved.speedup_half:.3g}x", "as fast as 16 bits, modelled"))
    if share:
        found.append((percent(share["run"]), "scaling efficiency"))
    return [*found, *last_figures(run)]


def last_figures(run: Run) -> list[tuple[str, str]]:
    """What was logged last, by name; of a loss, which scatters, the mean of the last few."""
    found = []
    for name, points in logged(run.trace, run.rows).items():
        values = [value for *_, value in points]
        last = smooth(values, LAST_LOSSES)[-1] if name == "loss" else values[-1]
        of = f", mean of the last {min(LAST_LOSSES, len(values))}" if name == "loss" else ", last"
        found.append((f"{last:.4g}", name + of))
    return found


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.995 else f"{100 * share:.2g} %"


def duration(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 2 else f"{1e3 * seconds:.3g} ms"
