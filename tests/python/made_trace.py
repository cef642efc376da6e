# SPDX-License-Identifier: Apache-2.0
"""Traces made by hand, as `_core.read_trace` gives them, whose figures can be computed by head."""

import json


def made_step(step: int, **known) -> dict:
    """A step of one bucket of a thousand elements by topk 1 %, 100 bytes, in which nothing is known
    of the network."""
    bucket = {
        "elements": 1000,
        "bytes_sent": 100.0,
        "compress_seconds": 0.001,
        "wire_seconds": 0.004,
        "decode_seconds": 0.002,
        "method": "topk",
        "level": 0.01,
        "route": "allgather",
    }
    return {
        "step": step,
        "decisions": [],
        "changes": [],
        "choices": ["topk 0.01 in 16 bits by allgather"],
        "ratio": 0.01,
        "elements": 1000.0,
        "bytes_sent": 100.0,
        "step_seconds": 0.010 if step else 0.0,
        "compute_seconds": 0.008 if step else 0.0,
        "exchange_seconds": 0.005,
        "compress_seconds": 0.001,
        "wire_seconds": 0.004,
        "decode_seconds": 0.002,
        "backlog": 1.5,
        "kept": 0.5,
        "critical": None,
        "brief": False,
        "repeats": False,
        "buckets": [bucket],
        "moments": [],
        "finite": True,
        "batches": 1,
        "resumed": False,
        "network": None,
        "link": None,
        "gains": None,
        "window": None,
        "modelled_seconds": {"recorded": None, "fp32": None, "bf16": None},
        **known,
    }


def made_bucket(method: str, level=None, route="engine", elements=1000) -> dict:
    return {**made_step(0)["buckets"][0], "method": method, "level": level, "route": route} | {
        "elements": elements
    }


def made_trace(steps: list[dict], logs=(), **start) -> dict:
    return {
        "start": {
            "label": "",
            "rank": 0,
            "ranks": 4,
            "hosts": 4,
            "policy": "auto",
            "options": {},
            "own_policy": False,
            "depth": 2,
            "emulated_link": None,
            "modelled": False,
            "holds_inputs": True,
            "part": 0,
            **start,
        },
        "steps": steps,
        "logs": [{"step": step, "figures": figures} for step, figures in logs],
        "faults": [],
        "end": {"steps": len(steps), "bytes_sent": 0.0, "dense_bytes": 0.0, "trace_seconds": None},
        "incomplete": "",
    }


def in_brief(lines: str, first: int) -> str:
    """A trace as text, its steps from `first` on as they are written where time is short."""
    events = [json.loads(line) for line in lines.splitlines()]
    for event in events:
        if event["kind"] != "step" or event["step"] < first:
            continue
        buckets = event.pop("buckets")
        event.pop("moments")
        event["brief"] = True
        for energy in ("gradient_energy", "sent_energy", "residual_energy"):
            event[energy] = sum(bucket[energy] for bucket in buckets)
    return "".join(json.dumps(event) + "\n" for event in events)
