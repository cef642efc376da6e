# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that steps several models in turn, each averaged in its own way: what costs
Tidegate where there is nothing to gain? A second plain DDP shows how much of a difference is noise.

In blocks of steps and not step by step, because a policy measures what lies between its own steps.
The order within a round is drawn anew, so that slow moments of the machine hit all alike.
"""

import json
import random
import statistics
import sys
import time
from dataclasses import dataclass

import torch.distributed as dist

from .socket_job import (
    Settings,
    average_by,
    give_up_after,
    join_the_others,
    make_ddp,
    make_optimizer,
    one_step,
    tell,
)


@dataclass(frozen=True)
class Overhead:
    ways: dict[str, dict]  # see socket_job.Settings.way
    rounds: int = 30
    skipped: int = 2  # rounds at the beginning, in which policies find out
    block: int = 12  # steps
    seed: int = 0
    folder: str = ""
    out: str = ""
    seconds: float = 290.0


def work(settings: Overhead) -> None:
    data = join_the_others(settings.seed, settings.rounds * settings.block)
    jobs = {}
    for name, way in settings.ways.items():
        model = make_ddp(way, settings.seed)
        optimizer = make_optimizer(model)
        handle = average_by(way, model, optimizer, Settings(way))
        jobs[name] = (model, optimizer, handle)
    means = {name: [] for name in jobs}
    draw = random.Random(1)  # the same on all ranks
    for turn in range(settings.rounds):
        for name in draw.sample(list(jobs), len(jobs)):
            model, optimizer, _ = jobs[name]
            times = []
            dist.barrier()
            for step in range(settings.block):
                batch = data.batch(turn * settings.block + step)
                began = time.monotonic()
                one_step(model, optimizer, *batch)
                times.append(time.monotonic() - began)
            # Not the median, which would leave out the steps in which a policy decides.
            means[name].append(1e3 * statistics.fmean(times[1:]))
    choices = {}
    for name, (_, _, handle) in jobs.items():
        if handle is not None:
            choices[name] = handle.stats()["choices"]
            handle.detach()
    if dist.get_rank() == 0:
        kept = {name: values[settings.skipped :] for name, values in means.items()}
        tell({"block_ms": kept, "choices": choices}, settings.out)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    settings = Overhead(**json.loads(sys.argv[1]))
    give_up_after(settings.seconds)
    work(settings)


if __name__ == "__main__":
    main()
