# SPDX-License-Identifier: Apache-2.0
"""A virtual cluster and real processes under DDP end with the same bits."""

import pytest
import torch
from ranks import results
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from training import digest, mlp, sgd, train

import tidegate

RANKS, STEPS = 4, 50
TOPK = {"policy": "fixed:method=topk,ratio=0.05"}  # by all-gather, about k, so the layout matters
RING = {"policy": "fixed:method=dense,route=ring"}
SMALL = 0.002  # MB: several buckets
# What DDP keeps for good if it looks for unused parameters: cut from the front, then reversed.
STATIC = [["2.bias", "4.weight", "4.bias"], ["0.bias", "2.weight"], ["0.weight"]]
CASES = {
    "topk": (TOPK, {}, {}),
    "ring": (RING, {}, {}),
    "topk in several buckets": (TOPK, {"bucket_cap_mb": SMALL}, {"bucket_mb": SMALL}),
    "ring in several buckets": (RING, {"bucket_cap_mb": SMALL}, {"bucket_mb": SMALL}),
    "topk in a static table": (
        TOPK,
        {"bucket_cap_mb": SMALL, "find_unused_parameters": True},
        {"buckets": STATIC},
    ),
}


def model():
    return mlp(width=24)


def batches(worker, workers, epoch):
    generator = torch.Generator().manual_seed(1000 * epoch + worker)
    for _ in range(20):
        yield (
            torch.randn(8, 32, generator=generator),
            torch.randint(0, 10, (8,), generator=generator),
        )


def first_batches(rank):
    """What a worker sees in the first steps."""
    return [batch for epoch in range(3) for batch in batches(rank, RANKS, epoch)][:STEPS]


def real_jobs(rank, ranks):
    outcomes = {}
    for name, (options, ddp_options, _) in CASES.items():
        ddp = DDP(model(), **ddp_options)
        handle = tidegate.attach(ddp, sgd(ddp), timeout=20, label=name, **options)
        train(ddp, sgd(ddp), first_batches(rank))
        outcomes[name] = digest(ddp), handle.stats()["bytes_sent"], len(handle._layouts)
        handle.detach()
    return outcomes


@pytest.fixture(scope="module")
def real():
    return results(real_jobs, RANKS)


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_bit_equal_after_many_steps(real, one_thread, case):
    options, _, virtual_options = CASES[case]
    net = model()
    task = tidegate.Task(
        net, sgd(net), batches, lambda m, batch: cross_entropy(m(batch[0]), batch[1])
    )
    cluster = tidegate.VirtualCluster(task, RANKS, check=True, **options, **virtual_options)
    outcome = cluster.run(STEPS)
    digests, sent, buckets = zip(*(rank[case] for rank in real), strict=True)
    assert set(digests) == {digest(net)}
    assert outcome.bytes_sent == pytest.approx(sum(sent) / RANKS)
    assert set(buckets) == {len(cluster._table)}
    assert (len(cluster._table) > 1) == bool(virtual_options)


# --- buffers ---


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10))


def state_bits(module):
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


def real_job_with_buffers(rank, ranks):
    ddp = DDP(normalised())
    handle = tidegate.attach(ddp, sgd(ddp), timeout=20, policy="fixed:method=topk,ratio=0.1")
    train(ddp, sgd(ddp), list(batches(rank, ranks, 0))[:6])
    handle.detach()
    return state_bits(ddp.module)


def test_buffers_are_those_of_rank_zero(one_thread):
    net = normalised()
    task = tidegate.Task(
        net, sgd(net), batches, lambda m, batch: cross_entropy(m(batch[0]), batch[1])
    )
    tidegate.VirtualCluster(task, 2, policy="fixed:method=topk,ratio=0.1", check=True).run(6)
    first, second = results(real_job_with_buffers, 2)
    assert state_bits(net) == first
    assert net[1].num_batches_tracked == 6
    # Rank 1's last forward has left its own in its process; DDP replaces it in the next one.
    assert first["1.running_mean"] != second["1.running_mean"]
    assert first["0.weight"] == second["0.weight"]


class Drifting(nn.Module):
    """Its output depends on a buffer that every forward changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False)
        self.register_buffer("drift", torch.ones(()), persistent=False)

    def forward(self, x):
        self.drift.mul_(x.mean())
        return self.linear(x) * self.drift


def test_every_worker_starts_from_the_buffers_of_rank_zero():
    net = Drifting()
    task = tidegate.Task(
        net,
        torch.optim.SGD(net.parameters(), lr=0.0),
        lambda worker, workers, epoch: 2 * [torch.full((1, 2), 2.0 + worker)],
        lambda m, batch: m(batch).sum(),
    )
    cluster = tidegate.VirtualCluster(task, 2, method="dense")
    cluster.step()
    assert net.drift == 2
    assert torch.equal(net.linear.weight.grad, torch.full((1, 2), (2.0 * 2 + 3 * 3) / 2))
    cluster.step()
    assert net.drift == 4
    assert torch.equal(net.linear.weight.grad, torch.full((1, 2), (2.0 * 4 + 3 * 6) / 2))
