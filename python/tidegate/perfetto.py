# SPDX-License-Identifier: Apache-2.0
"""A trace as a timeline in Chrome's trace event format, which Perfetto reads too.

One process per phase (compute, compress, wire, decode), in it one lane per bucket. A trace tells
when a bucket was ready, when each of its collectives was issued and arrived, and when it was done:

    ready ... [compress] issue [wire] arrive [decode] issue [wire] arrive [decode] done

A modelled run has no such moments, only how long each phase of a bucket takes: there buckets follow
each other on the wire. A step in brief has neither: it is one slice on the wire.
"""

from collections.abc import Callable
from typing import Any

from .report_figures import Row

LANES = {"compute": 1, "compress": 2, "wire": 3, "decode": 4}  # ids of processes


def timeline(trace: dict, of_steps: list[Row], keep: Callable[[int], bool]) -> list[dict]:
    """Events of the steps for which keep(step) is true; times in microseconds."""
    events: list[dict] = []
    buckets = 0
    idle_from = None  # when the exchange of the step before had ended
    for row, each in zip(of_steps, trace["steps"], strict=True):
        if keep(row.step):
            buckets = max(buckets, len(each["buckets"]))
            ready = [at for at, what, _, _ in each["moments"] if what == "ready"]
            if idle_from is not None and ready:
                computed = row.elapsed + max(ready)
                name = f"computing for step {row.step}"
                events.append(slice_of("compute", 0, name, idle_from, computed, {}))
            if each["brief"]:
                events.append(brief_slice(row, each))
            elif trace["start"]["modelled"]:
                events += modelled_slices(row, each)
            else:
                for bucket in range(len(each["buckets"])):
                    events += bucket_slices(row, each, bucket)
        idle_from = row.elapsed + max(0.0, each["exchange_seconds"])
    return [*lane_names(buckets), *events]


def lane_names(buckets: int) -> list[dict]:
    names = []
    for name, process in LANES.items():
        names.append(metadata("process_name", process, 0, name))
        names.append(
            {**metadata("process_sort_index", process, 0, ""), "args": {"sort_index": process}}
        )
        of_buckets = [f"bucket {bucket}" for bucket in range(buckets)]
        lanes = ["forward and backward"] if name == "compute" else of_buckets
        for thread, label in enumerate(lanes):
            names.append(metadata("thread_name", process, thread, label))
    return names


def metadata(kind: str, process: int, thread: int, name: str) -> dict:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def slice_of(lane: str, thread: int, name: str, begin: float, end: float, about: dict) -> dict:
    return {
        "ph": "X",
        "cat": lane,
        "name": name,
        "pid": LANES[lane],
        "tid": thread,
        "ts": 1e6 * begin,
        "dur": 1e6 * max(0.0, end - begin),
        "args": about,
    }


def brief_slice(row: Row, each: dict) -> dict:
    until = row.elapsed + max(0.0, each["exchange_seconds"])
    about = {"step": row.step, "choices": " | ".join(dict.fromkeys(each["choices"]))}
    return slice_of("wire", 0, "all buckets; step in brief", row.elapsed, until, about)


def bucket_slices(row: Row, each: dict, bucket: int) -> list[dict]:
    figures = each["buckets"][bucket]
    moments = [(row.elapsed + at, what, r) for at, what, b, r in each["moments"] if b == bucket]
    ready = next((at for at, what, _ in moments if what == "ready"), row.elapsed)
    done = next((at for at, what, _ in moments if what == "done"), None)
    issued = {r: at for at, what, r in moments if what == "issue"}
    arrived = {r: at for at, what, r in moments if what == "arrive"}
    choice = each["choices"][bucket]
    about = {"step": row.step, "choice": choice, "elements": figures["elements"]}
    slices = []

    def add(lane: str, begin: float, end: float, **more: Any) -> None:
        slices.append(slice_of(lane, bucket, choice, begin, end, {**about, **more}))

    for number, at in sorted(issued.items()):
        if number == min(issued):  # it may have waited for others before it was compressed
            add("compress", max(ready, at - figures["compress_seconds"]), at)
        if number not in arrived:
            continue
        add("wire", at, arrived[number], round=number, bytes_sent=figures["bytes_sent"])
        until = issued.get(number + 1, done)
        if until is not None:
            add("decode", arrived[number], until, round=number)
    return slices


def modelled_slices(row: Row, each: dict) -> list[dict]:
    slices = []
    ready = {bucket: at for at, what, bucket, _ in each["moments"] if what == "ready"}
    free_at = 0.0  # the wire
    for bucket, figures in enumerate(each["buckets"]):
        choice = each["choices"][bucket]
        about = {"step": row.step, "choice": choice, "elements": figures["elements"]}
        at = row.elapsed + ready.get(bucket, 0.0)
        for lane in ("compress", "wire", "decode"):
            if lane == "wire":
                at = max(at, free_at)
            until = at + figures[f"{lane}_seconds"]
            if lane == "wire":
                free_at = until
            slices.append(slice_of(lane, bucket, f"{choice}, modelled", at, until, about))
            at = until
    return slices
