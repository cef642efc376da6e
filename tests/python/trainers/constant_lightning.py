# SPDX-License-Identifier: Apache-2.0
"""A job of constant gradients that Lightning trains, saves and resumes; see constant_jobs.py."""

import lightning
import torch
from constant_job import Constant, noise
from constant_jobs import HALF, OPTIONS, Outcome, arrived, main
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


def fit(folder, ranks, epochs, resume=None, **options) -> tuple:
    """An epoch has as many steps as a half of the job."""
    callback = TidegateCallback(**OPTIONS, **options)
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
    job = Job()
    trainer.fit(job, DataLoader(range(ranks * HALF)), ckpt_path=resume)
    return trainer, job, callback


def train(rank: int, ranks: int, folder: str) -> Outcome:
    trainer, job, first = fit(folder, ranks, epochs=1)
    before = arrived(job.constant, HALF, ranks)
    # At the end of the epoch by ModelCheckpoint, and after fit, when the handle is detached.
    trainer.save_checkpoint(f"{folder}/after.ckpt")
    saved = [
        torch.load(f"{folder}/{name}.ckpt", weights_only=True)["callbacks"]["Tidegate"]
        for name in ("epoch=0", "after")
    ]
    assert all(torch.equal(saved[0][key][0], saved[1][key][0]) for key in saved[0])
    logged = (trainer.logger.log_dir, "tidegate/ratio")
    _, job, second = fit(folder, ranks, 2, f"{folder}/epoch=0.ckpt", flush_at_end=True)
    if rank == 0:
        with open(f"{logged[0]}/metrics.csv") as file:
            assert logged[1] in file.readline()
    return Outcome(job.constant, before, [first.handle.stats(), second.handle.stats()])


if __name__ == "__main__":
    main(train)
