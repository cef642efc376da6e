# SPDX-License-Identifier: Apache-2.0
"""States of handles in the hands of users: through torch, under other names, of other ranks."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed.checkpoint as dcp
from constant_job import SHAPES, Constant, ConstantJob
from ranks import results
from training import attach, batches, digest, mlp, sgd, train, wrap

import tidegate
from tidegate import _core
from tidegate.same_names import same_names
from tidegate.states import adapt, from_dict, to_dict


def job():
    model = wrap(mlp())
    optimizer = sgd(model)
    return model, optimizer, attach(model, optimizer)


def bits(handle) -> bytes:
    return handle._state().to_bytes()


def through_dcp(rank, ranks, folder):
    data = list(batches(rank, 10))
    whole, optimizer, _ = job()
    train(whole, optimizer, data)

    model, optimizer, handle = job()
    train(model, optimizer, data[:5])
    state = {"model": model.state_dict(), "handle": handle}
    dcp.save(state, checkpoint_id=folder)
    momentum = optimizer.state_dict()

    model, optimizer, handle = job()
    state = {"model": model.state_dict(), "handle": handle}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(momentum)
    train(model, optimizer, data[5:])
    return digest(whole), digest(model)


def test_a_handle_is_stateful_for_torch_distributed_checkpoint(tmp_path):
    assert len({bits for pair in results(through_dcp, 2, str(tmp_path)) for bits in pair}) == 1


def from_several_threads(rank, ranks):
    model, optimizer, handle = job()
    train(model, optimizer, batches(rank, 3))
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: bits(handle), range(40), timeout=30))
    train(model, optimizer, batches(rank, 3))
    return len(found)


def test_several_threads_may_ask_for_the_state_at_once():
    assert results(from_several_threads, 2) == [1, 1]


def on_rank_0_only(rank, ranks):
    """As people write it: the others go on meanwhile."""
    data = list(batches(rank, 8))
    undisturbed, optimizer, _ = job()
    train(undisturbed, optimizer, data)

    model, optimizer, handle = job()
    keys = []
    for step, batch in enumerate(data):
        train(model, optimizer, [batch])
        if rank == 0 and step % 3 == 1:
            keys += handle.state_dict()
    return keys, digest(undisturbed), digest(model)


def test_a_state_may_be_taken_on_one_rank_only():
    (keys, *digests), (no_keys, *others) = results(on_rank_0_only, 2)
    assert keys == ["rank 0 of 2"] * 3 and no_keys == []
    assert len({*digests, *others}) == 1


def refused(rank, ranks):
    model, optimizer, handle = job()
    train(model, optimizer, batches(rank, 3))
    own, before = handle.state_dict(), bits(handle)
    ((key, (content,)),) = own.items()
    other = {f"rank {1 - rank} of {ranks}": (content,)}
    texts = []
    for wrong in (
        {},
        None,
        {"model": 1},
        other,
        {f"rank {rank} of 4": (content,)},
        {key: (content[:-1],)},
        {key: "text"},
        {key: (torch.cat([content[:100], content[101:], content[:1]]),)},
    ):
        with pytest.raises(tidegate.Error) as caught:
            handle.load_state_dict(wrong)
        assert caught.value.kind == "checkpoint"
        texts.append(str(caught.value))
        assert bits(handle) == before
    train(model, optimizer, batches(rank, 2, seed=5))
    return texts, digest(model)


def test_states_that_are_not_this_ranks_own_are_refused_and_change_nothing():
    (texts, first), (_, second) = results(refused, 2)
    assert first == second
    assert "TIDEGATE_DISABLE=1" in texts[0]
    assert "no state_dict of a Tidegate handle" in texts[1]
    assert "among ['model']" in texts[2]
    assert texts[3].startswith("this is the state of rank 1 of 2, but this is rank 0 of 2.")
    assert "mean_state_dict()" in texts[3] and "tidegate.save" in texts[3]
    assert "this is the state of rank 0 of 4, but this is rank 0 of 2." in texts[4]


def in_a_step(rank, ranks):
    model, optimizer, handle = job()
    texts = []

    def look(gradient):
        try:
            handle.state_dict()
        except tidegate.Error as error:
            texts.append(str(error))

    # The weights of the first layer come last: other buckets are on their way by then.
    train(model, optimizer, batches(rank, 3))
    model.module[0].weight.register_hook(look)
    train(model, optimizer, batches(rank, 1))
    handle.state_dict()
    return texts


def test_inside_a_step_there_is_no_state():
    for texts in results(in_a_step, 2):
        assert len(texts) == 1
        assert "in the middle of a step" in texts[0]


def mean_of_all(rank, ranks, folder):
    job = ConstantJob()
    job.train(rank, range(5))
    mean = job.handle.mean_state_dict()
    if rank == 0:
        torch.save({"handle": mean, "model": job.model.state_dict()}, f"{folder}/rank 0.pt")
    job.handle.detach()
    return {key: value[0] for key, value in mean.items()}


def from_rank_0(rank, ranks, folder):
    saved = torch.load(f"{folder}/rank 0.pt", weights_only=True)
    job = ConstantJob()
    job.model.load_state_dict(saved["model"])
    job.handle.load_state_dict(saved["handle"])
    job.train(rank, range(5, 10))
    job.flush()
    return job.shortfall([(range(5), 2), (range(5, 10), ranks)])


def test_a_mean_state_is_for_every_rank_of_any_number(tmp_path):
    first, second = results(mean_of_all, 2, str(tmp_path))
    assert first.keys() == second.keys() == {"mean of all ranks"}
    assert all(torch.equal(first[key], second[key]) for key in first)
    for ranks in (2, 3):
        assert max(results(from_rank_0, ranks, str(tmp_path))) < 1e-4


class Wrapper(torch.nn.Module):
    """Names its parameters as torch.compile does."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, inputs):
        return self._orig_mod(inputs)


