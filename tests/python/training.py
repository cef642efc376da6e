# SPDX-License-Identifier: Apache-2.0
"""Small jobs that the tests train."""

import copy
import hashlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import tidegate
from tidegate import _core


def mlp(width: int = 96, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def batches(rank: int, steps: int, seed: int = 1):
    """Data of this rank only; other ranks see other data."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    for _ in range(steps):
        yield (
            torch.randn(16, 32, generator=generator),
            torch.randint(0, 10, (16,), generator=generator),
        )


def wrap(module: nn.Module, **options) -> DDP:
    """DDP with several buckets, on weights of its own."""
    return DDP(copy.deepcopy(module), **{"bucket_cap_mb": 0.02, **options})


def sgd(model: nn.Module):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def attach(model, optimizer=None, method="topk", ratio=0.05, **options):
    """tidegate.attach with the settings most tests want."""
    levels = {row["name"]: row["level"] for row in _core.methods()}
    if levels.get(method, "ratio") != "ratio":
        ratio = None
    if levels.get(method) == "rank":
        options.setdefault("rank", 2)
    return tidegate.attach(
        model,
        optimizer or sgd(model),
        **{"policy": "fixed", "method": method, "ratio": ratio, "timeout": 20, **options},
    )


def train(model, optimizer, data, set_to_none: bool = True) -> float:
    loss = None
    for inputs, targets in data:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def digest(model: nn.Module) -> str:
    """Equal for equal bits."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def waiting(handle) -> dict[str, torch.Tensor]:
    """What waits on this rank, by parameter."""
    state = handle._session.state()
    return {
        name: torch.frombuffer(bytearray(state.residual(name)), dtype=torch.float32)
        for name in state.residuals
    }
