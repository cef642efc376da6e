# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: `attach(trainer)`, before `trainer.train()`."""

import functools
import os
import sys
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ..attach import AnyHandle
from ..load import load
from ..manifest import NAME as MANIFEST
from ..save import save
from .attached import attach_wrapped, figures, flush_into

FOLDER = "tidegate"  # inside checkpoint-<step>


def attach(trainer: Trainer, *, flush_at_end: bool = False, **options: Any) -> "TidegateCallback":
    """Lets a trainer average gradients through Tidegate whenever it trains, and keep every rank's
    state in its checkpoints. Takes the arguments of `tidegate.attach`; the scaler, and the horizon
    unless it is given, come from the trainer. `.handle` of what it returns is the handle, once
    training has begun.

    flush_at_end = True: when training ends, one last step applies what still waits to be sent;
    unless the trainer loads its best model then, which is an earlier one."""
    callback = TidegateCallback(trainer, flush_at_end, options)
    # The first: it adds to what is logged before others write it.
    trainer.callback_handler.callbacks.insert(0, callback)
    _tell_where_it_resumes(trainer, callback)
    return callback


class TidegateCallback(TrainerCallback):
    def __init__(self, trainer: Trainer, flush_at_end: bool, options: dict):
        self.handle: AnyHandle | None = None
        self.resume_from: str | os.PathLike | bool | None = None  # what train() was given
        self._trainer = trainer
        self._flush_at_end = flush_at_end
        self._options = options

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self._detach()  # from a training that ended with an exception
        accelerator = self._trainer.accelerator
        self.handle = attach_wrapped(
            self._trainer.model_wrapped,
            self._optimizer(),
            {"scaler": accelerator.scaler, "horizon": state.max_steps, **self._options},
            framework="Trainer",
            ranks=accelerator.num_processes,
            advice="leave FSDP and DeepSpeed out of the TrainingArguments",
        )
        if state.global_step > 0:
            self._load(self.handle, args)

    def _load(self, handle: AnyHandle, args: TrainingArguments) -> None:
        checkpoint: Any = self.resume_from
        if checkpoint is True:
            checkpoint = get_last_checkpoint(args.output_dir)
        folder = os.path.join(checkpoint, FOLDER)
        if not os.path.exists(os.path.join(folder, MANIFEST)) and handle.rank == 0:
            print(f"tidegate: nothing of Tidegate in {checkpoint}: starts anew", file=sys.stderr)
        load(handle, folder, missing_ok=True)

    def _running(self) -> AnyHandle:
        assert self.handle is not None, "the trainer calls on_train_begin first"
        return self.handle

    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer: Any = self._trainer.optimizer
        if isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        return optimizer

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs:
            self._running().log(loss=logs["loss"])
            now = figures(self._running())
            logs.update(now)
            state.log_history[-1].update(now)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self._running().end_epoch()

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        checkpoint = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        save(self._running(), os.path.join(args.output_dir, checkpoint, FOLDER))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if self._flush_at_end and not args.load_best_model_at_end:
            flush_into(self._optimizer(), self._running())
        self._detach()

    def _detach(self) -> None:
        if self.handle is not None:
            self.handle.detach()


def _tell_where_it_resumes(trainer: Trainer, callback: TidegateCallback) -> None:
    """Callbacks are not told which checkpoint `train` was given, and it may lie anywhere."""
    train = trainer.train

    @functools.wraps(train)
    def train_from(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        callback.resume_from = resume_from_checkpoint
        return train(resume_from_checkpoint, *args, **kwargs)

    trainer.train = train_from
