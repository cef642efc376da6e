# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with Tidegate; the lines for it are marked:

torchrun --nproc-per-node 2 examples/hf_trainer.py --folder hf
torchrun --nproc-per-node 2 examples/hf_trainer.py --folder hf --epochs 10    # goes on
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from tidegate.trainers.transformers import attach  # Tidegate


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def data() -> list[dict]:
    """Stands for yours."""
    inputs = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, :8].sum(dim=1) > 0).long()
    return [{"inputs": one, "labels": label} for one, label in zip(inputs, labels, strict=True)]


def main(folder: str, epochs: int) -> None:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-2,
        logging_steps=16,
        save_strategy="epoch",
        ddp_find_unused_parameters=False,
        report_to="none",
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=data())
    tidegate = attach(trainer, policy="fixed", method="topk", ratio=0.05)  # Tidegate
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    print(tidegate.handle.stats())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    main(options.folder, options.epochs)
