# SPDX-License-Identifier: Apache-2.0
"""The bare pair for register_comm_hook does what attach does."""

import os

import pytest
from constant_job import Constant
from ranks import results
from torch.nn.parallel import DistributedDataParallel as DDP
from training import attach, batches, digest, mlp, sgd, train, wrap

import tidegate
from tidegate.comm_state import CommState

OPTIONS = {"policy": "fixed", "method": "topk", "ratio": 0.05, "timeout": 20}


def pair_and_attach(rank, ranks, wrapped_before):
    data = list(batches(rank, 6))
    attached = wrap(mlp())
    optimizer = sgd(attached)
    handle = attach(attached, optimizer)
    train(attached, optimizer, data)

    module = mlp()
    model = DDP(module, bucket_cap_mb=0.02) if wrapped_before else module
    optimizer = sgd(module)
    state, hook = tidegate.comm_hook(model, optimizer, **OPTIONS)
    ddp = model if wrapped_before else DDP(module, bucket_cap_mb=0.02)
    ddp.register_comm_hook(state, hook)
    train(ddp, optimizer, data)
    same_bytes = state.handle.stats()["bytes_sent"] == handle.stats()["bytes_sent"]
    return digest(attached), digest(ddp), same_bytes, state.handle.stats()["steps"]


@pytest.mark.parametrize("wrapped_before", [True, False])
def test_the_pair_gives_the_bits_of_attach(wrapped_before):
    first, second = results(pair_and_attach, 2, wrapped_before)
    assert first == second
    assert first[0] == first[1]
    assert first[2:] == (True, 6)


def disabled(rank, ranks):
    os.environ["TIDEGATE_DISABLE"] = "1"
    module, plain = mlp(), wrap(mlp())
    optimizer = sgd(module)
    state, hook = tidegate.comm_hook(module, optimizer, **OPTIONS)
    ddp = DDP(module)
    ddp.register_comm_hook(state, hook)
    train(ddp, optimizer, batches(rank, 3))
    train(plain, sgd(plain), batches(rank, 3))
    return digest(ddp), digest(plain)


def test_a_disabled_pair_averages_as_ddp_does():
    first, second = results(disabled, 2)
    assert first == second
    assert first[0] == first[1]


def test_without_a_process_group_there_is_no_pair():
    model = Constant()
    with pytest.raises(tidegate.Error, match="init_process_group") as caught:
        tidegate.comm_hook(model, sgd(model))
    assert caught.value.kind == "config"


def test_a_batch_that_grows_needs_the_model_itself():
    state = CommState(Constant(), None)
    with pytest.raises(tidegate.Error, match="micro_batches") as caught:
        state.no_sync()
    assert caught.value.kind == "unsupported"
