# SPDX-License-Identifier: Apache-2.0
"""The CNN of `tidegate demo` on Fashion-MNIST: 0.41 million parameters, SGD with momentum."""

import functools

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .. import fashion_mnist
from ..demo_worker import make_model
from .task import Batches, Task, decay

EVALUATED_AT_ONCE = 1000  # images


load = functools.cache(fashion_mnist.load)  # tasks of one process share the images


def make_task(
    seed: int = 0,
    steps: int | None = None,
    batch: int = 32,
    lr: float = 0.05,
    momentum: float = 0.9,
) -> Task:
    """With `steps`, the learning rate goes down to zero over the second half of them."""
    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, fused=True)
    images, labels = load("train")
    test = load("test")

    def batches(worker: int, workers: int, epoch: int) -> Batches:
        shuffle = torch.Generator().manual_seed(1000 * seed + epoch)
        mine = torch.randperm(len(images), generator=shuffle)[worker::workers].split(batch)
        return Batches(
            len(images) // workers // batch,
            lambda index: (images[mine[index]], labels[mine[index]]),
        )

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        right = 0
        for pixels, truth in zip(*(part.split(EVALUATED_AT_ONCE) for part in test), strict=True):
            right += (model(pixels).argmax(1) == truth).sum().item()
        return {"accuracy": right / len(test[0])}

    return Task(
        model,
        optimizer,
        batches,
        lambda model, data: cross_entropy(model(data[0]), data[1]),
        evaluate,
        decay(optimizer, steps),
        name="fashion-mnist",
        figure="accuracy",
    )
