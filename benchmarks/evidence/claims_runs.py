# SPDX-License-Identifier: Apache-2.0
"""What the cells have of the claims: runs, paired by seed, and the noise of each part."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from .claims import ACCORDION, BATCHES, CNN, GRAVAC, LINK, ROOT_RANKS, ROOTS, SKEWED
from .report import MISSING
from .store import Store
from .virtual import NOISY_SEEDS_OF, TRAINED_ON, policy_name, static_name, times_name
from .virtual_report import look_up, seconds_of_steps

ALL_SEEDS = NOISY_SEEDS_OF[4]  # that a cell of the CNN may have
STATIC_BESIDE = {  # GraVAC, in virtual.py's results
    "dense": "dense",
    "topk-0.1": "top-k 10x",
    "topk-0.01": "top-k 100x",
    "topk-0.001": "top-k 1000x",
}


@dataclass
class Run:
    """Means over seeds of one line."""

    results: list[dict]

    def mean(self, key: str) -> float:
        return statistics.fmean(result[key] for result in self.results)

    def count(self, key: str) -> Counter:
        """Of exchanges, all seeds together: one for each bucket, or group of its layers, in each
        step."""
        counts = Counter()
        for result in self.results:
            counts.update(result[key])
        return counts

    @property
    def accuracy(self) -> float:
        return 100 * self.mean("figure")

    @property
    def spread(self) -> float | None:
        figures = [100 * result["figure"] for result in self.results]
        return statistics.stdev(figures) if len(figures) > 1 else None

    @property
    def megabytes(self) -> float:
        return self.mean("bytes_sent") / 1e6

    @property
    def timed(self) -> "Run":
        return Run([result for result in self.results if result.get("seconds") is not None])

    @property
    def seconds(self) -> float | None:
        """None if they were not measured."""
        timed = self.timed
        return timed.mean("seconds") if timed.results else None

    @property
    def diverged(self) -> int:
        """With how many seeds: their loss is no number."""
        return sum(result.get("training_loss", 0.0) is None for result in self.results)

    @property
    def seeds(self) -> str:
        count = len(self.results)
        return "1 seed" if count == 1 else f"{count} seeds"

    def ahead_by_seed(self, other: "Run") -> list[float]:
        """In points, with the seeds of both."""
        others = {result["seed"]: result["figure"] for result in other.results}
        mine = sorted((result["seed"], result["figure"]) for result in self.results)
        return [100 * (figure - others[seed]) for seed, figure in mine if seed in others]

    def show(self) -> list[str]:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return [f"{self.accuracy:.2f} %{spread}", f"{self.megabytes:.3g}"]


class Runs(dict[str, Run | None]):
    """By name; what is missing is None."""

    def paired(self, *names: str) -> list[Run] | None:
        return same_seeds(*(self[name] for name in names))

    def paired_timed(self, *names: str) -> list[Run] | None:
        runs = [self[name] for name in names]
        return same_seeds(*(run and run.timed for run in runs))

    def show(self, name: str) -> list[str]:
        run = self[name]
        return run.show() if run else [MISSING] * 2


def same_seeds(*runs: Run | None) -> list[Run] | None:
    """Each with the seeds that all of them have, so that differences of means are means of
    differences of pairs. None if there is no such seed."""
    if not all(runs):
        return None
    common = set.intersection(*({result["seed"] for result in run.results} for run in runs))
    if not common:
        return None
    return [Run([result for result in run.results if result["seed"] in common]) for run in runs]


@dataclass(frozen=True)
class Noise:
    points: float
    seeds: int
    of: str = ""  # whose, where it is not that of the part itself

    def __str__(self) -> str:
        return f"{self.points:.2f} ({self.seeds} seeds{self.of})"


def noise_of(dense: Run | None) -> Noise | None:
    """The standard deviation of dense over seeds, in points; nothing if there is one seed."""
    if dense is None or dense.spread is None:
        return None
    return Noise(dense.spread, len(dense.results))


# --- reading ---


class Measured:
    """All of it."""

    def __init__(self, store: Store):
        self.accordion = read_runs(store, "accordion", ACCORDION)
        self.batches = read_runs(store, "batch", BATCHES)
        self.gravac = read_runs(store, "gravac", GRAVAC)
        self.roots = read_runs(store, "roots", ROOTS)
        self.skewed = read_runs(store, "skewed", ("dense", *SKEWED))
        self.beside = beside_gravac(store)
        self.collectives = store.result("claims/flexible/collectives")
        self.ratios = store.result("claims/flexible/ratios")
        same_job = noise_of(self.beside["dense"])
        borrowed = same_job and replace(same_job, of=" of GraVAC's part")
        # The same job but for the number of workers; dense averages all their images alike.
        of_four = borrowed and replace(
            borrowed, of=f"{borrowed.of}, with 4 workers where these have {ROOT_RANKS}"
        )
        self.noise = {
            "Accordion": noise_of(self.accordion["dense"]) or borrowed,
            "growing batches": noise_of(self.batches["small"]) or borrowed,
            "GraVAC": same_job,
            "STAR against VAR": of_four,
            "STAR against VAR, skewed": noise_of(self.skewed["dense"]) or of_four,
        }


def read_runs(store: Store, part: str, names: Iterable[str]) -> Runs:
    def read(name: str) -> Run | None:
        return find_run(store, lambda seed: f"claims/{part}/{name}/seed{seed}")

    return Runs({name: read(name) for name in names})


def find_run(store: Store, name_of: Callable[[int], str]) -> Run | None:
    """Of all seeds that there are."""
    found = list(filter(None, (look_up(store, name_of(seed)) for seed in ALL_SEEDS)))
    return Run(found) if found else None


def beside_gravac(store: Store) -> Runs:
    """What virtual.py has of the same job."""
    found = Runs({name: static_run(store, name) for name in STATIC_BESIDE})
    found["gravac"] = find_run(store, partial(policy_name, "cnn", 4, "gravac", LINK))
    found["accordion"] = blind_run(store, "accordion")
    return found


def static_run(store: Store, choice: str) -> Run | None:
    """With what its steps were timed to take on the link."""
    run = find_run(store, partial(static_name, "cnn", 4, choice))
    times = (store.result(times_name("cnn", 4)) or {}).get(choice)
    if not (run and times):
        return run
    seconds = sum(seconds_of_steps(CNN, LINK, times))
    return Run([{**result, "seconds": seconds} for result in run.results])


def blind_run(store: Store, policy: str) -> Run | None:
    """Of one that does not look at the link: as trained where all its seeds are, but with the
    seconds of its runs on this link."""
    trained = find_run(store, partial(policy_name, "cnn", 4, policy, TRAINED_ON))
    here = find_run(store, partial(policy_name, "cnn", 4, policy, LINK))
    if trained is None or here is None:
        return here
    seconds = {result["seed"]: result["seconds"] for result in here.results}
    return Run([{**each, "seconds": seconds.get(each["seed"])} for each in trained.results])
