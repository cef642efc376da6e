# SPDX-License-Identifier: Apache-2.0
"""A job whose gradients do not depend on what it has learned: what arrives must add up."""

import torch
from torch import nn
from training import attach, wrap

SHAPES = [(40, 30), (30,), (30, 20), (20,), (500,)]


def noise(step: int, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


class Constant(nn.Module):
    """The gradient of every parameter is what it is told."""

    def __init__(self, shapes=SHAPES):
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, gradients):
        pairs = zip(self.layers, gradients, strict=True)
        return sum((layer * gradient).sum() for layer, gradient in pairs)


class ConstantJob:
    """With a learning rate of 1 the parameters are the sum of what arrived, but for the sign."""

    def __init__(self, method: str = "topk", bucket_cap_mb: float = 0.004, **options):
        self.model = wrap(Constant(), bucket_cap_mb=bucket_cap_mb)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.handle = attach(self.model, self.optimizer, method=method, **options)

    def train(self, rank: int, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            self.model(noise(step, rank)).backward()
            self.optimizer.step()

    def flush(self) -> bool:
        waited = self.handle.flush()
        if waited:
            self.optimizer.step()
        return waited

    def shortfall(self, taken: list[tuple[range, int]]) -> float:
        return shortfall(self.model.module, taken)


def shortfall(model: Constant, taken: list[tuple[range, int]]) -> float:
    """The largest error in what has arrived, after steps taken on so many ranks."""
    expected = [torch.zeros(shape) for shape in SHAPES]
    for steps, ranks in taken:
        for step in steps:
            for rank in range(ranks):
                for total, gradient in zip(expected, noise(step, rank), strict=True):
                    total -= gradient / ranks
    pairs = zip(model.layers, expected, strict=True)
    return max(float((layer - total).detach().abs().max()) for layer, total in pairs)
