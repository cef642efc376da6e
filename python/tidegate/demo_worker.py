# SPDX-License-Identifier: Apache-2.0
"""One process of `tidegate demo`. Trains the same model three times, each time with another way of
averaging gradients, and tells the parent about it: one JSON object per line on standard output.

    {"kind": "run", "name": ...}                                        rank 0, a run begins
    {"kind": "step", "name", "step", "loss", "seconds", "bytes_sent", "fp32_bytes", "choices"}
                                                                        rank 0, a few per second
    {"kind": "result", "name", "accuracy", "loss", "seconds", ...}      rank 0, a run has ended
    {"kind": "error", "error": ..., "text": ...}                        any rank, then it exits
"""

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from . import _core, fashion_mnist
from .attach import _attach
from .baselines import AllReduceHook
from .engine import Link
from .errors import Error
from .policies import Policy
from .report_figures import all_reduce_bytes

TIMEOUT = 60.0  # seconds
LEARNING_RATE, MOMENTUM = 0.05, 0.9
BUCKET_MB = 0.25  # the convolutions in a bucket of their own, beside that of the linear layers
WARM_UP = 3  # steps outside the measurement: the first ones of a process compile and allocate
LAST_LOSSES = 20  # steps over which the final loss is averaged
EVALUATED_AT_ONCE = 500  # images
TELL_EVERY = 0.2  # seconds


@dataclass
class Exchange:
    """One way of averaging gradients, attached to a model."""

    bytes_sent: Callable[[], float]
    close: Callable[[], None]
    log: Callable[..., None] = lambda **figures: None
    choices: Callable[[], dict[str, int]] = dict  # how often each was made


Attach = Callable[[DistributedDataParallel, torch.optim.Optimizer, dict], Exchange]


def make_model(seed: int) -> nn.Module:
    """A strided CNN of 0.41 million parameters. Equal on all ranks and in all runs."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 256),
        nn.ReLU(),
        nn.Linear(256, fashion_mnist.CLASSES),
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def learning_rate_factor(step: int, steps: int) -> float:
    """Full for the first half, then down to zero: the same for all, and better for all."""
    return min(1.0, 2 * (1 - step / steps))


def link_of(settings: dict) -> Link:
    link = settings["link"]
    return link if isinstance(link, str) else _core.LinkSchedule(link)


def all_reduce_run(element: str) -> Attach:
    def attach(
        model: DistributedDataParallel, optimizer: torch.optim.Optimizer, settings: dict
    ) -> Exchange:
        del optimizer
        hook = AllReduceHook(model, element, TIMEOUT, link_of(settings))
        return Exchange(lambda: hook.bytes_sent, hook.close)

    return attach


def tidegate_run(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, settings: dict
) -> Exchange:
    handle = _attach(
        model,
        optimizer,
        policy=Policy(settings["policy"], settings["options"]),
        fixed={},
        timeout=TIMEOUT,
        trace=settings["trace"],
        link=link_of(settings),
        horizon=settings["steps"],
    )
    return Exchange(
        lambda: handle.stats()["bytes_sent"],
        handle.detach,
        handle.log,
        lambda: handle.stats()["choices"],
    )


RUNS = {
    "DDP fp32": all_reduce_run("fp32"),
    "DDP bf16": all_reduce_run("bf16"),
    "Tidegate": tidegate_run,
}


class Data:
    """This rank's share of the images, and the order in which it sees them in every run."""

    def __init__(self, rank: int, ranks: int, settings: dict):
        share = slice(rank, None, ranks)
        self.images, self.labels = fashion_mnist.load("train", share)
        self.test = fashion_mnist.load("test", share)
        shuffle = torch.Generator().manual_seed(settings["seed"])
        batch = settings["batch"]
        self.order: list[torch.Tensor] = []
        while len(self.order) < settings["steps"]:
            epoch = torch.randperm(len(self.images), generator=shuffle)
            # An incomplete last batch is left out: ranks may not differ in their number of steps.
            self.order += epoch.split(batch)[: settings["steps_per_epoch"]]
        self.order = self.order[: settings["steps"]]

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = self.order[step]
        return self.images[chosen], self.labels[chosen]


