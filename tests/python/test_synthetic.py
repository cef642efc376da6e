# SPDX-License-Identifier: Apache-2.0
"""`tidegate simulate --synthetic`, as it is called from a shell."""

import json

import pytest

from tidegate import _core, cli, synthetic

JOB = ("simulate", "--synthetic", "--ranks", "64", "--steps", "50")
LINK = ("--link", "1gbit,50us")


def job_with(*options: str) -> list[str]:
    """The usual link, unless there is a schedule."""
    return [*JOB, *(() if "--link-schedule" in options else LINK), *options]


def simulated(capsys, *options: str) -> dict:
    code = cli.main([*job_with(*options), "--json", "-", "--quiet"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return json.loads(out)


def test_policies_run_beside_dense_fp32_and_bf16(capsys):
    summary = simulated(capsys, "--policy", "topk:ratio=0.01,route=owner", "--policy", "int8")
    assert [row["name"] for row in summary["runs"]] == [
        "dense fp32",
        "dense bf16",
        "topk:ratio=0.01,route=owner",
        "int8",
    ]
    fp32, bf16, topk, int8 = summary["runs"]
    assert fp32["ratio"] == pytest.approx(1, rel=1e-3)
    assert bf16["ratio"] == pytest.approx(0.5, rel=1e-3)
    assert topk["ratio"] < 0.05
    assert topk["speedup_vs_fp32"] > 1
    assert topk["choices"] == {"topk 0.01 in 16 bits by owner": 50}
    assert topk["backlog"] > 0
    assert int8["backlog"] is None
    for row in summary["runs"]:
        assert row["modelled_step_seconds_p99"] >= row["modelled_step_seconds"] > 0.08
        assert row["statistics_rounds"] > 0
    assert summary["peak_memory_bytes"] >= summary["peak_memory_bytes_before"] > 0
    assert summary["compression_cost_modelled"] is False


def test_bytes_are_those_of_the_rounds(capsys):
    summary = simulated(capsys, "--parameters", "1e5", "--policy", "topk:ratio=0.01")
    rounds = _core.rounds("topk", 0.01, "auto", 0, [("gradient", 100_000, 0)], 64)
    sent = sum(sent for _, _, sent in rounds)
    assert summary["runs"][2]["bytes_sent_per_step"] == pytest.approx(sent)


def test_a_run_repeats_itself(capsys):
    def without_wall_clock(summary):
        del summary["seconds"], summary["peak_memory_bytes"], summary["peak_memory_bytes_before"]
        for row in summary["runs"]:
            del row["seconds"]
        return summary

    once, again = (without_wall_clock(simulated(capsys, "--seed", "3")) for _ in range(2))
    assert once == again
    assert without_wall_clock(simulated(capsys, "--seed", "4")) != once


def test_the_table_says_what_is_modelled_and_what_it_took(capsys):
    assert cli.main([*JOB, "--policy", "topk:ratio=0.1", "--quiet"]) == 0
    out, _ = capsys.readouterr()
    for text in (
        "dense bf16",
        "MODELLED",
        "compression cost not modelled",
        "peak memory",
        "topk 0.1 in 16 bits by allgather in 50 of 50 steps",
        "LOST time against dense fp32",  # 64 times 10 % is more than everything
    ):
        assert text in " ".join(out.split())


def test_changes_of_the_link_are_scheduled_and_counted(capsys, tmp_path):
    schedule = tmp_path / "links"
    schedule.write_text("0 1gbit,50us\n25 100mbit,50us\n")
    changing = ("--link-schedule", str(schedule), "--ranks", "16", "--steps", "60")
    summary = simulated(capsys, *changing, "--policy", "topk:ratio=0.1", "--no-baselines")
    assert summary["changes_scheduled"] == [25]
    (row,) = summary["runs"]
    assert row["changes_found"] == 1
    assert 25 < row["changes_seen"][0]["step"] < 45
    assert 0.6 < row["priced_well"] < 1


def test_what_was_found_counts_every_scheduled_change_once():
    seen = [{"step": step} for step in (12, 14, 35)]
    assert synthetic.found([10, 20, 30], seen, 50) == 2
    assert synthetic.found([], seen, 50) == 0


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--ranks", "0"], "--ranks 0: must be between 1"),
        (["--steps", "0"], "--steps 0: must be between 1"),
        (["--parameters", "nan"], "--parameters nan: must be between 1"),
        (["--link", "fast"], "write for example 100mbit,2ms"),
        (["--link-schedule", "C7"], "such as C2*0.01"),
        (["--compute", "0ms"], "write for example 30ms"),
        (["--compute", "long"], "write for example 30ms"),
        (["--stragglers", "2"], "chance of a straggler 2: must be between 0 and 1"),
        (["--spread", "-1"], "must be between 0 and 1"),
        (["--noise", "nan"], "must be between 0 and 1"),
        (["--lr-drop", "-1"], "--lr-drop -1: must be between 0 and 50"),
        (["--seed", "1", "--seed", "2"], "takes one seed"),
        (["--task", "char-gpt"], "--task: a synthetic job has none"),
        (["--policy", "topk"], "needs a ratio"),
        (["--policy", "topkk:ratio=0.1"], 'unknown policy "topkk"'),
        (["--policy", "int8", "--policy", "int8"], "given twice"),
        (["--policy", "dense:route=hosts"], "choose a route without hosts"),
        (["--json", "/nowhere/out.json"], "cannot be written"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_runs(capsys, options, advice):
    code = cli.main(job_with(*options))
    out, err = capsys.readouterr()
    assert code != 0
    assert out == ""
    assert advice in err
    assert err.count("\n") == 1


def test_an_error_of_the_progress_callback_ends_the_run():
    def stop(_):
        raise KeyboardInterrupt

    links = _core.LinkSchedule("1gbit,1ms")
    with pytest.raises(KeyboardInterrupt):
        _core.simulate_synthetic(
            "fixed",
            {"method": "dense"},
            ranks=4,
            steps=1000,
            buckets=[1000],
            links=links,
            progress=stop,
        )
