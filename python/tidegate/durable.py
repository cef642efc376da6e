# SPDX-License-Identifier: Apache-2.0
"""Files that are either there as a whole or not at all, whatever happens while they are written."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".unfinished"


@dataclass
class Written:
    """What tells whether a file is still the one that was written."""

    bytes: int
    checksum: str


class _Counting:
    """A file to write to that sums up what goes by."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._bytes = 0
        self.error: OSError | None = None  # torch.save would hide it behind one of its own

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._digest.update(data)
        self._bytes += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def written(self) -> Written:
        return Written(self._bytes, self._digest.hexdigest())


def write(path: Path, fill: Callable) -> Written:
    """Lets `fill(file)` write a file that has its name only when it is complete and on the disk.
    Raises OSError; then there is no such file, or still the one from before."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            counting = _Counting(file)
            try:
                fill(counting)
            except Exception as error:
                raise counting.error or error from error
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return counting.written()


def sync_folder(folder: Path) -> None:
    """A new name is not on the disk before its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def look(path: Path) -> Written:
    """What is there now."""
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return Written(file.tell(), checksum)
