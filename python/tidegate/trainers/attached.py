# SPDX-License-Identifier: Apache-2.0
"""What trainers share: attaching to a model that a framework has wrapped, and what follows."""

import sys

from torch.nn.parallel import DistributedDataParallel

from ..attach import DisabledHandle, attach
from ..errors import Error
from ..handle import Handle


def attach_wrapped(
    model, optimizer, options: dict, *, framework: str, ranks: int, advice: str
) -> Handle | DisabledHandle:
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


def flush_into(optimizer, handle: Handle | DisabledHandle) -> None:
    """One last step, with what still waits to be sent."""
    if handle.flush():
        optimizer.step()
        optimizer.zero_grad()


def figures(handle: Handle | DisabledHandle) -> dict[str, float]:
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
