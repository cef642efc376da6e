# SPDX-License-Identifier: Apache-2.0
"""What docs/evidence/claims.md says, of made-up results: pairs of seeds, noise, reasons."""

import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.evidence import (  # noqa: E402
    claims,
    claims_accordion,
    claims_flexible,
    claims_gravac,
    claims_report,
    jobs,
    virtual,
)
from benchmarks.evidence.claims_runs import (  # noqa: E402
    Measured,
    Noise,
    Run,
    blind_run,
    same_seeds,
)
from benchmarks.evidence.claims_verdict import Verdict  # noqa: E402
from benchmarks.evidence.store import Store  # noqa: E402

DENSE = {"dense by engine": 799}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


def put(store: Store, name: str, figures: dict[int, float], **others) -> None:
    """A cell for every seed, `name` with {seed} in it."""
    for seed, figure in figures.items():
        result = {"figure": figure, "bytes_sent": 1e6, "seconds": 1.0, "choices": DENSE}
        record = {
            "result": {**result, "training_loss": 0.5, **others},
            "seed": seed,
            "machine": {"cpu": "made up", "cores": 1, "steal_percent": 0.0},
            "date": "2026-01-01 00:00 UTC",
            "version": "none",
            "seconds": 1.0,
        }
        store.write(name.format(seed=seed), record)


def put_accordion(store: Store, accuracies: dict[str, float], **megabytes: float) -> None:
    """In per cent, three seeds that differ by half a point."""
    sent = {"powersgd-4": 40.0, "powersgd-1": 10.0, "accordion": 15.0, **megabytes}
    for name, percent in accuracies.items():
        figures = {60 + i: (percent + 0.5 * (i - 1)) / 100 for i in range(3)}
        size = 1e6 * sent.get(name, 100.0)
        put(store, f"claims/accordion/{name}/seed{{seed}}", figures, bytes_sent=size)


def put_beside_gravac(store: Store, dense: dict[int, float]) -> None:
    """Static choices that all are as accurate as dense but for 1000x, on a link on which a step
    takes as many milliseconds as they send megabytes."""
    times = {}
    for choice, megabytes, worse in (
        ("dense", 100, 0),
        ("topk-0.1", 10, 0),
        ("topk-0.001", 1, 0.2),
    ):
        figures = {seed: figure - worse for seed, figure in dense.items()}
        name = f"virtual/cnn/4/{choice}/seed{{seed}}"
        put(store, name, figures, bytes_sent=1e6 * megabytes)
        steps = {jobs.segment_key(s): 1e-3 * megabytes for s in claims_segments()}
        times[choice] = {"step_seconds": steps, "longer": 0.0}
    store.write(virtual.times_name("cnn", 4), {"result": times, "seed": 60})


def claims_segments() -> list[tuple[float, float]]:
    rate, latency = jobs.CONSTANT[claims.LINK]
    return [(rate / 8, latency)]


GRAVAC = "virtual/cnn/4/gravac/100mbit/seed{seed}"


def gravac_verdict(store: Store) -> Verdict:
    found = Measured(store)
    return claims_gravac.as_dense_but_faster(found.beside, found.noise["GraVAC"])


# --- pairs ---


def made_run(figures: dict[int, float]) -> Run:
    return Run([{"figure": f, "seed": seed} for seed, f in figures.items()])


def test_only_seeds_that_all_have_are_compared():
    one, other = made_run({60: 0.5, 61: 0.7}), made_run({61: 0.6, 62: 0.9})
    first, second = same_seeds(one, other)
    assert (first.accuracy, second.accuracy) == (70, 60)
    assert first.seeds == "1 seed"
    assert same_seeds(one, made_run({63: 0.9})) is None
    assert same_seeds(one, None) is None


def test_gravac_is_held_against_dense_of_the_same_seeds(store):
    put_beside_gravac(store, {60: 0.80, 61: 0.88, 62: 0.90, 63: 0.90, 64: 0.90})
    put(store, GRAVAC, {60: 0.80}, seconds=1.0)
    alone = gravac_verdict(store)
    assert alone.holds, "0.80 is below the mean of dense by more than the noise, but not in pairs"
    assert "+0.00 points from dense" in alone.figures and alone.figures.endswith("; 1 seed")

    put(store, GRAVAC, {61: 0.68, 62: 0.70}, seconds=1.0)
    three = gravac_verdict(store)
    assert not three.holds and three.figures.endswith("; 3 seeds")
    assert "-13.33 points from dense" in three.figures
    assert "less accurate than dense" in three.reason


