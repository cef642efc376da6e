# SPDX-License-Identifier: Apache-2.0
"""Going back to a snapshot, and on from there as the first time."""

import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from training import mlp

import tidegate
from tidegate import snapshots
from tidegate.worker_batches import WorkerBatches

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """With dropout, batch statistics and a buffer that no state_dict holds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(32, 48)
        self.norm = nn.BatchNorm1d(48)
        self.dropout = nn.Dropout(0.3)
        self.second = nn.Linear(48, 10)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen += 1
        return self.second(self.dropout(self.norm(self.first(x)).relu()))


def batches(worker, workers, epoch):
    """Three per epoch, with noise from torch's own random numbers."""
    for index in range(3):
        generator = torch.Generator().manual_seed(100 * epoch + 10 * worker + index)
        yield (
            torch.randn(16, 32, generator=generator) + 0.1 * torch.randn(16, 32),
            torch.randint(0, 10, (16,), generator=generator),
        )


def make_cluster(ranks=3, optimizer="adamw", **options):
    net = Net()
    if optimizer == "adamw":
        steps = torch.optim.AdamW(net.parameters(), lr=1e-2)
    else:
        steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    task = tidegate.Task(
        net,
        steps,
        batches,
        lambda m, batch: cross_entropy(m(batch[0]), batch[1]),
        scheduler=torch.optim.lr_scheduler.StepLR(steps, step_size=2, gamma=0.7),
    )
    return tidegate.VirtualCluster(
        task, ranks, "1gbit,1ms", check=True, bucket_mb=0.002, compute_seconds=0.1, **options
    )


def bits(cluster):
    return {name: t.detach().clone() for name, t in snapshots.tensors_of(cluster.task.model)}


def record(cluster, steps):
    """Every tensor after every step, and what the run came to."""
    states = []
    for _ in range(steps):
        cluster.step()
        states.append(bits(cluster))
    outcome = cluster.run(0).as_dict()
    outcome.pop("seconds")
    return states, outcome, cluster.losses.copy()


def assert_equal(one, other):
    for step, (mine, theirs) in enumerate(zip(one[0], other[0], strict=True)):
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), f"{name} after step {step}"
    for key, value in one[1].items():
        # A third of a byte has no exact sum, and no two measurements of compression are alike.
        measured = key in ("modelled_seconds", "modelled_exposed_seconds")
        assert value == pytest.approx(other[1][key], rel=0.2 if measured else None), key
    assert one[2] == other[2]


METHODS = {
    "dense": {"method": "dense"},
    "topk": {"method": "topk", "ratio": 0.05},
    "topk by owner": {"method": "topk", "ratio": 0.05, "route": "owner"},
    "int8 by owner": {"method": "int8", "route": "owner"},
    "powersgd": {"method": "powersgd", "rank": 2},
    "randomk": {"method": "randomk", "ratio": 0.1},
    "qsgd": {"method": "qsgd"},
    "dgc with momentum": {"policy": "fixed:method=dgc,ratio=0.05,momentum=0.9"},
    "schedule": {"policy": "schedule:levels=0 topk 0.1;4 powersgd 2;6 dense"},
}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_the_steps_after_a_restore_are_those_after_the_snapshot(options, optimizer):
    cluster = make_cluster(optimizer=optimizer, **options)
    cluster.run(4)  # into the second epoch
    taken = cluster.snapshot()
    first = record(cluster, 5)
    cluster.run(3)
    for _ in range(2):  # a snapshot is not used up
        cluster.restore(taken)
        assert_equal(record(cluster, 5), first)


def test_a_snapshot_from_before_the_first_step_takes_everything_back():
    cluster = make_cluster(method="topk", ratio=0.05)
    taken = cluster.snapshot()
    first = record(cluster, 12)  # with several statistics rounds
    assert len(cluster._table) > 1  # as DDP, it has one bucket in the first step
    cluster.restore(taken)
    assert cluster.losses == []
    assert_equal(record(cluster, 12), first)


def test_a_snapshot_can_be_written_to_a_file_and_read_by_another_cluster():
    cluster = make_cluster(method="powersgd", rank=2)
    cluster.run(4)
    file = io.BytesIO()
    torch.save(cluster.snapshot(), file)
    first = record(cluster, 3)
    file.seek(0)
    another = make_cluster(method="powersgd", rank=2)
    another.restore(torch.load(file))
    assert_equal(record(another, 3), first)


def test_a_snapshot_does_not_change_with_the_cluster():
    cluster = make_cluster(method="topk", ratio=0.05)
    cluster.run(2)
    taken = cluster.snapshot()
    weights = {name: t.clone() for name, t in taken["training"]["model"].items()}
    averages = [s["exp_avg"].clone() for s in taken["training"]["optimizer"]["state"].values()]
    cluster.run(2)
    cluster.restore(taken)
    cluster.run(2)
    for name, tensor in taken["training"]["model"].items():
        assert torch.equal(tensor, weights[name])
    states = taken["training"]["optimizer"]["state"].values()
    for state, average in zip(states, averages, strict=True):
        assert torch.equal(state["exp_avg"], average)
    assert len(taken["losses"]) == 2


def test_a_snapshot_of_something_else_is_refused():
    cluster = make_cluster(method="dense")
    taken = cluster.snapshot()
    plain = mlp()
    other_model = tidegate.VirtualCluster(
        tidegate.Task(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batches, None),
        3,
        method="dense",
    ).snapshot()
    for wrong, text in [
        ({}, "no snapshot of version 4"),
        ({**taken, "version": 3}, "no snapshot of version 4"),
        ({key: value for key, value in taken.items() if key != "sessions"}, "lacks sessions"),
        ({**taken, "ranks": 4}, "a snapshot of 4 ranks"),
        (other_model, "another model"),
    ]:
        with pytest.raises(tidegate.Error, match=text) as caught:
            cluster.restore(wrong)
        assert caught.value.kind == "checkpoint"


# --- the place in the data ---


def drawn(worker, workers, epoch):
    for _ in range(3):
        yield float(torch.rand(()))


def test_a_place_gives_the_same_batches_again():
    source = WorkerBatches(drawn, 2, seed=0)
    seen = []
    for _ in range(7):
        seen.append(((source.epoch, source.index), source.next()))
    assert len({value for _, pair in seen for value in pair}) == 14
    for place, expected in reversed(seen):
        source.go_to(*place)
        assert source.next() == expected
    assert WorkerBatches(drawn, 2, seed=1).next() != seen[0][1]


def test_batches_with_an_index_are_not_read_in_vain():
    made = []

    def numbered(worker, workers, epoch):
        return tidegate.tasks.Batches(4, lambda index: made.append(index) or (epoch, index))

    source = WorkerBatches(numbered, 2, seed=0)
    source.go_to(5, 3)
    assert source.next() == [(5, 3), (5, 3)]
    assert source.next() == [(6, 0), (6, 0)]
    assert made == [3, 3, 0, 0]
