# SPDX-License-Identifier: Apache-2.0
"""What is still owed to the model survives other buckets and other numbers of ranks."""

import pytest
from constant_job import ConstantJob
from ranks import results_of_each

import tidegate
from tidegate import _core

TOLERANCE = 1e-4
# steps, ranks, bucket size: a job in three acts.
ACTS = [(range(5), 2, 0.004), (range(5, 10), 3, 0.002), (range(10, 15), 1, 25)]
METHODS = [row["name"] for row in _core.methods() if row["error_feedback"] and row["name"] != "dgc"]
CASES = [*((method, "auto") for method in METHODS), ("topk", "owner"), ("int8", "owner")]


def act(rank, ranks, number, folder, method, route):
    steps, _, bucket_cap_mb = ACTS[number]
    job = ConstantJob(method, bucket_cap_mb, route=route)
    saved = tidegate.load(job.handle, folder, missing_ok=True)
    if saved:
        job.model.load_state_dict(saved)
    job.train(rank, steps)
    tidegate.save(job.handle, folder, job.model.state_dict())
    taken = [(steps, ranks) for steps, ranks, _ in ACTS[: number + 1]]
    waiting = job.shortfall(taken)
    job.flush()
    job.handle.detach()
    return waiting, job.shortfall(taken)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of every act, what was owed before the flush and after it."""
    folders = [str(tmp_path_factory.mktemp("checkpoint")) for _ in CASES]
    cases = [(folder, *case) for folder, case in zip(folders, CASES, strict=True)]
    by_act = [
        results_of_each(act, ranks, [(number, *case) for case in cases])
        for number, (_, ranks, _) in enumerate(ACTS)
    ]
    return list(zip(*by_act, strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(case) for case in CASES])
def test_what_is_owed_survives_other_ranks_and_buckets(number, outcomes):
    for of_act in outcomes[number]:
        for waiting, shortfall in of_act:
            assert waiting > 10 * TOLERANCE
            assert shortfall < TOLERANCE
