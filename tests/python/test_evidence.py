# SPDX-License-Identifier: Apache-2.0
"""How the evidence is gathered (benchmarks/evidence), with cells that measure nothing; and that
what the README and docs/evidence show is what was measured."""

import functools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tidegate

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.evidence import (  # noqa: E402
    claims_accordion,
    claims_gravac,
    claims_report,
    claims_runs,
    command,
    jobs,
    tables,
    virtual,
    virtual_report,
)
from benchmarks.evidence.cell import Cell, all_cells, check, estimate, in_order  # noqa: E402
from benchmarks.evidence.report import Plot, Report, table, versions_of  # noqa: E402
from benchmarks.evidence.store import Store, write_whole  # noqa: E402
from benchmarks.evidence.virtual_report import crossing  # noqa: E402


def note(folder: str, word: str) -> dict:
    """As a cell: leaves a trace of having run."""
    with open(Path(folder) / "ran", "a") as file:
        file.write(f"{word}\n")
    return {"word": word}


def fail() -> dict:
    raise RuntimeError("no such network")


def die() -> dict:
    os._exit(3)


def not_json() -> dict:
    return {"value": float("nan")}


def occupy(folder: str, word: str) -> dict:
    """As a cell that shares the machine or not: says how many were there at once."""
    mine = Path(folder) / f"busy-{word}"
    mine.touch()
    seen = 0
    for _ in range(20):
        seen = max(seen, len(list(Path(folder).glob("busy-*"))))
        time.sleep(0.01)
    mine.unlink()
    return {"seen": seen}


def made(folder: Path, name: str, function=note, **options) -> Cell:
    run = functools.partial(function, str(folder), name)
    return Cell(name, 1.0, run, **{"quick": False, **options})


def ran(folder: Path) -> list[str]:
    path = folder / "ran"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def run(tmp_path):
    store = Store(tmp_path / "cells")

    def call(cells, *arguments):
        return command.main(["--no-tables", *arguments], cells, store, preload=())

    call.store = store
    return call


def test_what_looks_at_others_results_waits_for_all_of_them(run, tmp_path):
    looking = Cell("last", 1.0, functools.partial(occupy, str(tmp_path), "last"), False, last=True)
    others = [made(tmp_path, name, occupy, seed=seed) for seed, name in enumerate("abc")]
    assert in_order([looking, *others])[-1] is looking
    assert run([looking, *others]) == 0
    assert run.store.result("last") == {"seen": 1}


def test_results_are_stored_with_what_is_needed_to_repeat_them(run, tmp_path):
    assert run([made(tmp_path, "a/b/seed3", seed=3)]) == 0
    record = run.store.read("a/b/seed3")
    assert record["result"] == {"word": "a/b/seed3"}
    assert record["seed"] == 3
    assert record["command"].endswith("--only a/b/seed3")
    assert record["machine"]["cores"] >= 1 and 0 <= record["machine"]["steal_percent"] <= 100
    assert set(record) == {
        *("cell", "command", "seed", "date", "machine", "version", "seconds", "result")
    }


def test_what_has_a_result_is_not_run_again_unless_it_is_asked_for(run, tmp_path):
    cells = [made(tmp_path, "one"), made(tmp_path, "two")]
    run(cells, "--only", "one")
    run(cells)
    assert ran(tmp_path) == ["one", "two"]
    run(cells, "--again", "t*")
    assert ran(tmp_path) == ["one", "two", "two"]


def test_a_cell_that_fails_is_reported_and_does_not_stop_the_others(run, tmp_path, capsys):
    cells = [
        Cell("bad", 1.0, fail, quick=False),
        Cell("dead", 1.0, die, quick=False),
        Cell("odd", 1.0, not_json, quick=False),
        made(tmp_path, "good"),
    ]
    assert run(cells) == 1
    assert run.store.names() == ["good"]
    said = capsys.readouterr().err
    assert "RuntimeError: no such network" in said
    assert "its process died with exit code 3" in said
    assert "1 done, 3 failed, 0 left" in said


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("before")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_seed_comes_first_and_what_needs_the_machine_alone_last(tmp_path):
    cells = [
        made(tmp_path, "a/1", seed=1),
        made(tmp_path, "a/alone", exclusive=True),
        made(tmp_path, "a/0"),
        made(tmp_path, "b/60", seed=60),
    ]
    assert [cell.name for cell in in_order(cells)] == ["a/0", "b/60", "a/alone", "a/1"]
    assert estimate(cells, 2) == 2.5


