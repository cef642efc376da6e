# SPDX-License-Identifier: Apache-2.0
"""An ordinary script for DDP, with three lines added for Tidegate:

torchrun --nproc-per-node 2 examples/ddp_train.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import tidegate  # added


def data() -> TensorDataset:
    """Stands for yours."""
    inputs = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, :8].sum(dim=1) > 0).long())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = data()
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=32, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = tidegate.attach(model, optimizer)  # added
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(handle.stats())  # added
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
