# SPDX-License-Identifier: Apache-2.0
"""A job that was stopped and goes on in new processes ends with the bits of one that never was."""

import pytest
import torch
from ranks import results_of_each
from torch.nn.functional import cross_entropy
from training import attach, batches, digest, mlp, sgd, wrap

from tidegate import _core

STEPS = 8  # before the stop, and after it
LONG = 100  # likewise, for the states that take many steps to fill

# name -> (what is special about the job, arguments of attach)
CASES = {
    **{row["name"]: ("plain", {"method": row["name"]}) for row in _core.methods()},
    "topk by owners": ("plain", {"method": "topk", "route": "owner"}),
    "int8 by owners": ("plain", {"method": "int8", "route": "owner"}),
    "with layers excluded": ("plain", {"method": "topk", "exclude": "*.bias"}),
    "in 16 bits": ("bf16", {"method": "topk"}),
    "with a loss scale": ("scaled", {"method": "int8"}),
    "with accumulated gradients": ("accumulated", {"method": "topk"}),
    "by schedule": (
        "plain",
        {"policy": "schedule:levels=0 topk 0.05; 9 int8; 12 dense", "method": None, "ratio": None},
    ),
}


class Job:
    """A training job of one rank with all that a user would save of it."""

    def __init__(self, kind: str, options: dict):
        self.kind = kind
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        self.model = wrap(mlp(width=48).to(dtype), bucket_cap_mb=0.008)
        self.dtype = dtype
        self.optimizer = sgd(self.model)
        self.scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaled", growth_interval=5)
        scaler = {"scaler": self.scaler} if kind == "scaled" else {}
        self.handle = attach(self.model, self.optimizer, **scaler, **options)

    def train(self, data) -> None:
        for inputs, targets in data:
            self.optimizer.zero_grad()
            if self.kind == "accumulated":
                with self.model.no_sync():
                    self.backward(inputs, targets)
            self.backward(inputs, targets)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def backward(self, inputs, targets) -> None:
        loss = cross_entropy(self.model(inputs.to(self.dtype)).float(), targets)
        self.scaler.scale(loss).backward()

    def parts(self) -> dict:
        parts = {"model": self.model, "optimizer": self.optimizer, "handle": self.handle}
        return {**parts, "scaler": self.scaler} if self.kind == "scaled" else parts


def stop(rank, ranks, folder, name, steps):
    """One job that takes all steps, and one that is stopped and saved half-way."""
    data = list(batches(rank, 2 * steps))
    whole, first = Job(*CASES[name]), Job(*CASES[name])
    whole.train(data)
    first.train(data[:steps])
    state = {part: thing.state_dict() for part, thing in first.parts().items()}
    torch.save(state, f"{folder}/{name} {rank}.pt")
    for job in (whole, first):
        job.handle.detach()
    return digest(whole.model)


def go_on(rank, ranks, folder, name, steps):
    state = torch.load(f"{folder}/{name} {rank}.pt", weights_only=True)
    job = Job(*CASES[name])
    for part, thing in job.parts().items():
        thing.load_state_dict(state[part])
    job.train(list(batches(rank, 2 * steps))[steps:])
    job.handle.detach()
    return digest(job.model)


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    """Of never stopped and of resumed jobs of three ranks, by case; those of two are below."""
    folder = str(tmp_path_factory.mktemp("saved"))
    cases = [(folder, name, STEPS) for name in CASES]
    whole = results_of_each(stop, 3, cases)
    resumed = results_of_each(go_on, 3, cases)
    pairs = zip(CASES, whole, resumed, strict=True)
    return {name: ({*ours}, {*theirs}) for name, ours, theirs in pairs}


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_job_has_the_bits_of_one_that_never_stopped(name, digests):
    whole, resumed = digests[name]
    assert len(whole) == 1, "ranks drifted apart"
    assert resumed == whole


@pytest.mark.all
@pytest.mark.timeout(600)
def test_a_job_stopped_at_step_100_is_equal_at_step_200(tmp_path):
    cases = [(str(tmp_path), name, LONG) for name in CASES]
    whole = results_of_each(stop, 2, cases, limit=300)
    resumed = results_of_each(go_on, 2, cases, limit=300)
    for name, ours, theirs in zip(CASES, whole, resumed, strict=True):
        assert len({*ours}) == 1, f"{name}: ranks drifted apart"
        assert theirs == ours, name
