# SPDX-License-Identifier: Apache-2.0
"""`tidegate.save`: all ranks' states, and what the user adds, in a folder.

Each rank writes a file with a name of its own; when all have, rank 0 replaces the manifest, which
names them; then what it does not name is removed. So at every moment the manifest that is there
names files that are complete. Ranks tell each other what went wrong, and raise the same error.
"""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import _core, durable, manifest
from .errors import Error
from .manifest import File, Manifest
from .together import together

if TYPE_CHECKING:
    from .attach import AnyHandle

SUFFIX = ".tidegate"  # of all files but the manifest


def save(handle: "AnyHandle", folder: str | os.PathLike[str], extra: Any = None) -> None:
    """Saves what all ranks need to go on from this step. Between two steps; all ranks must call it,
    with a folder that all of them see, and one for each handle.

    extra = whatever else belongs to this step, such as {"model": model.state_dict(), ...}: rank 0's
    is stored, by torch.save, and `load` returns it to all ranks.

    A checkpoint that is in the folder is replaced when the new one is complete; if that fails, on
    whichever rank, all ranks raise a tidegate.Error and the old one stays."""
    saving = _Saving(handle, Path(folder), extra)
    saving.write_manifest(saving.write_files(saving.prepare()))


@dataclass
class _Place:
    """What ranks compare before they write."""

    save: str  # a name for this checkpoint that no other has: rank 0's is taken
    step: int
    layout: str


class _Saving:
    def __init__(self, handle: "AnyHandle", folder: Path, extra: Any) -> None:
        self._handle = handle
        self._folder = folder
        self._extra = extra
        self._state: _core.State | None = None  # none of a handle that is disabled
        self._own: list[File] = []  # what this rank has written, or tried to

    def prepare(self) -> _Place:
        places: list[_Place] = together(self._handle, "save", self._look_around)
        first = places[0]
        for rank, place in enumerate(places):
            if (place.step, place.layout) != (first.step, first.layout):
                raise Error(
                    "checkpoint",
                    f"rank {rank} saves before step {place.step} (buckets {place.layout}), rank 0 "
                    f"before step {first.step} (buckets {first.layout}): all ranks must save "
                    "between the same two steps",
                )
        return first

    def _look_around(self) -> _Place:
        with _told_about(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if self._handle.rank == 0:
            self._make_room()
        self._state = self._handle._state()
        step, layout = (self._state.step, self._state.layout) if self._state else (0, [])
        return _Place(uuid.uuid4().hex[:12], step, _hash(layout))

    def _make_room(self) -> None:
        """Removes what attempts that failed have left."""
        try:
            before = manifest.find(self._folder)
        except Error:  # whatever it names, it is about to be replaced
            return
        if before:
            manifest.check_label(before, self._handle, self._folder)
        self._remove_all_but(before.files() if before else [])

    def write_files(self, place: _Place) -> Manifest:
        files = together(
            self._handle, "save", lambda: self._write_own(place), undo=self._remove_own
        )
        return Manifest(
            tidegate=version("tidegate"),
            label=self._handle.label,
            step=place.step,
            layout=place.layout,
            states=[of_rank[0] for of_rank in files] if self._state else [],
            extra=files[0][-1] if self._extra is not None else None,
        )

    def _write_own(self, place: _Place) -> list[File]:
        name = f"step-{place.step}-{place.save}"
        rank, ranks = self._handle.rank, self._handle.ranks
        if self._state:
            content = self._state.to_bytes()
            self._write(f"{name}-rank-{rank}-of-{ranks}{SUFFIX}", lambda file: file.write(content))
        if rank == 0 and self._extra is not None:
            path = self._write(f"{name}-extra{SUFFIX}", lambda file: torch.save(self._extra, file))
            _check_extra(path)
        return self._own

    def _write(self, name: str, fill: Callable) -> Path:
        self._own.append(File(name, 0, ""))
        path = self._folder / name
        with _told_about(path):
            written = durable.write(path, fill)
        self._own[-1] = File(name, written.bytes, written.checksum)
        return path

    def _remove_own(self) -> None:
        for file in self._own:
            with contextlib.suppress(OSError):
                os.unlink(self._folder / file.name)

    def write_manifest(self, complete: Manifest) -> None:
        def write() -> None:
            path = self._folder / manifest.NAME
            content = complete.to_json().encode()
            with _told_about(path):
                durable.write(path, lambda file: file.write(content))
            self._remove_all_but(complete.files())

        together(self._handle, "save", lambda: write() if self._handle.rank == 0 else None)

    def _remove_all_but(self, kept: list[File]) -> None:
        """Of our own files. What cannot be removed now waits for the next save."""
        names = {file.name for file in kept}
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                ours = path.name.removesuffix(durable.TEMPORARY).endswith(SUFFIX)
                if ours and path.name not in names:
                    path.unlink(missing_ok=True)


def _check_extra(path: Path) -> None:
    refused = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if refused:
        raise Error(
            "checkpoint",
            f"extra holds objects that could not be loaded again: {', '.join(refused)}. Give it "
            "tensors, numbers, texts, and lists and dicts of these",
        )


@contextlib.contextmanager
def _told_about(path: Path) -> Iterator[None]:
    """Errors of the file system, as ours."""
    try:
        yield
    except OSError as error:
        raise Error(
            "checkpoint",
            f"cannot write {path}: {error.strerror or error}. The job and the checkpoint before "
            "this one are untouched; make room, correct the rights, or save to another folder",
        ) from error


def _hash(layout: list) -> str:
    return hashlib.sha256(repr(layout).encode()).hexdigest()[:16]