def test_all_seeds_that_there_are_are_shown(store):
    put_beside_gravac(store, dict.fromkeys((60, 61, 62, 63, 64, 65), 0.9))
    put(store, GRAVAC, {60: 0.9, 61: 0.9}, choices={"dense by engine": 1})
    page = claims_report.make_report(store).pages["claims"]
    assert "| dense | 6 | 90.00 %" in page
    assert "| `gravac:window=50` | 2 | 90.00 %" in page


def test_accordion_has_the_seeds_of_where_it_was_trained_and_seconds_of_the_link(store):
    name = "virtual/cnn/4/accordion/{link}/seed{{seed}}"
    put(store, name.format(link="1gbit"), {60: 0.84, 61: 0.86, 62: 0.88}, seconds=50.0)
    put(store, name.format(link="100mbit"), {60: 0.7}, seconds=100.0)
    run = blind_run(store, "accordion")
    assert run.accuracy == pytest.approx(86)
    assert claims_gravac.shown_seconds(run) == "100 (1 seed)"


def test_bytes_and_seconds_against_accordion_each_have_their_seeds(store):
    put_beside_gravac(store, {60: 0.90, 61: 0.91, 62: 0.92})
    put(store, GRAVAC, {60: 0.90, 61: 0.90, 62: 0.90}, bytes_sent=2e6, seconds=10.0)
    name = "virtual/cnn/4/accordion/{link}/seed{{seed}}"
    put(store, name.format(link="1gbit"), {60: 0.9, 61: 0.9, 62: 0.9}, bytes_sent=4e6)
    put(store, name.format(link="100mbit"), {60: 0.9}, seconds=30.0)

    def verdict() -> Verdict:
        found = Measured(store)
        return claims_gravac.less_than_accordion(found.beside, found.noise["GraVAC"])

    assert verdict().holds
    assert "3 seeds; 10 s against 30, 1 seed" in verdict().figures
    put(store, GRAVAC, {60: 0.90, 61: 0.90, 62: 0.90}, bytes_sent=8e6, seconds=10.0)
    assert not verdict().holds and "25x less than dense" in verdict().reason


# --- noise ---


def test_noise_is_what_the_seeds_of_dense_say(store):
    put_beside_gravac(store, {60: 0.90, 61: 0.92})
    put(store, "claims/accordion/dense/seed{seed}", {60: 0.80, 61: 0.81, 62: 0.83})
    found = Measured(store)
    assert found.noise["Accordion"].points == pytest.approx(statistics.stdev([80, 81, 83]))
    assert found.noise["GraVAC"].points == pytest.approx(statistics.stdev([90, 92]))
    page = claims_report.make_report(store).pages["claims"]
    assert "Noise in points: Accordion 1.53 (3 seeds); " in page
    assert "GraVAC 1.41 (2 seeds); " in page


def test_a_part_with_one_seed_of_dense_has_the_noise_of_the_same_job(store):
    put_accordion(store, {"accordion": 88, "powersgd-4": 88, "powersgd-1": 80})
    put(store, "claims/accordion/dense/seed{seed}", {60: 0.88})

    def verdict() -> Verdict:
        return claims_accordion.verdicts(Measured(store))[0]

    assert str(verdict()) == "missing", "nothing is known of noise"
    put_beside_gravac(store, {60: 0.90, 61: 0.92})
    assert verdict().holds and "1.41" in verdict().rule
    assert "Accordion 1.41 (2 seeds of GraVAC's part)" in claims_report.introduction(
        Measured(store).noise
    )


# --- reasons ---


def accordion_verdicts(store: Store) -> dict[str, Verdict]:
    found = Measured(store)
    return {each.claim: each for each in claims_accordion.verdicts(found)}


def test_reasons_stand_only_where_a_claim_does_not_hold(store):
    figures = {"dense": 88, "powersgd-4": 88, "powersgd-1": 84, "accordion": 85}
    put_accordion(store, {**figures, "weak-in-critical": 85, "strong-in-critical": 87.8})
    every = list(accordion_verdicts(store).values())
    weak, in_critical, strong_there = every[0], every[3], every[4]
    assert "gives back 1.00 of the 4.00 points" in str(weak)
    assert "gives back 1.00 of the 4.00 points" in str(in_critical)
    assert "costs 0.20 of the 4.00 points" in str(strong_there)
    assert str(every[1]) == "missing", "of levels between there is nothing"

    put_accordion(store, {"accordion": 87.9, "weak-in-critical": 87.8, "strong-in-critical": 84.0})
    every = list(accordion_verdicts(store).values())
    for verdict in (every[0], every[3], every[4]):
        assert str(verdict).startswith("reproduces") and "Why" not in str(verdict)


