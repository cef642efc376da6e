# SPDX-License-Identifier: Apache-2.0
"""The ratio as the authors of "Flexible communication" look for it (Tyagi and Swany, IEEE BigData
2023, arXiv 2312.02493): NSGA-II over time and 1 / gain, with the settings of their code."""

from collections.abc import Callable

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import Problem
from pymoo.decomposition.asf import ASF
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.operators.sampling.rnd import FloatRandomSampling
from pymoo.optimize import minimize

LOWEST, HIGHEST = 0.001, 0.1


class TimeAgainstGain(Problem):
    def __init__(self, seconds: Callable, gain: Callable):
        super().__init__(n_var=1, n_obj=2, xl=LOWEST, xu=HIGHEST)
        self._seconds, self._gain = seconds, gain

    def _evaluate(self, x, out, *args, **kwargs):
        ratios = x[:, 0]
        out["F"] = np.column_stack(
            [[self._seconds(c) for c in ratios], [1 / self._gain(c) for c in ratios]]
        )


def genetic_ratio(seconds: Callable[[float], float], gain: Callable[[float], float]) -> float:
    algorithm = NSGA2(
        pop_size=40,
        n_offsprings=10,
        sampling=FloatRandomSampling(),
        crossover=SBX(prob=0.9, eta=15),
        mutation=PM(eta=20),
        eliminate_duplicates=True,
    )
    found = minimize(TimeAgainstGain(seconds, gain), algorithm, ("n_gen", 40), seed=1)
    best, worst = found.F.min(axis=0), found.F.max(axis=0)
    normalised = (found.F - best) / (worst - best)
    return float(found.X[ASF().do(normalised, 1 / np.array([0.6, 0.4])).argmin(), 0])
