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
from benchmarks.evidence import sockets_changing as changing  # noqa: E402
from benchmarks.evidence import sockets_report as page  # noqa: E402
from benchmarks.evidence import sockets_rows as rows  # noqa: E402
from benchmarks.evidence.report import MISSING  # noqa: E402
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


def put(
    store: Store, name: str, result: dict, seed: int = 0, date: str = "2026-01-01 10:00 UTC"
) -> None:
    machine = {"cpu": "none", "cores": 2, "steal_percent": 0.0}
    about = {"seed": seed, "machine": machine, "date": date, "version": "x", "seconds": 1.0}
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
    assert row.whole == pytest.approx([178.0] * 3)
    assert row.from_start_up == pytest.approx(119.5)
    assert rows.static_row(store, "loopback", "int4") is None
    put(store, sockets.timed_name("loopback", "int4"), timed(60.0))
    assert rows.static_row(store, "loopback", "int4").seconds[0] == pytest.approx(14.7)


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
    row = changing.static_on_changing(store, "int4")
    assert row.phases == [pytest.approx(expected)]
    assert row.seconds == [pytest.approx(expected[0] + 50 * 5.0)]  # 200 steps: 50 of them slow


def changing_link(store: Store, final: float = 0.87, seeds: tuple = sockets.SEEDS) -> None:
    """All static choices take 100 ms a step, but int4 50 ms, and top-k 0.1 % 10 ms, which never
    gets there; `auto` 40, 45 and 90 ms."""
    ends = {"topk-0.001": 0.7}
    for way in sockets.STATIC:
        for seed in sockets.SEEDS:
            run = whole_run(100.0, 200, ends.get(way, 0.87))
            put(store, sockets.learning_name(way, seed), run, seed)
        for link in (sockets.FAR, sockets.SLOW):
            ms = {"int4": 50.0, "topk-0.001": 10.0}.get(way, 100.0)
            put(store, sockets.phase_name(link, way), {**timed(ms), "step_ms": [ms] * 35})
    for seed in seeds:
        run = whole_run((40.0, 45.0, 90.0)[seed], 200, final)
        put(store, sockets.changing_name("auto", seed), run, seed)


GOOD = rows.Quality([0.871, 0.869, 0.87])


def test_on_a_changing_link_the_median_over_seeds_counts(store):
    changing_link(store)
    goal, every = changing.changing_goals(store, GOOD)
    assert goal[2:] == [
        "0.90 (0.80 to 1.80) of its time (static int4); ends +0.00 ± 0.06 points from fp32, that "
        "choice +0.00 ± 0.06, noise 0.10",
        "met",
    ]
    # What loses too much is no rival in the one, and is in the other.
    assert every[2].startswith("4.50 (4.00 to 9.00) of its time (static top-k 0.1 %, ends at 70.0")
    assert "gets to 86 %: 0.90 (0.80 to 1.80) (static int4, ends at 87.0 %)" in every[2]
    assert every[3] == "**short**"
    put(store, sockets.changing_name("auto", 0), whole_run(60.0))
    goal, _ = changing.changing_goals(store, GOOD)
    assert goal[2].startswith("1.20 (0.90 to 1.80) of its time (static int4); ")
    assert goal[3] == "**short**"


def test_the_table_of_a_changing_link_has_the_range_over_seeds(store):
    changing_link(store)
    # 18 s for all steps, half of it to step 200; 36 s for the slowest.
    line = next(line for line in changing.changing_table(store).splitlines() if "`auto`" in line)
    assert "| 18.0 s (16.0 s to 36 s) | 9.0 s (8.0 s to 18.0 s) | 87.00 % |" in line


def test_on_a_changing_link_auto_must_end_as_good_as_fp32_itself(store):
    changing_link(store, final=0.868)
    goal, _ = changing.changing_goals(store, GOOD)
    assert "; ends -0.20 ± 0.06 points from fp32, " in goal[2]
    assert goal[3] == "**short**"


