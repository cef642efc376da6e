# SPDX-License-Identifier: Apache-2.0
"""Policy accordion from end to end: parameters of one bucket go their own ways."""

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from training import digest

import tidegate
from tidegate.policies import Accordion

pytestmark = pytest.mark.usefixtures("one_thread")

# A window of 2 steps, one compared with the next; by a threshold that separates the two layers.
PER_PARAMETER = Accordion(
    weak_method="bf16", strong_method="topk", strong=0.1, window=2, interval=1, threshold=0.9
)


class TwoSpeeds(nn.Module):
    """The gradient of `steady` keeps its norm; that of `wild` is a hundred times as large in every
    other window."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.steady = nn.Linear(32, 24)
        self.wild = nn.Linear(32, 24, bias=False)

    def forward(self, x, factor):
        return self.steady(x) + factor * self.wild(x)


def batches(worker, workers, epoch):
    generator = torch.Generator().manual_seed(1000 * epoch + worker)
    for index in range(40):
        factor = 100.0 if index // 2 % 2 else 1.0
        yield torch.randn(8, 32, generator=generator), factor


def make_cluster(policy, **options):
    model = TwoSpeeds()
    task = tidegate.Task(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        batches,
        lambda m, batch: m(*batch).mean(),  # a gradient that does not depend on the weights
    )
    return tidegate.VirtualCluster(task, 2, policy=policy, check=True, compute_seconds=0, **options)


def decisions(path):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in events if event["kind"] == "decision" and "choice" in event]


def test_every_matrix_is_sent_at_the_level_of_its_own_regime(tmp_path):
    trace = tmp_path / "trace.jsonl"
    cluster = make_cluster(PER_PARAMETER, trace=trace)
    outcome = cluster.run(20)
    names = {name.split(" by ")[0]: count for name, count in outcome.choices.items()}
    weak = sum(count for name, count in names.items() if name.startswith("bf16"))
    strong = sum(count for name, count in names.items() if name.startswith("topk 0.1"))
    dense = sum(count for name, count in names.items() if name.startswith("dense"))
    assert weak == 20  # wild is critical for ever
    assert dense == 20  # the bias
    assert 10 < strong < 20  # steady, from the second window on
    last = decisions(trace)[-1]
    assert last["reason"].startswith("1 of 2 matrices are critical: windows ")


def test_what_waits_is_thrown_away_on_a_switch_if_asked_for():
    def residual_after_a_switch(zero):
        policy = Accordion(
            "topk", weak=0.5, strong=0.1, window=2, interval=1, threshold=1e9, zero_residual=zero
        )
        cluster = make_cluster(policy)
        energies = []
        for _ in range(8):
            cluster.step()
            energies.append(cluster._sessions[0].totals()["residual_energy"])
        return energies

    kept, zeroed = residual_after_a_switch(False), residual_after_a_switch(True)
    switch = next(step for step in range(8) if kept[step] != zeroed[step])
    assert zeroed[switch] < kept[switch]
    assert 4 <= switch < 7  # two windows must be over


@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_snapshot_goes_on_with_the_same_levels(stop):
    cluster = make_cluster(PER_PARAMETER)
    cluster.task.optimizer.param_groups[0]["lr"] = 0.01
    cluster.run(stop)
    saved = cluster.snapshot()
    cluster.run(10)
    bits, choices = digest(cluster.task.model), cluster._counts.now()["choices"]
    again = make_cluster(PER_PARAMETER)
    again.restore(saved)
    again.run(10)
    assert digest(again.task.model) == bits
    assert again._counts.now()["choices"] == choices


def test_a_drop_that_happens_again_after_going_back_is_acted_on_again():
    policy = Accordion("topk", weak=0.5, strong=0.1, window=2, interval=1, threshold=1e9)
    cluster = make_cluster(policy)
    cluster.task.optimizer.param_groups[0]["lr"] = 0.01
    cluster.run(20)
    taken = cluster.snapshot()

    def go_on():
        cluster.run(10)
        cluster.task.optimizer.param_groups[0]["lr"] = 0.001
        cluster.run(10)
        return digest(cluster.task.model), cluster._counts.now()["choices"]

    first = go_on()
    cluster.restore(taken)
    assert cluster.task.optimizer.param_groups[0]["lr"] == 0.01
    assert go_on() == first


def test_levels_of_two_methods_learn():
    policy = Accordion(weak_method="bf16", strong_method="topk", strong=0.05, window=5, interval=1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 32, generator=generator)
    targets = torch.randint(0, 10, (64,), generator=generator)
    task = tidegate.Task(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda worker, workers, epoch: 4 * [(inputs[worker::workers], targets[worker::workers])],
        lambda m, batch: cross_entropy(m(batch[0]), batch[1]),
    )
    cluster = tidegate.VirtualCluster(task, 2, policy=policy, check=True)
    outcome = cluster.run(60)
    assert outcome.loss < 0.5 * cluster.losses[0]
    assert {name.split()[0] for name in outcome.choices} == {"bf16", "topk", "dense"}
