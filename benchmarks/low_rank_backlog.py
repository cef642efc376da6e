# SPDX-License-Identifier: Apache-2.0
"""Can one see in a gradient what would wait behind low rank? Trains the jobs of the evidence in
virtual clusters of four workers: dense, looking at what ranks 8, 4 and 2 would leave out of every
tenth mean gradient (by an exact decomposition), and by PowerSGD at these ranks, looking at what
really waits. Policy `auto` goes by the quotient of the two (option low_rank).

    .venv/bin/python -m benchmarks.low_rank_backlog [--job cnn] [--seed 0]
"""

import argparse
import statistics
from operator import itemgetter

import torch

from tidegate.cli import show_rows

from .evidence import jobs
from .evidence.jobs import JOBS, Job

WORKERS = 4
RANKS = (8, 4, 2)
PARTS = ((0.1, 0.3), (0.3, 0.6), (0.6, 0.95))  # of a training
EVERY = 10  # steps


def cluster_of(job: Job, seed: int, **options):
    task = jobs.make_task(job, WORKERS, seed)
    link = jobs.segments("1gbit", job.steps)
    return jobs.make_cluster(task, WORKERS, link, seed, job.steps, policy="fixed", **options)


def left_out(job: Job, seed: int) -> dict[int, list[tuple[int, float]]]:
    """Of every rank, (step, what it leaves out of the mean gradient over what it carries)."""
    cluster = cluster_of(job, seed, method="dense")
    parameters = list(cluster.task.model.parameters())
    found: dict[int, list[tuple[int, float]]] = {rank: [] for rank in RANKS}
    for step in range(job.steps):
        cluster.step()
        if step % EVERY:
            continue
        energies = [singular_energies(parameter.grad) for parameter in parameters]
        for rank in RANKS:
            carried = sum(
                carried_by(rank, of, p) for of, p in zip(energies, parameters, strict=True)
            )
            whole = sum(float(of.sum()) for of in energies)
            found[rank].append((step, whole / carried - 1))
    return found


def singular_energies(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.dim() < 2:
        return gradient.square().sum()[None]
    return torch.linalg.svdvals(gradient.flatten(1)).square()


def carried_by(rank: int, energies: torch.Tensor, parameter: torch.nn.Parameter) -> float:
    """What is smaller than its factors travels whole."""
    rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
    saves = parameter.dim() > 1 and rank * (rows + columns) < rows * columns
    return float(energies[:rank].sum() if saves else energies.sum())


def waiting(job: Job, seed: int, rank: int) -> list[tuple[int, float]]:
    """(step, energy of the mean residual over that of the mean gradient)."""
    cluster = cluster_of(job, seed, method="powersgd", rank=rank, bits=16)
    cluster.step()  # after it parameters lie in other buckets; what waits of it is left out
    residual, found = None, []
    average = cluster._average

    def watch(batches: int) -> None:
        nonlocal residual
        buffers = cluster._gradients._buckets
        mean = [sum(of_worker) / WORKERS for of_worker in zip(*buffers, strict=True)]
        average(batches)
        late = [m - sent for m, sent in zip(mean, buffers[0], strict=True)]
        residual = (
            late if residual is None else [r + e for r, e in zip(residual, late, strict=True)]
        )
        found.append((len(cluster.losses), energy(residual) / energy(mean)))

    cluster._average = watch
    for _ in range(job.steps - 1):
        cluster.step()
    return found


def energy(tensors: list[torch.Tensor]) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors)


def mean_between(values: list[tuple[int, float]], part: tuple[float, float], steps: int) -> float:
    first, last = (share * steps for share in part)
    return statistics.fmean(value for step, value in values if first <= step < last)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", choices=JOBS, action="append", help="only this one (repeatable)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.job or JOBS:
        job = JOBS[name]
        seen = left_out(job, arguments.seed)
        for rank in RANKS:
            waits = waiting(job, arguments.seed, rank)
            for part in PARTS:
                odds = mean_between(seen[rank], part, job.steps)
                backlog = mean_between(waits, part, job.steps)
                steps = f"{100 * part[0]:.0f} to {100 * part[1]:.0f} %"
                row = [name, f"{rank}", steps, f"{odds:.3f}", f"{backlog:.2f}"]
                rows.append([*row, f"{backlog / odds:.1f}"])
    headings = ["job", "rank", "of the steps", "left out / carried", "backlog", "quotient"]
    show_rows(rows, {heading: itemgetter(i) for i, heading in enumerate(headings)})


if __name__ == "__main__":
    main()
