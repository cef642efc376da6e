# SPDX-License-Identifier: Apache-2.0
"""What Tidegate costs: deciding, memory, CPU time, and the time until the first step."""

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from .cell import Cell
from .report import Report
from .socket_run import LOOPBACK, run_job
from .sockets import POLICIES, RIVALS, STATIC, static
from .store import Store

DECIDING_NAME = "cost/deciding"
STEPS = 60  # timed, of a job
# "control" is fp32 once more: what differs between the two is noise.
JOBS = {
    "fp32": RIVALS["fp32"],
    "fp16": RIVALS["fp16"],
    "powersgd-torch-4": RIVALS["powersgd-torch-4"],
    "dense": static("dense"),
    **{name: STATIC[name] for name in ("topk-0.01", "int8", "int4", "powersgd-4")},
    **{name: {"kind": "tidegate", **way} for name, way in POLICIES.items()},
    "control": RIVALS["fp32"],
}


def cells() -> list[Cell]:
    made = [Cell(DECIDING_NAME, 60, deciding, quick=False, exclusive=True)]
    for name, way in JOBS.items():
        run = partial(run_job, LOOPBACK, way=way, timed=STEPS)
        made.append(Cell(job_name(name), 25, run, quick=False, exclusive=True))
    return made


def job_name(way: str) -> str:
    return f"cost/job/{way}"


def deciding() -> dict:
    """`tidegate bench policies`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, "-m", "tidegate", "bench", "policies", "--quiet", "--json"]
        subprocess.run([*command, str(out)], check=True, timeout=280, capture_output=True)
        return {"rows": json.loads(out.read_text())["rows"]}


def report(store: Store) -> Report:
    from .cost_report import make_report  # which knows this module

    return make_report(store)
