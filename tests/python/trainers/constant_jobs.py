# SPDX-License-Identifier: Apache-2.0
"""What the jobs beside this file share.

Each trains the first half of its steps under a framework, saves as the framework does, resumes with
new objects, trains the second half and flushes. Gradients are given, and the learning rate is 1: at
the end the parameters must be the sum of all gradients, and what was lost on the way is missing."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from constant_job import Constant, shortfall
from training import digest

from tidegate import _core

HALF = 5  # steps
OPTIONS = {"policy": "fixed", "method": "topk", "ratio": 0.05, "timeout": 60}


@dataclass
class Outcome:
    model: Constant
    before: float  # what was missing when the first half was saved
    stats: list[dict]  # of both handles


def arrived(model: Constant, steps: int, ranks: int) -> float:
    """The largest error in what has arrived after so many steps."""
    return shortfall(model, [(range(steps), ranks)])


def logged_losses(trace: str) -> int:
    """How many steps of a finished run have a loss in its trace."""
    logs = _core.read_trace(trace)["logs"]
    return len({log["step"] for log in logs if "loss" in log["figures"]})


def main(train) -> None:
    """Runs train(rank, ranks, folder) under torchrun, and writes what came of it."""
    folder = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    outcome = train(rank, ranks, folder)
    told = {
        "before": outcome.before,
        "after": arrived(outcome.model, 2 * HALF, ranks),
        "digest": digest(outcome.model),
        "steps": [stats["steps"] for stats in outcome.stats],
        "ratios": [stats["ratio"] for stats in outcome.stats],
    }
    Path(folder, f"outcome-{rank}.json").write_text(json.dumps(told))
