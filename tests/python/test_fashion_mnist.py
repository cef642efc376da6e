# SPDX-License-Identifier: Apache-2.0
import gzip
import struct

import pytest
import torch

import tidegate
from tidegate import fashion_mnist

IMAGES = 6


def idx(values: torch.Tensor) -> bytes:
    header = bytes([0, 0, 8, values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape)
    return header + values.to(torch.uint8).numpy().tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The four files, small: image i is full of pixels 40 * i and belongs to class i."""
    numbers = torch.arange(IMAGES)
    pixels = (40 * numbers).view(-1, 1, 1).expand(-1, 28, 28)
    for stem in ("train", "t10k"):
        (tmp_path / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(numbers)))
    monkeypatch.setenv("TIDEGATE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("split", ["train", "test"])
def test_loads_normalised_images_and_their_classes(folder, split):
    images, labels = fashion_mnist.load(split)
    assert images.shape == (IMAGES, 1, 28, 28)
    assert images.dtype == torch.float32
    assert images[3].unique().item() == pytest.approx((120 / 255 - 0.2860) / 0.3530)
    assert labels.tolist() == list(range(IMAGES))
    assert labels.dtype == torch.int64
    assert fashion_mnist.count(split) == IMAGES


def test_a_part_is_every_nth_image(folder):
    images, labels = fashion_mnist.load("train", slice(1, None, 4))
    assert labels.tolist() == [1, 5]
    assert len(images) == 2


def test_the_folder_may_also_hold_a_folder_of_the_packages_name(folder, monkeypatch):
    inner = folder / "fashion-mnist"
    inner.mkdir()
    for file in folder.glob("*.gz"):
        file.rename(inner / file.name)
    assert fashion_mnist.count("test") == IMAGES


def test_missing_files_name_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEGATE_DATA", str(tmp_path))
    with pytest.raises(tidegate.Error, match="apt-get install dataset-fashion-mnist") as caught:
        fashion_mnist.load("train")
    assert caught.value.kind == "config"
    assert str(tmp_path) in str(caught.value)


def packed(data: bytes) -> bytes:
    """Without the time of day, so that all who collect tests give them the same names."""
    return gzip.compress(data, mtime=0)


WHOLE = idx(torch.zeros(IMAGES, 28, 28))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (packed(WHOLE)[:-20], "cannot be used"),
        (b"", "no IDX header"),
        (b"not gzip at all", "cannot be used"),
        (packed(b""), "no IDX header"),
        (packed(WHOLE[:10]), "no IDX header"),
        (packed(WHOLE[:-1]), "4703 bytes where 4704 belong"),
        (packed(WHOLE + b"x"), "4705 bytes where 4704 belong"),
        (packed(b"\0\0\x0d" + WHOLE[3:]), "no IDX header"),
        (packed(idx(torch.zeros(IMAGES))), "no IDX header"),
        (packed(idx(torch.zeros(0, 28, 28))), "no images"),
        (packed(idx(torch.zeros(IMAGES, 27, 28))), r"images of \(27, 28\) pixels"),
        (packed(idx(torch.zeros(IMAGES + 1, 28, 28))), "labels that do not fit"),
    ],
)
def test_an_unusable_file_is_named_with_the_reason(folder, content, why):
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(tidegate.Error, match=why) as caught:
        fashion_mnist.load("train")
    assert caught.value.kind == "config"
    assert "train-" in str(caught.value)


def test_a_class_beyond_the_ten_is_refused(folder):
    labels = torch.full((IMAGES,), 10)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    with pytest.raises(tidegate.Error, match="labels that do not fit"):
        fashion_mnist.load("train")


def test_counting_an_unusable_file_fails_too(folder):
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip at all")
    with pytest.raises(tidegate.Error, match="cannot be used"):
        fashion_mnist.count("train")
