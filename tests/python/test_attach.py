# SPDX-License-Identifier: Apache-2.0
"""Bad input is told to all ranks and leaves nobody waiting; a handle can be ended."""

import os
import re
import threading
import warnings

import pytest
import torch
from ranks import results, results_of_each, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from training import attach, batches, digest, mlp, sgd, train, wrap

import tidegate
from tidegate import _core
from tidegate.attach import _threads


def attach_with(rank, ranks, options, of_rank=None):
    """`options` are this test's mistake; with of_rank, of that rank only."""
    mine = options if of_rank in (None, rank) else {}
    attach(wrap(mlp()), **{"timeout": 8, **mine})


AUTO = {"policy": "auto", "method": None, "ratio": None}
MISTAKES = [
    ({"method": "topkk"}, 'unknown method "topkk"; known: dense, fp16, bf16, int8'),
    ({"ratio": 0}, "ratio 0 .*must be above 0 and at most 1"),
    ({"ratio": float("nan")}, "ratio nan .*must be above 0 and at most 1"),
    ({"ratio": 2}, "ratio 2 .*must be above 0 and at most 1"),
    ({"ratio": "much"}, "ratio 'much': must be a number above 0 and at most 1"),
    ({"ratio": [0.1]}, r"ratio \[0.1\]: must be a number"),
    ({"ratio": None}, '"topk" needs a ratio'),
    ({"method": None, "ratio": None}, "needs a method"),
    ({"route": "engine"}, 'method "topk" cannot take the route "engine"'),
    ({"route": "sideways"}, 'unknown route "sideways"; known: auto, allgather, engine, ring'),
    ({"rank": 2}, 'method "topk" has no rank; leave it out'),
    ({"policy": "autumn"}, 'unknown policy "autumn"; known: fixed, schedule'),
    ({"policy": "auto"}, 'method, ratio: these arguments go with policy="fixed", not "auto"'),
    ({"policy": "schedule:levels=5 dense"}, 'go with policy="fixed"'),
    ({"policy": "fixed:ratio"}, 'option "ratio" has no value'),
    ({"policy": 7}, "policy 7 is neither a name nor an object"),
    ({"trace": "/nowhere/at/all.jsonl"}, "cannot write the trace"),
    ({"trace": 5}, 'trace 5: must name a file, such as "run.jsonl"'),
    ({"scaler": True}, "scaler True: must be the torch.amp.GradScaler"),
    ({"exclude": 5}, "exclude 5: must be patterns of parameter names"),
    ({"exclude": ["*.bias", 3]}, r"exclude \['\*.bias', 3\]: must be patterns"),
    ({"seed": "x"}, "seed 'x': must be a whole number, from 0"),
    ({"seed": -1}, "seed -1: must be from 0 to"),
    ({"label": 5}, "label 5: must be a text"),
    ({**AUTO, "horizon": "long"}, "horizon 'long': must be a whole number, how many steps"),
    ({**AUTO, "horizon": 1.5}, "horizon 1.5: must be a whole number"),
    ({**AUTO, "horizon": -5}, "horizon -5: must be between"),
    ({"optimizer": "adam"}, "needs the optimizer that steps the model, not str"),
]


def told(rank, ranks, options):
    with pytest.raises(tidegate.Error) as caught:
        attach_with(rank, ranks, options)
    return caught.value.kind, str(caught.value)


@pytest.fixture(scope="module")
def told_of_mistakes():
    """Of every rank. A user may correct a mistake and attach again in the same processes."""
    return results_of_each(told, 2, [(options,) for options, _ in MISTAKES])


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[str(m[0]) for m in MISTAKES])
def test_a_mistake_of_all_ranks(number, told_of_mistakes):
    for kind, text in told_of_mistakes[number]:
        assert kind == "config"
        assert re.search(MISTAKES[number][1], text), text


def test_a_mistake_ends_a_script_at_once_and_not_by_a_time_out():
    for outcome in run_ranks(attach_with, 2, {"method": "topkk"}):
        assert (outcome.kind, outcome.exit_code) == ("config", 3)
        assert outcome.seconds < 8


@pytest.mark.parametrize("options", [{"ratio": 2}, {"scaler": 2}], ids=str)
def test_a_mistake_of_one_rank_is_told_to_all(options):
    (name,) = options
    for outcome in run_ranks(attach_with, 3, options, 1):
        assert outcome.kind == "config"
        assert re.match(f"rank 1: {name} 2", outcome.text), outcome.text


def warned_of(rank, ranks, exclude):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attach(wrap(mlp()), exclude=exclude).detach()
    return [str(warning.message) for warning in caught if "tidegate" in str(warning.message)]


