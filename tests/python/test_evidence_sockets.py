# SPDX-License-Identifier: Apache-2.0
"""What the evidence on real sockets makes of its cells (benchmarks/evidence/sockets*.py, cost*.py),
with results that nobody measured; and that a job that fails or hangs ends."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.evidence import cost, plots, socket_run, sockets  # noqa: E402
from benchmarks.evidence import sockets_report as page  # noqa: E402
from benchmarks.evidence import sockets_rows as rows  # noqa: E402
from benchmarks.evidence.report import MISSING  # noqa: E402
from benchmarks.evidence.sockets_changing import static_on_changing  # noqa: E402
from benchmarks.evidence.store import Store  # noqa: E402

STEPS = sockets.STEPS


def whole_run(ms: float = 100.0, reached_at: int | None = 200, final: float = 0.87) -> dict:
    """As a job tells it: an accuracy of 80 % until `reached_at`."""
    curve = [
        [step, step * ms / 1e3, final if reached_at and step >= reached_at else 0.8]
        for step in range(100, STEPS + 1, 25)
    ]
    return {
        "step_ms": [ms] * STEPS,
        "curve": curve,
        "cpu_ms": 60.0,
        "compute_ms": 40.0,
        "compute_cpu_ms": 40.0,
        "wire_bytes": 4e6,
        "peak_bytes": 1e8,
        "parameters": 5_000_000,
        "start_up_seconds": 1.5,
        "warning": None,
        "choices": [[0, "int4 by owner"], [150, "powersgd rank 8 by engine"]],
        "bytes": [[0, 4e6], [150, 4e5]],
        "modelled_ms": 1.05 * ms,
    }


def timed(ms: float) -> dict:
    # The first ones are ten times as slow, and count as such.
    return {**whole_run(), "curve": [], "step_ms": [10 * ms] * 5 + [ms] * sockets.TIMED}


def put(store: Store, name: str, result: dict, seed: int = 0) -> None:
    machine = {"cpu": "none", "cores": 2, "steal_percent": 0.0}
    about = {"seed": seed, "machine": machine, "date": "2026-01-01", "version": "x", "seconds": 1.0}
    store.write(name, {**about, "result": result})


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cells")


def test_a_static_choice_takes_its_steps_from_loopback_and_its_time_from_the_link(store):
    for seed, reached_at in enumerate((200, 250, 300)):
        put(store, sockets.learning_name("int4", seed), whole_run(50.0, reached_at), seed)
    put(store, sockets.timed_name("100mbit", "int4"), timed(400.0))
    row = rows.static_row(store, "100mbit", "int4")
    assert row.ms == 400.0
    assert row.steps == [200, 250, 300]
    assert row.seconds == pytest.approx([98.0, 118.0, 138.0])
    assert row.to_target == pytest.approx(118.0)
    assert rows.static_row(store, "loopback", "int4").ms == 50.0
    assert rows.static_row(store, "loopback", "int4").seconds == [10.0, 12.5, 15.0]


def test_a_run_is_as_long_as_the_sum_of_its_steps():
    uneven = {"step_ms": [1000.0] * 5 + [100.0, 100.0, 400.0]}
    assert rows.seconds_after(uneven, 105) == pytest.approx(5 + 100 * 0.2)
    assert rows.seconds_after(uneven, rows.NEVER) == rows.NEVER


def test_a_policy_takes_its_time_from_its_own_clock(store):
    put(store, sockets.policy_name("100mbit", "auto", 0), whole_run(200.0, 300))
    row = rows.policy_row(store, "100mbit", "auto")
    assert row.seconds == [60.0]


def test_a_target_that_is_not_reached_is_said_to_be_never_reached(store):
    put(store, sockets.learning_name("topk-0.001", 0), whole_run(50.0, None))
    put(store, sockets.timed_name("100mbit", "topk-0.001"), timed(150.0))
    put(store, sockets.policy_name("100mbit", "auto", 0), whole_run(200.0, 300))
    text = page.link_table(rows.rows_of(store, "100mbit"))
    line = next(line for line in text.splitlines() if "top-k 0.1 %" in line)
    assert "| never |" in line


def test_phases_of_a_changing_link_are_priced_each_by_its_own_steps(store):
    put(store, sockets.learning_name("int4", 0), whole_run())
    put(store, sockets.phase_name(sockets.FAR, "int4"), timed(100.0))
    put(store, sockets.phase_name(sockets.SLOW, "int4"), timed(5000.0))
    (_, slow, back) = [step for step, _ in sockets.CHANGING]
    begun = 5 * (1.0 - 0.1)  # the first steps take ten times as long, of a job that begins
    expected = [slow * 0.1 + begun, (back - slow) * 5.0, (STEPS - back) * 0.1]
    assert static_on_changing(store, "int4")["seconds"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "auto, control, verdict",
    [(1.01, 1.0, "met"), (1.1, 1.0, "**short**"), (1.04, 1.05, "met")],
)
def test_overhead_is_judged_beyond_the_spread_of_the_control(store, auto, control, verdict):
    blocks = {
        "plain": [100.0] * 12,
        "control": [100.0 * control] * 12,
        "dense": [100.0] * 12,
        "auto": [100.0 * auto] * 12,
    }
    put(store, sockets.OVERHEAD_NAME, {"block_ms": blocks, "choices": {}, "warning": None})
    assert page.overhead_goals(store)[0][-1] == verdict


def test_a_static_choice_that_ends_worse_than_fp32_is_not_the_best(store):
    for seed, final in enumerate((0.880, 0.882, 0.884)):
        put(store, sockets.learning_name("fp32", seed), whole_run(50.0, 200, final), seed)
        put(store, sockets.learning_name("int4", seed), whole_run(50.0, 200, 0.881), seed)
        put(store, sockets.learning_name("topk-0.01", seed), whole_run(50.0, 200, 0.870), seed)
    for way, ms in (("fp32", 2900.0), ("int4", 400.0), ("topk-0.01", 150.0)):
        put(store, sockets.timed_name("100mbit", way), timed(ms))
    found = rows.rows_of(store, "100mbit")
    best = rows.best_static(found, rows.quality(found["fp32"]), lambda row: row.ms)
    assert best.way == "int4"


def test_pages_say_what_is_missing_and_are_whole_when_nothing_is(store):
    assert MISSING in sockets.report(store).pages["sockets"]
    for cell in [*sockets.cells(), *cost.cells()]:
        result = whole_run()
        if cell.name == sockets.OVERHEAD_NAME:
            names = ("plain", "control", "dense", "auto")
            result = {"block_ms": {name: [100.0] * 12 for name in names}, "choices": {}}
        elif cell.name == cost.DECIDING_NAME:
            result = {"rows": [{"name": "auto", "value": 0.1, "unit": "%", "goal": 0.5}]}
        put(store, cell.name, result, cell.seed)
    made = sockets.report(store)
    assert MISSING not in made.pages["sockets"] + made.tables["sockets"]
    assert MISSING not in cost.report(store).pages["cost"]
    for plot in made.plots.values():
        assert "</svg>" in plots.render(plot)


def test_a_job_that_fails_says_why(tmp_path):
    with pytest.raises(socket_run.JobError, match="no_such_job"):
        socket_run.run_job("loopback", job="no_such_job")


def test_a_job_that_hangs_is_ended(monkeypatch):
    started = []

    def start(*_):
        started.extend(subprocess.Popen(["sleep", "60"]) for _ in range(2))
        return started

    monkeypatch.setattr(socket_run, "_start", start)
    monkeypatch.setattr(socket_run, "GRACE", 0.2)
    began = time.monotonic()
    with pytest.raises(socket_run.JobError):
        socket_run.run_job("loopback", seconds=0.2)
    assert time.monotonic() - began < 10
    assert all(process.poll() is not None for process in started)
