# SPDX-License-Identifier: Apache-2.0
"""The jobs that virtual clusters train, and the links they are on.

Scale. The models have about 0.4 million parameters. Each stands for one of 25 million on the named
link: with S = 25 million / parameters, bytes count S times, and so does what compressing takes, but
not the bytes of records. Latency, computing and all seconds are those of the large job. Not the
other way round, because what is measured of a network has a time scale of its own: messages of
a few milliseconds tell nothing of a rate. What this does not scale: low rank, which keeps a larger
share of small matrices; the fixed part of what compressing takes, which counts S times; and
compressing itself, which is done by one thread of this CPU and in its caches, while 80 ms of
computing for 25 million parameters would be a GPU's.

The global batch is the same for any number of ranks, so that computing takes 80 ms with 4 ranks,
20 with 16 and 5 with 64.
"""

import math
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

STANDS_FOR = 25e6  # parameters
COMPUTE = 0.08  # seconds of forward and backward with so many ranks:
COMPUTE_RANKS = 4
# Constants of `auto` were chosen on other seeds, but some because of what these had shown:
# docs/POLICIES.md tells which.
SEEDS = (60, 61, 62)
EVALUATIONS = 20  # of a run, for its curve
PASSES = 3  # over all links and choices: what slows a machine lasts longer than a few steps
PASS_STEPS = 4  # of a choice on a link that are timed in each pass
COMPARED = 10  # steps of a choice that are held against those of a real training, in each pass


@dataclass(frozen=True)
class Job:
    name: str
    title: str
    steps: int
    global_batch: int
    figure: str
    unit: str
    lower_is_better: bool


JOBS = {
    job.name: job
    for job in (
        Job("cnn", "Fashion-MNIST, CNN, SGD", 400, 128, "accuracy", "%", False),
        Job("gpt", "characters, GPT, AdamW", 220, 64, "bits_per_character", "bits", True),
        Job("lstm", "characters, LSTM, SGD", 220, 64, "bits_per_character", "bits", True),
    )
}

# Rate in bit/s and latency in seconds, before scaling.
CONSTANT = {
    "25gbit": (25e9, 50e-6),
    "1gbit": (1e9, 500e-6),
    "100mbit": (100e6, 2e-3),
    "wan": (20e6, 50e-3),
}
FASTEST = "25gbit"
CHANGING = ("C1", "C2")  # of "Flexible Communication" (Tyagi and Swany, 2023), over all steps
LINKS = (*CONSTANT, *CHANGING)
IN_WORDS = {
    "25gbit": "25 Gbit/s, 0.05 ms",
    "1gbit": "1 Gbit/s, 0.5 ms",
    "100mbit": "100 Mbit/s, 2 ms",
    "wan": "WAN: 20 Mbit/s, 50 ms",
    "C1": "C1: 25 or 1 Gbit/s, 1 or 50 ms",
    "C2": "C2: 25 down to 1 Gbit/s and back, 1 to 32 ms",
}

# --- links ---

Segments = list[tuple[int, float, float]]  # from which step on, bytes per second, latency


def segments(link: str, steps: int) -> Segments:
    """Of a link by name, not scaled."""
    from tidegate import _core

    if link in CONSTANT:
        rate, latency = CONSTANT[link]
        return [(0, rate / 8, latency)]
    return [tuple(segment) for segment in _core.find_link_schedule(link, steps).segments]


def all_segments(steps: int) -> list[tuple[float, float]]:
    """Every link that there is at some time on some named link: (bytes per second, latency)."""
    return sorted({tuple(s[1:]) for link in LINKS for s in segments(link, steps)})


def segment_key(segment: tuple[float, float]) -> str:
    rate, latency = segment
    return f"{8e-6 * rate:g}mbit,{1e3 * latency:g}ms"


def segment_of_steps(link: str, steps: int) -> list[tuple[float, float]]:
    """In every step on a named link: bytes per second, latency."""
    found = segments(link, steps)
    ends = [segment[0] for segment in found[1:]] + [steps]
    return [
        tuple(segment)
        for (first, *segment), end in zip(found, ends, strict=True)
        for _ in range(first, end)
    ]


def seconds_on(link: str, steps: int, step_seconds: dict[str, float]) -> list[float]:
    """Of every step on a named link, from what a step takes on each of its segments."""
    return [step_seconds[segment_key(segment)] for segment in segment_of_steps(link, steps)]


# --- tasks ---


def make_task(job: Job, ranks: int, seed: int, steps: int | None = None):
    from tidegate.tasks import char_gpt, char_lstm, fashion_mnist

    steps, batch = steps or job.steps, job.global_batch // ranks
    if job.name == "cnn":
        return fashion_mnist.make_task(seed, steps, batch=batch)
    if job.name == "gpt":
        return char_gpt.make_task(seed, steps, batch=batch, length=32, blocks=2)
    return char_lstm.make_task(seed, steps, batch=batch, length=32)