def test_exclusive_cells_have_the_machine_for_themselves(run, tmp_path):
    cells = [made(tmp_path, word, occupy) for word in ("a", "b")]
    cells += [made(tmp_path, word, occupy, exclusive=True) for word in ("c", "d")]
    assert run(cells, "--processes", "2") == 0
    assert run.store.result("c") == run.store.result("d") == {"seen": 1}


def test_quick_only_and_budget_leave_cells_out(run, tmp_path):
    cells = [made(tmp_path, "slow"), made(tmp_path, "swift", quick=True)]
    run(cells, "--budget", "0")
    assert ran(tmp_path) == []
    run(cells, "--quick")
    assert ran(tmp_path) == ["swift"]
    assert run(cells, "--only", "nothing") == 2


def test_list_runs_nothing(run, tmp_path, capsys):
    run([made(tmp_path, "one", quick=True)], "--list")
    assert "quick" in capsys.readouterr().out
    assert ran(tmp_path) == []


INTERRUPTED = """
import signal
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from benchmarks.evidence import command
from benchmarks.evidence.store import Store
import test_evidence as here
folder = Path({folder!r})
cells = [here.made(folder, "done"), here.made(folder, "long", here.wait_long)]
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    command.end_in_good_order_when_asked()
    sys.exit(command.main(["--no-tables", "--processes", "1"], cells, Store(folder / "cells"), ()))
"""


