# SPDX-License-Identifier: Apache-2.0
"""A job that goes on from its last checkpoint, however it ended, and on as many ranks as there are:

torchrun --nproc-per-node 2 --max-restarts 3 examples/resume.py --folder checkpoints
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

import tidegate


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stands for your data: every rank has its own."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 16, generator=generator)
    return inputs, inputs.sum(dim=1, keepdim=True).sin()


def train(folder: str, steps: int, every: int) -> list[float]:
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = tidegate.attach(model, optimizer, policy="fixed", method="topk", ratio=0.05)

    first = 0
    saved = tidegate.load(handle, folder, missing_ok=True)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]

    losses = []
    for step in range(first, steps):
        inputs, targets = batch(step, dist.get_rank())
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % every == 0:
            everything = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
            }
            tidegate.save(handle, folder, everything)
        if dist.get_rank() == 0:
            print(f"step {step} loss {losses[-1]!r}", flush=True)

    if handle.flush():  # what still waits to be sent
        optimizer.step()
    handle.detach()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps from checkpoint to checkpoint")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.folder, options.steps, options.every)
    dist.destroy_process_group()
