# SPDX-License-Identifier: Apache-2.0
"""`tidegate simulate`: what it runs, what it refuses and what it says about the result."""

import json
import re
import sys

import pytest
from test_cli import said
from test_virtual_cluster import make_task

from tidegate import simulate

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = ("--ranks", "2", "--steps", "6", "--task", "test_simulate:judged_task", "--quiet")


def judged_task(seed):
    """With a figure that depends on the weights."""
    task = make_task(seed)
    task.evaluate = lambda model: {"weight": float(model[0].weight.abs().mean())}
    return task


def misjudged_task():
    task = judged_task(0)
    task.figure = "height"
    return task


def diverging_task():
    task = make_task()
    task.optimizer.param_groups[0]["lr"] = 1e30
    return task


def summary_of(capsys, *options):
    code, out, err = said(capsys, "simulate", *QUICK, "--json", "-", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_policies_beside_both_baselines(capsys):
    policies = ("--policy", "topk:ratio=0.05", "--policy", "fixed:method=int8")
    summary = summary_of(capsys, *policies, "--seeds", "2", "--compute", "30ms")
    fp32, bf16, topk, int8 = summary["runs"]
    assert [run["name"] for run in summary["runs"]] == [
        "dense fp32",
        "dense bf16",
        "topk:ratio=0.05",
        "fixed:method=int8",
    ]
    assert [run["baseline"] for run in summary["runs"]] == [True, True, False, False]
    assert topk["options"] == {"method": "topk", "ratio": "0.05"}
    assert summary["seeds"] == [0, 1]
    assert (summary["compute_seconds"], summary["compute_measured"]) == (0.03, False)
    assert summary["figure"] == "weight"
    assert bf16["bytes_sent"] == fp32["bytes_sent"] / 2
    assert topk["bytes_sent"] < int8["bytes_sent"] < bf16["bytes_sent"] * 1.1
    for run in summary["runs"]:
        values = [figures["weight"] for figures in run["figures"]]
        assert values[0] != values[1]
        assert run["figure"] == pytest.approx(sum(values) / 2)
        assert run["spread"] > 0
        exposed = run["modelled_exposed_seconds"]
        assert run["modelled_seconds"] == pytest.approx(6 * 0.03 + exposed)
        assert 0 < run["modelled_wire_seconds"] < run["modelled_seconds"]
        ratio = fp32["modelled_seconds"] / run["modelled_seconds"]
        assert run["speedup_vs_fp32"] == pytest.approx(ratio)
        ratio = bf16["modelled_seconds"] / run["modelled_seconds"]
        assert run["speedup_vs_bf16"] == pytest.approx(ratio)


def test_runs_with_one_seed_can_be_repeated(capsys):
    arguments = ("--seed", "7", "--no-baselines", "--policy", "topk:ratio=0.01")
    once, again = (summary_of(capsys, *arguments) for _ in range(2))
    assert [run["name"] for run in once["runs"]] == ["topk:ratio=0.01"]
    assert once["compute_measured"]
    assert once["compute_seconds"] > 0
    assert once["runs"][0]["spread"] is None
    assert once["runs"][0]["speedup_vs_fp32"] is None
    for key in ("figures", "loss", "bytes_sent", "modelled_wire_seconds"):
        assert once["runs"][0][key] == again["runs"][0][key]
    assert (
        summary_of(capsys, "--seed", "8", "--no-baselines")["runs"][0]["figures"]
        != (once["runs"][0]["figures"])
    )


def test_the_time_of_computing_is_measured_once_for_all(capsys):
    summary = summary_of(capsys, "--policy", "bf16")
    _, bf16, ours = summary["runs"]
    # But for what compressing was measured to take.
    assert ours["modelled_seconds"] == pytest.approx(bf16["modelled_seconds"], rel=0.1)


def test_a_table_for_people(capsys):
    code, out, err = said(capsys, "simulate", *QUICK, "--compute", "30ms")
    assert (code, err) == (0, "")
    for text in ("dense fp32", "dense bf16", "auto", "modelled", "MODELLED", "(given)"):
        assert text in out
    assert re.search(r"dense fp32 +\d\.\d{3} +\d\.\d{3} +\d\.\d +1\.0000 +\d\.\d +1\.00x", out)


def test_progress_goes_to_standard_error(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = said(capsys, "simulate", *QUICK[:-1], "--json", "-")
    assert code == 0
    [auto] = [row for row in json.loads(out)["runs"] if row["name"] == "auto"]
    words = " ".join(err.split())
    for part in (
        "auto, seed 0",
        "loss ",
        " ms modelled",
        f"{100 - 100 * auto['ratio']:.0f} % saved",
    ):
        assert part in words
    assert any(choice.split()[0] in words for choice in auto["choices"])


def test_a_trace_of_every_policy_and_seed(capsys, tmp_path):
    one = tmp_path / "one.jsonl"
    summary = summary_of(capsys, "--trace", str(one))
    assert summary["runs"][2]["traces"] == [str(one)]
    kinds = [json.loads(line)["kind"] for line in one.read_text().splitlines()]
    assert kinds.count("step") == 6
    several = ("--policy", "int8", "--policy", "bf16", "--seed", "3", "--seed", "5")
    summary_of(capsys, *several, "--trace", str(tmp_path / "all.jsonl"))
    assert sorted(path.name for path in tmp_path.glob("all*")) == [
        f"all.{policy}-seed{seed}.jsonl" for policy in (1, 2) for seed in (3, 5)
    ]


def test_without_an_evaluation_the_training_loss_counts(capsys):
    summary = summary_of(capsys, "--task", "test_virtual_cluster:make_task")
    assert (summary["figure"], summary["lower_is_better"]) == ("training loss", True)
    assert summary["runs"][0]["figure"] == summary["runs"][0]["loss"]


def test_a_figure_that_is_not_evaluated_is_a_mistake(capsys):
    code, _, err = said(capsys, "simulate", *QUICK, "--task", "test_simulate:misjudged_task")
    assert code == 2
    assert 'figure "height" is not evaluated; known: weight' in err


def test_a_run_that_diverges_is_told_and_written(capsys):
    options = (*QUICK, "--task", "test_simulate:diverging_task", "--policy", "int8")
    summary = summary_of(capsys, *options[2:])
    assert summary["runs"][2]["loss"] is None
    code, out, _ = said(capsys, "simulate", *options)
    assert code == 0
    assert "int8 LOST everything" in out


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--link", "fast"], "write for example 100mbit,2ms"),
        (["--ranks", "0"], "--ranks 0: must be between 1 and 1024"),
        (["--steps", "0"], "--steps 0: must be between 1 and"),
        (["--steps", "many"], "invalid int value: 'many'; see tidegate simulate --help"),
        (["--seed", "-1"], "--seed -1: must be between 0 and"),
        (["--seed", "1", "--seed", "1"], "the same seed twice"),
        (["--seed", "1", "--seeds", "2"], "give one of them"),
        (["--seeds", "0"], "--seeds 0: must be between 1 and"),
        (["--compute", "30"], "write for example 30ms or 0.2s"),
        (["--compute=-1ms"], "write for example 30ms or 0.2s"),
        (["--compute", "nanms"], "write for example 30ms or 0.2s"),
        (["--policy", "topk"], "needs a ratio"),
        (["--policy", "topk:ratio=2"], "must be above 0 and at most 1"),
        (["--policy", "topk:ratio"], "has no value"),
        (["--policy", "wise"], 'unknown policy "wise"'),
        (["--policy", "fixed:method=topkk"], 'unknown method "topkk"'),
        (["--policy", "int8", "--policy", "int8"], "given twice"),
        (["--task", "imagenet"], "unknown task 'imagenet'; known: fashion-mnist, char-gpt"),
        (["--task", "no_such_job:make"], "No module named 'no_such_job'"),
        (["--json", "missing/result.json"], "name a file in a folder that exists"),
        (["--trace", "missing/trace.jsonl"], "name a file in a folder that exists"),
        (["--rnaks", "2"], "unrecognized arguments: --rnaks 2"),
    ],
)
def test_a_bad_value_is_told_in_one_line(capsys, monkeypatch, tmp_path, options, advice):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, "simulate", *options)
    assert (code, out) == (2, "")
    assert err.startswith("tidegate")
    assert err.count("\n") == 1
    assert advice in err
    assert list(tmp_path.iterdir()) == []