def test_a_pattern_that_excludes_nothing_is_said_once():
    told, silent = results(warned_of, 2, ["*.bias", "embeding.*", "0.weight"])
    assert silent == []
    (text,) = told
    assert "exclude 'embeding.*' matches no parameter" in text
    assert "'0.weight', '0.bias', '2.weight'" in text


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": 0.2},
        {"method": "dense"},
        {"exclude": "*.bias"},
        {"seed": 1},
        {"route": "owner"},
        {"route": "hosts"},
        {"policy": "schedule:levels=0 topk 0.05 hosts", "method": None, "ratio": None},
    ],
)
def test_different_settings_are_found_by_all_ranks(options):
    for outcome in run_ranks(attach_with, 3, options, 2):
        assert outcome.kind == "config"
        assert re.match("rank 2 has other settings than rank 0: .* instead of ", outcome.text)


def another_version(rank, ranks):
    fingerprint = _core.Session.fingerprint
    if rank == 1:
        _core.Session.fingerprint = lambda session: fingerprint(session).replace(
            "wire version 1", "wire version 2"
        )
    attach(wrap(mlp()))


def test_another_version_on_one_rank_is_found_by_all():
    for outcome in run_ranks(another_version, 2):
        assert outcome.kind == "config"
        assert re.match("rank 1 has other settings than rank 0: .*wire version 2", outcome.text)


def by_host_from_a_file(rank, ranks, path):
    os.environ["TIDEGATE_HOST"] = f"host {rank // 2}"
    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model), policy=f"schedule:file={path}", timeout=20)
    train(model, sgd(model), batches(rank, 6))
    choices = handle.stats()["choices"]
    handle.detach()
    return digest(model), choices


def test_a_schedule_in_a_file_may_go_by_host(tmp_path):
    path = tmp_path / "levels"
    path.write_text("0 topk 0.05\n3 topk 0.05 hosts+owner\n")
    outcomes = results(by_host_from_a_file, 3, str(path))
    assert len({bits for bits, _ in outcomes}) == 1
    assert any("hosts+owner" in choice for choice in outcomes[0][1])


def other_model(rank, ranks):
    # DDP compares shapes, not names: only we can tell these two apart.
    model = mlp()
    if rank == 1:
        model = nn.Sequential(nn.Identity(), *model)
    attach(wrap(model))


def test_a_model_with_other_names_is_found_by_all_ranks():
    for outcome in run_ranks(other_model, 2):
        assert outcome.kind == "config"
        assert re.match("rank 1 has other parameters than rank 0: .*1.weight", outcome.text)


def models_that_cannot_be_attached(rank, ranks):
    texts = []
    frozen = wrap(mlp())
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    hooked = wrap(mlp())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    twice = wrap(mlp())
    attach(twice)
    for model in (mlp(), frozen, hooked, twice):
        with pytest.raises(tidegate.Error) as caught:
            attach(model)
        assert caught.value.kind == "config"
        texts.append(str(caught.value))
    with pytest.raises(tidegate.Error, match="must be a number of seconds above 0"):
        attach(wrap(mlp()), timeout=0)
    return texts


def test_models_that_cannot_be_attached():
    for plain, frozen, hooked, twice in results(models_that_cannot_be_attached, 2):
        assert "not Sequential; wrap it first" in plain
        assert "no parameter of the model requires a gradient" in frozen
        assert "only one communication hook" in hooked
        assert "call its detach()" in twice


def absent(rank, ranks):
    if rank == 0:
        attach(wrap(mlp()), timeout=2)
    else:
        wrap(mlp())


def test_a_rank_that_never_attaches_is_a_time_out():
    outcome = run_ranks(absent, 2, limit=30)[0]
    assert outcome.kind in ("timeout", "peer")
    assert "waited 2 s in attach without rank 1" in outcome.text


def detach_and_go_on(rank, ranks):
    threads = threading.active_count()
    plain, ours = wrap(mlp()), wrap(mlp())
    optimizers = sgd(plain), sgd(ours)
    handle = attach(ours, optimizers[1], method="dense")
    for model, optimizer in zip((plain, ours), optimizers, strict=True):
        train(model, optimizer, batches(rank, 3))
    handle.detach()
    handle.detach()  # twice is once
    assert threading.active_count() == threads
    for model, optimizer in zip((plain, ours), optimizers, strict=True):
        train(model, optimizer, batches(rank, 3, seed=2))  # densely, by DDP's own group
    assert digest(plain) == digest(ours)
    again = attach(ours, optimizers[1], method="topk")
    train(ours, optimizers[1], batches(rank, 3, seed=3))
    return digest(ours), again.stats()["steps"]


