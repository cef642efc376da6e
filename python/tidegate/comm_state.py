# SPDX-License-Identifier: Apache-2.0
"""What stands for a DistributedDataParallel that somebody else makes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import torch.distributed as dist
from torch import nn

from .errors import Error

if TYPE_CHECKING:
    from .attach import AnyHandle


class CommState:
    """The first of the pair that `comm_hook` returns. DDP keeps it, and so the handle."""

    handle: "AnyHandle"  # as soon as there is one: `attach` is given this object first

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup):
        self.module = module
        self.process_group = process_group

    # What `attach` asks of a DistributedDataParallel.

    def register_comm_hook(self, state: object, hook: Callable) -> None:
        """Whoever has the pair does it."""

    def no_sync(self) -> NoReturn:
        raise Error(
            "unsupported",
            "micro_batches needs the DistributedDataParallel: use tidegate.attach on it, or leave "
            "gradients to accumulate under its no_sync() yourself",
        )