def test_a_reason_that_the_figures_do_not_show_is_not_given(store):
    figures = {"dense": 88, "powersgd-4": 88, "powersgd-1": 84, "accordion": 85}
    put_accordion(store, {**figures, "weak-in-critical": 87})
    weak = next(iter(accordion_verdicts(store).values()))
    assert not weak.holds and "Why: not known." in str(weak), "3 of 4 points are given back"


def test_a_weak_level_that_is_chosen_too_often_is_told(store):
    figures = {"dense": 88, "powersgd-4": 88, "powersgd-1": 84, "accordion": 88}
    put_accordion(store, figures, accordion=39.0)
    weak = next(iter(accordion_verdicts(store).values()))
    assert not weak.holds and "97 % of the way" in weak.figures
    assert "in too many exchanges" in str(weak) and "Rank 1 loses" not in str(weak)


@pytest.mark.parametrize(
    ("mine", "words"),
    [(84.6, "on the line, within the noise"), (83.0, "Why: not known."), (86.0, "reproduces")],
)
def test_low_rank_against_the_line_of_static_levels(store, mine, words):
    figures = {"dense": 88, "powersgd-4": 88, "powersgd-3": 86, "powersgd-2": 85, "powersgd-1": 84}
    sent = {"powersgd-3": 30.0, "powersgd-2": 20.0}
    put_accordion(store, {**figures, "accordion": mine}, **sent)
    verdict = list(accordion_verdicts(store).values())[1]
    assert "against 84.50 % on the line" in verdict.figures
    assert words in str(verdict)


@pytest.mark.parametrize(
    ("choices", "seconds", "words"),
    [
        ({"topk 0.1 in 16 bits by allgather": 9, "topk 0.05 by allgather": 1}, 4.0, "90 % of its"),
        (
            {"topk 0.1 in 16 bits by allgather": 4, "topk 0.05 by allgather": 6},
            4.0,
            "Why: not known.",
        ),
        ({"topk 0.1 in 16 bits by allgather": 10}, 3.7, "100 % of its"),
        ({"topk 0.1 in 16 bits by allgather": 10}, 3.6, "reproduces"),
    ],
)
def test_gravac_must_be_clearly_faster_than_10x(store, choices, seconds, words):
    """Which takes 4 seconds here."""
    put_beside_gravac(store, {60: 0.90, 61: 0.91})
    put(store, GRAVAC, {60: 0.90, 61: 0.91}, seconds=seconds, choices=choices)
    verdict = gravac_verdict(store)
    assert verdict.holds == (words == "reproduces")
    assert words in str(verdict)


def test_growing_batches(store):
    for name, percent, steps in (
        ("small", 90, 1200),
        ("large", 88, 300),
        ("accordion-batch", 89, 345),
    ):
        figures = {60: percent / 100 - 0.001, 61: percent / 100 + 0.001}
        put(
            store, f"claims/batch/{name}/seed{{seed}}", figures, steps=steps, bytes_sent=1e6 * steps
        )
    verdict = claims_accordion.small_accuracy(Measured(store).batches, Noise(0.5, 2))
    assert not verdict.holds
    assert "back 1.00 of the 2.00 points" in verdict.reason and "5 % of the samples" in str(verdict)
    lenient = claims_accordion.small_accuracy(Measured(store).batches, Noise(1.5, 2))
    assert lenient.holds and "Why" not in str(lenient)


# --- flexible ---


def made_shares(c1: float, c2: float) -> dict:
    shares = {"C1": {"all-gather": c1}, "C2": {"all-gather": c2}}
    return {
        f"{model} {network}": {"paper_prices": shares[network], "flexible": shares[network]}
        for model in claims.PAPER_MODELS
        for network in shares
    }


@pytest.mark.parametrize(
    ("c1", "c2", "words"),
    [
        (0.5, 0.9, ("reproduces", "reproduces")),
        (0.9, 0.4, ("3 bytes in our messages", "not known")),
        (0.2, 0.9, ("not known", "reproduces")),
    ],
)
def test_shares_of_collectives_are_judged(c1, c2, words):
    _, half, _, most = claims_flexible.collective_verdicts(made_shares(c1, c2))
    for verdict, expected in zip((half, most), words, strict=True):
        assert expected in str(verdict)
        assert verdict.holds == (expected == "reproduces")


def test_shares_of_collectives_are_of_steps():
    """A synthetic job counts a choice once a step; a warm-up of 1 step of 10."""
    choices = {
        "dense by engine": 1,
        "topk 0.1 in 16 bits by allgather": 4,
        "artopk-star 0.1 by tree": 2,
        "artopk-star 0.1 by engine": 3,
    }
    assert claims.shares(choices) == {
        "everything (warm-up)": 0.1,
        "all-gather": 0.4,
        "tree": 0.2,
        "ring": 0.3,
    }


