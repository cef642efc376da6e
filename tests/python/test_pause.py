# SPDX-License-Identifier: Apache-2.0
"""While a handle pauses, DDP averages densely and what waits stays."""

from ranks import results
from training import attach, batches, digest, mlp, sgd, train, wrap


def paused(rank, ranks):
    plain, ours = wrap(mlp()), wrap(mlp())
    optimizers = sgd(plain), sgd(ours)
    handle = attach(ours, optimizers[1], method="topk")
    handle.pause()
    for model, optimizer in zip((plain, ours), optimizers, strict=True):
        train(model, optimizer, batches(rank, 3))
    assert digest(plain) == digest(ours)
    assert handle.stats()["steps"] == 0
    handle.resume()
    train(ours, optimizers[1], batches(rank, 3, seed=2))
    waiting = handle.stats()["backlog"]
    handle.pause()
    train(ours, optimizers[1], batches(rank, 2, seed=3))
    assert handle.stats()["backlog"] == waiting > 0
    handle.resume()
    train(ours, optimizers[1], batches(rank, 2, seed=4))
    return digest(ours), handle.stats()["steps"]


def test_a_paused_handle_leaves_gradients_to_ddp():
    outcomes = results(paused, 2)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == 5