def test_detach_leaves_a_working_model_and_no_thread():
    outcome = results(detach_and_go_on, 3)
    assert outcome[0] == outcome[1] == outcome[2]
    assert outcome[0][1] == 3


def resumed(rank, ranks):
    data = list(batches(rank, 12))
    whole = wrap(mlp())
    optimizer = sgd(whole)
    attach(whole, optimizer)
    train(whole, optimizer, data)

    first = wrap(mlp())
    optimizer = sgd(first)
    handle = attach(first, optimizer)
    train(first, optimizer, data[:6])
    saved = handle.state_dict()
    assert saved.keys() == {f"rank {rank} of {ranks}"}
    handle.detach()
    # The same DDP goes on: its buckets stay as they are, so not a bit may differ.
    handle = attach(first, optimizer)
    handle.load_state_dict(saved)
    train(first, optimizer, data[6:])
    return digest(whole), digest(first)


def test_state_dict_and_back():
    assert len({bits for pair in results(resumed, 2) for bits in pair}) == 1


def of_another_step(rank, ranks):
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = attach(model, optimizer)
    early = handle.state_dict()
    train(model, optimizer, batches(rank, 3))
    handle.load_state_dict(early if rank == 1 else handle.state_dict())
    with pytest.raises(tidegate.Error) as caught:
        train(model, optimizer, batches(rank, 1))
    return caught.value.kind, str(caught.value)


def test_states_of_different_steps_are_refused_by_all_ranks():
    for kind, text in results(of_another_step, 2):
        assert kind == "checkpoint"
        assert "rank 1 has loaded another state than rank 0" in text
        assert "step 0" in text and "step 3" in text


def disabled(rank, ranks):
    os.environ["TIDEGATE_DISABLE"] = "1"
    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model))
    train(model, sgd(model), batches(rank, 2))
    handle.detach()
    return handle.stats()


def test_disable_makes_attach_do_nothing():
    assert results(disabled, 2) == [{"steps": 0, "disabled": True}] * 2


def figures(rank, ranks):
    model = DDP(mlp(), bucket_cap_mb=0.02)
    handle = attach(model, ratio=0.01)
    train(model, sgd(model), batches(rank, 5))
    return handle.stats(), sum(p.numel() for p in model.parameters())


def test_stats_say_what_was_sent():
    for stats, parameters in results(figures, 4):
        assert stats["steps"] == 5
        # A ring all-reduce sends 2 (N-1)/N times the gradient.
        assert stats["dense_bytes"] == pytest.approx(5 * 1.5 * 4 * parameters)
        # All-gather to 3 other ranks of slots: 2 bytes a value, about 8 bits an index, and a few
        # dozen bytes around them.
        slots = stats["bytes_sent"] / 3 / 5
        assert 3 * 0.009 * parameters < slots < 3.2 * 0.01 * parameters + 5 * 120
        assert stats["ratio"] == pytest.approx(stats["bytes_sent"] / stats["dense_bytes"])
        assert set(stats["ms"]) == {"compress", "wire", "decode", "exchange"}
        assert all(value >= 0 for value in stats["ms"].values())
        assert stats["backlog"] > 0
        assert stats["emulated"] is None


def test_errors_survive_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(tidegate.Error("peer", "text")))
    assert (error.kind, str(error)) == ("peer", "text")
    assert isinstance(error, RuntimeError)


def test_torch_is_not_linked():
    """One binary serves every version of torch."""
    from tidegate import _core

    linked = os.popen(f"ldd {_core.__file__}").read()
    assert "libhwy" in linked
    assert "torch" not in linked
    assert torch.__version__


def subgroup(rank, ranks):
    """Two models, each on half of the ranks; the second attach must not find the first's group."""
    import torch.distributed as dist

    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = wrap(mlp(), process_group=halves[rank // 2])
    optimizer = sgd(model)
    for seed in (1, 2):
        handle = attach(model, optimizer)
        train(model, optimizer, batches(rank, 4, seed=seed))
        handle.detach()
    return digest(model)


def test_models_on_parts_of_the_ranks():
    first, second, third, fourth = results(subgroup, 4)
    assert first == second != third == fourth


def test_threads_are_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("TIDEGATE_THREADS", "2")
    assert _threads() == 2
    for text in ("", "two", "-1", "1.5"):
        monkeypatch.setenv("TIDEGATE_THREADS", text)
        with pytest.raises(tidegate.Error, match="TIDEGATE_THREADS") as error:
            _threads()
        assert error.value.kind == "config"
