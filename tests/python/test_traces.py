# SPDX-License-Identifier: Apache-2.0
"""What commands make of traces: explain tells them, replay repeats their decisions."""

import json
import sys

import pytest
import torch
from made_trace import in_brief
from ranks import results
from small_task import record
from training import attach, batches, mlp, sgd, train, wrap

import tidegate
from tidegate import _core, cli, explain
from tidegate.attach import _trace_bytes

pytestmark = pytest.mark.usefixtures("one_thread")


def said(capsys, *argv) -> tuple[int, str, str]:
    code = cli.main([str(each) for each in argv])
    out, err = capsys.readouterr()
    return code, out, err


def moody(question):
    """Depends on every bit of what it is told."""
    if question.backlog is None:
        return "topk", 0.25, "nothing is known yet"
    digits = (1e6 * sum(question.gradient_energy)) % 1
    return "topk", 0.01 + 0.5 * digits, "by the last digits"


class Moody:
    needs = ("reacts", "magnitudes")
    window = 5

    def __init__(self):
        self.sum = 0.0

    def begin_step(self, now):
        if now.fresh:
            self.sum += sum(now.residual_energy) + (now.gain(0.1) or 0) + (now.compute or 0)
        if now.window:
            self.sum += sum(now.window[2].values())

    def decide(self, question):
        price = question.price("dense")
        if price is None:
            return "dense"
        return "topk", 0.01 + 0.5 * ((1e9 * (self.sum + price)) % 1)

    def batches_per_step(self):
        return 1 + int(self.sum) % 2

    def remember(self):
        return {"sum": [self.sum]}

    def recall(self, notes):
        self.sum = notes["sum"][0]


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "run.jsonl"


POLICIES = {
    "fixed": {"policy": "fixed", "method": "artopk-star", "ratio": 0.1},
    "schedule": {"policy": "schedule:levels=0 topk 0.5;5 topk 0.1;9 int8"},
    "function": {"policy": moody},
    "class": {"policy": Moody},
    # So short that they decide often.
    "auto": {
        "policy": "auto:wait=2,window=4",
        "schedule": "0 10gbit,0.01ms\n10 2mbit,0.01ms",
    },
    "gravac": {"policy": "gravac:window=3,threshold=0.05,ewma_window=3,climb=geometric"},
    "flexible": {"policy": "flexible:warmup=5", "link": "100mbit,1ms"},
    "accordion": {"policy": "accordion:window=4,interval=1,threshold=0.9"},
    "accordion-batch": {"policy": "accordion-batch:window=4,interval=1,threshold=2,ramp_steps=5"},
}


def minds(path) -> set[str]:
    """What was decided at the beginnings of steps, from the third on: buckets are what they are."""
    with path.open() as lines:
        steps = [event for event in map(json.loads, lines) if event["kind"] == "step"]
    keys = ("method", "ratio", "rank", "bits", "route", "apart")
    return {
        json.dumps([step.get("batches"), *([b.get(key) for key in keys] for b in step["buckets"])])
        for step in steps[2:]
    }


@pytest.mark.parametrize("name", POLICIES)
def test_replay_repeats_every_decision(capsys, trace, name):
    options = dict(POLICIES[name])
    if schedule := options.pop("schedule", None):
        options["link"] = _core.LinkSchedule.from_text(schedule)
    record(trace, **options)
    assert (len(minds(trace)) > 1) == (name != "fixed")
    code, out, err = said(capsys, "replay", trace)
    assert (code, err) == (0, "")
    assert out.startswith("all ")
    assert "decisions repeated: 24 steps" in out


def test_replay_repeats_a_run_that_went_back_to_a_snapshot(capsys, trace):
    cluster = record(trace, policy=Moody)
    snapshot = cluster.snapshot()
    cluster.run(5)
    cluster.restore(snapshot)
    cluster.run(9)
    assert said(capsys, "replay", trace)[0] == 0
    assert "the job went on from a checkpoint" in said(capsys, "explain", trace)[1]


@pytest.mark.parametrize("name", ["auto", "class", "accordion"])
def test_steps_in_brief_tell_the_same(capsys, tmp_path, trace, name):
    options = dict(POLICIES[name])
    if schedule := options.pop("schedule", None):
        options["link"] = _core.LinkSchedule.from_text(schedule)
    record(trace, **options)
    brief = tmp_path / "brief.jsonl"
    brief.write_text(in_brief(trace.read_text(), first=2))
    code, out, err = said(capsys, "replay", brief)
    assert (code, err) == (0, "")
    assert "decisions repeated: 24 steps" in out

    full = [_core.read_trace(str(path)) for path in (trace, brief)]
    assert [each["brief"] for each in full[1]["steps"]] == [False] * 2 + [True] * 22
    for one, other in zip(*(each["steps"] for each in full), strict=True):
        for step in (one, other):
            step.pop("brief")
            for bucket in step["buckets"]:
                for lost in ("bytes_sent", "compress_seconds", "wire_seconds", "decode_seconds"):
                    bucket.pop(lost)
        assert other.pop("backlog") == pytest.approx(one.pop("backlog"))
        assert (other.pop("kept") or 0) == pytest.approx(one.pop("kept") or 0)
        assert other == one

    assert "in brief" not in said(capsys, "explain", trace)[1]
    assert "22 of 24 steps are written in brief" in said(capsys, "explain", brief)[1]
    page = tmp_path / "page.html"
    for path in (trace, brief):
        assert said(capsys, "report", path, "--output", page, "--quiet") == (0, "", "")
        assert ("steps are written in brief" in page.read_text()) == (path == brief)