def test_the_papers_formulas_give_what_is_told_at_its_own_ratios():
    """Phases of C1 and shares of the run; ratios where the densities of Fig. 7 peak."""
    phases = [(25, 1, 0.26), (1, 1, 0.24), (1, 50, 0.24), (25, 50, 0.26)]
    peaks = {"ResNet-18": 0.017, "ResNet-50": 0.016, "AlexNet": 0.018, "ViT": 0.029}
    found = {}
    for model, ratio in peaks.items():
        found[model] = 0.0
        for gigabits, milliseconds, share in phases:
            seconds = claims.paper_seconds(
                claims.PAPER_MODELS[model], gigabits * 1e9 / 8, milliseconds / 1e3, ratio
            )
            if min(seconds, key=seconds.get) == "all-gather":
                found[model] += share
    told = {"ResNet-18": "0.76", "ResNet-50": "0.76", "AlexNet": "0.50", "ViT": "0.26"}
    assert {model: f"{share:.2f}" for model, share in found.items()} == told
    for share in told.values():
        assert share in claims_flexible.WHY_MORE_ALLGATHER["paper_prices"]


def made_ratios(genetic: float) -> dict:
    each = {"direct": 0.01, "genetic": genetic}
    gap = abs(genetic / 0.01 - 1)
    return {"ratios": {"ViT C1 a": each}, "largest_gap": gap, "median_gap": gap}


@pytest.mark.parametrize(
    ("genetic", "words"),
    [(0.0108, "reproduces: 1 of 1"), (0.0088, "probably its grid"), (0.02, "Why: not known.")],
)
def test_genetic_ratio_is_judged_by_its_gap(genetic, words):
    assert words in str(claims_flexible.ratio_verdict(made_ratios(genetic)))


# --- STAR against VAR ---


def put_roots(store: Store, var: dict[str, float], roots: dict[str, int], loss=0.5) -> None:
    for ratio, percent in var.items():
        for method, mean in (("star", 85), ("var", percent)):
            figures = {60: mean / 100 - 0.001, 61: mean / 100 + 0.001}
            others = {"roots": roots, "training_loss": loss if ratio == "0.001" else 0.5}
            put(store, f"claims/roots/{method}-{ratio}/seed{{seed}}", figures, **others)


ALIKE = {str(rank): 100 for rank in range(8)}
ONE_OFTEN = {**ALIKE, "3": 200}


def root_verdicts(store: Store) -> list[Verdict]:
    put_beside_gravac(store, {60: 0.90, 61: 0.91})  # noise 0.71
    return claims_flexible.root_verdicts(Measured(store))


def test_star_and_var_are_equal_within_the_noise(store):
    put_roots(store, {"0.1": 85.5, "0.01": 84.5, "0.001": 85}, ALIKE)
    equal, even, *_ = root_verdicts(store)
    assert equal.holds and even.holds
    put_roots(store, {"0.01": 84.0}, ONE_OFTEN)
    equal, even, *_ = root_verdicts(store)
    assert not equal.holds and "-1.00 points at 0.01" in equal.figures
    assert not even.holds and "0.22 at 0.01" in even.figures


def test_trainings_that_diverge_are_told_and_not_compared(store):
    put_roots(store, {"0.1": 85, "0.01": 85, "0.001": 10}, ALIKE, loss=None)
    equal, *_ = root_verdicts(store)
    assert equal.holds and "at 0.001 trainings diverge, STAR 2 and VAR 2 of 2" in equal.figures


def test_skewed_data_want_uneven_roots_and_have_their_own_noise(store):
    put(store, "claims/skewed/dense/seed{seed}", {60: 0.80, 61: 0.90})
    put(store, "claims/skewed/star-0.01/seed{seed}", {60: 0.80, 61: 0.80})
    put(store, "claims/skewed/var-0.01/seed{seed}", {60: 0.83, 61: 0.83}, roots=ONE_OFTEN)
    *_, uneven, better = root_verdicts(store)
    assert uneven.holds and "0.22 for the most frequent and 0.11 for the least" in uneven.figures
    assert not better.holds and "7.07" in better.rule
    put(store, "claims/skewed/dense/seed{seed}", {60: 0.80, 61: 0.81})
    put(store, "claims/skewed/var-0.01/seed{seed}", {60: 0.83, 61: 0.83}, roots=ALIKE)
    *_, uneven, better = root_verdicts(store)
    assert not uneven.holds and better.holds


