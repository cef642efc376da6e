# SPDX-License-Identifier: Apache-2.0
"""Accordion's part of the page: critical regimes, equal bytes, growing batches."""

from itertools import pairwise

from . import jobs
from .claims import ACCORDION, CNN, CRITICAL, DROPS, GROWTH, IMAGES, LINK, SAMPLES, STEPS
from .claims_runs import Measured, Noise, Run, Runs
from .claims_verdict import Verdict, listed
from .report import MISSING, Plot, table

PASSES = STEPS * CNN.global_batch / IMAGES
BY_HAND = CRITICAL + CRITICAL // 2  # steps in critical regimes

# Static levels, from strong to weak, and policies that choose among them, Accordion first.
KINDS = {
    "low rank": (
        ("powersgd-1", "powersgd-2", "powersgd-3", "powersgd-4"),
        ("accordion", "weak-in-critical", "strong-in-critical"),
    ),
    "top-k": (("topk-0.02", "topk-0.1", "topk-0.3", "topk-0.99"), ("accordion-topk",)),
}

LOW_RANK_WORDS = {
    "dense": "dense",
    "powersgd-4": "rank 4 (weak)",
    "powersgd-3": "rank 3",
    "powersgd-2": "rank 2",
    "powersgd-1": "rank 1 (strong)",
    "accordion": "**Accordion, 4 and 1**",
    "weak-in-critical": "Fig. 2: rank 4 in critical regimes, rank 1 elsewhere",
    "strong-in-critical": "Fig. 2: rank 1 in critical regimes, dense elsewhere",
}
SPARSE_WORDS = {
    "topk-0.99": "99 % (weak)",
    "topk-0.3": "30 %",
    "topk-0.1": "10 %",
    "topk-0.02": "2 % (strong)",
    "accordion-topk": "**Accordion, 99 % and 2 %**",
}
STATIC_WORDS = """Static choices at *equal bytes* are the rival that matters: between two of them
one may draw a line, and a point above it gains something. The published code's top-k had no error
feedback and did not average; here both do, which makes strong top-k much better than it was there.
"""


def page(found: Measured) -> str:
    def lines(header: str, words: dict[str, str]) -> str:
        rows = [[each, *found.accordion.show(name)] for name, each in words.items()]
        return table([header, "accuracy", "MB"], rows)

    return "\n".join(
        [
            f"{STEPS} steps, 4 workers; the rate drops to a tenth after {DROPS[0]} steps and again "
            f"after {DROPS[1]}. That is {PASSES:.1f} passes over the images; the paper has 300. "
            "The detector compares norms 20 steps apart. Critical regimes by hand: the first "
            f"{CRITICAL} steps and {CRITICAL // 2} after the first drop, a tenth of all steps as "
            "in the paper.\n",
            lines("PowerSGD", LOW_RANK_WORDS),
            lines("top-k", SPARSE_WORDS),
            "![accuracy over bytes](claims-accordion.svg)\n",
            listed(verdicts(found)),
            STATIC_WORDS,
        ]
    )


def verdicts(found: Measured) -> list[Verdict]:
    runs, noise = found.accordion, found.noise["Accordion"]
    return [
        weak_accuracy(runs, noise),
        *(better_than_static(runs, noise, kind) for kind in KINDS),
        weak_in_critical(runs, noise),
        strong_in_critical(runs, noise),
    ]


def weak_accuracy(runs: Runs, noise: Noise | None) -> Verdict:
    claim = "accuracy of the weak level at nearly the bytes of the strong one"
    paired = runs.paired("accordion", "powersgd-4", "powersgd-1")
    if not (paired and noise):
        return Verdict(claim)
    mine, weak, strong = paired
    share = (mine.megabytes - strong.megabytes) / (weak.megabytes - strong.megabytes)
    near = mine.accuracy >= weak.accuracy - noise.points
    why = [lost_in_the_whole_run(runs)] if not near else []
    if share >= 0.5:
        why.append("The weak level was chosen in too many exchanges.")
    return Verdict(
        claim,
        near and share < 0.5,
        f"{mine.accuracy - weak.accuracy:+.2f} points from rank 4, "
        f"{mine.accuracy - strong.accuracy:+.2f} from rank 1; {100 * share:.0f} % of the way from "
        f"the strong level's bytes to the weak one's; {mine.seeds}",
        f"no more than the noise, {noise.points:.2f}, below rank 4, and less than half of the way",
        " ".join(why),
    )


