# SPDX-License-Identifier: Apache-2.0
"""`tidegate.load`: a checkpoint that `tidegate.save` has written, on as many ranks or on others."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from . import _core, durable, manifest
from .errors import Error
from .manifest import File, Manifest
from .together import together

if TYPE_CHECKING:
    from .attach import AnyHandle
    from .handle import Handle


def load(
    handle: "AnyHandle",
    folder: str | os.PathLike[str],
    strict: bool = True,
    missing_ok: bool = False,
) -> Any:
    """Goes on from what `save` has stored, on as many ranks or others, and returns the extra that
    it was given. Between two steps; all ranks must call it. On another number of ranks every rank
    reads all files and takes their mean: what is still owed to the model is preserved.

    strict = False: parameters that were added or removed since are a warning, not an error.
    missing_ok = True: a folder without a checkpoint is no error; returns None.

    If that fails, on whichever rank, all ranks raise a tidegate.Error and go on as they were."""
    folder = Path(folder)
    found: Manifest | None
    found = together(handle, "load", lambda: manifest.find(folder) if handle.rank == 0 else None)[0]
    if found is None:
        if missing_ok:
            return None
        raise Error(
            "checkpoint",
            f"there is no checkpoint in {folder}: {manifest.NAME} is missing. Look at the path, or "
            "start anew with missing_ok=True",
        )
    manifest.check_label(found, handle, folder)
    ours: list = []  # what this rank has read

    def read() -> None:
        ours[:] = [_read_state(found, handle, folder), _read_extra(found, folder)]

    together(handle, "load", read)
    state, extra = ours
    if state is not None:  # a handle that is disabled has read none
        real = cast("Handle", handle)
        before = real._state()  # should another rank be unable to load what this one can
        together(real, "load", lambda: real._adopt(state, strict), undo=lambda: real._adopt(before))
    return extra


def _read_file(file: File, folder: Path) -> Path:
    path = folder / file.name
    try:
        there = durable.look(path)
    except OSError as error:
        raise Error(
            "checkpoint",
            f"cannot read {path}, a part of the checkpoint: {error.strerror or error}. All ranks "
            "must see the folder; restore the file from a copy, or load another checkpoint",
        ) from error
    if not file.matches(there):
        what = (
            f"has {there.bytes} bytes instead of {file.bytes}"
            if there.bytes != file.bytes
            else "has another checksum than when it was written"
        )
        raise Error(
            "checkpoint",
            f"{path} {what}: it is damaged, or one of another checkpoint. Restore it from a copy, "
            "or load another checkpoint",
        )
    return path


def _read_state(found: Manifest, handle: "AnyHandle", folder: Path) -> "_core.State | None":
    """This rank's own; the mean of all, if they are not as many as now; none, if there is none."""
    if not found.states or handle.disabled:
        return None
    if found.ranks == handle.ranks:
        return _read_state_of(handle.rank, found, folder)
    return _core.State.mean([_read_state_of(rank, found, folder) for rank in range(found.ranks)])


def _read_state_of(rank: int, found: Manifest, folder: Path) -> "_core.State":
    path = _read_file(found.states[rank], folder)
    try:
        state = _core.State.from_bytes(path.read_bytes())
    except Error as error:
        raise Error(error.kind, f"{path}: {error}") from error
    if (state.rank, state.ranks, state.step) != (rank, found.ranks, found.step):
        raise Error(
            "checkpoint",
            f"{path} is of rank {state.rank} of {state.ranks} before step {state.step}, but the "
            f"manifest says rank {rank} of {found.ranks} before step {found.step}: files of "
            "several checkpoints are mixed up. Load another checkpoint",
        )
    return state


def _read_extra(found: Manifest, folder: Path) -> Any:
    if found.extra is None:
        return None
    path = _read_file(found.extra, folder)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise Error("checkpoint", f"{path} cannot be loaded: {error}") from error
