# SPDX-License-Identifier: Apache-2.0
"""How "Flexible communication" (Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493) measures the
gains of ratios: from a snapshot it trains some steps with each of them, and goes back. The policy
`flexible` reads them off the gradient in use instead; this is for comparing the two.

    found = exploration.explore(cluster)          # a VirtualCluster, anywhere in its training
    print(found.best_ratio(), [tried.gain for tried in found.tried])
"""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import _core
from .policies import Fixed
from .virtual_cluster import VirtualCluster

STEPS = 10  # with each candidate: the paper's
WINDOW, SMOOTHING = 5, 0.01  # of the moving average of gains: the authors' code


@dataclass
class Tried:
    """What one candidate came to, with the collective that is cheapest for it."""

    ratio: float
    method: str
    route: str
    gain: float  # share of energy sent, moving average over the steps, mean over ranks
    compress_seconds: float  # compressing and decoding, mean over steps and ranks; measured
    modelled_seconds: float  # on the wire


@dataclass
class Exploration:
    """What `explore` has found."""

    tried: list[Tried]  # by ascending ratio

    def best_ratio(self, *, compressing: bool = True, **weights: float) -> float:
        """The ratio that balances time and gain; the authors' code leaves compressing out."""
        seconds = [t.modelled_seconds + compressing * t.compress_seconds for t in self.tried]
        gains = [t.gain for t in self.tried]
        return _core.best_ratio([t.ratio for t in self.tried], seconds, gains, **weights)


def explore(
    cluster: VirtualCluster,
    ratios: list[float] | None = None,
    *,
    steps: int = STEPS,
    artopk: str = "artopk-star",
) -> Exploration:
    """Tries every ratio for some steps from where the cluster is, each with empty residuals, as the
    paper does. The cluster is afterwards where it was."""
    snapshot = cluster.snapshot()
    emptied = [without_what_waits(state) for state in snapshot["sessions"]]
    tried = []
    try:
        for ratio in sorted(ratios or _core.candidate_ratios()):
            method, route, seconds = min(
                cluster.collective_costs(ratio, artopk), key=lambda cost: cost[2]
            )
            with tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "{rank}.jsonl"
                candidate = cluster.alike(Fixed(method, ratio, route=route), trace=trace)
                candidate.restore({**snapshot, "sessions": emptied})
                for _ in range(steps):
                    candidate.step()
                candidate.end_traces()
                ranks = [read_steps(Path(folder) / f"{r}.jsonl") for r in range(cluster.ranks)]
            by_step = zip(*ranks, strict=True)
            tried.append(
                Tried(
                    ratio=ratio,
                    method=method,
                    route=route,
                    gain=moving_average([mean(map(gain_of, step)) for step in by_step]),
                    compress_seconds=mean(compressing(step) for rank in ranks for step in rank),
                    modelled_seconds=seconds,
                )
            )
    finally:
        cluster.restore(snapshot)
    return Exploration(tried)


def without_what_waits(content: bytes) -> bytes:
    state = _core.State.from_bytes(content)
    for layer in state.residuals:
        state.drop(layer)
    return state.to_bytes()


# --- the trace ---


def read_steps(path: Path) -> list[dict]:
    events = map(json.loads, path.read_text().splitlines())
    return [event for event in events if event["kind"] == "step"]


def gain_of(step: dict) -> float:
    """Of what came in and what waited, the share of energy that was sent: the rest waits now."""
    sent = sum(bucket["sent_energy"] for bucket in step["buckets"])
    waits = sum(bucket["residual_energy"] for bucket in step["buckets"])
    return sent / (sent + waits) if sent + waits > 0 else 1.0


def compressing(step: dict) -> float:
    return 1e-3 * (step["ms"]["compress"] + step["ms"]["decode"])


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def moving_average(values: list[float]) -> float:
    """Over the last of them, the newest counting most (tidegate/policies/ewma.h)."""
    last = values[-WINDOW:][::-1]
    weights = [(1 - SMOOTHING) ** age for age in range(len(last))]
    return sum(w * v for w, v in zip(weights, last, strict=True)) / sum(weights)