def tell(kind: str, **figures: Any) -> None:
    finite = {k: v for k, v in figures.items() if not isinstance(v, float) or math.isfinite(v)}
    print(json.dumps({"kind": kind, **dict.fromkeys(figures), **finite}), flush=True)


def warm_up(data: Data, seed: int) -> None:
    model = make_model(seed)
    optimizer = make_optimizer(model)
    for _ in range(WARM_UP):
        images, labels = data.batch(0)
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def train(name: str, data: Data, settings: dict) -> dict:
    """One run. Its seconds are those of the steps alone, from one barrier to the next."""
    module = make_model(settings["seed"])
    model = DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    exchange = RUNS[name](model, optimizer, settings)
    schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, settings["steps"]))
    losses, told_at = [], 0.0
    fp32_bytes = all_reduce_bytes(
        sum(p.numel() for p in module.parameters()), dist.get_world_size()
    )
    made: dict[str, int] = {}  # choices, when they were last told
    dist.barrier()
    began = time.monotonic()
    for step in range(settings["steps"]):
        images, labels = data.batch(step)
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        exchange.log(loss=losses[-1].item())
        now = time.monotonic()
        if dist.get_rank() == 0 and now - told_at > TELL_EVERY:
            told_at, before, made = now, made, exchange.choices()
            tell(
                "step",
                name=name,
                step=step + 1,
                loss=loss.item(),
                seconds=now - began,
                bytes_sent=exchange.bytes_sent(),
                fp32_bytes=(step + 1) * fp32_bytes,
                choices=[choice for choice in made if made[choice] > before.get(choice, 0)],
            )
    dist.barrier()
    seconds = time.monotonic() - began
    figures = {
        "loss": mean_over_ranks(torch.stack(losses[-LAST_LOSSES:]).mean()),
        "seconds": seconds,
        "bytes_sent": exchange.bytes_sent(),
        "fp32_bytes": settings["steps"] * fp32_bytes,
    }
    figures["accuracy"] = accuracy(module, data)
    exchange.log(accuracy=figures["accuracy"])
    exchange.close()
    return figures


def mean_over_ranks(value: torch.Tensor) -> float:
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """On all test images; each rank takes its share."""
    right_and_all = torch.zeros(2)
    for images, labels in zip(*(part.split(EVALUATED_AT_ONCE) for part in data.test), strict=True):
        right_and_all[0] += (model(images).argmax(1) == labels).sum()
        right_and_all[1] += len(labels)
    dist.all_reduce(right_and_all)
    return (right_and_all[0] / right_and_all[1]).item()


def run(name: str, data: Data, rank: int, ranks: int, settings: dict) -> None:
    """A whole job of its own, from rendezvous to result, in processes that are warm already."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['folder']}/{name.replace(' ', '-')}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT),
    )
    if rank == 0:
        tell("run", name=name)
    figures = train(name, data, settings)
    if rank == 0:
        tell("result", name=name, **figures)
    dist.destroy_process_group()


def work(settings: dict) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # the ranks share the machine's cores
    data = Data(rank, ranks, settings)
    warm_up(data, settings["seed"])
    for name in RUNS:
        run(name, data, rank, ranks, settings)


def end_with_parent() -> None:
    """Ends this process when the parent is gone, however that came about: standard input is a pipe
    from it, on which nothing is ever sent."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    end_with_parent()
    try:
        work(json.loads(sys.argv[1]))
    except Exception as error:
        if not isinstance(error, Error):
            traceback.print_exc()
        kind = error.kind if isinstance(error, Error) else type(error).__name__
        tell("error", error=kind, text=str(error))
        sys.stderr.flush()
        # Not by way of Python's finalisation, which may wait for a collective that never ends.
        os._exit(1)


if __name__ == "__main__":
    main()
