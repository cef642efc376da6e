# SPDX-License-Identifier: Apache-2.0
"""Pages about runs, as text. In a browser they are looked at by test_report_browser.py."""

import json
import re
import sys

import pytest
from small_task import record

from tidegate import cli

pytestmark = pytest.mark.usefixtures("one_thread")


def report(capsys, *argv) -> tuple[int, str, str]:
    code = cli.main(["report", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def plots_of(page) -> list[dict]:
    found = re.search(r'<script id="plots" type="application/json">(.*?)</script>', page)
    return json.loads(found[1])


def titles_of(page) -> list[str]:
    return re.findall(r"<h3>(.*?)</h3>", page)


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.html"


def test_a_run_becomes_a_page_that_needs_nothing_else(capsys, trace, page):
    record(trace, policy="auto", steps=40)
    code, out, err = report(capsys, trace, "-o", page)
    assert (code, err) == (0, "")
    assert f"Written to {page}" in out
    text = page.read_text()
    own = text.replace(re.search(r"<script>/\*\*.*?</script>", text, re.DOTALL)[0], "")  # plotly
    assert len(own) < 200_000
    assert not re.search(r'(src|href)="(?!data:)', own)
    assert "http" not in own
    assert "{{" not in own
    assert titles_of(text) == [
        "Loss over time",
        "Loss over bytes",
        "Ratio and method over steps",
        "Network, as estimated",
        "Time per step",
        "Time per phase",
        "Backlog",
        "Kept per step",
        "Gain curve",
        "Scaling efficiency",
        "Share of steps by method and level",
        "Share of steps by collective",
    ]
    drawn = [plot for plot in plots_of(text) if "data" in plot]
    assert len(drawn) >= 11
    assert all(f'id="{plot["id"]}"' in text for plot in drawn)
    assert "(modelled)" in text
    assert "because: first choice" in text


def test_runs_are_compared(capsys, tmp_path, page):
    record(tmp_path / "auto.jsonl", policy="auto", steps=40)
    record(tmp_path / "dense.jsonl", policy="fixed", method="dense", calibrate=True, steps=40)
    code, out, _ = report(
        capsys, tmp_path / "auto.jsonl", tmp_path / "dense.jsonl", "-o", page, "--json", "-"
    )
    assert code == 0
    auto, dense = json.loads(out)["runs"]
    assert auto["bytes_sent"] < dense["bytes_sent"] == dense["fp32_bytes"]
    assert auto["times"] == "modelled"
    assert dense["shares"]["method"] == {"dense": 1.0}
    assert "Beside the fp32 run dense (modelled)" in page.read_text()
    names = {trace["name"] for plot in plots_of(page.read_text()) for trace in plot.get("data", [])}
    assert {"auto", "dense"} <= names


def test_dense_bytes_are_those_that_sessions_count(capsys, trace, page):
    record(trace, policy="fixed", method="topk", ratio=0.1)
    _, out, _ = report(capsys, trace, "-o", page, "--json", "-")
    end = json.loads(trace.read_text().splitlines()[-1])
    found = json.loads(out)["runs"][0]
    assert found["fp32_bytes"] == pytest.approx(end["dense_bytes"])
    assert found["bytes_sent"] == pytest.approx(end["bytes_sent"])


def drop_lines(trace, keep) -> None:
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(line for line in lines if keep(json.loads(line))))


def test_what_a_trace_lacks_is_said(capsys, trace, page):
    record(trace, policy="fixed", method="topk", ratio=0.1)
    drop_lines(trace, lambda event: event["kind"] not in ("log", "decision", "end"))
    assert report(capsys, trace, "-o", page)[0] == 0
    text = page.read_text()
    assert "No loss was logged: call handle.log(loss=...)" in text
    assert '<span class="kind">decision</span>' not in text
    assert "The run did not come to its end" in text


@pytest.mark.parametrize("steps", [0, 1])
def test_a_trace_of_hardly_a_step_gives_a_page(capsys, trace, page, steps):
    record(trace, policy="auto")
    drop_lines(trace, lambda event: event["kind"] == "start" or event["step"] < steps)
    code, out, err = report(capsys, trace, "-o", page)
    assert (code, err) == (0, "")
    assert ("holds no step" in out) == (steps == 0)
    assert ("decided nothing that was written down" in page.read_text()) == (steps == 0)
    assert ("No step was timed" in page.read_text()) == (steps == 1)


def test_a_trace_that_was_cut_off_gives_a_page_that_says_so(capsys, trace, page):
    record(trace, policy="auto")
    trace.write_text(trace.read_text()[:-200])
    assert report(capsys, trace, "-o", page)[0] == 0
    assert "is incomplete, as a run that is killed leaves it" in page.read_text()


def test_old_traces_still_give_a_page(capsys, trace, page):
    record(trace, policy="fixed", method="topk", ratio=0.1)
    lines = []
    for event in map(json.loads, trace.read_text().splitlines()):
        for name in ("inputs", "compute_ms", "critical", "needs", "hosts"):
            event.pop(name, None)
        if event["kind"] != "log":
            lines.append(json.dumps(event))
    trace.write_text("\n".join(lines) + "\n")
    assert report(capsys, trace, "-o", page)[0] == 0
    assert "An earlier version wrote this trace" in page.read_text()


def test_names_and_texts_cannot_break_the_page(capsys, tmp_path, page):
    trace = tmp_path / "<script>alert(1)</script>{{plots}}.jsonl".replace("/", "_")
    record(trace, policy="fixed", method="topk", ratio=0.1)
    fault = {"v": 1, "kind": "fault", "step": 3, "fault": "peer", "text": "</script><b>{{body}}"}
    trace.write_text(trace.read_text() + json.dumps(fault) + "\n")
    assert report(capsys, trace, "-o", page)[0] == 0
    text = page.read_text()
    assert "<script>alert" not in text
    assert "<b>{{body}}" not in text
    assert "&lt;b&gt;{{body}}" in text


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["missing.jsonl"], "cannot read the trace"),
        (["{trace}", "{trace}"], "given twice"),
        (["{trace}", "-o", "/nowhere/page.html"], "cannot be written"),
        (["{trace}"] + [f"{n}.jsonl" for n in range(8)], "at most 8"),
    ],
)
def test_mistakes_are_one_line(capsys, trace, page, argv, says):
    record(trace, policy="fixed", method="dense", steps=2)
    argv = [text.format(trace=trace) for text in argv]
    code, out, err = report(capsys, *(argv if "-o" in argv else [*argv, "-o", page]))
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_without_plotly_one_line_says_what_to_install(capsys, trace, page, monkeypatch):
    record(trace, policy="fixed", method="dense", steps=2)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    code, _, err = report(capsys, trace, "-o", page)
    assert code == 2
    assert "pip install 'tidegate[report]'" in err
    assert not page.exists()
