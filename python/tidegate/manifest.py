# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint consists of: the file that is written last, and read first."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .durable import Written
from .errors import Error

if TYPE_CHECKING:
    from .attach import AnyHandle

Kind = TypeVar("Kind")
NAME = "manifest.json"
FORMAT = "tidegate checkpoint"
VERSION = 1


@dataclass
class File:
    name: str  # in the same folder
    bytes: int
    checksum: str  # SHA-256

    def matches(self, found: Written) -> bool:
        return (self.bytes, self.checksum) == (found.bytes, found.checksum)


@dataclass
class Manifest:
    tidegate: str  # the version that wrote it
    label: str  # of the handle
    step: int  # the next one
    layout: str  # hash of the buckets
    states: list[File]  # rank by rank; none if the handle was disabled
    extra: File | None  # what the user gave

    @property
    def ranks(self) -> int:
        return len(self.states)

    def files(self) -> list[File]:
        return [*self.states, *([self.extra] if self.extra else [])]

    def to_json(self) -> str:
        head = {"format": FORMAT, "version": VERSION, "ranks": self.ranks}
        return json.dumps({**head, **asdict(self)}, indent=1) + "\n"


def find(folder: Path) -> Manifest | None:
    """That of the folder's checkpoint, if there is one."""
    path = folder / NAME
    try:
        return read(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Error("checkpoint", f"cannot read {path}: {error.strerror or error}") from error


def check_label(found: Manifest, handle: "AnyHandle", folder: Path) -> None:
    if found.label != handle.label:
        raise Error(
            "checkpoint",
            f'{folder} holds a checkpoint of the handle "{found.label}", but this one is '
            f'"{handle.label}": give each handle a folder of its own',
        )


def read(text: bytes, where: str) -> Manifest:
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        version = content["version"]
        if type(version) is int and version > VERSION:
            raise Error(
                "checkpoint",
                f"{where} has version {version}, written by Tidegate {content.get('tidegate')}; "
                f"this Tidegate reads version {VERSION}: load it with that one, or a newer one",
            )
        states = [_file(entry) for entry in content["states"]]
        manifest = Manifest(
            tidegate=_of_type(content["tidegate"], str),
            label=_of_type(content["label"], str),
            step=_of_type(content["step"], int),
            layout=_of_type(content["layout"], str),
            states=states,
            extra=_file(content["extra"]) if content["extra"] is not None else None,
        )
        if version != VERSION or content["ranks"] != len(states):
            raise ValueError(f"version {version}, {content['ranks']} ranks, {len(states)} states")
        return manifest
    except (ValueError, KeyError, TypeError) as error:
        raise Error(
            "checkpoint",
            f"{where} is no manifest of a Tidegate checkpoint, or is damaged: {error!r}; restore "
            "it from a copy, or load another checkpoint",
        ) from error


def _of_type(value: Any, kind: type[Kind]) -> Kind:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _file(entry: dict) -> File:
    name = _of_type(entry["name"], str)
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of a file in this folder")
    return File(name, _of_type(entry["bytes"], int), _of_type(entry["checksum"], str))