def test_on_a_changing_link_seeds_that_are_missing_leave_no_verdict(store):
    changing_link(store, seeds=(0,))
    for goal in changing.changing_goals(store, GOOD):
        assert goal[2].endswith("policy `auto`: 1 of 3 seeds")
        assert goal[3] == MISSING
    assert "policy `auto` (1 of 3 seeds)" in changing.changing_table(store)


def test_without_a_static_choice_nobody_knows_which_is_the_fastest(store):
    changing_link(store)
    store.path(sockets.phase_name(sockets.SLOW, "int8")).unlink()
    goal, _ = changing.changing_goals(store, GOOD)
    assert goal[2].endswith("static int8: missing")
    assert goal[3] == MISSING


def test_a_run_that_was_evaluated_only_at_its_end_tells_no_time_to_the_target(store):
    changing_link(store)
    old = whole_run(40.0)
    put(store, sockets.changing_name("auto", 0), {**old, "curve": old["curve"][-1:]})
    line = next(line for line in changing.changing_table(store).splitlines() if "`auto`" in line)
    assert f"| {MISSING} | 87.00 % |" in line


def test_few_timed_steps_are_counted_on_the_page(store):
    for way, steps in (("fp32", 3), ("int4", 12)):
        result = {**timed(100.0), "step_ms": [100.0] * (5 + steps)}
        put(store, sockets.phase_name(sockets.SLOW, way), result)
    assert "20 Mbit/s, 20 ms: 12, but 3 of DDP fp32\n" in changing.timed_words(store)
    put(store, sockets.phase_name(sockets.SLOW, "fp32"), timed(100.0))
    put(store, sockets.phase_name(sockets.SLOW, "int4"), timed(100.0))
    assert changing.timed_words(store) == ""


def row(way: str, seconds: list[float], start_up: float = 0.0) -> rows.Row:
    return rows.Row(
        way,
        ms=100.0,
        p99=200.0,
        sent=1e6,
        steps=[200.0],
        seconds=seconds,
        further=[rows.NEVER] * len(seconds),
        whole=[2 * each for each in seconds],
        start_up=[start_up] * len(seconds),
        finals=[0.87] * len(seconds),
    )


def test_ratios_are_of_medians_and_beside_them_of_the_same_seeds():
    found = {"auto": row("auto", [10.0, 20.0, 40.0], 5.0), "fp32": row("fp32", [400.0] * 3, 100.0)}
    goal = page.target_goal(found, "fp32")
    assert goal[2:] == ["20.0x (10.0x to 40.0x by seed); 20.0x with start-up", "met"]
    found["fp32"] = row("fp32", [390.0] * 3)
    goal = page.target_goal(found, "fp32")
    assert goal[2:] == ["19.5x (9.8x to 39.0x by seed); 15.6x with start-up", "**short**"]
    found["fp32"] = row("fp32", [200.0, 400.0, 600.0])  # seed by seed: 20, 20 and 15 times
    goal = page.target_goal(found, "fp32")
    assert goal[2:] == ["20.0x (15.0x to 20.0x by seed); 16.0x with start-up", "met"]
    whole = page.whole_row(found, "100mbit", "fp32")
    assert whole[1:] == ["-", "20.0x (15.0x to 20.0x by seed)", ""]
    further = page.further_row(found, "fp32")
    assert further[1:] == ["-", "never there (with some seeds never there)", ""]


def test_the_rival_is_the_best_of_torchs_powersgd():
    ranks = {4: [30.0] * 3, 2: [18.0] * 3, 1: [rows.NEVER] * 3}
    found = {
        f"powersgd-torch-{rank}": row(f"powersgd-torch-{rank}", s) for rank, s in ranks.items()
    }
    found["auto"] = row("auto", [10.0] * 3)
    goal = page.target_goal(found, "powersgd-torch")
    assert "(rank 2)" in goal[0]
    assert goal[2].startswith("1.80x")
    found["powersgd-torch-4"] = None
    assert page.target_goal(found, "powersgd-torch")[3] == MISSING


