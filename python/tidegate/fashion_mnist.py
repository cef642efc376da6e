# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST from the files of Debian's package dataset-fashion-mnist: 60,000 images of clothes
to train on and 10,000 to test with, 28 x 28 pixels, ten classes."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import torch

from .errors import Error

PLACES = ("/usr/share/datasets/fashion-mnist", "/usr/local/share/datasets/fashion-mnist")
STEMS = {"train": "train", "test": "t10k"}
CLASSES = 10
SIDE = 28  # pixels
MEAN, DEVIATION = 0.2860, 0.3530  # of the training images, pixels in [0, 1]
UNSIGNED_BYTE = 8  # IDX's code for the type of an element


def load(split: str, part: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of "train" or "test" as normalised fp32 (n, 1, 28, 28), and their classes.

    `part` chooses before anything becomes fp32: a rank holds its own share only.
    """
    images = _read(_path(split, "images-idx3"), dimensions=3)
    labels = _read(_path(split, "labels-idx1"), dimensions=1)
    if images.shape[1:] != (SIDE, SIDE):
        raise _unusable(_path(split, "images-idx3"), f"images of {tuple(images.shape[1:])} pixels")
    if len(labels) != len(images) or (labels >= CLASSES).any():
        raise _unusable(_path(split, "labels-idx1"), "labels that do not fit the images")
    pixels = images[part].unsqueeze(1).float().div_(255)
    return pixels.sub_(MEAN).div_(DEVIATION), labels[part].long()


def count(split: str) -> int:
    """How many images there are, from the file's header alone."""
    path = _path(split, "images-idx3")
    try:
        with gzip.open(path) as file:
            return _shape(path, file.read(16), dimensions=3)[0]
    except (OSError, EOFError, zlib.error) as error:
        raise _unusable(path, str(error)) from error


def _path(split: str, kind: str) -> Path:
    name = f"{STEMS[split]}-{kind}-ubyte.gz"
    given = os.environ.get("TIDEGATE_DATA")
    places = (given, os.path.join(given, "fashion-mnist")) if given else PLACES
    for place in places:
        path = Path(place, name)
        if path.is_file():
            return path
    raise Error(
        "config",
        f"Fashion-MNIST is missing ({name} is not in {' or '.join(places)}); "
        "run `apt-get install dataset-fashion-mnist`, "
        "or set TIDEGATE_DATA to the folder of its .gz files",
    )


def _read(path: Path, dimensions: int) -> torch.Tensor:
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise _unusable(path, str(error)) from error
    shape = _shape(path, data, dimensions)
    header = 4 * (1 + dimensions)
    if len(data) - header != math.prod(shape):
        raise _unusable(path, f"{len(data) - header} bytes where {math.prod(shape)} belong")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=header).view(shape)


def _shape(path: Path, data: bytes, dimensions: int) -> tuple[int, ...]:
    """IDX starts with two zeros, the element type, the number of dimensions, then each of them."""
    if len(data) < 4 * (1 + dimensions) or data[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise _unusable(path, "no IDX header")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    if 0 in shape:
        raise _unusable(path, "no images")
    return shape


def _unusable(path: Path, why: str) -> Error:
    return Error(
        "config",
        f"{path} cannot be used: {why}; "
        "run `apt-get install --reinstall dataset-fashion-mnist`, or look at TIDEGATE_DATA",
    )
