# SPDX-License-Identifier: Apache-2.0
"""Lightning with Tidegate; the lines for it are marked. Lightning starts the second process itself:

python examples/lightning_train.py --folder lightning
python examples/lightning_train.py --folder lightning --epochs 10    # goes on where that ended
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tidegate.trainers.lightning import TidegateCallback  # Tidegate


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def data() -> TensorDataset:
    """Stands for yours."""
    inputs = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, :8].sum(dim=1) > 0).long())


def main(folder: str, epochs: int) -> None:
    lightning.seed_everything(0)
    tidegate = TidegateCallback(policy="fixed", method="topk", ratio=0.05)  # Tidegate
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        callbacks=[tidegate, ModelCheckpoint(folder, save_last=True)],  # Tidegate: the first
        default_root_dir=folder,
    )
    last = Path(folder) / "last.ckpt"
    trainer.fit(Classifier(), DataLoader(data(), 32), ckpt_path=last if last.exists() else None)
    print(tidegate.handle.stats())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    main(options.folder, options.epochs)
