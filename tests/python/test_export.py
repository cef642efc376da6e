# SPDX-License-Identifier: Apache-2.0
import csv
import json
import sys
import types

import pytest
from made_trace import in_brief, made_step, made_trace
from small_task import record

from tidegate import cli
from tidegate import report_figures as figures
from tidegate.perfetto import timeline

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path, policy="auto")
    return path


def export(capsys, *argv) -> tuple[int, str, str]:
    code = cli.main(["export", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_csv_has_a_line_per_step(capsys, trace, tmp_path):
    target = tmp_path / "run.csv"
    code, out, err = export(capsys, trace, "--csv", target)
    assert (code, err) == (0, "")
    assert "24 steps" in out
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(24))
    steps = [e for e in map(json.loads, trace.read_text().splitlines()) if e["kind"] == "step"]
    assert [float(row["bytes_sent"]) for row in rows] == [step["bytes_sent"] for step in steps]
    assert float(rows[4]["step_ms"]) == pytest.approx(steps[5]["step_ms"])
    assert rows[-1]["step_ms"] == ""  # nobody knows
    assert all(float(row["loss"]) > 0 for row in rows)
    assert "by" in rows[0]["choices"]


def test_what_was_written_as_json_and_nothing_else(capsys, trace, tmp_path):
    target = str(tmp_path / "run.csv")
    code, out, err = export(capsys, trace, "--csv", target, "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["written"] == [{"format": "csv", "target": target, "steps": 24}]


def test_only_the_steps_that_were_asked_for(capsys, trace, tmp_path):
    target = tmp_path / "run.csv"
    assert export(capsys, trace, "--csv", target, "--steps", "5:7", "--quiet") == (0, "", "")
    with target.open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["5", "6", "7"]


MOMENTS = [
    (0.000, "ready", 0, 0),
    (0.002, "issue", 0, 1),
    (0.003, "ready", 1, 0),
    (0.005, "arrive", 0, 1),
    (0.006, "issue", 0, 2),
    (0.008, "arrive", 0, 2),
    (0.009, "done", 0, 0),
]


def slices(events, lane) -> list[tuple]:
    return [
        (event["tid"], round(event["ts"]), round(event["dur"]))
        for event in events
        if event.get("cat") == lane
    ]


def test_a_timeline_has_lanes_of_compute_compress_wire_and_decode():
    step = made_step(0)
    about = {
        "moments": MOMENTS,
        "exchange_seconds": 0.009,
        "buckets": step["buckets"] * 2,
        "choices": ["topk", "dense"],
    }
    made = made_trace([made_step(0, **about), made_step(1, **about)])
    events = timeline(made, figures.rows(made), lambda step: step == 1)
    # Step 1 began 10 ms after step 0; compressing took 1 ms up to the first issue.
    assert slices(events, "compress") == [(0, 11000, 1000)]
    assert slices(events, "wire") == [(0, 12000, 3000), (0, 16000, 2000)]
    assert slices(events, "decode") == [(0, 15000, 1000), (0, 18000, 1000)]
    # From the end of the exchange before to the last bucket being ready.
    assert slices(events, "compute") == [(0, 9000, 4000)]
    names = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"]
    assert names == [(1, "compute"), (2, "compress"), (3, "wire"), (4, "decode")]
    lanes = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 3]
    assert lanes == ["bucket 0", "bucket 1"]


def test_buckets_of_a_modelled_run_follow_each_other_on_the_wire():
    step = made_step(0)
    moments = [(0.0, "ready", 0, 0), (0.003, "ready", 1, 0)]
    both = {"moments": moments, "buckets": step["buckets"] * 2, "choices": ["a", "b"]}
    made = made_trace([made_step(0, **both)], modelled=True)
    events = timeline(made, figures.rows(made), lambda step: True)
    assert slices(events, "compress") == [(0, 0, 1000), (1, 3000, 1000)]
    assert slices(events, "wire") == [(0, 1000, 4000), (1, 5000, 4000)]
    assert slices(events, "decode") == [(0, 5000, 2000), (1, 9000, 2000)]


def test_a_timeline_of_a_real_run_adds_up(capsys, trace, tmp_path):
    target = tmp_path / "timeline.json"
    assert export(capsys, trace, "--perfetto", target)[0] == 0
    events = json.loads(target.read_text())["traceEvents"]
    wires = [event for event in events if event.get("cat") == "wire"]
    assert {event["args"]["step"] for event in wires} == set(range(24))
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    assert any(event["dur"] > 0 for event in wires)


def test_a_step_in_brief_is_one_slice_of_a_timeline(capsys, trace, tmp_path):
    trace.write_text(in_brief(trace.read_text(), first=20))
    target = tmp_path / "timeline.json"
    code, out, _ = export(capsys, trace, "--perfetto", target, "--steps", "10:")
    assert code == 0
    assert "14 steps written" in out
    assert "4 of them in brief, without buckets" in out
    wires = [e for e in json.loads(target.read_text())["traceEvents"] if e.get("cat") == "wire"]
    brief = [event for event in wires if event["args"]["step"] >= 20]
    assert [event["args"]["step"] for event in brief] == [20, 21, 22, 23]
    assert all(event["dur"] >= 0 and "by" in event["args"]["choices"] for event in brief)


class FakeWriter:
    def __init__(self, folder):
        self.scalars = []
        FakeWriter.last = self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))


def test_tensorboard_gets_scalars(capsys, trace, tmp_path, monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    assert export(capsys, trace, "--tensorboard", tmp_path / "runs")[0] == 0
    scalars = FakeWriter.last.scalars
    assert [step for name, _, step in scalars if name == "tidegate/loss"] == list(range(24))
    assert all(isinstance(value, int | float) for _, value, _ in scalars)


def test_wandb_gets_a_run(capsys, trace, monkeypatch):
    class Job:
        rows, finished = [], False

        def log(self, row, step):
            self.rows.append((step, row))

        def finish(self):
            self.finished = True

    module, job, told = types.ModuleType("wandb"), Job(), {}
    module.init = lambda **options: told.update(options) or job
    monkeypatch.setitem(sys.modules, "wandb", module)
    assert export(capsys, trace, "--wandb", "my-project")[0] == 0
    assert told["project"] == "my-project"
    assert told["config"]["policy"] == "auto"
    assert [step for step, _ in job.rows] == list(range(24))
    assert job.rows[3][1]["tidegate/bytes_sent"] > 0
    assert job.finished


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_what_is_not_installed_is_named(capsys, trace, tmp_path, monkeypatch, name):
    for module in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    code, _, err = export(capsys, trace, f"--{name}", tmp_path / "x")
    assert code == 2
    assert f"pip install {name}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "export to what?"),
        (["--csv", "/nowhere/x.csv"], "cannot be written"),
        (["--csv", "x.csv", "--steps", "5"], "write FIRST:LAST"),
        (["--csv", "x.csv", "--steps", "9:5"], "write FIRST:LAST"),
    ],
)
def test_mistakes_are_one_line(capsys, trace, tmp_path, monkeypatch, argv, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = export(capsys, trace, *argv)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