def wait_long(folder: str, word: str) -> dict:
    try:
        Path(folder, "waiting").touch()
        time.sleep(100)
    finally:
        Path(folder, "cleaned-up").touch()
    return {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cells_in_good_order_and_keeps_what_is_done(tmp_path, number):
    script = tmp_path / "script.py"
    paths = [str(ROOT), str(ROOT / "tests" / "python")]
    script.write_text(INTERRUPTED.format(paths=paths, folder=str(tmp_path)))
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    for _ in range(3000):
        if (tmp_path / "waiting").exists():
            break
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "1 done, 0 failed, 1 left, interrupted" in said
    assert (tmp_path / "cleaned-up").exists()
    assert Store(tmp_path / "cells").names() == ["done"]


# --- tables ---


def small_report(value: float) -> Report:
    def draw(figure):
        figure.add_subplot().plot([0, 1], [0, value])

    return Report(
        pages={"page": f"# Page\n\n{value}\n"},
        plots={"plot": Plot(draw, [0, value], (2.0, 1.0))},
        tables={"speed": table(["link", "seconds"], [["slow", value]])},
    )


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "evidence"
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- evidence: speed -->\n<!-- /evidence -->\nafter\n")
    return {"store": Store(tmp_path / "cells"), "folder": folder, "readme": readme}


def test_written_tables_pass_the_check(documents):
    tables.write(report=small_report(1.5), **documents)
    assert tables.check(report=small_report(1.5), **documents) == 0
    assert "| slow | 1.5 |" in documents["readme"].read_text()
    assert documents["readme"].read_text().startswith("before\n")
    assert documents["readme"].read_text().endswith("<!-- /evidence -->\nafter\n")


@pytest.mark.parametrize("changed", ["README.md", "page.md", "plot.svg"])
def test_check_sees_a_changed_figure(documents, changed, capsys):
    tables.write(report=small_report(1.5), **documents)
    path = documents["readme"] if changed == "README.md" else documents["folder"] / changed
    path.write_text(path.read_text().replace("1.5", "1.4").replace("<!-- data ", "<!-- data 0"))
    assert tables.check(report=small_report(1.5), **documents) == 1
    assert changed in capsys.readouterr().err


def test_check_sees_a_changed_result(documents):
    tables.write(report=small_report(1.5), **documents)
    assert tables.check(report=small_report(1.6), **documents) == 1


def test_a_table_that_nobody_makes_is_named(documents, capsys):
    documents["readme"].write_text("<!-- evidence: nobody -->\n<!-- /evidence -->\n")
    documents["folder"].mkdir()
    assert tables.check(report=Report(), **documents) == 1
    assert 'no table is called "nobody"' in capsys.readouterr().err


def test_a_table_that_the_readme_does_not_show_is_named(documents, capsys):
    report = small_report(1.5)
    tables.write(report=report, **documents)
    report.tables["unseen"] = table(["a"], [["b"]])
    assert tables.check(report=report, **documents) == 1
    said = capsys.readouterr().err
    assert "no marks <!-- evidence: unseen -->" in said and "evidence: speed" not in said


# --- what is published ---


def test_of_many_versions_a_page_names_the_first_and_the_last():
    def records(*versions):
        dates = [{"version": v, "date": f"2026-01-0{day}"} for day, v in enumerate(versions, 1)]
        return dates[::-1]

    assert versions_of(records("b")) == "version b"
    assert versions_of(records("b", "a")) == "version b to a"
    assert versions_of(records("c", "a", "b", "a")) == "version c to a (3 in all)"


def test_names_of_cells_are_unique():
    cell = Cell("twice", 1.0, fail, quick=False)
    with pytest.raises(ValueError, match="twice"):
        check([cell, cell])
    all_cells()  # would raise


def test_readme_and_pages_are_what_the_results_say():
    assert tables.check(Store()) == 0


def test_stored_results_belong_to_cells_that_exist():
    known = {cell.name for cell in all_cells()}
    assert set(Store().names()) <= known


def test_stored_results_are_complete():
    for path in Store().folder.rglob("*.json"):
        record = json.loads(path.read_text())
        assert record["cell"] == path.relative_to(Store().folder).with_suffix("").as_posix()
        assert record["result"], path


# --- what the pages say of results ---


def test_seconds_on_a_link_that_changes_are_those_of_its_phases():
    timed = {jobs.segment_key(segment): 1.0 for segment in jobs.all_segments(100)}
    slow = jobs.segment_key((1e9 / 8, 1e-3))
    every = jobs.seconds_on("C1", 100, {**timed, slow: 10.0})
    assert len(every) == 100
    assert set(every[:20]) == {1.0} and set(every[30:45]) == {10.0} and every[-1] == 1.0


def test_a_small_model_stands_for_a_large_one_by_its_bytes_and_its_compressing(monkeypatch):
    made = {}
    monkeypatch.setattr(
        tidegate, "VirtualCluster", lambda *given, **named: made.update(named, link=given[2])
    )
    model = torch.nn.Linear(99, 25, bias=True)
    jobs.make_cluster(SimpleNamespace(model=model), 16, [(0, 1e9, 1e-3)], 0, 10)
    assert made["scale"] == jobs.STANDS_FOR / 2500 and made["compute_seconds"] == 0.02
    assert [tuple(each) for each in made["link"].segments] == [(0, 1e9, 1e-3)]


def test_static_choices_pay_for_what_takes_longer_in_a_training():
    job = jobs.JOBS["cnn"]
    result = {
        "figure": 0.8,
        "seed": 60,
        "bytes_sent": 1.0,
        "dense_bytes": 2.0,
        "curve": [[job.steps, 0.5]],
    }
    steps = {jobs.segment_key(s): 0.1 for s in jobs.all_segments(job.steps)}
    times = {"step_seconds": steps, "longer": 0.02}
    row = virtual_report.static_row(job, "int4", [result], times, 0.5)
    assert row.seconds["C2"] == pytest.approx(job.steps * 0.12)
    untimed = virtual_report.static_row(job, "int4", [result], None, 0.5)
    assert not untimed.seconds


@pytest.fixture
def timed_clusters(monkeypatch):
    """Clusters whose steps take as long as their options say, from pass to pass; the first step
    much longer, and all a second longer in a training. Says which were made, in order."""
    asked = []

    class Cluster:
        def __init__(self, task, link, route, passes):
            made_before = asked.count((link, route)) if task is still else 0
            asked.append((link, route))
            took = passes[min(made_before, len(passes) - 1)]
            self._took = took if task is still else passes[-1] + 1
            self.step_seconds = []

        def step(self):
            self.step_seconds.append(self._took if self.step_seconds else 100.0)

    still = SimpleNamespace(model=None)
    monkeypatch.setattr(jobs, "make_task", lambda *_: SimpleNamespace(model=None))
    monkeypatch.setattr(jobs, "frozen", lambda *_: still)
    monkeypatch.setattr(
        jobs,
        "make_cluster",
        lambda task, _, link, *__, **options: Cluster(task, link[0], **options),
    )
    return asked


def test_all_choices_are_timed_on_all_links_in_every_pass(timed_clusters):
    ways = {
        "one": [{"route": "slow", "passes": [2.0]}],
        "two": [{"route": "slower", "passes": [3.0]}, {"route": "fast", "passes": [1.0]}],
    }
    found = jobs.time_steps(jobs.JOBS["cnn"], 4, 0, ways)
    links = jobs.all_segments(jobs.JOBS["cnn"].steps)
    one_pass = [((0, *link), route) for link in links for route in ("slow", "slower", "fast")]
    assert timed_clusters[: 3 * len(one_pass)] == 3 * one_pass
    assert len(found["one"]["step_seconds"]) == len(found["one"]["spread"]) == len(links)
    assert set(found["one"]["step_seconds"].values()) == {2.0}
    assert set(found["two"]["step_seconds"].values()) == {1.0}
    assert found["one"]["longer"] == found["two"]["longer"] == 1.0
    assert "slower" not in [route for _, route in timed_clusters[3 * len(one_pass) :]]


def test_seconds_of_a_choice_are_the_median_of_passes_and_go_by_one_route(timed_clusters):
    """A route that was lucky once, or slow once, is judged by its other passes."""
    routes = [
        {"route": "lucky", "passes": [0.5, 3.0, 3.0]},
        {"route": "steady", "passes": [2.0, 2.5, 7.0]},
    ]
    fast = jobs.CONSTANT[jobs.FASTEST]
    link = (fast[0] / 8, fast[1])
    found = jobs.time_steps(jobs.JOBS["cnn"], 4, 0, {"way": routes}, only={"way": {link}})
    key = jobs.segment_key(link)
    assert found["way"]["step_seconds"] == {key: 2.5}
    assert found["way"]["spread"] == {key: 2.0}  # (7 - 2) / 2.5
    assert timed_clusters[-1] == ((0, *link), "steady")


def test_what_auto_has_chosen_is_timed_where_it_has_chosen_it(tmp_path):
    store, steps = Store(tmp_path), jobs.JOBS["cnn"].steps
    low, all_of_it = "powersgd rank 8 in 16 bits by tree", "bf16 by engine | int4 by owner"
    plans = [[0, low], [steps - 1, all_of_it]]
    store.write(virtual.policy_name("cnn", 4, "auto", "C1", 60), {"result": {"plans": plans}})
    wanted = virtual.plans_of_auto(store, "cnn", 4)
    on_c1 = jobs.segment_of_steps("C1", steps)
    assert wanted == {low: set(on_c1), all_of_it: {on_c1[-1]}}

    def timed(seconds: float) -> dict:
        on_links = {jobs.segment_key(segment): seconds for segment in on_c1}
        return {"step_seconds": on_links, "longer": 0.5}

    times = {low: timed(1.0), all_of_it: timed(2.0)}
    found = jobs.seconds_of_plans("C1", steps, plans, times)
    assert found == [1.5] * (steps - 1) + [2.5]
    assert jobs.seconds_of_plans("C1", steps, plans, {low: timed(1.0)}) is None
    assert jobs.seconds_of_plans("wan", steps, plans, times) is None, "not timed there"

    times = virtual.times_cell("cnn", 4)
    assert times.last and times.seed == jobs.SEEDS[0]


def test_what_auto_has_chosen_is_repeated_as_it_was():
    alike = jobs.way_of_plan("topk 0.025 in 16 bits by owner | topk 0.025 in 16 bits by owner")
    assert alike == {
        "policy": "fixed",
        "method": "topk",
        "ratio": 0.025,
        "bits": 16,
        "route": "owner",
    }
    assert jobs.choice_in("dense by tree") == {"method": "dense", "route": "tree"}
    assert jobs.choice_in("powersgd rank 6") == {"method": "powersgd", "rank": 6}
    with pytest.raises(ValueError, match="no choice"):
        jobs.choice_in("by the tree")
    job = jobs.JOBS["cnn"]
    way = jobs.way_of_plan("bf16 by engine | int4 by owner")
    trained = jobs.train(job, 2, 0, "1gbit", steps=4, tell_plans=True, **way)
    assert trained["plans"] == [[0, "bf16 by engine | int4 by owner"]]


def test_seconds_of_auto_are_those_of_its_choices_beside_static_ones():
    job = jobs.JOBS["cnn"]
    run = {"figure": 0.8, "seed": 60, "seconds": 5.0, "seconds_at": [4.0, 5.0]}
    run |= {"curve": [[200, 1.0], [400, 0.5]], "bytes_sent": 1.0, "dense_bytes": 2.0}
    run |= {"plans": [[0, "int4 by owner"]]}
    on_links = {jobs.segment_key(jobs.segment_of_steps("1gbit", 1)[0]): 0.01}
    times = {"plans": {"int4 by owner": {"step_seconds": on_links, "longer": 0.01}}}
    row = virtual_report.policy_row(job, "auto", {"1gbit": [run], "wan": [run]}, 0.5, times)
    assert (
        row.seconds["1gbit"] == pytest.approx(8.0)
        and row.to_target["1gbit"] == row.seconds["1gbit"]
    )
    assert virtual_report.seconds_of(row, "1gbit") == "8"
    assert virtual_report.seconds_of(row, "wan") == "5†", "by the clock of its run"
    assert virtual_report.seconds_of(row, "C1") == "missing"


def test_a_training_that_diverged_is_stored_and_never_reaches_a_target(tmp_path):
    curve = jobs.rounded([[10, 0.5], [20, math.nan]])
    assert curve == [[10, 0.5], [20, None]]
    Store(tmp_path).write("cell", {"result": {"curve": curve}})
    losses = [loss for _, loss in virtual_report.mean_curve([{"curve": curve}])]
    assert crossing(losses, [1.0, 2.0], 0.4) is None
    assert crossing([math.inf, 0.3], [1.0, 2.0], 0.4) == 2.0


def test_a_target_is_reached_between_two_evaluations():
    assert crossing([1.0, 0.5, 0.4], [10.0, 20.0, 30.0], 0.75) == 15.0
    assert crossing([1.0, 0.5], [10.0, 20.0], 1.5) == 10.0
    assert crossing([1.0, 0.5], [10.0, 20.0], 0.1) is None


def with_seeds(figures: list[float]) -> virtual_report.Figures:
    return list(enumerate(figures))


def made_setting(**figures: list[float]) -> virtual_report.Setting:
    """Of an accuracy; a method's seconds are the number of letters of its name."""
    rows = {
        name: virtual_report.Row(name, with_seeds(values), 1.0, {"1gbit": float(len(name))})
        for name, values in figures.items()
    }
    noise = statistics.stdev(figures["dense"])
    return virtual_report.Setting(
        jobs.JOBS["cnn"], 4, rows["dense"], noise, False, 0.1, rows, {}, missing=0, cells=0
    )


def test_best_static_choice_is_the_fastest_that_is_as_good_as_dense():
    setting = made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.8], int=[0.7, 0.7])
    assert setting.best_static("1gbit").name == "bf16"
    assert "LOST" in virtual_report.quality(setting, with_seeds([0.7]))
    assert "LOST" not in virtual_report.quality(setting, with_seeds([0.8, 0.8]))