@pytest.mark.parametrize("who", ["auto", "fp32"])
def test_a_seed_that_is_missing_leaves_no_verdict(who):
    found = {"auto": row("auto", [10.0] * 3), "fp32": row("fp32", [400.0] * 3)}
    assert page.target_goal(found, "fp32")[3] == "met"
    found[who].seconds.pop()
    found[who].start_up.pop()
    found[who].finals.pop()
    goal = page.target_goal(found, "fp32")
    assert goal[2].endswith("2 of 3 seeds")
    assert "by seed" not in goal[2]
    assert goal[3] == MISSING


def test_a_seed_that_is_missing_is_said_in_tables_and_leaves_auto_without_a_verdict(store):
    for seed in (0, 1):
        put(store, sockets.policy_name("1gbit", "auto", seed), whole_run(50.0), seed)
    for way in sockets.STATIC:
        put(store, sockets.timed_name("1gbit", way), timed(100.0))
        for seed in sockets.SEEDS:
            put(store, sockets.learning_name(way, seed), whole_run(), seed)
    found = rows.rows_of(store, "1gbit")
    assert "| policy `auto` (2 of 3 seeds) |" in page.link_table(found)
    assert page.constant_goal(found, "1gbit", GOOD)[2].endswith("policy `auto`: 2 of 3 seeds")
    assert page.constant_goal(found, "1gbit", GOOD)[3] == MISSING
    assert page.modelled_goal(store, "1gbit")[3] == MISSING
    put(store, sockets.policy_name("1gbit", "auto", 2), whole_run(50.0), 2)
    found = rows.rows_of(store, "1gbit")
    assert page.constant_goal(found, "1gbit", GOOD)[3] == "met"
    assert page.modelled_goal(store, "1gbit")[3] == "met"
    store.path(sockets.learning_name("int8", 2)).unlink()
    found = rows.rows_of(store, "1gbit")
    assert page.constant_goal(found, "1gbit", GOOD)[3] == MISSING


def test_quality_is_not_that_of_two_seeds():
    assert rows.quality(row("fp32", [1.0] * 3)) is not None
    assert rows.quality(row("fp32", [1.0] * 2)) is None


@pytest.mark.parametrize("ms, verdict", [(109.0, "met"), (111.0, "**short**"), (89.0, "**short**")])
def test_a_whole_run_is_held_against_its_timed_steps(store, ms, verdict):
    way, link = sockets.CHECKED[1]
    assert page.check_goal(store, way, link)[2:] == [MISSING, MISSING]
    put(store, sockets.timed_name(link, way), {**timed(100.0), "step_ms": [100.0] * 35})
    put(store, sockets.check_name(way, link), whole_run(ms))
    goal = page.check_goal(store, way, link)
    assert goal[2:] == [f"{ms / 100:.2f} ({0.4 * ms:.1f} s against 40.0 s)", verdict]
    assert f"{NAMED}, trained at 100 Mbit/s: {MISSING}." in page.check_words(store)
    put(store, sockets.learning_name(way, 0), whole_run(50.0, 250))
    assert f"{NAMED} was also trained at 100 Mbit/s" in page.check_words(store)
    assert "86 % after 200 steps" in page.check_words(store)


NAMED = rows.NAMES[sockets.CHECKED[1][0]]


def test_the_page_says_when_cells_were_measured(store):
    put(store, sockets.timed_name("1gbit", "int4"), timed(1.0), date="2026-01-02 23:05 UTC")
    put(store, sockets.policy_name("1gbit", "auto", 1), whole_run(), 1, "2026-01-02 22:10 UTC")
    assert "* 1 Gbit/s: 2026-01-02 22:10 to 23:05 UTC\n" in page.date_words(store)
    put(store, sockets.timed_name("1gbit", "fp32"), timed(1.0), date="2026-01-01 10:00 UTC")
    assert "* 1 Gbit/s: 2026-01-01 10:00 to 2026-01-02 23:05 UTC\n" in page.date_words(store)
    assert f"* 200 Mbit/s: {MISSING}\n" in page.date_words(store)


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
            found = {"name": "auto", "value": 0.1, "unit": "%", "p99_milliseconds": 0.2}
            result = {"rows": [{**found, "goal": 0.5, "met": True}]}
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