def lost_in_the_whole_run(runs: Runs) -> str:
    """Nothing if the first schedule of Fig. 2 gives back most of what rank 1 loses."""
    paired = runs.paired("weak-in-critical", "powersgd-4", "powersgd-1")
    if not paired:
        return ""
    first, weak, strong = paired
    lost, back = weak.accuracy - strong.accuracy, first.accuracy - strong.accuracy
    if not 0 <= back < lost / 2:
        return ""
    return (
        "Rank 1 loses in the whole run and not in critical regimes only: rank 4 in them by hand, "
        f"{BY_HAND} of {STEPS} steps, gives back {back:.2f} of the {lost:.2f} points that it "
        f"loses. Probably all of these {PASSES:.1f} passes over the images are what the first of "
        "300 are in the paper."
    )


def better_than_static(runs: Runs, noise: Noise | None, kind: str) -> Verdict:
    claim = f"better than a static level at equal bytes ({kind})"
    levels, (name, *_) = KINDS[kind]
    paired = runs.paired(name, *levels)
    if not (paired and noise):
        return Verdict(claim)
    mine, *static = paired
    line = at_equal_bytes(static, mine.megabytes)
    if kind == "top-k":
        why = little_to_win(mine, static)
    else:
        why = ON_THE_LINE if abs(mine.accuracy - line) <= noise.points else ""
    return Verdict(
        claim,
        mine.accuracy > line + noise.points,
        f"{mine.accuracy:.2f} % against {line:.2f} % on the line between static levels at "
        f"{mine.megabytes:.3g} MB; {mine.seeds}",
        f"ahead by more than the noise, {noise.points:.2f}",
        why,
    )


ON_THE_LINE = (
    "It is on the line, within the noise: steps at rank 4 bring what their bytes bring at any "
    "time, and no more where the detector chooses them."
)


def little_to_win(mine: Run, static: list[Run]) -> str:
    """Between levels of top-k."""
    strong, *between, weak = static
    why = (
        f"With error feedback the strong level loses {weak.accuracy - strong.accuracy:.2f} points "
        f"only, and the weak one sends {weak.megabytes / strong.megabytes:.0f} times as much."
    )
    cheaper = [r for r in between if r.megabytes < mine.megabytes and r.accuracy > mine.accuracy]
    if cheaper:
        best = max(cheaper, key=lambda run: run.accuracy)
        why += f" A static level has {best.accuracy:.2f} % for {best.megabytes:.3g} MB."
    return why


def at_equal_bytes(levels: list[Run], megabytes: float) -> float:
    """Accuracy on the line between the two static levels that send less and more."""
    levels = sorted(levels, key=lambda run: run.megabytes)
    if megabytes <= levels[0].megabytes:
        return levels[0].accuracy
    for less, more in pairwise(levels):
        if megabytes <= more.megabytes:
            share = (megabytes - less.megabytes) / (more.megabytes - less.megabytes)
            return less.accuracy + share * (more.accuracy - less.accuracy)
    return levels[-1].accuracy


def weak_in_critical(runs: Runs, noise: Noise | None) -> Verdict:
    claim = "Fig. 2, weak in critical regimes only, ends as high as weak throughout"
    paired = runs.paired("weak-in-critical", "powersgd-4")
    if not (paired and noise):
        return Verdict(claim)
    first, weak = paired
    return Verdict(
        claim,
        first.accuracy >= weak.accuracy - noise.points,
        f"{first.accuracy:.2f} % against {weak.accuracy:.2f} %; {first.seeds}",
        f"no more than the noise, {noise.points:.2f}, below",
        lost_in_the_whole_run(runs),
    )


def strong_in_critical(runs: Runs, noise: Noise | None) -> Verdict:
    claim = (
        "Fig. 2, strong in critical regimes and dense elsewhere, ends no higher than strong "
        "throughout"
    )
    paired = runs.paired("strong-in-critical", "powersgd-1", "dense")
    if not (paired and noise):
        return Verdict(claim)
    second, strong, dense = paired
    return Verdict(
        claim,
        second.accuracy <= strong.accuracy + noise.points,
        f"{second.accuracy:.2f} % against {strong.accuracy:.2f} % (dense {dense.accuracy:.2f} %); "
        f"{second.seeds}",
        f"no more than the noise, {noise.points:.2f}, above",
        f"Rank 1 in {BY_HAND} of {STEPS} steps costs {dense.accuracy - second.accuracy:.2f} of the "
        f"{dense.accuracy - strong.accuracy:.2f} points that it costs throughout. Probably because "
        "what it leaves out waits and is sent with the first dense steps; the published code "
        "throws it away there.",
    )