def test_what_was_learned_is_held_against_dense_of_the_same_seeds():
    setting = made_setting(dense=[0.8, 0.82, 0.9], bf16=[0.8, 0.82])
    assert setting.worse(with_seeds([0.8, 0.82])) == pytest.approx(0)


def test_a_diverged_training_is_worse_than_all_others():
    setting = made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.8])
    for job in jobs.JOBS.values():
        setting.job = job
        diverged = virtual_report.figures_of(job, [{"figure": None, "seed": 0}])
        assert not setting.as_good(diverged)


@pytest.mark.parametrize(
    ("seconds", "figures", "words"),
    [
        (4.1, [0.81], "holds"),
        (3.9, [0.81], "holds"),  # one choice timed twice may differ by that
        (3.87, [0.81], "ahead"),
        (3.8, [0.7], "**LOST quality**"),
        (4.5, [0.81], "**12 % slower**"),
        (4.0, [0.7], "**LOST quality**"),
    ],
)
def test_verdict_on_auto(seconds, figures, words):
    setting = made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.8])
    auto = virtual_report.Row("auto", with_seeds(figures), 1.0, {"1gbit": seconds})
    auto.figures_on["1gbit"] = with_seeds(figures)
    setting.policies["auto"] = auto
    found = virtual_report.verdict(setting, "1gbit")
    assert found.words == words
    assert found.holds == ("**" not in words)


