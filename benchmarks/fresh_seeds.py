# SPDX-License-Identifier: Apache-2.0
"""`auto` beside static choices in a virtual cluster, on seeds that judge nothing in the evidence:
to try a rule of `auto` on, or to see whether a difference there is one of the seeds. Same jobs and
links as docs/evidence/virtual.md. Seconds are modelled, each by the clock of its own run.

    .venv/bin/python -m benchmarks.fresh_seeds --job cnn --link wan --seeds 70-81 \\
        auto auto:low_rank_wait=32 powersgd-4

A way is a policy with its options, or one of the static choices there. All are held against dense
of the same seeds.
"""

import argparse
import statistics
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from operator import itemgetter

from rich.progress import track

from tidegate.cli import show_rows

from .evidence import jobs
from .evidence.jobs import JOBS, Job
from .evidence.virtual import STATIC, TRAINED_ON, fixed

DENSE = "dense"


def run(name: str, ranks: int, link: str, way: str, seed: int) -> tuple[float, float]:
    """The figure of one training, and its modelled seconds."""
    from tidegate.policies import parse

    job = JOBS[name]
    if way == DENSE:  # whose seconds are known well enough from anywhere
        link = TRAINED_ON
    options = fixed(way) if way in STATIC else {"policy": parse(way)}
    result = jobs.train(job, ranks, seed, link, **options)
    return result["figure"], result["seconds"]


def row_of(job: Job, way: str, found: list[tuple[float, float]], dense: list[float]) -> list[str]:
    """How far it ends from dense of the same seeds, with its standard error."""
    sign = 1 if job.lower_is_better else 100
    away = [sign * (figure - other) for (figure, _), other in zip(found, dense, strict=True)]
    error = statistics.stdev(away) / len(away) ** 0.5 if len(away) > 1 else float("nan")
    worst = (max if job.lower_is_better else min)(away)
    middle, took = statistics.fmean(away), statistics.fmean(took for _, took in found)
    return [way, f"{took:.1f}", f"{middle:+.3f}", f"{error:.3f}", f"{worst:+.3f}"]


def seeds_in(text: str) -> Iterable[int]:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="+", metavar="WAY", help="auto, auto:wait=4, powersgd-4, ...")
    parser.add_argument("--job", choices=JOBS, default="cnn")
    parser.add_argument("--ranks", type=int, default=4, help="workers (4)")
    parser.add_argument("--link", choices=jobs.LINKS, default="100mbit")
    parser.add_argument(
        "--seeds", type=seeds_in, default=seeds_in("70-81"), help="first-last (70-81)"
    )
    told = parser.parse_args()
    # A process has one thread.
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as pool:
        asked = {
            way: [
                pool.submit(run, told.job, told.ranks, told.link, way, seed) for seed in told.seeds
            ]
            for way in dict.fromkeys((DENSE, *told.ways))
        }
        runs = [each for of_way in asked.values() for each in of_way]
        for _ in track(as_completed(runs), "training", total=len(runs)):
            pass
        found = {way: [each.result() for each in of_way] for way, of_way in asked.items()}
    dense = [figure for figure, _ in found.pop(DENSE)]
    job = JOBS[told.job]
    print(f"{job.title}, {told.ranks} ranks, {jobs.IN_WORDS[told.link]}, {len(dense)} seeds")
    headings = ["way", "seconds", f"{job.unit} from dense", "standard error", "worst seed"]
    rows = [row_of(job, way, runs, dense) for way, runs in found.items()]
    show_rows(rows, {heading: itemgetter(i) for i, heading in enumerate(headings)})


if __name__ == "__main__":
    main()
