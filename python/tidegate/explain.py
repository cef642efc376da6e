# SPDX-License-Identifier: Apache-2.0
"""`tidegate explain`: the story of a run, from its trace."""

import math
import statistics
from argparse import Namespace
from collections import Counter, defaultdict

from . import _core

WIDTH = 60  # columns of the timeline
BARS = "▁▂▃▄▅▆▇█"
MOST_LINES = 60  # of the story, unless --all is given


def run(arguments: Namespace) -> int:
    from .cli import shows, write_json

    trace = _core.read_trace(arguments.trace)
    story = tell(trace)
    summary = summarise(trace)
    if arguments.json:
        value = {"v": 1, "start": trace["start"], "story": story, "summary": summary}
        write_json(arguments.json, value)
    if shows(arguments):
        show(trace, story, summary, None if arguments.all else MOST_LINES)
    return 0


# --- the story ---


def tell(trace: dict) -> list[dict]:
    """What happened, in order: {"step", "what", "text"}."""
    story: list[dict] = []
    present: dict[int, str] = {}
    drops, batches, network = 0, 1, None

    def add(step: int, what: str, text: str) -> None:
        story.append({"step": step, "what": what, "text": text})

    for each in trace["steps"]:
        step = each["step"]
        if each["resumed"]:
            add(step, "resumed", "the job went on from a checkpoint")
        if network is None and each["network"] is not None:
            add(step, "network", f"the network is known: {each['network']}")
        network = each["network"]
        for reason in each["changes"]:
            add(step, "network", f"the network has changed: {reason}; taken to be {network} now")
        if each.get("rate_drops", drops) > drops:
            drops = each["rate_drops"]
            add(
                step,
                "learning rate",
                f"the learning rate has dropped, to {each['learning_rate']:g}",
            )
        for text in describe_decisions(new_decisions(each, present), present):
            add(step, "decision", text)
        if each["batches"] != batches:
            batches = each["batches"]
            add(step, "batches", f"from the next step on {batches} batches per step")
        if each["finite"] is False:
            add(step, "skipped", "a result was NaN or Inf: every bucket took back what it sent")
    for fault in trace["faults"]:
        if fault["fault"] == "slow":
            add(fault["step"], "slow", fault["text"])
        else:
            add(fault["step"], "fault", f"{fault['fault']} error: {fault['text']}")
    if trace["incomplete"]:
        last = trace["steps"][-1]["step"] if trace["steps"] else 0
        add(last, "fault", trace["incomplete"])
    return story


def new_decisions(step: dict, present: dict[int, str]) -> list[dict]:
    """A new part of a trace repeats the decisions in force, which are no news."""
    if not step["repeats"]:
        return step["decisions"]
    return [d for d in step["decisions"] if present.get(d["bucket"]) != d["choice"]]


def describe_decisions(decisions: list[dict], present: dict[int, str]) -> list[str]:
    """Buckets that go the same way for the same reason share a line."""
    alike: dict[tuple, list[int]] = defaultdict(list)
    for decision in decisions:
        bucket, choice = decision["bucket"], decision["choice"]
        alike[(present.get(bucket), choice, decision["reason"])].append(bucket)
        present[bucket] = choice
    lines = []
    for (before, choice, reason), buckets in alike.items():
        change = choice if before in (None, choice) else f"{before} -> {choice}"
        because = f", because: {reason}" if reason else ""
        lines.append(f"{name_buckets(buckets)}: {change}{because}")
    return lines


def name_buckets(buckets: list[int]) -> str:
    """ "bucket 3", or "buckets 0-12, 14"."""
    runs: list[list[int]] = []  # of neighbours: first, last
    for bucket in sorted(buckets):
        if runs and bucket == runs[-1][1] + 1:
            runs[-1][1] = bucket
        else:
            runs.append([bucket, bucket])
    named = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"bucket{'s' if len(buckets) > 1 else ''} {named}"


# --- in numbers ---


def summarise(trace: dict) -> dict:
    steps = trace["steps"]
    counts = Counter(choice for each in steps for choice in each["choices"])
    total = sum(counts.values())
    end = trace["end"] or {}
    # A step is timed from its first bucket to that of the step after.
    seconds = [each["step_seconds"] for each in steps[1:] if each["step_seconds"] > 0]
    sent = end.get("bytes_sent", sum(each["bytes_sent"] for each in steps))
    return {
        "steps": len(steps),
        "choices": {choice: count / total for choice, count in counts.most_common()},
        "bytes_sent": sent,
        "dense_bytes": end.get("dense_bytes"),
        "step_seconds": quantiles(seconds),
        "exchange_seconds": quantiles([each["exchange_seconds"] for each in steps]),
        "times": times_are(trace["start"]),
        "network": steps[-1]["network"] if steps else None,
        "skipped_steps": sum(each["finite"] is False for each in steps),
        "ended": trace["end"] is not None,
        "faults": sum(fault["fault"] != "slow" for fault in trace["faults"]),
        "trace_seconds": end.get("trace_seconds"),
        "trace_share": share_of_writing(end.get("trace_seconds"), sum(seconds)),
        "brief_steps": sum(each["brief"] for each in steps),
    }