def with_auto(setting, figures, seconds=4.0, to_target=1.0):
    row = virtual_report.Row("auto", with_seeds(figures), 1.0, {"1gbit": seconds})
    row.figures_on["1gbit"] = with_seeds(figures)
    row.to_target["1gbit"] = to_target
    setting.policies["auto"] = row
    return setting


def test_a_difference_from_dense_has_the_error_of_runs_of_the_same_seeds():
    """Seeds that are far apart tell nothing of it where the same ones are compared."""
    setting = made_setting(dense=[0.7, 0.8, 0.9], bf16=[0.7, 0.8, 0.9])
    figures = with_seeds([0.69, 0.79, 0.87])
    assert setting.error(figures) == pytest.approx(statistics.stdev([1, 1, 3]) / 100 / 3**0.5)
    assert virtual_report.with_error(setting, figures) == "-1.67 ± 0.67"
    assert virtual_report.with_error(setting, with_seeds([0.69])) == "-1.00"
    assert "-1.67 ± 0.67; holds" in virtual_report.auto_table(
        [with_auto(setting, [0.69, 0.79, 0.87])]
    )
    setting.job = jobs.JOBS["gpt"]
    assert virtual_report.with_error(setting, with_seeds([0.69, 0.79, 0.87])) == "-0.017 ± 0.007"
    assert virtual_report.with_error(setting, with_seeds([math.inf, 0.8])) == "+inf"
    assert virtual_report.from_dense(setting, setting.dense.figures) == "+0.000"


