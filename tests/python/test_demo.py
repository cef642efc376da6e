# SPDX-License-Identifier: Apache-2.0
"""The demonstration in real processes, the ways in which it may end, and what it compares with."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from ranks import results, run_ranks
from rich.console import Console
from training import batches, mlp, sgd, train, wrap

from tidegate import baselines, demo

STEPS = 6
DEMO = [sys.executable, "-m", "tidegate", "demo"]


# --- a whole run ---


def test_three_runs_on_a_fast_link(tmp_path):
    options = ["--ranks", "2", "--steps", "8", "--link", "1gbit,0.1ms", "--json", "-", "--quiet"]
    done = subprocess.run(DEMO + options, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["v"] == 1
    assert summary["emulated_link"] == "1gbit,0.1ms"
    assert (summary["ranks"], summary["steps"]) == (2, 8)
    fp32, bf16, ours = summary["runs"]
    assert [run["name"] for run in summary["runs"]] == ["DDP fp32", "DDP bf16", "Tidegate"]
    assert bf16["bytes_sent"] == fp32["bytes_sent"] / 2
    assert 0 < ours["bytes_sent"] < fp32["bytes_sent"]  # by the policy "auto"
    for run in summary["runs"]:
        assert 0.1 < run["accuracy"] < 1  # better than chance, after so few steps
        assert 0 < run["loss"] < 2.31
        assert run["step_ms"] == pytest.approx(1e3 * run["seconds"] / 8)
    assert bf16["loss"] == pytest.approx(fp32["loss"], rel=0.01)
    assert summary["speedup_vs_fp32"] == pytest.approx(fp32["seconds"] / ours["seconds"])
    assert summary["speedup_vs_bf16"] == pytest.approx(bf16["seconds"] / ours["seconds"])
    trace = [json.loads(line) for line in (tmp_path / summary["trace"]).read_text().splitlines()]
    assert [event["kind"] for event in trace].count("step") == 8
    assert [path.name for path in tmp_path.iterdir()] == [summary["trace"]]


@pytest.mark.all
def test_the_link_changes_in_every_run_and_the_result_says_so(tmp_path):
    (tmp_path / "evening").write_text("0 1gbit,0.1ms\n3 100mbit,1ms  # until the end\n")
    options = ["--ranks", "2", "--steps", "6", "--link-schedule", "evening", "--json", "-"]
    done = subprocess.run(DEMO + options, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    described = "1 Gbit/s, 0.1 ms from step 0; 100 Mbit/s, 1 ms from step 3"
    assert summary["emulated_link"] == described
    start = json.loads((tmp_path / summary["trace"]).read_text().splitlines()[0])
    assert start["emulated_link"] == described
    told = [line for line in done.stderr.splitlines() if "the link is" in line]
    assert told == [
        f"{name}: from step {step} on the link is {link}"
        for name in ("DDP fp32", "DDP bf16", "Tidegate")
        for step, link in ((0, "1 Gbit/s, 0.1 ms"), (3, "100 Mbit/s, 1 ms"))
    ]


def test_only_changes_that_a_run_comes_to_are_announced():
    settings = {"link": [(0, 1e6, 0.001), (3, 1e9, 0.0), (9, 1e6, 0.001)], "steps": 9}
    assert [step for step, _ in demo.link_changes(settings)] == [0, 3]
    assert demo.link_changes({"link": "100mbit,2ms", "steps": 9}) == []


# --- ends before its time ---


def workers_of(pid: int) -> dict[int, int]:
    """The process of every rank that a demo has started."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "environ").read_bytes().split(b"\0")
            ours = b"tidegate.demo_worker" in (entry / "cmdline").read_bytes().split(b"\0")
            if parent == pid and ours:
                rank = next(word for word in words if word.startswith(b"RANK="))
                found[int(rank[5:])] = int(entry.name)
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition, seconds: float = 30.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def started(folder: Path):
    """A demo that would run for minutes, and its workers."""
    command = [*DEMO, "--ranks", "2", "--trace", str(folder / "trace.jsonl")]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # In the background of a script SIGINT is ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            wait_until(lambda: len(workers_of(process.pid)) == 2)
            yield process, workers_of(process.pid)
        finally:
            process.kill()


