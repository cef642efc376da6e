# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of reports, against traces small enough to be computed by head."""

import math

import pytest
from made_trace import made_bucket, made_step, made_trace

from tidegate import report_figures as figures
from tidegate.report_plots import Run
from tidegate.report_words import headline, how_known, percent

FP32 = 2 * 3 / 4 * 4 * 1000  # bytes of an all-reduce of 1000 elements between 4 ranks


def timed(count: int, recorded=0.010, fp32=0.030, bf16=0.020) -> list[dict]:
    modelled = {"recorded": recorded, "fp32": fp32, "bf16": bf16}
    return [made_step(step, modelled_seconds=modelled) for step in range(count)]


def as_run(trace: dict, name="run") -> Run:
    return Run(name, trace, figures.rows(trace), "measured")


def words(trace: dict, others=()) -> str:
    run = as_run(trace)
    saved = figures.savings(trace, run.rows)
    return "\n".join([headline(run, saved), *how_known(run, saved, list(others))])


def test_a_step_took_what_the_step_after_it_says():
    steps = [
        made_step(0),
        made_step(1, step_seconds=0.010, compute_seconds=0.008),
        made_step(2, step_seconds=0.030, compute_seconds=0.009),
    ]
    rows = figures.rows(made_trace(steps))
    assert [row.seconds for row in rows] == [0.010, 0.030, None]
    assert [row.compute for row in rows] == [0.008, 0.009, None]
    assert [row.elapsed for row in rows] == pytest.approx([0, 0.010, 0.040])
    assert [row.bytes_before for row in rows] == [0, 100, 200]
    assert [row.fp32_bytes for row in rows] == [FP32] * 3
    assert rows[1].exposed == pytest.approx(0.021)
    assert rows[2].exposed is None


def test_savings_are_of_the_steps_that_were_timed_and_modelled():
    trace = made_trace([made_step(0), *timed(4)[1:]])
    saved = figures.savings(trace, figures.rows(trace))
    assert saved.bytes_sent == 400
    assert saved.fp32_bytes == 4 * FP32
    assert saved.half_bytes == 2 * FP32
    assert saved.timed_steps == 2  # the first was not modelled, the last not timed
    assert saved.seconds == pytest.approx(0.020)
    assert saved.speedup_fp32 == pytest.approx(3)
    assert saved.speedup_half == pytest.approx(2)
    assert saved.model_error == pytest.approx(0)
    assert saved.trusted


def test_a_headline_says_how_it_is_known():
    said = words(made_trace(timed(10)))
    assert "1 kB sent instead of 60 kB" in said
    assert "3 times as fast as by fp32 (modelled)" in said
    assert "median, measured" in said
    assert "LOST" not in said


def test_a_model_that_misses_what_was_done_says_nothing_of_what_was_not():
    said = words(made_trace(timed(10, recorded=0.004)))
    assert "times as fast" not in said
    assert "cannot be told" in said
    assert "60 % off" in said


def test_a_defeat_is_told_as_one():
    said = words(made_trace(timed(10, fp32=0.008, bf16=0.005)))
    assert "1.25 times as slow as by fp32 (modelled)" in said
    assert "LOST against 16 bits" in said
    said = words(made_trace(timed(10, fp32=0.0101)))
    assert "no faster than by fp32" in said


def test_without_a_network_bytes_are_all_that_is_told():
    said = words(made_trace([made_step(step) for step in range(5)]))
    assert "1.7 % of what fp32 would have" in said
    assert "cannot be modelled" in said


@pytest.mark.parametrize(
    ("steps", "ranks", "says"),
    [([], 4, "holds no step"), ([made_step(0)], 4, "No step was timed"), (timed(3), 1, "one rank")],
)
def test_a_trace_with_little_in_it_says_so(steps, ranks, says):
    assert says in words(made_trace(steps, ranks=ranks))


def dense_run(method="dense", **start) -> dict:
    bucket = {"buckets": [made_bucket(method)], "bytes_sent": FP32}
    slow = [made_step(step, **bucket, step_seconds=0.040 if step else 0.0) for step in range(5)]
    return made_trace(slow, **start)


