# SPDX-License-Identifier: Apache-2.0
"""Staging without a GPU: the way of a bucket through host memory and back, on the CPU. Streams,
events and pinned memory were never run."""

import pytest
import torch
from ranks import results
from torch.nn.parallel import DistributedDataParallel as DDP
from training import attach, batches, digest, mlp, sgd, train

import tidegate
from tidegate.staging import Staging


def train_some(rank, ranks, method, staged):
    model = DDP(mlp(), bucket_cap_mb=0.02)
    handle = attach(model, method=method)
    if staged:  # as if the model were on a device
        handle._staging = Staging(torch.device("cpu"))
    train(model, sgd(model), batches(rank, 5))
    handle.detach()
    return digest(model)


@pytest.mark.parametrize("method", ["dense", "topk"])
def test_staged_buckets_train_the_same_bits(method):
    plain = results(train_some, 2, method, False)
    assert results(train_some, 2, method, True) == plain
    assert len(set(plain)) == 1


def test_a_host_copy_is_kept_while_it_fits():
    staging = Staging(torch.device("cpu"))
    first, _ = staging.fetch(0, torch.arange(3.0))
    again, _ = staging.fetch(0, torch.arange(3.0) + 1)
    assert again.data_ptr() == first.data_ptr()
    assert again.tolist() == [1, 2, 3]
    longer, _ = staging.fetch(0, torch.arange(4.0))
    assert longer.numel() == 4
    future, target = staging.future(), torch.zeros(4)
    staging.give_back(longer, target, future)
    assert future.wait() is target
    assert target.tolist() == [0, 1, 2, 3]


def attach_elsewhere(rank, ranks):
    model = DDP(mlp())
    model.module[0].weight = torch.nn.Parameter(torch.empty(96, 32, device="meta"))
    with pytest.raises(tidegate.Error, match="experimental_cuda=True") as caught:
        attach(model, method="dense")
    return caught.value.kind


def test_a_model_on_a_device_is_refused_with_advice():
    assert results(attach_elsewhere, 1) == ["unsupported"]
