# SPDX-License-Identifier: Apache-2.0
"""A job of constant gradients that Lightning trains, saves and resumes; see constant_jobs.py."""

from pathlib import Path

import lightning
import torch
from constant_job import Constant, noise
from constant_jobs import HALF, OPTIONS, Outcome, arrived, logged_losses, main
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tidegate.trainers.lightning import TidegateCallback


class Job(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.constant = Constant()

    def training_step(self, batch, index):
        return self.constant(noise(self.trainer.global_step, self.trainer.global_rank))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Broken(Job):
    def training_step(self, batch, index):
        if index == 2:
            raise ArithmeticError("on all ranks")
        return super().training_step(batch, index)


def fit(job, folder, ranks, epochs, callback, resume=None) -> lightning.Trainer:
    """An epoch has as many steps as a half of the job."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp",
        max_epochs=epochs,
        callbacks=[callback, ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(job, DataLoader(range(ranks * HALF)), ckpt_path=resume)
    return trainer


def check_an_exception(folder: str, ranks: int) -> None:
    """It is the user's own that comes out, and nothing half done is saved."""
    callback = TidegateCallback(**OPTIONS)
    try:
        fit(Broken(), f"{folder}/broken", ranks, 1, callback)
    except ArithmeticError:
        assert not callback.handle.attached and callback.state_dict() == {}
    else:
        raise AssertionError("the exception was swallowed")


def train(rank: int, ranks: int, folder: str) -> Outcome:
    trace = f"{folder}/trace.jsonl"
    job, first = Job(), TidegateCallback(**OPTIONS, trace=trace)
    trainer = fit(job, folder, ranks, 1, first)
    before = arrived(job.constant, HALF, ranks)
    # At the end of the epoch by ModelCheckpoint, and after fit, when the handle is detached.
    trainer.save_checkpoint(f"{folder}/after.ckpt")
    saved = [
        torch.load(f"{folder}/{name}.ckpt", weights_only=True)["callbacks"]["Tidegate"]
        for name in ("epoch=0", "after")
    ]
    assert all(torch.equal(saved[0][key][0], saved[1][key][0]) for key in saved[0])
    if rank == 0:
        assert "tidegate/ratio" in Path(trainer.logger.log_dir, "metrics.csv").read_text()
        assert logged_losses(trace) == HALF
    check_an_exception(folder, ranks)
    job, second = Job(), TidegateCallback(**OPTIONS, flush_at_end=True)
    fit(job, folder, ranks, 2, second, f"{folder}/epoch=0.ckpt")
    return Outcome(job.constant, before, [first.handle.stats(), second.handle.stats()])


if __name__ == "__main__":
    main(train)
