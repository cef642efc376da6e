#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/compressors/sparsifiers_golden.txt: what sparsifiers select, in another language.

    .venv/bin/python tools/golden_sparsifiers.py > tests/compressors/sparsifiers_golden.txt

Written from the definitions. Inputs are multiples of 1/64, so that every sum is exact.
"""

import numpy as np

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# What sparsifiers select in step 0 of bucket 3, computed apart from the library by
# tools/golden_sparsifiers.py. values: in 64ths. layers: elements. Then method, ratio, indices.
"""

RATIOS = [0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 0.8, 1.0]
MASK = (1 << 64) - 1
SEED = 3  # step 0 of bucket 3


def random_bits(seed: int, counter: int) -> int:
    x = (seed * 0x9E3779B97F4A7C15 + counter) & MASK
    for _ in range(2):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        x ^= x >> 31
        x = (x + seed + 0x9E3779B97F4A7C15) & MASK
    return x


def kept_elements(elements: int, ratio: float) -> int:
    return min(elements, max(1, int(np.floor(ratio * elements + 1e-6))))


def largest(sizes: np.ndarray, among: np.ndarray, kept: int) -> np.ndarray:
    """Of equals the lowest indices; never a zero."""
    among = among[sizes[among] > 0]
    order = among[np.argsort(-sizes[among], kind="stable")]
    return np.sort(order[:kept])


def above(sizes: np.ndarray, threshold: float) -> np.ndarray:
    return np.flatnonzero((sizes >= threshold) & (sizes > 0))


def lwtopk(sizes: np.ndarray, layers: list[int], ratio: float) -> np.ndarray:
    chosen = []
    begin = 0
    for elements in layers:
        if elements > 0:
            among = np.arange(begin, begin + elements)
            chosen.append(largest(sizes, among, kept_elements(elements, ratio)))
        begin += elements
    return np.concatenate(chosen)


def redsync(sizes: np.ndarray, _: list[int], ratio: float) -> np.ndarray:
    kept = kept_elements(sizes.size, ratio)
    if kept == sizes.size:
        return above(sizes, 0)
    mean, most = sizes.mean(), sizes.max()
    low, high = 0.0, 1.0
    probes = []
    for _ in range(16):
        rho = (low + high) / 2
        found = above(sizes, mean + rho * (most - mean))
        probes.append(found)
        if kept <= found.size <= 2 * kept:
            break
        if found.size < kept:
            high = rho
        else:
            low = rho
    enough = [found for found in probes if found.size >= kept]
    if enough:
        return largest(sizes, min(enough, key=len), kept)
    return max(probes, key=len)


def sidco(sizes: np.ndarray, _: list[int], ratio: float) -> np.ndarray:
    kept = kept_elements(sizes.size, ratio)
    if kept == sizes.size:
        return above(sizes, 0)
    share = kept / sizes.size
    shares = []
    if share < 0.75:
        stages = int(np.ceil(np.log(share / 0.75) / np.log(0.25)))
        shares = [0.25] * (stages - 1) + [share / 0.75 / 0.25 ** (stages - 1)]
    found = above(sizes, -sizes.mean() * np.log(max(share, 0.75)))
    for stage in shares:
        if found.size == 0:
            break
        least, mean = sizes[found].min(), sizes[found].mean()
        further = above(sizes, least - (mean - least) * np.log(stage))
        if further.size == 0:
            break
        found = further
    return largest(sizes, found, kept)


def mstopk(sizes: np.ndarray, _: list[int], ratio: float) -> np.ndarray:
    kept = kept_elements(sizes.size, ratio)
    mean, most = sizes.mean(), sizes.max()
    low, high = 0.0, 1.0
    sure = np.array([], dtype=int)
    wide = above(sizes, 0)
    for _ in range(25):
        rho = (low + high) / 2
        found = above(sizes, mean + rho * (most - mean))
        if found.size <= kept:
            high = rho
            sure = max(sure, found, key=len)
        else:
            low = rho
            wide = min(wide, found, key=len)
    band = np.setdiff1d(wide, sure)
    missing = min(kept - sure.size, band.size)
    begin = random_bits(SEED, 0) % (band.size - missing + 1)
    return np.union1d(sure, band[begin : begin + missing])


def inputs() -> dict[str, tuple[np.ndarray, list[int]]]:
    rng = np.random.default_rng(1)
    laplace = np.round(64 * rng.laplace(size=300))
    ties = rng.choice([-3, -2, -1, 0, 1, 2, 3], size=150)
    spike = np.full(100, -1)
    spike[37] = 64 * 900
    heavy = np.round(64 * rng.standard_cauchy(size=257)).clip(-64000, 64000)
    sparse = np.where(rng.random(size=120) < 0.05, rng.integers(-500, 500, size=120), 0)
    return {
        "laplace": (laplace, [200, 1, 0, 90, 9]),
        "ties": (ties, [75, 75]),
        "spike": (spike, [30, 70]),
        "heavy tail": (heavy, [256, 1]),
        "almost all zero": (sparse, [60, 60]),
        "constant": (np.full(64, 5), [64]),
        "zeros": (np.zeros(33), [33]),
        "one element": (np.array([-7]), [1]),
    }


def main() -> None:
    print(HEADER, end="")
    for name, (values, layers) in inputs().items():
        print(f"\n# {name}")
        print("values", *(int(value) for value in values))
        print("layers", *layers)
        sizes = np.abs(values) / 64.0
        for method in (lwtopk, redsync, sidco, mstopk):
            for ratio in RATIOS:
                print(method.__name__, ratio, *method(sizes, layers, ratio))


if __name__ == "__main__":
    main()
