# SPDX-License-Identifier: Apache-2.0
"""Policies as objects, and what attach tells them of the job."""

import json

import pytest
import torch
from ranks import results
from small_task import record
from training import mlp, sgd, train, wrap

import tidegate
from tidegate import _core
from tidegate.attach import _resolve_policy, optimizer_family
from tidegate.policies import Auto, Fixed, Schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_policy_of_the_table_has_an_object():
    for row in _core.policies():
        name = "".join(part.capitalize() for part in row["name"].split("-"))
        assert issubclass(getattr(tidegate.policies, name), tidegate.policies.Policy), name


def chosen(path) -> set[str]:
    with path.open() as lines:
        steps = [event for event in map(json.loads, lines) if event["kind"] == "step"]
    return {(b["method"], b.get("ratio"), b.get("rank")) for step in steps for b in step["buckets"]}


def test_auto_takes_its_options_by_name(tmp_path):
    policy = Auto(goal="time-to-target", tolerance=0.1, wait=4)
    assert policy.name == "auto"
    assert policy.options == {"goal": "time-to-target", "tolerance": "0.1", "wait": "4"}
    trace = tmp_path / "run.jsonl"
    record(trace, steps=2, policy=policy)
    start = json.loads(trace.open().readline())
    assert start["policy"] == "auto"
    assert {**start["options"], **policy.options} == start["options"]
    assert start["options"]["optimizer"] == "sgd"
    with pytest.raises(tidegate.Error, match='policy "auto" has no option "patient"'):
        record(trace, steps=1, policy=Auto(patient=3))


LEVELS = [
    (Fixed("topk", 0.25), ("topk", 0.25, None)),
    (Fixed("powersgd", rank=4), ("powersgd", None, 4)),
    (Fixed("qsgd", bits=4), ("qsgd", None, None)),
    (Fixed("dgc", 0.25, momentum=0.9, clip=1.0), ("dgc", 0.25, None)),
]


@pytest.mark.parametrize(("policy", "expected"), LEVELS, ids=[row[1][0] for row in LEVELS])
def test_fixed_takes_the_level_of_any_method(tmp_path, policy, expected):
    trace = tmp_path / "run.jsonl"
    record(trace, steps=2, policy=policy)
    assert expected in chosen(trace)
    assert len({method for method, *_ in chosen(trace)}) == 1


def test_a_schedule_is_a_list_or_a_file(tmp_path):
    levels = [(0, "dense"), (2, "topk", 0.25), (4, "int8")]
    file = tmp_path / "levels.txt"
    file.write_text("\n".join(" ".join(map(str, entry)) for entry in levels))
    traces = []
    for policy in (Schedule(levels), Schedule(file=file)):
        traces.append(tmp_path / f"{len(traces)}.jsonl")
        record(traces[-1], steps=6, policy=policy)
    assert {method for method, *_ in chosen(traces[0])} == {"dense", "topk", "int8"}
    assert chosen(traces[0]) == chosen(traces[1])
    for arguments in ({}, {"levels": levels, "file": file}):
        with pytest.raises(tidegate.Error, match=r"either levels, .* or file="):
            Schedule(**arguments)


# --- what attach tells ---


class SignSGD(torch.optim.SGD):
    """A late burst counts as much as anything else: once."""


class NormalizedSGD(torch.optim.SGD):
    """Divides by the norm."""


class Patient(torch.optim.SGD):
    """A user's own name for it."""


class Hasty(torch.optim.AdamW):
    """A user's own name for it."""


class Unknown(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})


FAMILIES = {
    torch.optim.SGD: "sgd",
    torch.optim.ASGD: "sgd",
    Patient: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.NAdam: "adam",
    torch.optim.RMSprop: "adam",
    torch.optim.Adagrad: "adam",
    torch.optim.Adadelta: "adam",
    Hasty: "adam",
    SignSGD: "other",
    NormalizedSGD: "other",
    torch.optim.Rprop: "other",
    Unknown: "other",
}


@pytest.mark.parametrize(
    ("kind", "family"), FAMILIES.items(), ids=lambda o: getattr(o, "__name__", o)
)
def test_auto_is_told_the_family_of_the_optimizer(kind, family):
    optimizer = kind(mlp().parameters(), lr=0.1)
    assert optimizer_family(optimizer) == family
    assert _resolve_policy("auto", {}, optimizer).options == {"optimizer": family}
    # What the user says stands.
    assert _resolve_policy("auto:optimizer=sgd", {}, optimizer).options == {"optimizer": "sgd"}


def attach_and_step(rank, ranks, path, options):
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = tidegate.attach(model, optimizer, timeout=20, trace=path, **options)
    train(model, optimizer, [(torch.ones(4, 32), torch.zeros(4, dtype=torch.long))])
    handle.detach()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"horizon": 500}, "500"),
        ({"horizon": 500, "policy": Auto(horizon=9)}, "9"),
        ({"policy": Auto(tolerance=0.1)}, None),
    ],
    ids=["attach's", "the policy's own", "none"],
)
def test_auto_is_told_the_horizon(tmp_path, options, expected):
    trace = tmp_path / "run.jsonl"
    results(attach_and_step, 1, str(trace), options)
    start = json.loads(trace.open().readline())
    assert start["policy"] == "auto"
    assert start["options"]["optimizer"] == "sgd"
    assert start["options"].get("horizon") == expected


def attach_without_measuring(rank, ranks, path):
    def measured():
        raise AssertionError("nothing is compressed where nobody listens")

    _core.measure_speeds = measured
    for policy in ("auto", "flexible:warmup=0"):
        attach_and_step(rank, ranks, path, {"policy": policy})


def test_one_rank_does_not_measure_what_compressing_takes(tmp_path):
    results(attach_without_measuring, 1, str(tmp_path / "run.jsonl"))
