# SPDX-License-Identifier: Apache-2.0
"""A job of constant gradients that Hugging Face's Trainer trains, saves and resumes; see
constant_jobs.py."""

import torch
import torch.distributed as dist
from constant_job import Constant, noise
from constant_jobs import HALF, OPTIONS, Outcome, arrived, logged_losses, main
from torch import nn
from transformers import Trainer, TrainingArguments

from tidegate.trainers.transformers import attach


class Job(nn.Module):
    def __init__(self, step: int):
        super().__init__()
        self.constant = Constant()
        self.step = step

    def forward(self, inputs, labels=None):
        loss = self.constant(noise(self.step, dist.get_rank()))
        self.step += 1
        return {"loss": loss}


def trained(folder: str, first: int, steps: int, resume=None, **options) -> tuple:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=1,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_steps=HALF,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    data = [{"inputs": torch.zeros(1)} for _ in range(100)]
    trainer = Trainer(model=Job(first), args=arguments, train_dataset=data)
    callback = attach(trainer, **OPTIONS, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, callback


def train(rank: int, ranks: int, folder: str) -> Outcome:
    trace = f"{folder}/trace.jsonl"
    trainer, first = trained(f"{folder}/first", 0, HALF, trace=trace)
    before = arrived(trainer.model.constant, HALF, ranks)
    assert all("tidegate/ratio" in line for line in trainer.state.log_history if "loss" in line)
    if rank == 0:
        assert logged_losses(trace) == HALF
    # Into another folder: the checkpoint is found where train() is told to look.
    saved = f"{folder}/first/checkpoint-{HALF}"
    trainer, second = trained(f"{folder}/second", HALF, 2 * HALF, saved, flush_at_end=True)
    stats = [first.handle.stats(), second.handle.stats()]
    return Outcome(trainer.model.constant, before, stats)


if __name__ == "__main__":
    main(train)
