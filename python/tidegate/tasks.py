# SPDX-License-Identifier: Apache-2.0
"""What a virtual cluster trains: a model, its data, and how to tell whether it has learned."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from . import fashion_mnist
from .errors import Error


@dataclass
class Task:
    """A training job, described for any number of workers.

    model      the model, on the CPU
    optimizer  steps it
    batches    batches(worker, workers, epoch) -> the batches of one worker in one epoch; every
               worker must have equally many
    loss       loss(model, batch) -> a scalar tensor
    evaluate   evaluate(model) -> figures by name, such as {"accuracy": 0.87}; optional
    scheduler  stepped after every optimizer step; optional
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Callable[[int, int, int], Iterable[Any]]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    scheduler: Any = None
    name: str = field(default="task")


EVALUATED_AT_ONCE = 1000  # images


def fashion_mnist_cnn(
    seed: int = 0,
    batch: int = 64,
    lr: float = 0.05,
    momentum: float = 0.9,
    steps: int | None = None,
) -> Task:
    """The CNN of `tidegate demo` on Fashion-MNIST. With `steps`, the learning rate goes down to
    zero over the second half of them."""
    from .demo_worker import learning_rate_factor, make_model

    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    images, labels = fashion_mnist.load("train")
    test = fashion_mnist.load("test")

    def batches(worker: int, workers: int, epoch: int):
        shuffle = torch.Generator().manual_seed(1000 * seed + epoch)
        order = torch.randperm(len(images), generator=shuffle)[worker::workers]
        for chosen in order.split(batch)[: len(images) // workers // batch]:
            yield images[chosen], labels[chosen]

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        right = 0
        for pixels, truth in zip(*(part.split(EVALUATED_AT_ONCE) for part in test), strict=True):
            right += (model(pixels).argmax(1) == truth).sum().item()
        return {"accuracy": right / len(test[0])}

    scheduler = None
    if steps:
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(min(step, steps), steps)
        )
    return Task(
        model,
        optimizer,
        batches,
        lambda model, data: cross_entropy(model(data[0]), data[1]),
        evaluate,
        scheduler,
        "fashion-mnist",
    )


TASKS = {"fashion-mnist": fashion_mnist_cnn}


def find(task) -> Task:
    """A task, the name of one that comes with Tidegate, or a function that makes one."""
    if isinstance(task, Task):
        return task
    if callable(task):
        made = task()
        if isinstance(made, Task):
            return made
        raise Error("config", f"{task!r} returned {type(made).__name__}, not a tidegate.Task")
    if isinstance(task, str) and task in TASKS:
        return TASKS[task]()
    raise Error("config", f"unknown task {task!r}; known: {', '.join(TASKS)}, or a tidegate.Task")
