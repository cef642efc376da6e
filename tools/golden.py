#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/wire/golden_v1.hex: messages computed from the layout alone, in another language.

    .venv/bin/pip install xxhash && .venv/bin/python tools/golden.py > tests/wire/golden_v1.hex

Needed only when the wire format changes; the tests read the file.
"""

import struct

import numpy as np
import xxhash

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Messages in version 1 of the wire format, from the inputs written out in sparse_test.cpp, computed
# apart from the library by tools/golden.py. From the first release on these bytes never change:
# another format is another version and another file. A line holds 16 bytes.
"""

CODES = ["fp32", "fp16", "bf16", "int8", "log4", "log2"]
BLOCK = 256


def low_bits(span: int, count: int) -> int:
    k = 0
    while (2 * span - count) * 126143 > count << (19 + k):
        k += 1
    return k


def index_block(indices: list[int], next_index: int) -> bytes:
    count = len(indices)
    span = indices[-1] + 1 - next_index
    if count == BLOCK and span == BLOCK:
        return bytes([0xFF, 0])
    k = low_bits(span, count)
    gaps = [b - a - 1 for a, b in zip([next_index - 1, *indices[:-1]], indices, strict=True)]
    low = [gap & ((1 << k) - 1) for gap in gaps]
    unary = 0
    position = -1
    for gap in gaps:
        position += 1 + (gap >> k)
        unary |= 1 << position
    unary_bytes = position // 8 + 1
    if count < BLOCK:
        packed = sum(value << (i * k) for i, value in enumerate(low))
        coded = packed.to_bytes((count * k + 7) // 8, "little")
    else:
        coded = b""
        while k - 8 * (len(coded) // BLOCK) > 8:
            coded += bytes(value & 0xFF for value in low)
            low = [value >> 8 for value in low]
        rest = k - 8 * (len(coded) // BLOCK)
        lanes = [
            sum(low[row * 16 + lane] << (row * rest) for row in range(16)) for lane in range(16)
        ]
        for word in range(rest):
            coded += struct.pack("<16H", *((lane >> (16 * word)) & 0xFFFF for lane in lanes))
    return bytes([k, unary_bytes]) + coded + unary.to_bytes(unary_bytes, "little")


def value_block(values: np.ndarray, code: str) -> bytes:
    values = values.astype(np.float32)
    largest = np.abs(values).max()
    if code == "fp32":
        return values.tobytes()
    if code == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    if code == "fp16":
        # The largest magnitude comes to lie in [2^14, 2^15).
        exponent = int(np.frexp(largest)[1]) - 15
        halves = np.ldexp(values, -exponent).astype(np.float16)
        return struct.pack("<b", exponent) + halves.tobytes()
    if code == "int8":
        scale = np.float32(largest / np.float32(127))
        codes = np.rint(values * (np.float32(127) / largest)).astype(np.int8)
        return scale.tobytes() + codes.tobytes()
    raise ValueError(code)


def message(kind, code, stamp, count, elements, payload: bytes, slot_payload: int) -> bytes:
    step, bucket, rank_round, rank = stamp
    head = struct.pack(
        "<4sHBBqIIIIQQ",
        b"TDGT", 1, kind, code, step, bucket, rank_round, rank, count, elements, len(payload),
    )  # fmt: skip
    seed = xxhash.xxh3_64_intdigest(head)
    checksum = xxhash.xxh3_64_intdigest(payload, seed=seed)
    slot = (56 + slot_payload + 7) // 8 * 8
    return (head + struct.pack("<Q", checksum) + payload).ljust(slot, b"\0")


def show(name: str, data: bytes) -> None:
    print(f"\n{name}")
    for at in range(0, len(data), 16):
        print(" ".join(f"{byte:02x}" for byte in data[at : at + 16]))


def blocks(indices: list[int], values: np.ndarray | None, code: str) -> bytes:
    content = b""
    next_index = 0
    for at in range(0, len(indices), BLOCK):
        part = indices[at : at + BLOCK]
        content += index_block(part, next_index)
        if values is not None:
            content += value_block(values[at : at + BLOCK], code)
        next_index = part[-1] + 1
    return content


def main() -> None:
    print(HEADER, end="")
    short = [0, 7, 31, 4096, 1_000_000]
    values = np.array([1.0, -2.5, 0.75, 2.0**-15, -3.25], dtype=np.float32)
    for code in CODES[:4]:
        payload = blocks(short, values, code)
        show(
            f"sparse-{code}",
            message(1, CODES.index(code), (7, 3, 1, 2), 5, 1_000_001, payload, 80),
        )
    show(
        "indices",
        message(2, 0, (123456789012, 0, 2, 0), 5, 1_000_001, blocks(short, None, ""), 40),
    )
    # Three full blocks, of which one is 256 in a row and one has more than 8 low bits, and a rest.
    long = [*range(256), *(300 + 3 * i + i % 2 for i in range(256))]
    long += [2000 + 1500 * i + (i * i) % 700 for i in range(256)] + [500_000, 500_001, 999_999]
    payload = blocks(long, None, "")
    show("long-indices", message(2, 0, (1, 2, 1, 3), len(long), 1_000_001, payload, 1200))
    show("record", message(3, 0, (-1, 0, 1, 1), 1, 0, bytes(range(1, 14)), 13))


if __name__ == "__main__":
    main()
