# SPDX-License-Identifier: Apache-2.0
"""`tidegate.comm_hook`: Tidegate as the pair that `register_comm_hook` takes, for programs in which
somebody else registers it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .attach import attach
from .comm_state import CommState
from .errors import Error


def hook(state: CommState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.handle.hook(bucket)


def comm_hook(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    process_group: dist.ProcessGroup | None = None,
    **options: Any,
) -> tuple[CommState, Callable[[CommState, dist.GradBucket], torch.futures.Future[torch.Tensor]]]:
    """The pair `state, hook` for `ddp.register_comm_hook(state, hook)`; `state.handle` is what
    `tidegate.attach` returns. All ranks must call it, after `init_process_group`.

    model          the module that is or will be wrapped in DistributedDataParallel, or that itself
    process_group  that of the DistributedDataParallel, unless it is the default one
    options        as of `tidegate.attach`"""
    if not dist.is_initialized():
        raise Error("config", "comm_hook needs the process group: call init_process_group() first")
    if isinstance(model, DistributedDataParallel):
        group: Any = model.process_group
        model = model.module
    else:
        group = process_group or dist.group.WORLD
    state = CommState(model, group)
    state.handle = attach(state, optimizer, **options)
    return state, hook