def test_a_baseline_that_was_run_is_compared_with():
    assert figures.baseline(dense_run()) == "fp32"
    assert figures.baseline(dense_run("bf16")) == "16-bit"
    assert figures.baseline(made_trace(timed(3))) is None
    said = words(made_trace(timed(5)), [as_run(dense_run(), "plain")])
    assert "Beside the fp32 run plain (measured): 10 ms instead of 40 ms a step, 4 times" in said
    assert "A run by plain fp32 all-reduce" in words(dense_run())


def test_a_baseline_of_another_kind_of_job_is_not():
    for other in (dense_run(ranks=8), dense_run(emulated_link="1gbit,1ms")):
        assert "Beside" not in words(made_trace(timed(5)), [as_run(other)])


def test_shares_count_buckets_by_their_elements():
    both = [made_bucket("topk", 0.01, "allgather", 3000), made_bucket("dense")]
    low = [made_bucket("powersgd", 4, "ring"), made_bucket("foreign", None, None, 500)]
    steps = [made_step(0, buckets=both), made_step(1, buckets=low)]
    assert figures.shares(made_trace(steps)) == {
        "method": {"powersgd": 0.5, "topk": 0.375, "dense": 0.125},
        "level": {"powersgd rank 4": 0.5, "topk 1 %": 0.375, "dense": 0.125},
        "route": {"ring": 0.5, "allgather": 0.375, "engine": 0.125},
    }
    assert figures.shares(made_trace([]))["method"] == {}


def test_stretches_and_regimes_end_where_they_are_interrupted():
    critical = [1.0, 1.0, 0.2, 0.9, None]
    methods = ["int8", "int8", "bf16", "int8", "int8"]
    steps = [
        made_step(step, critical=share, buckets=[made_bucket(method)])
        for step, (share, method) in enumerate(zip(critical, methods, strict=True))
    ]
    trace = made_trace(steps)
    assert figures.regimes(trace) == [(0, 1), (3, 3)]
    assert figures.stretches(trace) == {"int8": [(0, 1), (3, 4)], "bf16": [(2, 2)]}


def test_phases_and_efficiency_are_of_timed_steps():
    trace = made_trace(timed(3))
    rows = figures.rows(trace)
    phases = figures.phases(trace, rows)
    assert phases == pytest.approx(
        {
            "computing": 0.008,
            "waiting": 0.002,
            "compressing": 0.001,
            "on the wire": 0.004,
            "decoding": 0.002,
        }
    )
    share = figures.efficiency(trace, rows)
    assert share == pytest.approx({"run": 0.8, "fp32": 8 / 30, "16-bit": 0.4})
    assert figures.efficiency(made_trace([made_step(0)]), rows[:1]) is None


def test_old_traces_do_not_say_what_computing_took():
    steps = [made_step(step, compute_seconds=None) for step in range(3)]
    trace = made_trace(steps)
    assert set(figures.phases(trace, figures.rows(trace))) == {
        "compressing",
        "on the wire",
        "decoding",
    }


def test_what_was_logged_lies_at_the_end_of_its_step():
    logs = [(0, {"loss": 2.0}), (1, {"loss": math.nan, "accuracy": 0.5}), (99, {"loss": 1.0})]
    trace = made_trace(timed(3), logs)
    assert figures.logged(trace, figures.rows(trace)) == {
        "loss": [(0, 0.010, 100, 2.0)],
        "accuracy": [(1, 0.020, 200, 0.5)],
    }


def test_thinning_keeps_means_and_gaps():
    points = [(i, float(i)) for i in range(10)]
    assert figures.thin(points, 20) == points
    assert figures.thin(points, 5) == [(0.5, 0.5), (2.5, 2.5), (4.5, 4.5), (6.5, 6.5), (8.5, 8.5)]
    assert figures.thin([(0, None), (1, None), (2, 4.0), (3, None)], 2) == [(0.5, None), (2.5, 4.0)]
    assert figures.smooth([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]


def test_gain_curves_are_of_the_first_the_middle_and_the_last():
    steps = [made_step(step, gains=[(0.1, 0.5)] if step % 2 else None) for step in range(12)]
    assert [step for step, _ in figures.gain_curves(made_trace(steps))] == [1, 5, 11]


def test_percents_are_never_written_with_powers():
    assert [percent(x) for x in (0.0123, 0.49, 0.996, 12.3)] == ["1.2 %", "49 %", "100 %", "1230 %"]