def test_the_summary_counts_what_is_ahead_and_what_is_significantly_worse():
    dense = {"dense": [0.7, 0.8, 0.9], "bf16": [0.7, 0.8, 0.9]}
    same, below, far_below, wavers, once = (
        with_auto(made_setting(**dense), figures, seconds)
        for figures, seconds in (
            ([0.7, 0.8, 0.9], 3.9),
            ([0.69, 0.79, 0.895], 3.8),
            ([0.6, 0.69, 0.78], 3.8),  # LOST
            ([0.6, 0.8, 0.91], 4.0),
            ([0.6], 4.0),
        )
    )
    text = virtual_report.summary([same, below, far_below, wavers, once], [])
    assert "Of 5 cells that are complete `auto` holds in 4:" in text
    assert "In 1 cells where it holds it is ahead" in text and "by more than 3 %. In" in text
    assert "In 2 of the 4 cells with two seeds or more it is significantly worse" in text
    assert "in cnn, 4 ranks, 1 Gbit/s: -11.00 ± 0.58 points" in text
    text = virtual_report.summary([same, once], [0.01, 0.01, 0.04])
    assert "In 0 of the 1 cells with two seeds or more it is significantly worse" in text
    assert "most, held" not in text
    assert "more than 3 % (passes over the same choice" in text
    assert "are 1.0 % apart in the median, and 1 of 3 are more than 3 % apart)." in text


