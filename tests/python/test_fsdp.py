# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on the CPU: dense exchanges of ours are FSDP's own HSDP, compressed ones lose nothing."""

import pytest
import torch
import torch.distributed as dist
from ranks import results
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from training import batches, mlp, sgd

import tidegate
from tidegate.trainers.fsdp import attach

pytestmark = pytest.mark.all


def mesh_of(ranks):
    return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replica", "shard"))


def sharded(mesh) -> nn.Module:
    model = mlp(width=33)  # odd: shards are padded
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, optimizer, data) -> None:
    for inputs, targets in data:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def whole(model) -> torch.Tensor:
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def against_hsdp(rank, ranks):
    mesh, data = mesh_of(ranks), list(batches(rank, 5))
    ours, theirs = sharded(mesh["shard"]), sharded(mesh)
    optimizer = sgd(ours)
    replicas = mesh["replica"].get_group()
    handle = attach(ours, optimizer, replicas, policy="fixed", method="dense", timeout=20)
    train(ours, optimizer, data)
    train(theirs, sgd(theirs), data)
    steps = handle.stats()["steps"]
    handle.detach()
    return float((whole(ours) - whole(theirs)).abs().max()), steps


def test_dense_is_what_fsdp_does_itself():
    for difference, steps in results(against_hsdp, 4):
        assert difference < 1e-6
        assert steps == 5


def compressed(rank, ranks):
    mesh, data = mesh_of(ranks), list(batches(rank, 8))
    options = {"policy": "fixed", "method": "topk", "ratio": 0.05, "timeout": 20}

    def job():
        model = sharded(mesh["shard"])
        optimizer = sgd(model)
        return model, optimizer, attach(model, optimizer, mesh["replica"].get_group(), **options)

    never_stopped, optimizer, handle = job()
    train(never_stopped, optimizer, data)
    ratio = handle.stats()["ratio"]

    first, optimizer, handle = job()
    train(first, optimizer, data[:4])
    saved = (first.state_dict(), optimizer.state_dict(), handle.state_dict())
    keys = [None] * ranks  # what keeps one value of every key must keep all of these
    dist.all_gather_object(keys, [(shard, *of_rank) for shard, of_rank in saved[2].items()])
    assert len(set(map(str, keys))) == ranks
    with pytest.raises(tidegate.Error, match="but this process holds shard"):
        handle.load_state_dict({"shard 9 of 9": {}})
    resumed, optimizer, handle = job()
    for part, state in zip((resumed, optimizer, handle), saved, strict=True):
        part.load_state_dict(state)
    train(resumed, optimizer, data[4:])
    own = whole(resumed)
    other = own.clone()
    dist.broadcast(other, src=0)
    return ratio, torch.equal(own, whole(never_stopped)), torch.equal(own, other)


def test_compressed_replicas_stay_equal_and_resume_with_the_same_bits():
    for ratio, same_bits, equal_replicas in results(compressed, 4):
        assert ratio < 0.2
        assert same_bits and equal_replicas


def refused(rank, ranks):
    mesh = mesh_of(ranks)
    native, plain = sharded(mesh), mlp()
    said = []
    for model in (native, plain):
        with pytest.raises(tidegate.Error) as caught:
            attach(model, sgd(model), mesh["replica"].get_group())
        said.append((caught.value.kind, str(caught.value)))
    return said


def test_what_cannot_work_is_refused():
    (native, plain), *_ = results(refused, 4)
    assert native[0] == "unsupported" and "mesh['shard']" in native[1]
    assert plain[0] == "config" and "fully_shard" in plain[1]
