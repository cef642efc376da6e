# SPDX-License-Identifier: Apache-2.0
"""Virtual clusters whose policy lets the batch grow, or listens to learning rates and epochs."""

import io

import pytest
import torch
from ranks import results
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from training import digest, mlp

import tidegate
from tidegate.policies import Accordion, AccordionBatch
from tidegate.worker_batches import WorkerBatches

pytestmark = pytest.mark.usefixtures("one_thread")

BATCHES = 13  # of an epoch
GROWING = AccordionBatch(
    factor=4, window=2, interval=1, threshold=1e9, ramp_steps=3, method="topk", ratio=0.1
)
BY_EPOCH = AccordionBatch(factor=4, interval=1, threshold=1e9)


def batches(worker, workers, epoch):
    generator = torch.Generator().manual_seed(1000 * epoch + worker)
    for _ in range(BATCHES):
        yield (
            torch.randn(8, 32, generator=generator),
            torch.randint(0, 10, (8,), generator=generator),
        )


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)


def make_cluster(policy, ranks=2, scheduler=None, **options):
    model = mlp(width=24)
    optimizer = optimizer_of(model)
    task = tidegate.Task(
        model,
        optimizer,
        batches,
        lambda m, batch: cross_entropy(m(batch[0]), batch[1]),
        scheduler=scheduler(optimizer) if scheduler else None,
    )
    return tidegate.VirtualCluster(
        task, ranks, "1gbit,1ms", policy=policy, check=True, compute_seconds=0.1, **options
    )


def test_a_step_takes_several_batches_of_every_worker_but_never_of_two_epochs():
    source = WorkerBatches(lambda worker, workers, epoch: [(epoch, n) for n in range(5)], 2, 0)
    steps = [source.next_step(count) for count in (1, 3, 3, 3, 2)]
    assert [[batch[1] for batch in step] for step in steps] == [
        [(0, 0)],
        [(0, 1), (0, 2), (0, 3)],
        [(0, 4)],
        [(1, 0), (1, 1), (1, 2)],
        [(1, 3), (1, 4)],
    ]


def sizes_of(cluster, steps):
    """Batches of each step, as modelled time shows them."""
    cluster.run(steps)
    return [round((total - exposed) / 0.1) for total, exposed, _ in cluster._modelled]


def test_batches_grow_when_epochs_have_ended_and_modelled_time_counts_each():
    cluster = make_cluster(BY_EPOCH)
    sizes = sizes_of(cluster, 45)
    grown = sizes.index(4)
    assert 2 * BATCHES < grown < 2 * BATCHES + 12  # heard of a little later
    assert set(sizes[:grown]) == {1}
    left = (3 * BATCHES - grown) % 4
    rest = [4] * ((3 * BATCHES - grown) // 4) + ([left] if left else []) + 20 * [4, 4, 4, 1]
    assert sizes[grown:] == rest[: 45 - grown]
    assert cluster.task.optimizer.param_groups[0]["lr"] == pytest.approx(4 * 0.02)


def real_job(rank, ranks):
    """The same as make_cluster(GROWING, scheduler=halving), in real processes."""
    model = DDP(mlp(width=24))
    optimizer = optimizer_of(model)
    scheduler = halving(optimizer)
    handle = tidegate.attach(model, optimizer, policy=GROWING, timeout=20)
    steps = 0
    for epoch in range(4):
        for micro in handle.micro_batches(batches(rank, ranks, epoch), scheduler):
            with micro:
                (cross_entropy(model(micro.batch[0]), micro.batch[1]) * micro.scale).backward()
            if micro.last:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                steps += 1
    sent = handle.stats()["bytes_sent"]
    handle.detach()
    return steps, digest(model), sent


def test_growing_batches_end_with_the_bits_of_real_processes():
    first, second = results(real_job, 2)
    steps, bits, _ = first
    assert bits == second[1]
    cluster = make_cluster(GROWING, scheduler=halving)
    outcome = cluster.run(steps)
    assert 4 in {round((total - exposed) / 0.1) for total, exposed, _ in cluster._modelled}
    assert digest(cluster.task.model) == bits
    assert outcome.bytes_sent == pytest.approx((first[2] + second[2]) / 2)


@pytest.mark.parametrize("policy", [GROWING, BY_EPOCH], ids=["steps", "epochs"])
@pytest.mark.parametrize("stop", [3, 7, 27, 34, 38])
def test_a_snapshot_goes_on_with_batches_rates_and_windows(policy, stop):
    cluster = make_cluster(policy, scheduler=halving)
    cluster.run(stop)
    file = io.BytesIO()
    torch.save(cluster.snapshot(), file)
    file.seek(0)
    saved = torch.load(file)
    cluster.run(12)
    after = digest(cluster.task.model), cluster.task.optimizer.param_groups[0]["lr"]
    for again in (cluster, make_cluster(policy, scheduler=halving)):
        again.restore(saved)
        again.run(12)
        assert digest(again.task.model) == after[0]
        assert again.task.optimizer.param_groups[0]["lr"] == after[1]


def test_a_snapshot_does_not_change_when_the_batch_grows():
    whole, parts = make_cluster(BY_EPOCH), make_cluster(BY_EPOCH)
    sizes = sizes_of(whole, 40)
    for _ in range(8):
        parts.run(5)
        parts.snapshot()
    others = [round((total - exposed) / 0.1) for total, exposed, _ in parts._modelled]
    assert abs(others.index(4) - sizes.index(4)) <= 5  # statistics start anew, windows do not


def test_a_drop_of_the_rate_brings_the_weak_level_back_in_a_virtual_cluster():
    def drop(optimizer):
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [30], 0.1)

    policy = Accordion("topk", weak=0.5, strong=0.1, window=2, interval=2, threshold=1e9)
    cluster = make_cluster(policy, scheduler=drop)
    seen, before = [], {}
    for _ in range(50):
        cluster.step()
        counts = cluster._counts.now()["choices"]
        seen.append(any(n > before.get(c, 0) for c, n in counts.items() if "topk 0.5" in c))
        before = counts
    changes = [step for step in range(1, 50) if seen[step] != seen[step - 1]]
    assert seen[0] and len(changes) == 3
    assert 6 <= changes[0] < 15 and 30 < changes[1] < 45