def test_the_time_to_a_target_counts_where_auto_is_behind_and_where_it_never_gets_there():
    settings = []
    for ranks, seconds in ((4, 1.04), (4, None), (16, 1.2), (64, 1.5)):
        setting = with_auto(made_setting(dense=[0.7, 0.8], int4=[0.7, 0.8]), [0.7], 4.0, seconds)
        setting.ranks = ranks
        setting.static["dense"].to_target["1gbit"] = 9.0
        setting.static["int4"].to_target["1gbit"] = 1.0
        settings.append(setting)
    text = virtual_report.target_summary(settings)
    assert "In 1 of 3 cells with 4 or 16 ranks `auto` is more than 5 % behind" in text
    assert "most in cnn, 16 ranks, 1 Gbit/s: 1.20 of int4. With 64 ranks, where 2 static" in text
    assert "in 1 of 1 cells, most in cnn, 64 ranks, 1 Gbit/s: 1.50 of int4." in text
    assert "does not reach the target: 1." in text
    lines = [line for line in virtual_report.target_table(settings).splitlines() if "int4" in line]
    assert [line.split(" | ")[-1] for line in lines] == [
        *("1.04 |", "**LOST** |", "**1.20** |", "**1.50** |")
    ]
    assert lines[1].split(" | ")[-2] == "never"


def test_the_page_says_how_far_passes_are_apart_if_that_was_stored(tmp_path):
    store, old = Store(tmp_path), {"step_seconds": {"link": 1.0}, "longer": 0.1}
    record = {"result": {"dense": old, "plans": {"int4": old}}}
    store.write(virtual.times_name("cnn", 4), record)
    assert virtual_report.noise_of_times(virtual_report.spreads_of(store)) == ""
    record["result"]["dense"] = old | {"spread": {"link": 0.01, "other": 0.02}}
    record["result"]["plans"]["int4"] = old | {"spread": {"link": 0.3}}
    store.write(virtual.times_name("cnn", 16), record)
    text = virtual_report.noise_of_times(virtual_report.spreads_of(store))
    assert "2.0 % apart in the median and 30 % at most" in text


def test_the_page_explains_a_dagger_only_where_there_is_one(tmp_path):
    setting = with_auto(made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.82]), [0.81])
    assert "†" not in virtual_report.page(Store(tmp_path), [setting])
    setting.policies["auto"].apart.add("1gbit")
    text = virtual_report.page(Store(tmp_path), [setting])
    assert "4†" in text and virtual_report.OWN_CLOCK in text


def test_the_page_says_which_differences_are_means_over_links():
    setting = with_auto(made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.82]), [0.81])
    assert "Of `auto`, difference and bytes are means" in virtual_report.section(setting)
    for name in ("gravac", "accordion"):
        setting.policies[name] = setting.policies["auto"]
    assert "Of `auto` and `gravac`, difference" in virtual_report.section(setting)


