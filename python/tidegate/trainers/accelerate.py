# SPDX-License-Identifier: Apache-2.0
"""Accelerate: `handle = attach(accelerator, model, optimizer)`, after `accelerator.prepare`."""

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from ..attach import AnyHandle
from .attached import attach_wrapped


class _Checkpointed:
    """What Accelerate saves and loads: on all ranks, but it keeps what rank 0 returns."""

    def __init__(self, handle: AnyHandle):
        self._handle = handle

    def state_dict(self) -> dict:
        return self._handle.mean_state_dict()

    def load_state_dict(self, state: dict) -> None:
        if state:  # a job of one process, or one under TIDEGATE_DISABLE=1, saves nothing
            self._handle.load_state_dict(state)


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    **options: Any,
) -> AnyHandle:
    """`tidegate.attach`, with the same options, for what `accelerator.prepare` returned, and with a
    place in the checkpoints of `accelerator.save_state`."""
    if isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    handle = attach_wrapped(
        model,
        optimizer,
        {"scaler": accelerator.scaler, **options},
        framework="Accelerate",
        ranks=accelerator.num_processes,
        advice="pass what accelerator.prepare() returned, and leave FSDP and DeepSpeed out",
    )
    accelerator.register_for_checkpointing(_Checkpointed(handle))
    return handle