def wrapped_otherwise(rank, ranks):
    """Saved from a plain model, loaded into a wrapped one, and into one with a layer more."""
    data = list(batches(rank, 4))
    model, optimizer, handle = job()
    train(model, optimizer, data)
    saved = handle.state_dict()

    wrapped = wrap(Wrapper(mlp()))
    renamed = attach(wrapped, sgd(wrapped))
    renamed.load_state_dict(saved)
    loaded = _core.State.from_bytes(bits(renamed))
    names = {name for layers in loaded.layout for name, _, _ in layers}
    train(wrapped, sgd(wrapped), data)

    longer = wrap(torch.nn.Sequential(*mlp(), torch.nn.Linear(10, 10)))
    grown = attach(longer, sgd(longer))
    with pytest.raises(tidegate.Error) as caught:
        grown.load_state_dict(saved)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        grown.load_state_dict(saved, strict=False)
    train(longer, sgd(longer), data)
    told = [str(warning.message) for warning in caught_warnings]
    return names, str(caught.value), told, digest(longer)


def test_wrappers_do_not_matter_and_added_parameters_do():
    (names, error, told, first), (_, _, silent, second) = results(wrapped_otherwise, 2)
    assert names and all(name.startswith("_orig_mod.") for name in names)
    assert "the model has, and the state has not: 5.weight, 5.bias" in error
    assert "strict=False" in error
    assert len(told) == 1 and "5.weight" in told[0]
    assert silent == []
    assert first == second


def test_names_that_differ_by_wrappers_only():
    assert same_names(["a.b"], ["module.a.b"]) == {"a.b": "module.a.b"}
    assert same_names(["a.b"], ["a._checkpoint_wrapped_module.b"]) == {
        "a.b": "a._checkpoint_wrapped_module.b"
    }
    assert same_names(["_orig_mod.module.a"], ["module._orig_mod.a"]) == {
        "_orig_mod.module.a": "module._orig_mod.a"
    }
    # Where two would become one, only names that are equal are the same.
    assert same_names(["a", "module.a"], ["a", "module.a"]) == {"a": "a", "module.a": "module.a"}
    assert same_names(["a", "module.a"], ["_orig_mod.a"]) == {}
    assert same_names(["gone"], ["new"]) == {}


def state_of(shapes) -> "_core.State":
    """Of a session of one rank in which something waits for every layer."""
    model = Constant(shapes)
    names = [(name, p.numel(), 0) for name, p in model.named_parameters()]
    session = _core.Session(0, 1, "fixed", {"method": "topk", "ratio": "0.1"})
    gradient = torch.randn(sum(p.numel() for p in model.parameters()))
    session.lay_out(0, names)
    session.submit(gradient.data_ptr(), gradient.nbytes)
    _core.run_lockstep([session])
    return session.state()


def test_what_does_not_fit_is_listed_and_dropped_only_if_asked_for():
    sizes = {name: p.numel() for name, p in Constant(SHAPES).named_parameters()}
    changed = {**sizes, "layers.4": 400, "head": 7}
    del changed["layers.1"]
    with pytest.raises(tidegate.Error) as caught:
        adapt(state_of(SHAPES), changed, strict=True)
    assert "the state has, and the model has not: layers.1;" in str(caught.value)
    assert "the model has, and the state has not: head;" in str(caught.value)
    assert "layers.4 (500 elements saved, 400 now)" in str(caught.value)
    state = state_of(SHAPES)
    misfit = adapt(state, changed, strict=False)
    assert (misfit.removed, misfit.added) == (["layers.1"], ["head"])
    assert set(state.residuals) == {"layers.0", "layers.2", "layers.3"}
    assert not adapt(state_of(SHAPES), sizes, strict=True)


def test_states_of_all_ranks_together_become_their_mean():
    state = state_of(SHAPES)
    together = to_dict("rank 0 of 1", state)
    mean = from_dict(together, 2, 3)
    assert (mean.rank, mean.ranks, mean.step) == (None, 1, 1)
    assert mean.residual("layers.0") == state.residual("layers.0")