def test_replay_tells_the_first_differences(capsys, trace):
    record(trace, **POLICIES["schedule"])
    lines = trace.read_text().splitlines()
    start = json.loads(lines[0])
    start["options"]["levels"] = "0 topk 0.5;5 topk 0.1;11 int8"  # not what the run did
    trace.write_text("\n".join([json.dumps(start), *lines[1:]]) + "\n")
    code, out, _ = said(capsys, "replay", trace, "--json", "-")
    assert code == 1
    rows = [row for row in json.loads(out)["rows"] if not row["same"]]
    assert {row["step"] for row in rows} == {9}
    assert {row["recorded"] for row in rows} == {"int8 by auto"}
    assert {row["repeated"] for row in rows} == {"topk 0.1 in 16 bits by auto"}
    code, out, _ = said(capsys, "replay", trace)
    assert code == 1
    assert "decisions were not repeated" in out
    assert "int8 by auto" in out


def test_replay_asks_another_policy_on_the_same_inputs(capsys, trace):
    record(trace, **POLICIES["schedule"])
    code, out, _ = said(capsys, "replay", trace, "--policy", "topk:ratio=0.1", "--timings")
    assert code == 0
    assert "open loop" in out
    assert "modelled, as decided now" in out
    record(trace, policy=moody)
    code, out, _ = said(
        capsys, "replay", trace, "--policy", "test_traces:Moody", "--json", "-", "--timings"
    )
    result = json.loads(out)
    assert result["missing"] == [
        "magnitudes of buckets whose method does not look at them",
        "windows of 5 steps",
    ]
    assert 0 < result["different"] <= result["decisions"]
    timed = [row for row in result["times"] if row["modelled_seconds"]]
    assert len(timed) > 10
    assert all(row["recorded_seconds"] > 0 for row in timed)


def test_a_new_job_takes_the_decisions_of_a_recorded_one(trace, tmp_path):
    def ratios(path):
        with path.open() as lines:
            steps = [event for event in map(json.loads, lines) if event["kind"] == "step"]
        return [[b.get("ratio") for b in step["buckets"]] for step in steps]

    record(trace, policy=moody)
    again = tmp_path / "again.jsonl"
    record(again, policy=tidegate.policies.Replay(trace))
    assert ratios(again) == ratios(trace)
    with pytest.raises(tidegate.Error, match="of a job of 2 ranks, and this one has 3"):
        tidegate.VirtualCluster(
            "small_task:make_task", 3, policy=f"replay:file={trace}", bucket_mb=0.02
        ).run(1)


def train_and_trace(rank, ranks, path, policy):
    model = wrap(mlp())
    handle = attach(model, policy=policy, method=None, ratio=None, trace=path, timeout=20)
    train(model, sgd(model), batches(rank, 20))
    handle.detach()


def log_and_turn_over(rank, ranks, path):
    sys.modules["tidegate.attach"].LEAST_TRACE_MB = 0.1
    model = wrap(mlp())
    handle = attach(model, policy=moody, method=None, ratio=None, trace=path, trace_mb=0.2)
    optimizer = sgd(model)
    for number, batch in enumerate(batches(rank, 40)):
        train(model, optimizer, [batch])
        handle.log(loss=number / 2, other=float("nan"))
    handle.log(step=7, accuracy=torch.tensor(0.5))
    with pytest.raises(tidegate.Error, match=r"loss='low'.: is no number"):
        handle.log(loss="low")
    handle.detach()


def test_a_real_job_logs_into_a_trace_of_several_parts(capsys, trace):
    results(log_and_turn_over, 2, str(trace))
    parts = sorted(path.name for path in trace.parent.glob("run.jsonl*"))
    assert len(parts) > 2
    assert parts[:2] == ["run.jsonl", "run.jsonl.000000"]
    read = _core.read_trace(str(trace))
    assert [step["step"] for step in read["steps"]] == list(range(40))
    losses = [(log["step"], log["figures"]["loss"]) for log in read["logs"][:-1]]
    assert losses == [(number, number / 2) for number in range(40)]
    assert read["logs"][-1] == {"step": 7, "figures": {"accuracy": 0.5}}
    assert all(step["compute_seconds"] > 0 for step in read["steps"][1:])
    assert said(capsys, "replay", trace)[0] == 0
    story = explain.tell(read)
    assert len([event for event in story if event["step"] == 0]) == 1  # not repeated by parts


