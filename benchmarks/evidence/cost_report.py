# SPDX-License-Identifier: Apache-2.0
"""Tables of cost.py's cells."""

import statistics

from .cost import DECIDING_NAME, JOBS, STEPS, job_name
from .report import MISSING, Report, provenance, table
from .sockets import LINKS, POLICIES, policy_name, timed_name
from .sockets_rows import LINK_NAMES, NAMES, counted, verdict
from .store import Store

OWN_NAMES = {"dense": "dense through `attach`", "control": "DDP fp32 again (control)"}


def job_table(store: Store) -> str:
    plain = store.result(job_name("fp32"))
    shown = []
    for way in JOBS:
        found, name = store.result(job_name(way)), OWN_NAMES.get(way) or NAMES[way]
        if found is None or plain is None:
            shown.append([name, *[MISSING] * 4])
            continue
        more = (found["peak_bytes"] - plain["peak_bytes"]) / found["parameters"]
        cpu = found["cpu_ms"] - found["compute_cpu_ms"]
        shown.append(
            [
                name,
                f"{more:+.1f}",
                f"{found['cpu_ms']:.0f}",
                f"{cpu:+.0f}",
                f"{statistics.median(counted(found)):.0f}",
            ]
        )
    header = ["", "bytes per parameter over DDP fp32", "CPU ms a step", "of it not computing"]
    return table([*header, "ms a step"], shown)


def start_up_table(store: Store) -> str:
    shown = []
    for policy in POLICIES:
        cells = []
        for link in LINKS:
            found = store.result(policy_name(link, policy, 0)) or store.result(
                timed_name(link, policy)
            )
            cells.append(f"{found['start_up_seconds']:.1f}" if found else MISSING)
        shown.append([NAMES[policy], *cells])
    return table(["seconds", *(LINK_NAMES[link] for link in LINKS)], shown)


def deciding_table(store: Store) -> str:
    found = store.result(DECIDING_NAME)
    rows = found["rows"] if found else []
    shown = [
        [
            row["name"],
            f"{row['value']:.3g} {row['unit']}",
            f"{row['p99_milliseconds']:.2g}",
            row["goal"],
            verdict(row["met"]),
        ]
        for row in rows
    ]
    return table(["", "mean", "p99 ms", "goal (mean)", ""], shown or [[MISSING] * 5])


def make_report(store: Store) -> Report:
    parts = [
        "# What it costs\n",
        "Generated from `cells/`; do not edit.\n",
        "## Deciding\n",
        "`tidegate bench policies`: 400 steps of a job of 100 buckets and 8 ranks, on a link that "
        "wavers by 3 %.\n",
        deciding_table(store),
        "## Memory and CPU\n",
        f"{STEPS} steps of the job of [sockets.md](sockets.md) on unshaped loopback. Memory is "
        "what a rank's largest resident size grew by from before DDP was made, less that of DDP "
        "fp32; a residual takes 4 bytes per parameter. CPU time is that of all threads of a rank. "
        "The control shows how far two runs of the same are apart.\n",
        job_table(store),
        "## Until the first step\n",
        "What `attach` takes, which is not in the times of sockets.md: agreeing, measuring the "
        "network and, for `auto`, how fast this machine compresses.\n",
        start_up_table(store),
        "## Where the figures come from\n",
        provenance(store.records("cost/*"), "cost/*"),
    ]
    return Report(pages={"cost": "\n".join(parts)})
