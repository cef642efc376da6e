#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/compressors/quantisers_golden.txt: what the quantisers make of a small input.

    tools/golden_quantisers.py > tests/compressors/quantisers_golden.txt

Written from the definitions, apart from the library, in fp32 like it. The input is written out in
quantiser_test.cpp too.
"""

import numpy as np

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# What int8, int4, sign and onebit make of the input in quantiser_test.cpp (3 ranks, 2 steps, 600
# elements), computed apart by tools/golden_quantisers.py: every 7th element, the bits
# of an fp32 number, in the mean after each step and in what then waits with rank 1, its part as
# owner included.
"""

BLOCK, LANES = 256, 32
RANKS, STEPS, ELEMENTS = 3, 2, 600
f32 = np.float32


def gradient(rank: int, step: int) -> np.ndarray:
    i = np.arange(ELEMENTS)
    root = ((i * 7919 + rank * 1047 + step * 1299) % 2003 - 1001).astype(f32) / f32(512)
    return root * np.abs(root)


def lane_sum(values: np.ndarray) -> np.float32:
    """In 32 lanes, then halves onto halves: the order that the library fixes."""
    lanes = np.zeros(LANES, f32)
    for at in range(0, len(values), LANES):
        part = values[at : at + LANES]
        lanes[: len(part)] += part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def linear(levels: int):
    def decode(block: np.ndarray) -> np.ndarray:
        largest = np.abs(block).max()
        codes = np.rint(block * (f32(levels) / largest))
        return codes.astype(f32) * f32(largest / f32(levels))

    return decode


def sign(block: np.ndarray) -> np.ndarray:
    mean = lane_sum(np.abs(block)) / f32(len(block))
    return np.where(np.signbit(block), -mean, mean)


def onebit(block: np.ndarray) -> np.ndarray:
    below = block < 0
    means = []
    for side in (below, ~below):
        total = lane_sum(np.where(side, block, f32(0)))
        means.append(total / f32(side.sum()) if side.any() else f32(0))
    return np.where(below, means[0], means[1])


CODES = {"int8": linear(127), "int4": linear(7), "sign": sign, "onebit": onebit}


def take(decode, waiting: np.ndarray) -> np.ndarray:
    """What is sent of each block; the rest waits."""
    sent = np.concatenate(
        [decode(waiting[at : at + BLOCK]) for at in range(0, len(waiting), BLOCK)]
    ).astype(f32)
    waiting -= sent
    return sent


def share_out(part: int) -> slice:
    blocks = -(-ELEMENTS // BLOCK)
    return slice(
        min(ELEMENTS, part * blocks // RANKS * BLOCK),
        min(ELEMENTS, (part + 1) * blocks // RANKS * BLOCK),
    )


def show(name: str, values: np.ndarray) -> None:
    words = [f"{bits:08x}" for bits in values.astype(f32)[::7].view(np.uint32)]
    print(f"\n{name}")
    for at in range(0, len(words), 11):
        print(" ".join(words[at : at + 11]))


def run(code: str, route: str) -> None:
    decode = CODES[code]
    waiting = [np.zeros(ELEMENTS, f32) for _ in range(RANKS)]
    held = np.zeros(ELEMENTS, f32)  # of all owners
    for step in range(STEPS):
        total = np.zeros(ELEMENTS, f32)
        share = f32(1) / f32(RANKS)
        for rank in range(RANKS):
            waiting[rank] += gradient(rank, step)
            sent = take(decode, waiting[rank])
            total += sent * share if route == "allgather" else sent
        if route == "owner":
            held += total
            total = np.concatenate([take(decode, held[share_out(r)]) for r in range(RANKS)]) * share
        show(f"{code} {route} mean {step}", total)
    mine = share_out(1)
    waiting[1][mine] += held[mine]
    show(f"{code} {route} waits", waiting[1])


def main() -> None:
    print(HEADER, end="")
    for code in CODES:
        for route in ("allgather", "owner"):
            run(code, route)


if __name__ == "__main__":
    main()
