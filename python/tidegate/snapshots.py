# SPDX-License-Identifier: Apache-2.0
"""The state of a virtual cluster as plain values: taken, checked and put back."""

import copy
from collections.abc import Iterator

import torch

from . import _core
from .errors import Error
from .tasks import Task

VERSION = 4
PARTS = ("table", "place", "losses", "modelled", "counts", "sessions", "training", "random")


def check(snapshot: dict, ranks: int, model: torch.nn.Module) -> None:
    if not isinstance(snapshot, dict) or snapshot.get("version") != VERSION:
        raise Error("checkpoint", f"this is no snapshot of version {VERSION}")
    missing = [part for part in PARTS if part not in snapshot]
    if missing:
        raise Error("checkpoint", f"the snapshot lacks {', '.join(missing)}")
    if snapshot["ranks"] != ranks:
        raise Error(
            "checkpoint",
            f"this is a snapshot of {snapshot['ranks']} ranks, but the cluster has {ranks}",
        )
    saved = {name: tensor.shape for name, tensor in snapshot["training"]["model"].items()}
    if saved != {name: tensor.shape for name, tensor in tensors_of(model)}:
        raise Error("checkpoint", "the snapshot is one of another model")


# --- model, optimizer, scheduler ---


def training_state(task: Task) -> dict:
    return {
        "model": {name: tensor.detach().clone() for name, tensor in tensors_of(task.model)},
        "optimizer": copy.deepcopy(task.optimizer.state_dict()),
        "scheduler": copy.deepcopy(task.scheduler.state_dict()) if task.scheduler else None,
    }


@torch.no_grad()
def load_training(task: Task, state: dict) -> None:
    for name, tensor in tensors_of(task.model):
        tensor.copy_(state["model"][name])
    # Copied again: an optimizer goes on with the very tensors that it is given.
    task.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    if task.scheduler:
        task.scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))


def tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and all buffers, of which state_dict() has some only."""
    yield from model.named_parameters()
    yield from model.named_buffers()


# --- sessions ---


def sessions_state(sessions: list) -> list[bytes]:
    return [session.state().to_bytes() for session in sessions]


def load_sessions(sessions: list, states: list[bytes]) -> None:
    for session, state in zip(sessions, states, strict=True):
        session.load(_core.State.from_bytes(state))


class Counts:
    """What sessions have counted, less what belongs to steps that were taken back."""

    def __init__(self, sessions: list):
        self._sessions = sessions
        self._carried = self._void = self._counted()

    def now(self) -> dict:
        return combine(self._carried, combine(self._counted(), self._void, -1), +1)

    def restart(self, carried: dict) -> None:
        self._carried, self._void = carried, self._counted()

    def _counted(self) -> dict:
        totals = [session.totals() for session in self._sessions]
        return {
            "bytes_sent": sum(t["bytes_sent"] for t in totals),
            "dense_bytes": totals[0]["dense_bytes"],
            "choices": totals[0]["choices"],
            "roots": totals[0]["roots"],
        }


def combine(one: dict, other: dict, sign: int) -> dict:
    """one + sign * other, key by key; what comes to zero is left out of inner dicts."""
    result = {}
    for key in one:
        if isinstance(one[key], dict):
            keys = [*one[key], *(k for k in other[key] if k not in one[key])]
            sums = {k: one[key].get(k, 0) + sign * other[key].get(k, 0) for k in keys}
            result[key] = {k: value for k, value in sums.items() if value}
        else:
            result[key] = one[key] + sign * other[key]
    return result
