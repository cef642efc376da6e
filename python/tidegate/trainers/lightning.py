# SPDX-License-Identifier: Apache-2.0
"""Lightning: `Trainer(strategy="ddp", callbacks=[TidegateCallback()])`.

Lightning's own `ddp_comm_hook` is registered on CUDA devices only, and left out silently elsewhere;
a callback is not.
"""

import contextlib
import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ..attach import AnyHandle
from ..errors import Error
from .attached import attach_wrapped, figures, flush_into


class TidegateCallback(Callback):
    """Averages gradients through Tidegate while `fit` runs, and keeps its state in Lightning's
    checkpoints. Takes the arguments of `tidegate.attach`; the scaler, and the horizon unless it is
    given, come from the trainer.

    flush_at_end = True: when training ends, one last step applies what still waits to be sent.
    handle = what `tidegate.attach` returned, from `on_fit_start` on."""

    def __init__(self, *, flush_at_end: bool = False, **options: Any) -> None:
        self.handle: AnyHandle | None = None
        self._flush_at_end = flush_at_end
        self._options = options
        self._logged = 0
        self._state: dict = {}  # to be loaded by the next fit; after one, the state at its end

    @property
    def state_key(self) -> str:
        return f"Tidegate {self._options.get('label', '')}".strip()

    def _running(self) -> AnyHandle:
        assert self.handle is not None, "Lightning calls on_fit_start first"
        return self.handle

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        options = {"scaler": getattr(trainer.precision_plugin, "scaler", None), **self._options}
        if "horizon" not in options and trainer.estimated_stepping_batches < math.inf:
            options["horizon"] = int(trainer.estimated_stepping_batches)
        self.handle = attach_wrapped(
            trainer.strategy.model,
            _only(trainer.optimizers),
            options,
            framework="Lightning",
            ranks=trainer.world_size,
            advice='take Trainer(strategy="ddp")',
        )
        if self._state:
            self.handle.load_state_dict(self._state)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step % trainer.log_every_n_steps or step == self._logged:
            return
        self._logged = step  # which several batches may share
        if isinstance(outputs, dict) and "loss" in outputs:
            self._running().log(loss=outputs["loss"])
        for logger in trainer.loggers:
            logger.log_metrics(figures(self._running()), step=step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._running().end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._flush_at_end:
            flush_into(trainer.optimizers[0], self._running())

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        handle = self._running()
        self._state = handle.mean_state_dict()
        handle.detach()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Ranks may be anywhere now: there is no state of all of them."""
        self._state = {}
        if self.handle is not None:
            with contextlib.suppress(Error):  # the exception that came first says more
                self.handle.detach()

    def state_dict(self) -> dict:
        """Lightning calls this on all ranks and stores what rank 0 returns."""
        if self.handle is not None and self.handle.attached:
            return self.handle.mean_state_dict()
        return self._state

    def load_state_dict(self, state_dict: dict) -> None:
        """Comes before the model is wrapped."""
        self._state = state_dict


def _only(optimizers: list[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    if len(optimizers) == 1:
        return optimizers[0]
    raise Error(
        "unsupported",
        f"configure_optimizers gives {len(optimizers)} optimizers; Tidegate follows the learning "
        "rates of one: return one, with several parameter groups if need be",
    )
