# SPDX-License-Identifier: Apache-2.0
"""What trainers share: attaching to a model that a framework has wrapped, and what follows."""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from ..attach import AnyHandle, DisabledHandle, attach
from ..errors import Error


def attach_wrapped(
    model: object,
    optimizer: torch.optim.Optimizer,
    options: dict,
    *,
    framework: str,
    ranks: int,
    advice: str,
) -> AnyHandle:
    """`tidegate.attach`; in a job of one process a handle that does nothing, because frameworks do
    not wrap a model then."""
    if ranks == 1:
        print("tidegate: one process has no gradients to exchange", file=sys.stderr)
        return DisabledHandle(None, options.get("label", ""))
    if not isinstance(model, DistributedDataParallel):
        raise Error(
            "unsupported",
            f"{framework} trains this model as {type(model).__name__}; Tidegate averages the "
            f"gradients of a DistributedDataParallel: {advice}",
        )
    return attach(model, optimizer, **options)


def flush_into(optimizer: torch.optim.Optimizer, handle: AnyHandle) -> None:
    """One last step, with what still waits to be sent."""
    if handle.flush():
        optimizer.step()
        optimizer.zero_grad()


def figures(handle: AnyHandle) -> dict[str, float]:
    """Of `handle.stats()`, those that a logger can plot; none before the first step."""
    stats = handle.stats()
    if not stats["steps"]:
        return {}
    return {
        "tidegate/ratio": stats["ratio"],
        "tidegate/megabytes_sent": stats["bytes_sent"] / 1e6,
        "tidegate/backlog": stats["backlog"],
        "tidegate/exchange_ms": stats["ms"]["exchange"],
    }
