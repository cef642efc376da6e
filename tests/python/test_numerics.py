# SPDX-License-Identifier: Apache-2.0
"""A NaN or an Inf reaches the user as with dense DDP, whatever the method: GradScaler skips the
step on all ranks, nothing of it enters a residual, and training goes on."""

import warnings

import pytest
import torch
from ranks import results, results_of_each
from torch.nn.functional import cross_entropy
from training import attach, batches, digest, mlp, sgd, wrap

from tidegate import _core

METHODS = [row["name"] for row in _core.methods()]
BAD_STEP = 3


def scaled(rank, ranks, method, bad):
    """Plain DDP if there is no method."""
    model = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=100)
    handle = attach(model, method=method, scaler=scaler) if method else None
    optimizer = sgd(model)
    poisoned = [False]

    def poison(gradient):
        if not poisoned[0]:
            return gradient
        gradient = gradient.clone()
        gradient.view(-1)[5] = bad
        return gradient

    list(model.parameters())[2].register_hook(poison)
    skipped, scales = [], []
    for step, (inputs, targets) in enumerate(batches(rank, 6)):
        before = digest(model)
        poisoned[0] = step == BAD_STEP and rank == 1
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(digest(model) == before)
        scales.append(scaler.get_scale())
    finite = True
    if handle:
        state = handle._state()
        for name in state.residuals:
            waiting = torch.frombuffer(
                bytearray(state.residual(name) or bytes(4)), dtype=torch.float32
            )
            finite = finite and bool(torch.isfinite(waiting).all())
        handle.detach()
    finite = finite and all(bool(torch.isfinite(p).all()) for p in model.parameters())
    return skipped, scales, finite, digest(model)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")], ids=str)
def test_every_method_loses_the_step_that_ddp_loses_and_goes_on(bad):
    names = ["", *METHODS]
    outcomes = results_of_each(scaled, 2, [(name, bad) for name in names], limit=180)
    plain = outcomes[0][0]
    assert plain[0] == [step == BAD_STEP for step in range(6)]
    for name, (first, second) in zip(names, outcomes, strict=True):
        assert first == second, f"{name}: ranks differ"
        assert first[:2] == plain[:2], f"{name}: other steps are skipped than by DDP"
        assert first[2], f"{name}: something that is not finite has stayed"


def overflowing(rank, ranks):
    model = wrap(mlp())
    handle = attach(model, method="fp16")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for inputs, targets in batches(rank, 2):
            (cross_entropy(model(inputs), targets) * 1e8).backward()
    infinite = any(not torch.isfinite(p.grad).all() for p in model.parameters())
    skipped = handle.stats()["skipped_steps"]
    handle.detach()
    return infinite, skipped, [str(w.message) for w in caught if "fp16" in str(w.message)]


def test_fp16_that_overflows_is_counted_and_said_once():
    first, second = results(overflowing, 2)
    assert first[:2] == second[:2] == (True, 2)
    assert len(first[2]) == 1
    assert "fp16 holds numbers up to 65504" in first[2][0]
    assert not second[2], "one rank's warning is enough"