def test_a_task_in_the_users_folder_is_found(capsys, monkeypatch, tmp_path):
    (tmp_path / "job_here.py").write_text("from test_virtual_cluster import make_task\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert summary_of(capsys, "--task", "job_here:make_task")["task"] == "job_here:make_task"


# --- what it says about the result ---


def summary(seconds, figures, figure="accuracy", lower_is_better=False):
    names = ("dense fp32", "dense bf16", "ours")
    runs = [
        {"name": n, "baseline": n != "ours", "modelled_seconds": s, "figure": f, "loss": 0.4}
        for n, s, f in zip(names, seconds, figures, strict=True)
    ]
    return {"figure": figure, "lower_is_better": lower_is_better, "runs": runs}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (summary((50, 25, 10), (0.86, 0.86, 0.859)), []),
        (
            summary((50, 25, 30), (0.86, 0.86, 0.86)),
            ["ours LOST time against dense bf16: modelled 30.0 s instead of 25.0 s"],
        ),
        (summary((50, 55, 60), (0.86, 0.86, 0.86)), ["against dense fp32", "against dense bf16"]),
        (
            summary((50, 25, 10), (0.86, 0.86, 0.84)),
            ["ours LOST accuracy: 2.0 points below dense fp32"],
        ),
        (summary((50, 25, 10), (0.86, 0.80, 0.87)), []),
        (
            summary((50, 25, 10), (2.0, 2.0, 2.1), "bits_per_character", True),
            ["ours LOST bits per character: 0.100 above dense fp32"],
        ),
        (summary((50, 25, 10), (2.0, 2.0, 1.9), "bits_per_character", True), []),
        (summary((50, 25, 10), (0.86, 0.86, None)), ["LOST everything"]),
    ],
)
def test_a_defeat_is_said_plainly(result, expected):
    lines = simulate.defeats(result)
    assert len(lines) == len(expected)
    for line, text in zip(lines, expected, strict=True):
        assert text in line
