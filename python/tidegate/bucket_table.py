# SPDX-License-Identifier: Apache-2.0
"""Which parameters share a bucket: as DDP has it, from torch's own rule.

In its first step DDP has all parameters in one bucket, in the order of the model. From the second
on they are in the order in which the first backward filled them, cut by size. (A DDP with
find_unused_parameters=True keeps its first table, cut from the model's end to its beginning: pass
that to VirtualCluster(buckets=...).)
"""

import torch
import torch.distributed as dist

from .errors import Error

Table = list[list[str]]  # names of parameters, bucket by bucket
DEFAULT_MB = 25.0  # of DDP
FIRST_BYTES = 2**20  # of the first bucket, unless the user has chosen a size


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise Error("config", "no parameter of the model requires a gradient: nothing to average")
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Error(
                "unsupported",
                f'parameter "{name}" is {parameter.dtype} on {parameter.device}: a virtual cluster '
                "takes fp32 on the CPU",
            )
    return trained


def cut(parameters: dict[str, torch.nn.Parameter], bucket_mb: float | None = None) -> Table:
    """Parameters in the order in which backward fills them, as DDP(bucket_cap_mb=...) cuts them."""
    limits = [FIRST_BYTES, int(DEFAULT_MB * 2**20)]
    if bucket_mb is not None:
        limits = [int(bucket_mb * 2**20)]
    names = list(parameters)
    buckets, _ = dist._compute_bucket_assignment_by_size(
        list(parameters.values()), limits, [False] * len(names)
    )
    return [[names[index] for index in bucket] for bucket in buckets]


def check(table: Table, parameters: dict[str, torch.nn.Parameter]) -> Table:
    """The user's own table: every parameter once."""
    named = [name for bucket in table for name in bucket]
    unknown = [name for name in named if name not in parameters]
    missing = [name for name in parameters if name not in named]
    if unknown or missing or len(named) != len(parameters) or not all(table):
        wrong = unknown or missing or sorted({name for name in named if named.count(name) > 1})
        raise Error(
            "config",
            f"buckets must name every trained parameter once; look at {wrong[:3] or 'empty ones'}",
        )
    return [list(bucket) for bucket in table]
