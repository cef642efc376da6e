# SPDX-License-Identifier: Apache-2.0
"""The King James Bible from Debian's package bible-kjv-text: four million characters of English.

The file holds windows of 64 KiB, each compressed apart as Unix `compress` does (LZW), and opens
with a table of where each begins. All numbers are big-endian.
"""

import functools
import itertools
import os
import re
import struct
from pathlib import Path

from .errors import Error

PLACES = ("/usr/lib", "/usr/share/bible-kjv-text")
FILE = "bible.data"
MAGIC = b"EC02Compressed Data File"
HEADER, TABLE = struct.Struct(">II"), 0x5C  # window size and how many there are; then the table
COMPRESS = b"\x1f\x9d\x90"  # how `compress` opens: codes of up to 16 bits, which may start anew
CLEAR = 256  # the code that starts anew
NARROWEST, WIDEST = 9, 16  # bits of a code
REFERENCE = re.compile(r"^\S+\d+:\d+ ", re.MULTILINE)  # "Ge1:1 " before every verse


@functools.cache
def load() -> str:
    """The text, one verse per line, without references. ASCII."""
    path = _path()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unusable(path, str(error)) from error
    try:
        text = _unpack(data).decode("ascii")
    except (ValueError, IndexError, struct.error) as error:
        raise _unusable(path, str(error)) from error
    _, _, verses = text.partition("\n")  # the first line is a title
    return REFERENCE.sub("", verses)


def _path() -> Path:
    given = os.environ.get("TIDEGATE_DATA")
    places = (given, os.path.join(given, "bible-kjv-text")) if given else PLACES
    for place in places:
        path = Path(place, FILE)
        if path.is_file():
            return path
    raise Error(
        "config",
        f"the text to train on is missing ({FILE} is not in {' or '.join(places)}); "
        "run `apt-get install bible-kjv-text`, or set TIDEGATE_DATA to the folder of that file",
    )


def _unpack(data: bytes) -> bytes:
    if not data.startswith(MAGIC):
        raise ValueError("it does not open as such a file does")
    size, windows = HEADER.unpack_from(data, TABLE - HEADER.size)
    starts = struct.unpack_from(f">{windows + 1}I", data, TABLE)
    opening = data[starts[0] - len(COMPRESS) : starts[0]]
    if opening != COMPRESS or starts[-1] != len(data):
        raise ValueError("its table of windows does not fit")
    texts = [_decompress(data[a:b]) for a, b in itertools.pairwise(starts)]
    if any(len(text) != size for text in texts[:-1]):
        raise ValueError("a window has another length than the others")
    return b"".join(texts)


def _decompress(data: bytes) -> bytes:
    """What `compress` wrote, without its three bytes of header. Codes come in groups of eight, as
    many bytes as a code has bits; when codes become wider the rest of a group is void."""
    entries = _first_entries()
    parts: list[bytes] = []
    width, at, before = NARROWEST, 0, b""
    while at < len(data):
        group = int.from_bytes(data[at : at + width], "little")
        codes = 8 * len(data[at : at + width]) // width
        at += width
        for _ in range(codes):
            code = group & ((1 << width) - 1)
            group >>= width
            if code == CLEAR:
                entries, width, before = _first_entries(), NARROWEST, b""
                break
            if code < len(entries):
                entry = entries[code]
            elif code == len(entries) and before:
                entry = before + before[:1]
            else:
                raise ValueError(f"code {code} before it can be known")
            parts.append(entry)
            if before and len(entries) < 1 << WIDEST:
                entries.append(before + entry[:1])
            before = entry
            if len(entries) == 1 << width and width < WIDEST:
                width += 1
                break
    return b"".join(parts)


def _first_entries() -> list[bytes]:
    return [bytes([byte]) for byte in range(256)] + [b""]  # the last: no text has the code CLEAR


def _unusable(path: Path, why: str) -> Error:
    return Error(
        "config",
        f"{path} cannot be used: {why}; "
        "run `apt-get install --reinstall bible-kjv-text`, or look at TIDEGATE_DATA",
    )
