# SPDX-License-Identifier: Apache-2.0
"""A task for virtual clusters that takes a few milliseconds per step."""

import torch
from torch.nn.functional import cross_entropy
from training import mlp, sgd

import tidegate


def batches(worker, workers, epoch):
    generator = torch.Generator().manual_seed(1000 * epoch + worker)
    for _ in range(4):
        yield (
            torch.randn(16, 32, generator=generator),
            torch.randint(0, 10, (16,), generator=generator),
        )


def make_task() -> tidegate.Task:
    model = mlp()
    return tidegate.Task(
        model, sgd(model), batches, lambda m, batch: cross_entropy(m(batch[0]), batch[1])
    )


def record(path, steps: int = 24, link="1gbit,0.1ms", **options) -> tidegate.VirtualCluster:
    """Trains, and leaves a trace: of several buckets, on a link, so that there is much to tell."""
    cluster = tidegate.VirtualCluster(
        make_task(),
        2,
        link,
        **{"trace": path, "bucket_mb": 0.02, "compute_seconds": 0.02, **options},
    )
    cluster.run(steps)
    return cluster
