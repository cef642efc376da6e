# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: `attach(trainer)`, before `trainer.train()`."""

import functools
import os
import sys

from accelerate.optimizer import AcceleratedOptimizer
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ..load import load
from ..manifest import NAME as MANIFEST
from ..save import save
from .attached import attach_wrapped, figures, flush_into

FOLDER = "tidegate"  # inside checkpoint-<step>


def attach(trainer: Trainer, *, flush_at_end: bool = False, **options) -> "TidegateCallback":
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
        self.handle = None
        self.resume_from: str | os.PathLike | bool | None = None  # what train() was given
        self._trainer = trainer
        self._flush_at_end = flush_at_end
        self._options = options

    def on_train_begin(self, args, state, control, **kwargs):
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
            self._load(args)

    def _load(self, args) -> None:
        checkpoint = self.resume_from
        if checkpoint is True:
            checkpoint = get_last_checkpoint(args.output_dir)
        folder = os.path.join(checkpoint, FOLDER)
        if not os.path.exists(os.path.join(folder, MANIFEST)) and self.handle.rank == 0:
            print(f"tidegate: nothing of Tidegate in {checkpoint}: starts anew", file=sys.stderr)
        load(self.handle, folder, missing_ok=True)

    def _optimizer(self):
        optimizer = self._trainer.optimizer
        return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.handle.log(loss=logs["loss"])
            now = figures(self.handle)
            logs.update(now)
            state.log_history[-1].update(now)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.handle.end_epoch()

    def on_save(self, args, state, control, **kwargs):
        checkpoint = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        save(self.handle, os.path.join(args.output_dir, checkpoint, FOLDER))

    def on_train_end(self, args, state, control, **kwargs):
        if self._flush_at_end and not args.load_best_model_at_end:
            flush_into(self._optimizer(), self.handle)
        self._detach()

    def _detach(self) -> None:
        if self.handle is not None:
            self.handle.detach()


def _tell_where_it_resumes(trainer: Trainer, callback: TidegateCallback) -> None:
    """Callbacks are not told which checkpoint `train` was given, and it may lie anywhere."""
    train = trainer.train

    @functools.wraps(train)
    def train_from(resume_from_checkpoint=None, *args, **kwargs):
        callback.resume_from = resume_from_checkpoint
        return train(resume_from_checkpoint, *args, **kwargs)

    trainer.train = train_from
