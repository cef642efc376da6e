# SPDX-License-Identifier: Apache-2.0
"""How a model's parameters become buckets."""

from collections.abc import Callable, Sequence
from typing import TypeVar

BUCKET_MB = 25.0  # as DDP
FIRST_BUCKET_MB = 1.0

Item = TypeVar("Item")


def cut(
    parameters: Sequence[Item], bytes_of: Callable[[Item], int], bucket_mb: float = BUCKET_MB
) -> list[list[Item]]:
    """Parameters, given in the model's order, in the order in which backward fills them, cut as DDP
    does: a bucket is closed when it has reached its size; the first one is small."""
    buckets: list[list[Item]] = [[]]
    filled, limit = 0, min(FIRST_BUCKET_MB, bucket_mb) * 2**20
    for parameter in reversed(parameters):
        if filled >= limit:
            buckets.append([])
            filled, limit = 0, bucket_mb * 2**20
        buckets[-1].append(parameter)
        filled += bytes_of(parameter)
    return buckets