def test_a_trace_whose_beginning_is_gone_is_told_but_not_repeated(capsys, trace):
    results(log_and_turn_over, 2, str(trace))
    trace.with_name("run.jsonl.000000").unlink()
    assert said(capsys, "explain", trace)[0] == 0
    code, _, err = said(capsys, "replay", trace)
    assert code == 2
    assert "begins with part 1" in err


@pytest.mark.parametrize("room", [0, -1, "much", float("nan")])
def test_a_trace_needs_some_room(room):
    with pytest.raises(tidegate.Error, match=r"trace_mb .* megabytes, 1 or more"):
        _trace_bytes(room)


def test_the_trace_of_a_real_job_repeats(capsys, trace):
    results(train_and_trace, 2, str(trace), moody)
    assert said(capsys, "replay", trace)[0] == 0
    code, out, _ = said(capsys, "explain", trace)
    assert code == 0
    assert "because: nothing is known yet" in " ".join(out.split())
    assert "(the user's own)" in out
    assert "; measured)" in out


@pytest.mark.parametrize("policy", ["auto:wait=2,window=4,patience=1000", "flexible:warmup=5"])
def test_decisions_by_times_that_were_really_measured_repeat(capsys, trace, policy):
    results(train_and_trace, 2, str(trace), policy)
    code, out, err = said(capsys, "replay", trace)
    assert (code, err) == (0, "")
    assert "decisions repeated: 20 steps" in out


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_quiet_shows_nothing(capsys, trace, tmp_path, command):
    record(trace, **POLICIES["schedule"])
    file = tmp_path / "told.json"
    assert said(capsys, command, trace, "--quiet", "--json", file) == (0, "", "")
    assert json.loads(file.read_text())["v"] == 1
    if command == "replay":
        lines = trace.read_text().replace('"ratio":0.5', '"ratio":0.25')
        trace.write_text(lines)
        assert said(capsys, command, trace, "--quiet") == (1, "", "")


def test_explain_tells_the_story(capsys, trace):
    record(trace, **POLICIES["schedule"])
    code, out, err = said(capsys, "explain", trace)
    assert (code, err) == (0, "")
    assert "A job of 2 ranks, told by rank 0." in out
    assert "Link 1gbit,0.1ms: all times are modelled." in out
    assert (
        "topk 0.5 in 16 bits by allgather -> topk 0.1 in 16 bits by allgather, because: scheduled"
        in " ".join(out.split())
    )
    assert "bytes per step" in out
    assert "of what dense would have sent" in out
    code, out, _ = said(capsys, "explain", trace, "--json", "-")
    result = json.loads(out)
    decisions = [event for event in result["story"] if event["what"] == "decision"]
    assert [event["step"] for event in decisions] == [0, 1, 5, 9]
    assert decisions[2]["text"].startswith("buckets 0-")
    assert sum(result["summary"]["choices"].values()) == pytest.approx(1)
    assert result["summary"]["times"] == "modelled"


def test_a_long_story_is_cut_unless_all_is_asked_for(capsys, trace):
    record(trace, steps=80, policy=lambda question: ("topk", 0.01 + 0.001 * question.step))
    short = said(capsys, "explain", trace)[1]
    long = said(capsys, "explain", trace, "--all")[1]
    assert "more events; --all shows them" in short
    assert len(long.splitlines()) > len(short.splitlines())


def test_neighbours_are_named_together():
    assert explain.name_buckets([4]) == "bucket 4"
    assert explain.name_buckets([2, 0, 1, 5, 7, 8]) == "buckets 0-2, 5, 7-8"


def test_a_run_that_died_is_told_as_far_as_it_went(capsys, trace):
    record(trace, **POLICIES["schedule"])
    trace.write_text(trace.read_text()[:-300])
    code, out, _ = said(capsys, "explain", trace)
    assert code == 0
    assert "incomplete, as a run that is killed leaves it" in " ".join(out.split())
    assert "The run did not come to its end." in out
    assert said(capsys, "replay", trace)[0] == 0


@pytest.mark.parametrize("command", ["explain", "replay"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no trace"),
        ("hello\n", "line 1 of the trace"),
        ('{"v": 9, "kind": "start", "step": 0}\n', "is of version 9"),
        ('{"v": 1, "kind": "start", "step": 0}\n', 'has no member "label"'),
        (None, "cannot read the trace"),
    ],
)
def test_what_is_no_trace_is_told_in_one_line(capsys, trace, command, text, words):
    if text is not None:
        trace.write_text(text)
    code, out, err = said(capsys, command, trace)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
    assert str(trace) in err
