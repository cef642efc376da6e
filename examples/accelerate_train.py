# SPDX-License-Identifier: Apache-2.0
"""Accelerate with Tidegate; the lines for it are marked:

torchrun --nproc-per-node 2 examples/accelerate_train.py --folder accelerate
torchrun --nproc-per-node 2 examples/accelerate_train.py --folder accelerate --epochs 10  # goes on
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tidegate.trainers.accelerate import attach  # Tidegate


def data() -> TensorDataset:
    """Stands for yours."""
    inputs = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, :8].sum(dim=1) > 0).long())


def main(folder: str, epochs: int) -> None:
    set_seed(0)
    saving = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=saving)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data(), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    how = {"policy": "fixed", "method": "topk", "ratio": 0.05}  # Tidegate
    handle = attach(accelerator, model, optimizer, **how)  # Tidegate

    first = len(list((Path(folder) / "checkpoints").glob("checkpoint_*")))  # one for every epoch
    if first:
        accelerator.load_state()
        saving.iteration = first
    for epoch in range(first, epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
        handle.end_epoch()
        accelerator.save_state()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
    print(handle.stats())
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    main(options.folder, options.epochs)
