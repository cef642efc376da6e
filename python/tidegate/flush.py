# SPDX-License-Identifier: Apache-2.0
"""The end of training: what still waits to be sent becomes a last gradient."""

import torch

from . import _core
from .engine import Engine


@torch.no_grad()
def flush(model: torch.nn.Module, session: "_core.Session", engine: Engine) -> bool:
    """Collective. Puts the mean of what waits into the gradients and empties the session of it.
    False if nothing waits with any rank: then gradients stay as they are."""
    state = session.state()
    parameters = dict(model.named_parameters())
    # By host what waits is with the leaders: ranks may know of different layers.
    known = engine.gather_objects(sorted(state.residuals), "flush")
    names = [name for name in parameters if any(name in of_rank for of_rank in known)]
    waiting = [read(state, name, parameters[name].numel()) for name in names]
    if not names:
        return False
    mean = torch.cat(waiting).div_(engine.ranks)  # before the sum, as DDP does
    operation = engine.all_reduce(mean, "what waits at the end", session.step)
    engine.finish(operation, "what waits could not be averaged")
    state.empty_residuals()
    session.load(state)
    if not mean.any():
        return False
    for parameter in parameters.values():
        parameter.grad = None
    for part, name in zip(mean.split([len(each) for each in waiting]), names, strict=True):
        if part.any():
            parameters[name].grad = gradient_of(parameters[name], part)
    return True


def read(state: "_core.State", name: str, elements: int) -> torch.Tensor:
    values = state.residual(name)
    if not values:
        return torch.zeros(elements)
    return torch.frombuffer(bytearray(values), dtype=torch.float32)


def gradient_of(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values lie as in DDP's buckets: in the order of the parameter's memory."""
    gradient = torch.empty_like(parameter)
    gradient.as_strided((gradient.numel(),), (1,)).copy_(values)
    return gradient