def scale_of(model) -> float:
    return STANDS_FOR / sum(parameter.numel() for parameter in model.parameters())


def compute_seconds(ranks: int) -> float:
    return COMPUTE * COMPUTE_RANKS / ranks


def make_cluster(task, ranks: int, link: Segments, seed: int, steps: int, **options):
    from tidegate import VirtualCluster, _core

    return VirtualCluster(
        task,
        ranks,
        _core.LinkSchedule(link),
        compute_seconds=compute_seconds(ranks),
        scale=scale_of(task.model),
        seed=seed,
        horizon=steps,
        calibrate=True,
        **options,
    )


# --- runs ---


def train(
    job: Job,
    ranks: int,
    seed: int,
    link: str,
    *,
    steps: int | None = None,
    make: Callable = make_task,
    tell_plans: bool = False,
    **options,
) -> dict:
    """Trains for all steps. If it is to tell plans, which buckets went by what in which steps."""
    if tell_plans:
        with tempfile.TemporaryDirectory() as folder:
            trace = f"{folder}/trace.jsonl"
            result = train(job, ranks, seed, link, steps=steps, make=make, trace=trace, **options)
            return {**result, "plans": plans_in(trace)}
    import torch

    torch.set_num_threads(1)
    steps = steps or job.steps
    task = make(job, ranks, seed, steps)
    cluster = make_cluster(task, ranks, segments(link, steps), seed, steps, **options)
    held_out = held_out_loss(job)
    curve, every = [], max(1, steps // EVALUATIONS)

    def watch(step: int, _: float) -> None:
        if step % every == 0:
            curve.append([step, held_out(task.model)])

    outcome = cluster.run(steps, watch)
    return {
        "figure": rounded(outcome.figures[job.figure], 9),
        "training_loss": rounded(outcome.loss, 9),
        "curve": rounded(curve),
        "seconds_at": rounded([sum(cluster.step_seconds[:step]) for step, _ in curve]),
        "seconds": rounded(outcome.modelled_seconds),
        "bytes_sent": outcome.bytes_sent,
        "dense_bytes": outcome.dense_bytes,
        "choices": outcome.choices,
        "roots": {str(rank): count for rank, count in outcome.roots.items()},
        "scale": rounded(scale_of(task.model)),
        "steps": steps,
    }


# --- plans ---

Plans = list[list]  # [first step, choices of the buckets in words], as often as they change
BETWEEN = " | "  # choices of two buckets


def plans_in(trace: str) -> Plans:
    from tidegate import _core

    steps = _core.read_trace(trace)["steps"]
    words = [(BETWEEN.join(each["choices"]), number) for number, each in enumerate(steps)]
    # Before the first backward all parameters share one bucket; static choices go without that
    # step, too.
    words[0] = (words[1][0], 0)
    return [[next(same)[1], plan] for plan, same in groupby(words, lambda each: each[0])]


def plan_of_steps(plans: Plans, steps: int) -> list[str]:
    ends = [first for first, _ in plans[1:]] + [steps]
    return [plan for (first, plan), end in zip(plans, ends, strict=True) for _ in range(first, end)]


def seconds_of_plans(
    link: str, steps: int, plans: Plans, times: dict[str, dict]
) -> list[float] | None:
    """Of every step, by what each plan was timed to take there; none if one was not."""
    every = []
    for plan, segment in zip(
        plan_of_steps(plans, steps), segment_of_steps(link, steps), strict=True
    ):
        timed = times.get(plan, {})
        on_links = timed.get("step_seconds", {})
        if segment_key(segment) not in on_links:
            return None
        every.append(on_links[segment_key(segment)] + timed["longer"])
    return every


def way_of_plan(plan: str) -> dict:
    """Options of a cluster that sends every step so."""
    choices = [choice_in(words) for words in plan.split(BETWEEN)]
    if all(choice == choices[0] for choice in choices):
        return {"policy": "fixed", **choices[0]}

    def by_bucket(question):
        from tidegate import Choice

        return Choice(**choices[min(question.bucket, len(choices) - 1)])

    by_bucket.compared = False  # among ranks: all of them are in this process
    return {"policy": by_bucket}


IN_WORDS_OF_CHOICE = re.compile(
    r"(?P<method>[a-z0-9-]+)(?: rank (?P<rank>\d+)| (?P<ratio>[\d.e-]+))?"
    r"(?: in (?P<bits>\d+) bits)?(?: by (?P<route>\S+))?"
)


def choice_in(words: str) -> dict:
    """As make_cluster takes it."""
    found = IN_WORDS_OF_CHOICE.fullmatch(words)
    if not found:
        raise ValueError(f"no choice: {words!r}")
    kinds = {"method": str, "rank": int, "ratio": float, "bits": int, "route": str}
    return {key: kinds[key](value) for key, value in found.groupdict().items() if value}


# --- what steps take ---


def time_steps(
    job: Job,
    ranks: int,
    seed: int,
    ways: dict[str, list[dict]],
    only: dict[str, set[tuple[float, float]]] | None = None,
) -> dict[str, dict]:
    """What a step takes by every way, which is a list of options for clusters of which the fastest
    counts: {way: {"step_seconds": on every link, "spread": of these, "longer": seconds}}. `only`
    names the links for ways that are not wanted on all.

    On links it is timed by the real exchange of gradients that do not change, at hardly any other
    cost; seconds are the median of passes. Between the passes of a real training compressing takes
    longer, because caches hold other things: `longer` is that, measured on the fastest link. All
    ways take turns."""
    import torch

    torch.set_num_threads(1)
    still = frozen(make_task(job, ranks, seed), ranks)

    def median(task, link, options: dict, steps: int) -> float:
        cluster = make_cluster(task, ranks, [(0, *link)], seed, job.steps, **options)
        for _ in range(steps + 1):  # in the first all parameters share one bucket
            cluster.step()
        return statistics.median(cluster.step_seconds[1:])

    rate, latency = CONSTANT[FASTEST]
    fast = (rate / 8, latency)
    places = [
        (link, way)
        for link in all_segments(job.steps)
        for way in ways
        if link == fast or not only or link in only.get(way, {link})
    ]
    took: dict[tuple, list[list[float]]] = {place: [] for place in places}  # pass by pass
    for _ in range(PASSES):
        for link, way in places:
            every = [median(still, link, options, PASS_STEPS) for options in ways[way]]
            took[link, way].append(every)

    found: dict[str, dict] = {way: {"step_seconds": {}, "spread": {}} for way in ways}
    best: dict[str, dict] = {}  # of every way's options, on the fastest link
    for (link, way), passes in took.items():
        fastest, middle, spread = fastest_option(passes)
        found[way]["step_seconds"][segment_key(link)] = rounded(middle)
        found[way]["spread"][segment_key(link)] = rounded(spread, 3)
        if link == fast:
            best[way] = ways[way][fastest]
    # It may come out below 0 where there is hardly any: as much too low as too high for others.
    longer: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(PASSES):
        for way, options in best.items():
            training = median(make_task(job, ranks, seed), fast, options, COMPARED)
            longer[way].append(training - median(still, fast, options, COMPARED))
    return {way: found[way] | {"longer": rounded(statistics.median(longer[way]))} for way in ways}


def fastest_option(passes: list[list[float]]) -> tuple[int, float, float]:
    """By seconds of every option in every pass: which has the lowest median, that median, and how
    far its passes are apart, as a share of it."""
    by_option = list(zip(*passes, strict=True))
    medians = [statistics.median(each) for each in by_option]
    middle = min(medians)
    option = medians.index(middle)
    return option, middle, (max(by_option[option]) - min(by_option[option])) / middle


def frozen(task, ranks: int):
    """A task whose workers have the same real gradients in every step, at hardly any cost."""
    import torch

    from tidegate import Task

    model = task.model
    parameters = list(model.parameters())
    workers = []
    for worker in range(ranks):
        loss = task.loss(model, next(iter(task.batches(worker, ranks, 0))))
        workers.append(torch.autograd.grad(loss, parameters))

    def loss(model, gradients):
        return sum((p * g).sum() for p, g in zip(model.parameters(), gradients, strict=True))

    def batches(worker, workers_, epoch):
        return [workers[worker]] * 1000

    still = torch.optim.SGD(model.parameters(), lr=0.0)
    return Task(model, still, batches, loss)


def held_out_loss(job: Job) -> Callable:
    """loss(model) on some data that are not trained on: quick, for curves."""
    import torch
    from torch.nn.functional import cross_entropy

    if job.name == "cnn":
        from tidegate.tasks import fashion_mnist

        images, labels = (part[:4000] for part in fashion_mnist.load("test"))
    else:
        from tidegate.tasks import characters

        text, _ = characters.encoded_text()
        test = text[len(text) - len(text) // characters.HELD_OUT :].long()
        starts = torch.linspace(0, len(test) - 34, 256).long()[:, None]
        windows = test[starts + torch.arange(33)]
        images, labels = windows[:, :-1], windows[:, 1:]

    @torch.no_grad()
    def loss(model) -> float:
        model.eval()
        scores = model(images)
        model.train()
        return float(cross_entropy(scores.flatten(0, -2), labels.flatten()))

    return loss


def rounded(value, digits: int = 6):
    """To so many significant digits: results are read by people, too. What is not finite, as where
    a training has diverged, becomes None: JSON has no word for it."""
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each, digits) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value
