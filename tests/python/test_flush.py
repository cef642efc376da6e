# SPDX-License-Identifier: Apache-2.0
"""What was sent and what still waits add up; at the end nothing has to wait."""

import pytest
import torch
from constant_job import ConstantJob
from ranks import results, results_of_each

from tidegate import _core

# What rounding adds up to; a single gradient that is lost is larger by far.
TOLERANCE = 1e-4
STEPS = range(6)
# DGC adds a momentum to what it is given.
METHODS = [row["name"] for row in _core.methods() if row["error_feedback"] and row["name"] != "dgc"]


def flushed(rank, ranks, method, options):
    job = ConstantJob(method, **options)
    job.train(rank, STEPS)
    before = job.shortfall([(STEPS, ranks)])
    assert job.flush()
    after = job.shortfall([(STEPS, ranks)])
    assert not job.flush()
    # And training goes on from there.
    job.train(rank, range(6, 9))
    job.flush()
    end = job.shortfall([(range(9), ranks)])
    job.handle.detach()
    return before, after, end


CASES = [
    *((method, {}) for method in METHODS),
    ("topk", {"route": "owner"}),
    ("int8", {"route": "owner"}),
    ("topk", {"exclude": "*.1"}),
]


@pytest.fixture(scope="module")
def outcomes():
    return results_of_each(flushed, 3, CASES)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{m} {o}" for m, o in CASES])
def test_sent_and_flushed_add_up(number, outcomes):
    for before, after, end in outcomes[number]:
        assert before > 10 * TOLERANCE
        assert after < TOLERANCE
        assert end < TOLERANCE


def nothing_waits(rank, ranks):
    job = ConstantJob("dense")
    job.train(rank, STEPS)
    gradients = [layer.grad.clone() for layer in job.model.module.layers]
    assert not job.handle.flush()
    kept = zip(gradients, job.model.module.layers, strict=True)
    assert all(torch.equal(gradient, layer.grad) for gradient, layer in kept)
    return job.shortfall([(STEPS, ranks)])


def test_nothing_waits_behind_dense_exchanges():
    assert all(shortfall < TOLERANCE for shortfall in results(nothing_waits, 2))