# --- what is counted ---


def test_shares_per_factor_are_of_the_exchanges_of_all_seeds():
    results = [{"choices": {"topk 0.1 by owner": 3}}, {"choices": {"topk 0.01 by owner": 1}}]
    run = Run(results)
    assert claims_gravac.factors_of(run.count("choices")) == {10.0: 0.75, 100.0: 0.25}


def test_vectors_that_accordion_sends_apart_are_no_share_of_dense():
    choices = {"dense by tree": 8, "randomk 0.5 by engine": 3, "randomk 0.001 by tree": 1}
    run = Run([{"figure": 0.5, "bytes_sent": 1.0, "choices": choices}])
    *_, volume, shares = claims_gravac.line_of(run, vectors_apart=True)
    assert shares == "0.75 at 2x, 0.25 at 1000x" and volume == "2.66x"
    assert "0.67 at dense" in claims_gravac.line_of(run)[-1]


def put_random_k(store: Store, choices: dict) -> Verdict:
    for name, figures in (
        ("randomk-gravac-0.7", {60: 0.87, 61: 0.87}),
        ("randomk-accordion", {60: 0.10, 61: 0.78}),
        ("randomk-10x", {60: 0.5, 61: 0.5}),
    ):
        put(store, f"claims/gravac/{name}/seed{{seed}}", figures, choices=choices)
    return claims_gravac.random_k(Measured(store).gravac)


def test_random_k_tells_its_seeds_and_what_a_low_threshold_does(store):
    verdict = put_random_k(store, {"dense by engine": 4, "randomk 0.5 by engine": 6})
    assert verdict.holds and "seed by seed 10.0, 78.0" in verdict.figures
    assert "threshold 0.1" not in str(verdict) and "stays dense" not in str(verdict)
    low = {60: 0.85, 61: 0.86}
    name = "claims/gravac/randomk-gravac-0.1/seed{seed}"
    put(store, name, low, choices={"randomk 0.5 by engine": 1})
    verdict = put_random_k(store, {"dense by engine": 5, "randomk 0.5 by engine": 5})
    assert not verdict.holds and "stays dense, in 50 % of the exchanges" in verdict.reason
    assert "With threshold 0.1 it ends at 85.5 % with a volume of 2x (2 seeds)" in str(verdict)


def test_var_must_be_ahead_with_every_seed(store):
    put(store, "claims/skewed/dense/seed{seed}", {60: 0.80, 61: 0.81})
    put(store, "claims/skewed/star-0.01/seed{seed}", {60: 0.70, 61: 0.80})
    put(store, "claims/skewed/var-0.01/seed{seed}", {60: 0.83, 61: 0.79}, roots=ONE_OFTEN)
    better = root_verdicts(store)[-1]
    assert not better.holds and "seed by seed +13.00, -1.00" in better.figures
    put(store, "claims/skewed/var-0.01/seed{seed}", {60: 0.83, 61: 0.801}, roots=ONE_OFTEN)
    assert root_verdicts(store)[-1].holds


# --- the page ---


def test_the_page_says_whose_noise_and_figures_those_of_virtual_md_are(store):
    assert claims_report.from_virtual(Measured(store)) == ""
    put_beside_gravac(store, {60: 0.90, 61: 0.92, 65: 0.91})
    put(store, GRAVAC, {60: 0.9}, seconds=1.0)
    page = claims_report.make_report(store).pages["claims"]
    assert "The first 6 lines of GraVAC's table" in page and "seeds 60 to 65." in page
    lines = page[page.index("shares of exchanges |") :].splitlines()[2:8]
    assert "accordion:method=powersgd" in lines[-1]
    assert "STAR against VAR 1.00 (3 seeds of GraVAC's part, with 4 workers where these" in page
    assert "Clocks differ" in gravac_verdict(store).remark


def test_the_readme_has_verdicts_only_and_ways_that_come_out_alike_once(store):
    def rows(c1: float) -> list[str]:
        shares = made_shares(c1, 0.9)
        for each in shares.values():
            each["flexible"] = {"all-gather": 0.9}
        store.write("claims/flexible/collectives", {"result": shares, "seed": 0})
        found = Measured(store)
        return claims_report.verdict_table(found).splitlines()[2:]

    assert len(rows(0.5)) <= 16
    (half,) = (row for row in rows(0.5) if "about half" in row)
    assert half.endswith(
        "| by the paper's prices: reproduces; as `flexible` chose: **does not reproduce** |"
    )
    (half,) = (row for row in rows(0.9) if "about half" in row)
    assert half.endswith("about half of the steps | **does not reproduce** |")