def plot(runs: Runs) -> Plot:
    names = [name for name in ACCORDION if runs[name]]
    data = [[n, runs[n].megabytes, runs[n].accuracy, runs[n].spread] for n in names]
    found = {name: point for name, *point in data}

    def draw(figure) -> None:
        for axes, kind in zip(figure.subplots(1, 2), KINDS, strict=True):
            draw_kind(axes, kind, found)

    return Plot(draw, data, (10.0, 4.2))


def draw_kind(axes, kind: str, found: dict[str, list]) -> None:
    levels, policies = KINDS[kind]
    static = [found[name] for name in levels if name in found]
    axes.plot([s[0] for s in static], [s[1] for s in static], "o-", label="static levels")
    for name in policies:
        if name in found:
            mb, accuracy, spread = found[name]
            axes.errorbar([mb], [accuracy], yerr=spread, fmt="D", capsize=3, label=name)
    if "dense" in found:
        axes.axhline(found["dense"][1], color="#808080", linestyle="--", label="dense")
    if static:  # a logarithmic axis must have something on it
        axes.set_xscale("log")
    axes.set_xlabel("MB sent per rank")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(kind)
    axes.legend()


# --- growing batches ---


BATCH_WORDS = {
    "small": f"small batch ({CNN.global_batch})",
    "large": f"large batch ({GROWTH * CNN.global_batch}, rate x {GROWTH}, warm-up)",
    "accordion-batch": "**Accordion, batch grows once the start is over**",
}


def batch_page(found: Measured) -> str:
    rows = [[words, *batch_line(found.batches[name])] for name, words in BATCH_WORDS.items()]
    return "\n".join(
        [
            "### Growing batches\n",
            f"Equal samples for all ({SAMPLES}), the rate falls with the samples; dense exchange. "
            f"Seconds are modelled ({jobs.IN_WORDS[LINK]}, scaled as in "
            "[virtual.md](virtual.md)).\n",
            table(["", "accuracy", "MB", "steps", "seconds"], rows),
            listed(batch_verdicts(found)),
        ]
    )


def batch_line(run: Run | None) -> list[str]:
    if run is None:
        return [MISSING] * 4
    return [*run.show(), f"{run.mean('steps'):.0f}", f"{run.seconds:.4g}"]


def batch_verdicts(found: Measured) -> list[Verdict]:
    return [small_accuracy(found.batches, found.noise["growing batches"])]


def small_accuracy(runs: Runs, noise: Noise | None) -> Verdict:
    claim = "accuracy of the small batch at nearly the bytes of the large one"
    paired = runs.paired("accordion-batch", "small", "large")
    if not (paired and noise):
        return Verdict(claim)
    mine, small, large = paired
    lost, back = small.accuracy - large.accuracy, mine.accuracy - large.accuracy
    steps, small_steps = mine.mean("steps"), small.mean("steps")
    # After the batch has grown, a step takes the samples of GROWTH small ones.
    while_small = (GROWTH * steps / small_steps - 1) / (GROWTH - 1)
    return Verdict(
        claim,
        mine.accuracy >= small.accuracy - noise.points and mine.megabytes < small.megabytes / 2,
        f"{mine.accuracy:.2f} % with {mine.megabytes:.3g} MB; small {small.accuracy:.2f} % with "
        f"{small.megabytes:.3g}, large {large.accuracy:.2f} % with {large.megabytes:.3g}; "
        f"{mine.seeds}",
        f"no more than the noise, {noise.points:.2f}, below the small batch, with less than half "
        "of its MB",
        f"It wins back {back:.2f} of the {lost:.2f} points that the large batch loses. Batches are "
        f"small for {100 * while_small:.0f} % of the samples. Probably {steps:.0f} steps are too "
        f"few, where the small batch has {small_steps:.0f}; the paper's runs of 300 epochs have "
        "thousands with the large batch.",
    )