def test_a_killed_worker_ends_the_demo_with_one_clear_line(tmp_path):
    with started(tmp_path) as (process, workers):
        while "DDP fp32" not in process.stderr.readline():
            pass  # until the first run begins
        os.kill(workers[1], signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    told = [line for line in err.splitlines() if line.startswith("tidegate demo: ")]
    assert len(told) == 1
    assert re.search(r"rank 1 was killed in step \d+ of DDP fp32 by SIGKILL", told[0])
    assert "Traceback" not in err
    assert not any(map(alive, workers.values()))
    assert list(tmp_path.glob("tidegate-*")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_its_workers_along(tmp_path, how):
    with started(tmp_path) as (process, workers):
        process.send_signal(how)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("tidegate demo: interrupted\n")
    assert "Traceback" not in err
    assert not any(map(alive, workers.values()))
    assert list(tmp_path.glob("tidegate-*")) == []


def test_workers_do_not_outlive_a_demo_that_is_killed(tmp_path):
    with started(tmp_path) as (process, workers):
        process.kill()
        process.communicate(timeout=30)
        wait_until(lambda: not any(map(alive, workers.values())))


# --- what it shows meanwhile ---

UNDER_WAY = {
    "name": "Tidegate",
    "step": 100,
    "loss": 0.4123,
    "seconds": 4.7,
    "bytes_sent": 12e6,
    "fp32_bytes": 200e6,
    "choices": ["topk 0.01 in 16 bits by owner", "dense by engine"],
}
FIGURES = ("47 ms/step emulated", "12.0 MB sent, 94 % saved", "loss 0.412", "topk 0.01 in 16 bits")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_under_way_shows_loss_pace_bytes_and_what_it_does(terminal):
    shown = io.StringIO()
    console = Console(file=shown, width=160, force_terminal=terminal, color_system=None)
    with demo.make_display(console, 200, quiet=False) as display:
        assert isinstance(display, demo.Bars if terminal else demo.Lines)
        display.begin("Tidegate")
        display.advance(UNDER_WAY)
        display.end({**UNDER_WAY, "step": 200, "seconds": 9.4})
    for text in (*FIGURES, "200/200"):
        assert text in shown.getvalue()


def test_nothing_is_saved_by_one_rank_and_baselines_choose_nothing():
    plain = {key: value for key, value in UNDER_WAY.items() if key != "choices"}
    shown = demo.figures({**plain, "fp32_bytes": 0.0, "loss": None})
    assert shown == {
        "loss": "loss not finite",
        "pace": "47 ms/step emulated",
        "sent": "12.0 MB sent",
    }


# --- what it says about the result ---


def summary(seconds=(50.0, 25.0, 10.0), accuracy=(0.86, 0.86, 0.858)) -> dict:
    names = ("DDP fp32", "DDP bf16", "Tidegate")
    runs = [
        {"name": n, "accuracy": a, "seconds": s, "step_ms": 5 * s, "bytes_sent": 1e8, "loss": 0.4}
        for n, s, a in zip(names, seconds, accuracy, strict=True)
    ]
    return {"emulated_link": "100mbit,2ms", "ranks": 4, "steps": 200, "runs": runs, "trace": "t"}


def test_the_table_says_that_times_are_emulated_and_how_much_was_gained(capsys):
    demo.show(summary())
    out = capsys.readouterr().out
    assert "EMULATED link of 100mbit,2ms" in out
    assert re.search(r"Tidegate +85.80 % +10.0 +50 +100.0 +5.00x +2.50x", out)
    assert "LOST" not in out
    assert max(map(len, out.splitlines()[:7])) <= 80


@pytest.mark.parametrize(
    ("seconds", "accuracy", "defeats"),
    [
        (
            (50, 25, 30),
            (0.86, 0.86, 0.86),
            ["LOST time against DDP bf16: 30.0 s instead of 25.0 s"],
        ),
        ((50, 55, 60), (0.86, 0.86, 0.86), ["against DDP fp32", "against DDP bf16"]),
        ((50, 25, 10), (0.86, 0.86, 0.84), ["LOST accuracy: 2.0 points below DDP fp32"]),
        ((50, 25, 10), (0.86, 0.86, 0.8551), []),
        ((50, 25, 10), (0.86, 0.80, 0.87), []),
    ],
)
def test_a_defeat_is_said_plainly(seconds, accuracy, defeats):
    lines = demo.defeats(summary(seconds, accuracy))
    assert len(lines) == len(defeats)
    for line, text in zip(lines, defeats, strict=True):
        assert text in line


# --- the baselines ---


def train_each_way(rank, ranks):
    """Weights, bytes and seconds after the same steps: with DDP alone, in fp32, in bf16, and in
    fp32 on a slow link."""
    outcome, hooks = {}, []
    for name, element, link in [
        ("ddp", None, None),
        ("fp32", "fp32", "1gbit,0.1ms"),
        ("bf16", "bf16", None),
        ("slow", "fp32", "10mbit,1ms"),
    ]:
        model = wrap(mlp())
        if element:
            hooks.append(baselines.AllReduceHook(model, element, timeout=20, link=link))
        began = time.monotonic()
        train(model, sgd(model), batches(rank, STEPS))
        seconds = time.monotonic() - began
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        outcome[name] = (weights, hooks[-1].bytes_sent if element else 0.0, seconds)
    for hook in hooks:
        hook.close()
    return outcome


def test_baselines_average_as_ddp_does_at_the_pace_of_the_link():
    outcomes = results(train_each_way, 3)
    ring = 4 / 3 * STEPS  # what a ring of three sends of every byte
    for outcome in outcomes:
        expected = outcome["ddp"][0]
        weights, nbytes, _ = outcome["fp32"]
        assert torch.equal(weights, expected)
        assert nbytes == pytest.approx(ring * 4 * len(weights))
        halves, nbytes, _ = outcome["bf16"]
        assert torch.equal(halves, outcomes[0]["bf16"][0])
        assert not torch.equal(halves, expected)
        assert torch.allclose(halves, expected, atol=2e-3)
        assert nbytes == pytest.approx(ring * 2 * len(weights))
        weights, nbytes, seconds = outcome["slow"]
        assert torch.equal(weights, expected)
        wire = nbytes / 1.25e6
        assert wire < seconds < 2 * wire + 1  # a bound that a busy machine can hold


def train_until_one_dies(rank, ranks):
    model = wrap(mlp())
    baselines.AllReduceHook(model, "fp32", timeout=5, link="1gbit,0.1ms")
    optimizer = sgd(model)
    for step, data in enumerate(batches(rank, 100)):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        train(model, optimizer, [data])


def test_a_lost_peer_is_an_error_of_the_baseline_not_a_hang():
    survivor = run_ranks(train_until_one_dies, 2, limit=20)[0]
    assert survivor.kind == "peer", survivor
    assert survivor.text.startswith("rank 0: ")
    assert survivor.exit_code == 3