def share_of_writing(writing: float | None, seconds: float) -> float | None:
    return writing / seconds if writing is not None and seconds > 0 else None


def times_are(start: dict) -> str:
    if start["modelled"]:
        return "modelled"
    return "emulated" if start["emulated_link"] else "measured"


def quantiles(values: list[float]) -> dict | None:
    """Median, and what one in ten is below and above."""
    if len(values) < 2:
        return None
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {"p10": tenths[0], "median": statistics.median(values), "p90": tenths[-1]}


# --- for people ---


def show(trace: dict, story: list[dict], summary: dict, most: int | None) -> None:
    from .cli import console as make_console

    console = make_console()
    for line in header(trace["start"]):
        console.print(line)
    console.print()
    cut = len(story) if most is None else most
    width = len(str(max((event["step"] for event in story), default=0)))
    for event in story[: cut // 2 if len(story) > cut else cut]:
        console.print(f"step {event['step']:>{width}}: {event['text']}")
    if len(story) > cut:
        console.print(f"... {len(story) - 2 * (cut // 2)} more events; --all shows them ...")
        for event in story[-(cut // 2) :]:
            console.print(f"step {event['step']:>{width}}: {event['text']}")
    console.print()
    for line in (*timeline(trace["steps"]), *closing(summary)):
        console.print(line)


def header(start: dict) -> list[str]:
    label = f' "{start["label"]}"' if start["label"] else ""
    hosts = ""
    if start["hosts"] != start["ranks"]:
        hosts = " on one host" if start["hosts"] == 1 else f" on {start['hosts']} hosts"
    options = ", ".join(f"{key}={value}" for key, value in start["options"].items())
    own = " (the user's own)" if start["own_policy"] else ""
    lines = [
        f"A job{label} of {start['ranks']} ranks{hosts}, told by rank {start['rank']}.",
        f"Policy {start['policy']}{own}{': ' + options if options else ''}.",
    ]
    if start["emulated_link"]:
        lines.append(f"Link {start['emulated_link']}: all times are {times_are(start)}.")
    elif start["modelled"]:
        lines.append("No link was described; all times are modelled.")
    return lines


def timeline(steps: list[dict]) -> list[str]:
    """Bytes, ratio, backlog and time over the steps, where one would rather look than read."""
    if len(steps) < 2:
        return []
    rows = {
        "bytes per step": ([each["bytes_sent"] for each in steps], scale_bytes),
        "share kept": ([each["ratio"] for each in steps], "{:.3g}".format),
        "backlog": ([each["backlog"] for each in steps], "{:.3g}".format),
        "ms per step": ([1e3 * each["step_seconds"] for each in steps[1:]], "{:.3g}".format),
    }
    lines = [f"steps {steps[0]['step']} to {steps[-1]['step']}, each column the mean of its steps:"]
    for name, (values, form) in rows.items():
        values = [value for value in values if math.isfinite(value)]
        if not values or max(values) == 0:
            continue
        low, high = min(values), max(values)
        span = form(high) if low == high else f"{form(low)} to {form(high)}"
        lines.append(f"  {name:<14} {spark(values)} {span}")
    return [*lines, ""]


def spark(values: list[float]) -> str:
    columns = min(WIDTH, len(values))
    means = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    if high == low:
        return BARS[3] * columns
    # What spans more than a decade is drawn by its logarithm, or most of it would be one line.
    if low > 0 and high / low > 10:
        means = [math.log(value) for value in means]
        low, high = min(means), max(means)
    return "".join(BARS[round((len(BARS) - 1) * (m - low) / (high - low))] for m in means)


def scale_bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def closing(summary: dict) -> list[str]:
    lines = []
    if summary["network"]:
        lines.append(f"The network was taken to be {summary['network']} at the end.")
    for choice, share in summary["choices"].items():
        lines.append(f"{share:7.1%} of all buckets and steps: {choice}")
    sent, dense = summary["bytes_sent"], summary["dense_bytes"]
    against = f", {sent / dense:.1%} of what dense would have sent" if dense else ""
    lines.append(f"{scale_bytes(sent)} sent by this rank in {summary['steps']} steps{against}.")
    if summary["step_seconds"]:
        times = {name: f"{1e3 * value:.3g}" for name, value in summary["step_seconds"].items()}
        lines.append(
            f"A step took {times['median']} ms ({times['p10']} to {times['p90']}; "
            f"{summary['times']})."
        )
    if not summary["ended"]:
        lines.append("The run did not come to its end.")
    if summary["trace_share"] is not None:
        took = f"{1e3 * summary['trace_seconds']:.3g} ms, {summary['trace_share']:.2%} of the steps"
        lines.append(f"Writing this trace took {took}.")
    if summary["brief_steps"]:
        lines.append(brief(summary["brief_steps"], summary["steps"]))
    return lines


def brief(steps: int, of: int) -> str:
    return (
        f"{steps} of {of} steps are written in brief, without times of single buckets: a trace "
        "takes at most 0.4 % of the time, and a tenth of a step once."
    )