def test_what_a_policy_lost_is_counted_by_link_and_marked_where_links_change():
    setting = made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.82])
    for row in setting.static.values():
        row.seconds |= {"C1": 8.0, "C2": 9.0}
        row.steps |= {"C1": [4.0, 4.0], "C2": [4.5, 4.5]}
    fine, worse = with_seeds([0.8, 0.82]), with_seeds([0.7, 0.72])
    on = {"C1": 5.0, "C2": 6.0}
    auto = virtual_report.Row("auto", fine, 1.0, on, figures_on={"C1": worse, "C2": fine})
    blind = virtual_report.Row("accordion", worse, 1.0, on, figures_on={"C1": worse, "C2": worse})
    setting.policies = {"auto": auto, "accordion": blind}
    assert virtual_report.quality_of(setting, auto) == "+0.00 LOST on 1 of 2 links"
    assert virtual_report.quality_of(setting, blind) == "-10.00 LOST", "learns the same everywhere"
    first, second = virtual_report.changing_table([setting]).splitlines()[2:4]
    assert first.endswith("| 5 LOST | missing | missing | 5 LOST |")
    assert second.endswith("| 6 | missing | missing | 6 LOST |")


def test_noise_with_64_ranks_is_that_of_16_ranks_of_all_jobs(tmp_path):
    store, job = Store(tmp_path), jobs.JOBS["cnn"]
    curve = {"bytes_sent": 1.0, "dense_bytes": 2.0, "curve": [[job.steps, 0.5]]}
    for ranks, figures in ((16, [0.80, 0.81, 0.82]), (64, [0.6, 0.8, 0.9])):
        for seed, figure in zip(jobs.SEEDS, figures, strict=True):
            name = virtual.static_name("cnn", ranks, "dense", seed)
            store.write(name, {"result": {"figure": figure, **curve}, "seed": seed})
    few = virtual_report.read(store, job, 16)
    many = virtual_report.read(store, job, 64, noise_from=few)
    assert few.noise == many.noise == pytest.approx(0.01) and not many.assumed
    assert "noise of 16 ranks 1.00 points" in virtual_report.section(many)
    unknown = virtual_report.read(Store(tmp_path / "none"), job, 16)
    assert virtual_report.read(store, job, 64, noise_from=unknown).assumed


def test_the_readme_has_one_row_for_each_job_and_number_of_ranks(tmp_path):
    setting = with_auto(made_setting(dense=[0.8, 0.82], bf16=[0.8, 0.82]), [0.79, 0.81], 4.0)
    auto = setting.policies["auto"]
    for row in setting.static.values():
        row.seconds["wan"] = 8.0
    auto.seconds["wan"], auto.figures_on["wan"] = 16.0, with_seeds([0.8, 0.82])
    *_, row = virtual_report.readme_table([setting]).splitlines()
    assert row == (
        "| Fashion-MNIST, CNN, SGD | 4 | 1 of 6 links, 4 missing | 1.00 to 2.00 | "
        "-1.00 to +0.00 points | 0.50x to 1.25x | 0.50x to 1.00x |"
    )
    empty = virtual_report.make_report(Store(tmp_path)).tables["virtual"]
    assert len(empty.splitlines()) == 2 + 9


def test_what_was_not_measured_is_called_missing(tmp_path):
    store = Store(tmp_path / "cells")
    for module in (virtual_report, claims_report):
        report = module.make_report(store)
        for text in (*report.pages.values(), *report.tables.values()):
            assert "missing" in text
            assert "nan" not in text


def test_static_levels_at_equal_bytes_are_drawn_between():
    runs = [
        claims_runs.Run([{"figure": 0.8, "bytes_sent": 1e6}]),
        claims_runs.Run([{"figure": 0.9, "bytes_sent": 3e6}]),
    ]
    assert claims_accordion.at_equal_bytes(runs, 2.0) == pytest.approx(85)
    assert claims_accordion.at_equal_bytes(runs, 9.0) == pytest.approx(90)


def test_volume_is_the_papers():
    """GraVAC's own shares at eps 0.9, and the 19x that it states (19.3 by these shares)."""
    shares = {10: 0.487, 20: 0.043, 40: 0.013, 160: 0.014, 1000: 0.443}
    assert claims_gravac.volume_of(shares) == pytest.approx(19.3, abs=0.1)
    choices = {"dense by engine": 1, "topk 0.1 in 16 bits by allgather": 3}
    assert claims_gravac.factors_of(choices) == {1.0: 0.25, 10.0: 0.75}
