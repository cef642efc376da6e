# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of virtual.py's cells."""

import math
import statistics
from dataclasses import dataclass, field

from . import jobs
from .jobs import CHANGING, IN_WORDS, JOBS, LINKS, Job
from .plots import COLOURS, GREY
from .report import MISSING, Plot, Report, provenance, table
from .store import Store
from .virtual import (
    BLIND,
    MANY,
    PLAIN,
    POLICIES,
    RANKS,
    TRAINED_ON,
    choices_of,
    policies_of,
    policy_name,
    seeds_of_choice,
    seeds_of_policy,
    static_name,
    times_name,
)

TARGET_AT = 0.8  # of dense's steps: the held-out loss there is the target
ASSUMED = 0.005  # as in `tidegate simulate`
CLOSE = 0.05  # auto may take so much longer than the best static choice
AHEAD = 0.03  # and is ahead if it takes so much less
RED = "#e03131"
SHORT_LINKS = {
    "25gbit": "25 Gbit/s",
    "1gbit": "1 Gbit/s",
    "100mbit": "100 Mbit/s",
    "wan": "WAN",
    "C1": "C1",
    "C2": "C2",
}


Figures = list[tuple[int, float]]  # with the seeds they are of


@dataclass
class Row:
    """One method or policy in one job with so many ranks; means over seeds."""

    name: str
    figures: Figures
    sent: float  # of dense's bytes; of a policy on its links: the mean
    seconds: dict[str, float] = field(default_factory=dict)  # by link
    steps: dict[str, list[float]] = field(default_factory=dict)  # seconds of each, by link
    figures_on: dict[str, Figures] = field(default_factory=dict)  # of a policy
    apart: set[str] = field(default_factory=set)  # links: not timed in turn with static choices
    to_target: dict[str, float | None] = field(default_factory=dict)  # None: not reached


@dataclass
class Setting:
    """A job with so many ranks."""

    job: Job
    ranks: int
    dense: Row | None
    noise: float | None  # standard deviation of dense over seeds; with MANY that of 16 ranks
    assumed: bool  # noise is not known: ASSUMED of the figure
    target: float | None  # held-out loss
    static: dict[str, Row]
    policies: dict[str, Row]
    missing: int
    cells: int

    @property
    def name(self) -> str:
        return f"{self.job.name}, {self.ranks} ranks"

    def worse_by_seed(self, figures: Figures) -> list[float]:
        """Than dense with the same seed; in the figure's unit, positive is worse."""
        dense, sign = dict(self.dense.figures), 1 if self.job.lower_is_better else -1
        return [sign * (figure - dense[seed]) for seed, figure in figures if seed in dense]

    def worse(self, figures: Figures) -> float:
        return mean(self.worse_by_seed(figures))

    def error(self, figures: Figures) -> float | None:
        """Standard error of `worse`; none of one seed, or if a training has diverged."""
        every = self.worse_by_seed(figures)
        if len(every) < 2 or not all(map(math.isfinite, every)):
            return None
        return statistics.stdev(every) / math.sqrt(len(every))

    def as_good(self, figures: Figures) -> bool:
        return self.noise is not None and self.worse(figures) <= self.noise

    def best_static(self, link: str) -> Row | None:
        good = [
            row for row in self.static.values() if link in row.seconds and self.as_good(row.figures)
        ]
        return min(good, key=lambda row: row.seconds[link], default=None)

    def fastest_to_target(self, link: str) -> Row | None:
        reached = [row for row in self.static.values() if row.to_target.get(link) is not None]
        return min(reached, key=lambda row: row.to_target[link], default=None)


# --- reading ---


def read(store: Store, job: Job, ranks: int, noise_from: Setting | None = None) -> Setting:
    times = look_up(store, times_name(job.name, ranks))
    statics, policies, missing, cells = {}, {}, int(times is None), 1
    for choice in choices_of(job.name, ranks):
        seeds = seeds_of_choice(job.name, ranks, choice)
        found = [look_up(store, static_name(job.name, ranks, choice, seed)) for seed in seeds]
        cells += len(found)
        missing += found.count(None)
        statics[choice] = list(filter(None, found))
    for policy in policies_of(ranks):
        for link in LINKS:
            wanted = seeds_of_policy(job.name, ranks, policy, link)
            found = [look_up(store, policy_name(job.name, ranks, policy, link, s)) for s in wanted]
            cells += len(found)
            missing += found.count(None)
            policies.setdefault(policy, {})[link] = list(filter(None, found))
    dense = [figure for _, figure in figures_of(job, statics["dense"])]
    noise, assumed = noise_of(dense, noise_from)
    target = target_of(job, statics["dense"])
    rows = {
        choice: static_row(job, choice, results, (times or {}).get(choice), target)
        for choice, results in statics.items()
        if results
    }
    return Setting(
        job,
        ranks,
        rows.get("dense"),
        noise,
        assumed,
        target,
        rows,
        {
            policy: policy_row(job, policy, by_link, target, times)
            for policy, by_link in policies.items()
            if any(by_link.values())
        },
        missing,
        cells,
    )


def look_up(store: Store, name: str) -> dict | None:
    """A result, with the seed it is of."""
    record = store.read(name)
    if record is None:
        return None
    return {**record["result"], "seed": record["seed"]}


def noise_of(dense: list[float], other: Setting | None) -> tuple[float | None, bool]:
    """That of `other` if there is one, however many seeds of dense there are; and whether it is
    assumed."""
    if other and other.noise is not None:
        return other.noise, other.assumed
    if len(dense) > 1 and other is None:
        return statistics.stdev(dense), False
    return (ASSUMED * dense[0] if dense else None), True


def figures_of(job: Job, results: list[dict]) -> Figures:
    """Of a training that has diverged, the worst that there is."""
    worst = math.inf if job.lower_is_better else 0.0
    return [(r["seed"], worst if r["figure"] is None else r["figure"]) for r in results]


def target_of(job: Job, dense: list[dict]) -> float | None:
    if not dense:
        return None
    curve = mean_curve(dense)
    target = min(curve, key=lambda point: abs(point[0] - TARGET_AT * job.steps))[1]
    return target if math.isfinite(target) else None


def seconds_of_steps(job: Job, link: str, times: dict) -> list[float]:
    """Of a static choice, as in a training."""
    return [
        each + times["longer"] for each in jobs.seconds_on(link, job.steps, times["step_seconds"])
    ]


def static_row(
    job: Job, choice: str, results: list[dict], times: dict | None, target: float | None
) -> Row:
    row = Row(choice, figures_of(job, results), mean(sent_of(r) for r in results))
    for link in LINKS if times else ():
        steps = seconds_of_steps(job, link, times)
        row.seconds[link], row.steps[link] = sum(steps), steps
        curve = mean_curve(results)
        at = [sum(steps[: round(step)]) for step, _ in curve]
        row.to_target[link] = crossing([loss for _, loss in curve], at, target)
    return row


def policy_row(
    job: Job,
    policy: str,
    by_link: dict[str, list[dict]],
    target: float | None,
    times: dict | None,
) -> Row:
    every = [result for results in by_link.values() for result in results]
    if policy in BLIND:  # learns the same everywhere
        every = by_link[TRAINED_ON] or every
    row = Row(policy, figures_of(job, every), mean(sent_of(r) for r in every))
    for link, results in by_link.items():
        if not results:
            continue
        timed = [steps_in_turn(job, link, result, times) for result in results]
        if None in timed:
            row.apart.add(link)
        runs = list(zip(results, timed, strict=True))
        row.seconds[link] = mean(sum(t) if t else result["seconds"] for result, t in runs)
        row.figures_on[link] = row.figures if policy in BLIND else figures_of(job, results)
        losses = [loss for _, loss in mean_curve(results)]
        at = mean_lists([seconds_at(result, t) for result, t in runs])
        row.to_target[link] = crossing(losses, at, target)
    return row


def steps_in_turn(job: Job, link: str, result: dict, times: dict | None) -> list[float] | None:
    """Seconds of the steps of a run, by what its choices take beside static ones; none if they were
    not timed beside them."""
    if not times or "plans" not in result or "plans" not in times:
        return None
    return jobs.seconds_of_plans(link, job.steps, result["plans"], times["plans"])


def seconds_at(result: dict, steps: list[float] | None) -> list[float]:
    """When the points of its curve were reached."""
    if steps is None:
        return result["seconds_at"]
    return [sum(steps[:step]) for step, _ in result["curve"]]


def sent_of(result: dict) -> float:
    return result["bytes_sent"] / result["dense_bytes"]


def mean(values) -> float:
    return statistics.fmean(values)


def mean_lists(lists: list[list[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*lists, strict=True)]


def mean_curve(results: list[dict]) -> list[tuple[float, float]]:
    return [
        (points[0][0], mean(math.inf if loss is None else loss for _, loss in points))
        for points in zip(*(result["curve"] for result in results), strict=True)
    ]


def crossing(losses: list[float], seconds: list[float], target: float | None) -> float | None:
    """When the loss first reached the target, on a line between two evaluations."""
    if target is None:
        return None
    before = None
    for loss, at in zip(losses, seconds, strict=True):
        if loss <= target:
            if before is None or before[0] == loss or math.isinf(before[0]):
                return at
            share = (before[0] - target) / (before[0] - loss)
            return before[1] + share * (at - before[1])
        before = (loss, at)
    return None


# --- words ---


def figure(job: Job, value: float) -> str:
    return f"{100 * value:.2f} %" if job.figure == "accuracy" else f"{value:.3f}"


def difference(job: Job, value: float) -> str:
    return f"{100 * value:+z.2f}" if job.figure == "accuracy" else f"{value:+z.3f}"


def unit(job: Job) -> str:
    return "points" if job.figure == "accuracy" else "bits per character"


def seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def seconds_of(row: Row | None, link: str) -> str:
    text = seconds(row.seconds.get(link) if row else None)
    return f"{text}†" if row and row.name == "auto" and link in row.apart else text


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


# --- the page ---


def make_report(store: Store) -> Report:
    settings = []
    for job in JOBS.values():
        few = [read(store, job, ranks) for ranks in RANKS]
        settings += [*few, read(store, job, MANY, noise_from=few[-1])]
    report = Report()
    report.pages["virtual"] = page(store, settings)
    report.tables["virtual"] = readme_table(settings)
    report.plots["virtual-auto"] = auto_plot(settings)
    for setting in settings:
        if setting.ranks in RANKS:
            name = f"virtual-{setting.job.name}-{setting.ranks}"
            report.plots[name] = quality_plot(setting)
    return report


def page(store: Store, settings: list[Setting]) -> str:
    spreads = spreads_of(store)
    parts = [
        "# Every job on every link, in virtual clusters\n",
        provenance(store.records("virtual/*"), "virtual/*"),
        f"{sum(s.missing for s in settings)} of {sum(s.cells for s in settings)} cells are "
        "missing; what needs them is shown as missing.\n",
        READING,
        "## `auto` against the fastest static choice that is as good as dense\n",
        auto_table(settings),
        "![auto against the best static choice](virtual-auto.svg)\n",
        summary(settings, spreads),
        OTHER_SEEDS,
        noise_of_times(spreads),
        "## Time to a target\n",
        TARGETS,
        target_table(settings),
        target_summary(settings),
        "## Links that change\n",
        CHANGES,
        changing_table(settings),
        *[section(setting) for setting in settings],
    ]
    if any("†" in part for part in parts):
        parts.insert(parts.index(READING) + 1, OWN_CLOCK)
    return "\n".join(filter(None, parts))


READING = f"""What is learned and sent is real: real gradients of N workers through the real
exchange. **Seconds are modelled**: the link as described, computing as given, overlapped as in a
real job, and compressing as the machine took it. Records that policies exchange
are not in the seconds (they are kept below 2 % of the time, and 16 % in the first 64 steps).

**Scale.** The models have 0.35 to 0.43 million parameters. Each stands for one of
{
    jobs.STANDS_FOR
    / 1e6:g} million: with S = 25 million / parameters, bytes and what compressing takes
count S times; latency and computing are those of the large job. Computing takes {
    1e3 * jobs.COMPUTE:g} ms a step with {
    jobs.COMPUTE_RANKS
} ranks; the global batch is the same for all
numbers of ranks, so it is 20 ms with 16 and 5 ms with 64. What is not scaled, and speaks against
compression here: compressing is done by one thread of a CPU, where such computing would be a
GPU's, its fixed costs count S times, and low rank keeps a larger share of small matrices. Records
of policies, which do not grow with a model, are not scaled. C1 and
C2 are stretched over the steps of a run, about 35 times shorter than in their paper, so that a
policy has few steps to notice a change.

**As good as dense** is a mean over seeds that is no worse than dense's by more than the standard
deviation of dense over seeds. A static choice goes by its cheapest route that loses nothing,
on C1 and C2 by that of every phase, as if it knew of them beforehand;
`-owner` means top-k by owners, which loses a little more and sends less. `dense`, `fp16` and
`bf16` go by the engine's all-reduce or a tree, whichever is faster. Steps of all choices are timed
in turn on every link, with gradients that do not change; between the passes of a real training
compressing takes longer, which is measured for every choice (at 25 Gbit/s, where it shows most)
and added to all its steps. `auto` is trained on every link, and what it chose there is timed in the
same turns: its seconds are those of its choices, step by step, without what changing from one to
another takes. (By the clock of its own run, at another hour on a machine that others use too,
the same choices took up to a quarter more or less.) Seconds of all other policies are by that
clock, and therefore should not be held against others by a few per cent. What a choice learns may
come from another machine. Not in the seconds of `auto` is
what it looks at: statistics for records, which make compressing 1 to 5 ms longer in a quarter to a
half of the steps (in five runs on other seeds: at most 1 % of the time), and four passes over the
gradient every 64 steps. The CNN has six seeds with 4 ranks and three with more, because
its seeds differ by more than what is lost; the others have three, two with 16 ranks, but three of
dense, and one with {MANY}. With {MANY} ranks noise is that of 16 ranks for all jobs, and there is a
short list of static choices. All are compared with dense of the same seeds: `±` is the standard
error of the mean of these differences, where there are two seeds or more (of two it is hardly known
itself).
"""

OWN_CLOCK = """A † marks seconds of `auto` that are by the clock of its own run, too: what it chose
there has not been timed beside static choices yet.
"""

OTHER_SEEDS = """Constants of `auto` were chosen on other seeds, but many of them after looking at
these, and some of its rules come from these seeds themselves:
[POLICIES.md](../POLICIES.md#against-every-static-choice) tells which.
"""

TARGETS = f"""The target is the loss on held-out data that dense has at {100 * TARGET_AT:g} % of
its steps (mean over seeds). Losses are looked at {jobs.EVALUATIONS} times in a run; in between, a
line. Static choices that end worse than dense take part: they may still be first at the target.
"""

CHANGES = """"Best for each phase" is what a job would take that changed without delay to the
static choice that is fastest in each phase of the link (among those as good as dense throughout):
no static choice can be faster than that, and where it is not much faster than the best static
choice, there is nothing to be gained by adapting.
"""


def section(setting: Setting) -> str:
    job = setting.job
    title = f"## {job.title}, {setting.ranks} ranks\n"
    if setting.dense is None:
        return f"{title}\n{MISSING.capitalize()}: dense has not been trained yet.\n"
    noise = difference(job, setting.noise).lstrip("+")
    if setting.assumed:
        noise = f"taken to be {noise} (not measured)"
    elif setting.ranks == MANY:
        noise = f"of {RANKS[-1]} ranks {noise}"
    intro = (
        f"{job.steps} steps, global batch {job.global_batch}. Dense ends at "
        f"{figure(job, mean(f for _, f in setting.dense.figures))}, noise {noise} {unit(job)}; "
        "seconds of the whole run by link. **Bold**: the fastest static choice that is as good as "
        f"dense. LOST: worse than dense by more than the noise.{over_links(setting)}\n"
    )
    rows = [row_of(setting, row) for row in setting.static.values()]
    rows += [row_of(setting, row) for row in setting.policies.values()]
    header = ["", f"from dense ({unit(job)})", "bytes, of dense", *SHORT_LINKS.values()]
    plot = f"![quality and time](virtual-{job.name}-{setting.ranks}.svg)\n"
    return "\n".join([title, intro, table(header, rows), plot if setting.ranks in RANKS else ""])


def over_links(setting: Setting) -> str:
    names = [f"`{name}`" for name in setting.policies if name not in BLIND]
    if not names:
        return ""
    *others, last = names
    listed = f"{', '.join(others)} and {last}" if others else last
    return (
        f" Of {listed}, difference and bytes are means over all links, on each of which it learns "
        "something else; LOST is counted by link."
    )


def row_of(setting: Setting, row: Row) -> list[str]:
    values = []
    for link in LINKS:
        best = setting.best_static(link)
        text = seconds_of(row, link)
        values.append(f"**{text}**" if best is row else text)
    return [row.name, quality_of(setting, row), f"{row.sent:.3g}", *values]


def quality(setting: Setting, figures: Figures) -> str:
    text = from_dense(setting, figures)
    return text if setting.as_good(figures) else f"{text} LOST"


def quality_of(setting: Setting, row: Row) -> str:
    """Of what learns something else on every link, on how many of them it lost."""
    if row.name in BLIND or not row.figures_on:
        return quality(setting, row.figures)
    lost = sum(not setting.as_good(figures) for figures in row.figures_on.values())
    text = from_dense(setting, row.figures)
    return f"{text} LOST on {lost} of {len(row.figures_on)} links" if lost else text


def from_dense(setting: Setting, figures: Figures) -> str:
    worse = setting.worse(figures)
    return difference(setting.job, worse if setting.job.lower_is_better else -worse)


def with_error(setting: Setting, figures: Figures) -> str:
    """From dense, of runs with different seeds."""
    text, error = from_dense(setting, figures), setting.error(figures)
    return text if error is None else f"{text} ± {difference(setting.job, error).lstrip('+')}"


@dataclass
class Verdict:
    setting: Setting
    link: str
    best: Row | None
    auto: float | None  # seconds
    ratio: float | None  # to the best static choice
    holds: bool
    words: str

    @property
    def figures(self) -> Figures:
        """Of `auto`."""
        return self.setting.policies["auto"].figures_on[self.link]


def verdicts(settings: list[Setting]) -> list[Verdict]:
    return [verdict(setting, link) for setting in settings for link in LINKS]


def verdict(setting: Setting, link: str) -> Verdict:
    auto = setting.policies.get("auto")
    mine = auto.seconds.get(link) if auto else None
    best = setting.best_static(link) if setting.dense and setting.noise is not None else None
    halves = {"fp16", "bf16"} & setting.static.keys()
    if mine is None or best is None or not halves:
        return Verdict(setting, link, best, mine, None, False, MISSING)
    ratio = mine / best.seconds[link]
    problems = []
    if not setting.as_good(auto.figures_on[link]):
        problems.append("LOST quality")
    if ratio > 1 + CLOSE:
        problems.append(f"{100 * (ratio - 1):.0f} % slower")
    fine = "ahead" if ratio < 1 - AHEAD else "holds"
    words = f"**{', '.join(problems)}**" if problems else fine
    return Verdict(setting, link, best, mine, ratio, not problems, words)


def auto_table(settings: list[Setting]) -> str:
    rows = []
    for each in verdicts(settings):
        setting, link = each.setting, each.link
        place = [setting.name, IN_WORDS[link]]
        if each.ratio is None:
            rows.append([*place, *[MISSING] * 7])
            continue
        half = half_of(setting, link)
        dense = setting.dense.seconds[link]
        rows.append(
            [
                *place,
                seconds(dense),
                seconds(half),
                f"{each.best.name}: {seconds(each.best.seconds[link])}",
                seconds_of(setting.policies["auto"], link),
                f"{each.ratio:.2f}",
                f"{times(dense / each.auto)}, {times(half / each.auto)}",
                f"{with_error(setting, each.figures)}; {each.words}",
            ]
        )
    header = [
        *("job", "link", "fp32 s", "16 bit s", "best static s", "`auto` s", "of best static"),
        *("faster than fp32, 16 bit", "from dense; verdict"),
    ]
    return table(header, merged(rows))


def merged(rows: list[list[str]]) -> list[list[str]]:
    """All links of a job in one line where all are missing."""
    found, kept = {}, []
    for row in rows:
        found.setdefault(row[0], []).append(row)
    for place, mine in found.items():
        if all(set(row[2:]) == {MISSING} for row in mine):
            kept.append([place, "all", *mine[0][2:]])
        else:
            kept += mine
    return kept


def summary(settings: list[Setting], spreads: list[float]) -> str:
    known = [each for each in verdicts(settings) if each.ratio is not None]
    if not known:
        return "No cell is complete yet.\n"
    lost = [e for e in known if "LOST" in e.words]
    slow = [e for e in known if e.ratio > 1 + CLOSE]
    ahead = [e for e in known if e.words == "ahead"]
    return (
        f"Of {len(known)} cells that are complete `auto` holds in "
        f"{sum(e.holds for e in known)}: it is within {100 * CLOSE:g} % of the best static choice "
        f"and as good as dense. It **lost quality in {len(lost)}** and is **more than "
        f"{100 * CLOSE:g} % slower in {len(slow)}**. In {len(ahead)} cells where it holds it is "
        "ahead of every static choice that is as good as dense: by more than "
        f"{100 * AHEAD:g} %{held_against(spreads)}. {significance(known)}\n"
    )


def held_against(spreads: list[float]) -> str:
    """What AHEAD is to the passes over one choice; nothing if none tells."""
    if not spreads:
        return ""
    wide = sum(spread > AHEAD for spread in spreads)
    return (
        f" (passes over the same choice on the same link are {100 * statistics.median(spreads):.1f}"
        f" % apart in the median, and {wide} of {len(spreads)} are more than {100 * AHEAD:g} % "
        "apart)"
    )


def significance(known: list[Verdict]) -> str:
    """How often auto is worse than dense by more than chance explains, LOST or not."""
    repeated = [e for e in known if e.setting.error(e.figures) is not None]
    worse = [e for e in repeated if e.setting.worse(e.figures) > 2 * e.setting.error(e.figures)]
    text = (
        f"In {len(worse)} of the {len(repeated)} cells with two seeds or more it is significantly "
        "worse than dense: by more than twice the standard error of the difference with the same "
        "seeds"
    )
    if not worse:
        return f"{text}."
    most = max(worse, key=lambda e: e.setting.worse(e.figures) / e.setting.noise)
    words = with_error(most.setting, most.figures)
    return (
        f"{text}; most, held against the noise, in {most.setting.name}, {SHORT_LINKS[most.link]}: "
        f"{words} {unit(most.setting.job)}."
    )


def spreads_of(store: Store) -> list[float]:
    """Of every choice on every link: how far the passes are apart in which it was timed."""
    spreads = []
    for record in store.records("virtual/*/times"):
        choices = dict(record["result"])
        for timed in (*choices.pop("plans", {}).values(), *choices.values()):
            spreads += timed.get("spread", {}).values()
    return spreads


def noise_of_times(spreads: list[float]) -> str:
    if not spreads:
        return ""
    return (
        f"Seconds of a choice on a link are the median of {jobs.PASSES} passes over all links and "
        f"choices. The fastest and the slowest pass are {100 * statistics.median(spreads):.1f} % "
        f"apart in the median and {100 * max(spreads):.0f} % at most.\n"
    )


def target_table(settings: list[Setting]) -> str:
    rows = []
    for setting in settings:
        for link in LINKS:
            place, ratio = [setting.name, IN_WORDS[link]], behind_first(setting, link)
            values = [MISSING] * 5 if ratio is None else target_row(setting, link, ratio)
            rows.append([*place, *values])
    header = ["job", "link", "fp32 s", "16 bit s", "first static s", "`auto` s", "of first static"]
    return table(header, merged(rows))


def behind_first(setting: Setting, link: str) -> float | None:
    """Seconds of auto to the target, of those of the static choice that is there first; infinite if
    it never gets there."""
    first = setting.fastest_to_target(link) if setting.dense else None
    auto = setting.policies.get("auto")
    if first is None or auto is None or link not in auto.to_target:
        return None
    mine = auto.to_target[link]
    return math.inf if mine is None else mine / first.to_target[link]


def target_summary(settings: list[Setting]) -> str:
    """With MANY ranks apart: there the first is one of few."""
    every = [(behind_first(s, link), s, link) for s in settings for link in LINKS]
    known = [each for each in every if each[0] is not None]
    if not known:
        return ""
    few = [each for each in known if each[1].ranks != MANY]
    many = [each for each in known if each[1].ranks == MANY]
    parts = []
    if few:
        parts.append(
            f"In {count_behind(few)} with {' or '.join(map(str, RANKS))} ranks `auto` is more than "
            f"{100 * CLOSE:g} % behind the static choice that is first at the target"
            f"{most_behind(few)}"
        )
    if many:
        counts = [len(setting.static) for _, setting, _ in many]
        parts.append(
            f"With {MANY} ranks, where {low_to_high(counts, str)} static choices were measured: in "
            f"{count_behind(many)}{most_behind(many)}"
        )
    never = sum(math.isinf(ratio) for ratio, *_ in known)
    return f"{'. '.join(parts)}. Cells in which it does not reach the target: {never}.\n"


def far_behind(known: list[tuple[float, Setting, str]]) -> list[tuple[float, Setting, str]]:
    return [each for each in known if 1 + CLOSE < each[0] < math.inf]


def count_behind(known: list[tuple[float, Setting, str]]) -> str:
    return f"{len(far_behind(known))} of {len(known)} cells"


def most_behind(known: list[tuple[float, Setting, str]]) -> str:
    behind = far_behind(known)
    if not behind:
        return ""
    ratio, setting, link = max(behind, key=lambda each: each[0])
    first = setting.fastest_to_target(link).name
    return f", most in {setting.name}, {SHORT_LINKS[link]}: {ratio:.2f} of {first}"


def low_to_high(values: list, words) -> str:
    low, high = words(min(values)), words(max(values))
    return low if low == high else f"{low} to {high}"


def target_row(setting: Setting, link: str, ratio: float) -> list[str]:
    def reached(row: Row | None) -> str:
        if row is None:
            return MISSING
        return "never" if row.to_target[link] is None else seconds(row.to_target[link])

    halves = [setting.static[n] for n in ("fp16", "bf16") if n in setting.static]
    half = min(halves, key=lambda row: row.to_target[link] or float("inf"), default=None)
    first = setting.fastest_to_target(link)
    return [
        reached(setting.dense),
        reached(half),
        f"{first.name}: {seconds(first.to_target[link])}",
        reached(setting.policies["auto"]),
        against(ratio),
    ]


def against(ratio: float) -> str:
    if math.isinf(ratio):
        return "**LOST**"
    return f"**{ratio:.2f}**" if ratio > 1 + CLOSE else f"{ratio:.2f}"


def changing_table(settings: list[Setting]) -> str:
    rows = []
    for setting in settings:
        for link in CHANGING:
            each = verdict(setting, link)
            place = [setting.name, link]
            if each.ratio is None:
                rows.append([*place, *[MISSING] * (3 + len(POLICIES))])
                continue
            ideal = best_by_phase(setting, link)
            policies = [ending(setting, setting.policies.get(p), link) for p in POLICIES]
            fastest = min(setting.static.values(), key=lambda row: row.seconds[link])
            rows.append(
                [
                    *place,
                    f"{fastest.name}: {ending(setting, fastest, link)}",
                    f"{each.best.name}: {seconds(each.best.seconds[link])}",
                    f"{seconds(ideal)} ({each.best.seconds[link] / ideal:.2f}x)",
                    *policies,
                ]
            )
    header = [
        *("job", "link", "fastest static s", "best static s, as good as dense"),
        "best for each phase",
        *(f"`{policy}` s" for policy in POLICIES),
    ]
    return table(header, merged(rows))


def ending(setting: Setting, row: Row | None, link: str) -> str:
    """Seconds, and LOST where it ends worse than dense by more than the noise."""
    text = seconds_of(row, link)
    if row is None or link not in row.seconds:
        return text
    return text if setting.as_good(row.figures_on.get(link, row.figures)) else f"{text} LOST"


def best_by_phase(setting: Setting, link: str) -> float:
    """Of static choices as good as dense, the fastest in every step."""
    good = [row for row in setting.static.values() if setting.as_good(row.figures)]
    every = zip(*(row.steps[link] for row in good), strict=True)
    return sum(min(step) for step in every)


def readme_table(settings: list[Setting]) -> str:
    header = [
        *("job", "ranks", "`auto` holds on", "its time, of the best static choice"),
        *("from dense (bits: less is better)", "faster than fp32", "than 16 bit"),
    ]
    return table(header, map(readme_row, settings))


def readme_row(setting: Setting) -> list[str]:
    """Ranges over links."""
    place = [setting.job.title, str(setting.ranks)]
    known = [each for each in verdicts([setting]) if each.ratio is not None]
    if not known:
        return [*place, *[MISSING] * 5]
    holds = f"{sum(each.holds for each in known)} of {len(LINKS)} links"
    if len(known) < len(LINKS):
        holds += f", {len(LINKS) - len(known)} {MISSING}"
    sign = 1 if setting.job.lower_is_better else -1
    worse = [sign * setting.worse(each.figures) for each in known]
    fp32 = [setting.dense.seconds[each.link] / each.auto for each in known]
    half = [half_of(setting, each.link) / each.auto for each in known]
    return [
        *place,
        holds,
        low_to_high([each.ratio for each in known], "{:.2f}".format),
        f"{low_to_high(worse, lambda value: difference(setting.job, value))} {unit(setting.job)}",
        low_to_high(fp32, times),
        low_to_high(half, times),
    ]


def half_of(setting: Setting, link: str) -> float:
    """Seconds with 16 bits an element: fp16 or bf16."""
    return min(setting.static[n].seconds[link] for n in ("fp16", "bf16") if n in setting.static)


# --- plots ---


def auto_plot(settings: list[Setting]) -> Plot:
    points = [
        [f"{e.setting.job.name}, {e.setting.ranks}", e.link, e.ratio, "LOST" in e.words]
        for e in verdicts(settings)
    ]
    places = list(dict.fromkeys(point[0] for point in points))

    def draw(figure) -> None:
        axes = figure.add_subplot()
        for index, link in enumerate(LINKS):
            mine = [(places.index(p[0]), *p[2:]) for p in points if p[1] == link and p[2]]
            where = [at + 0.11 * (index - 2.5) for at, *_ in mine]
            axes.scatter(where, [m[1] for m in mine], s=34, label=SHORT_LINKS[link], zorder=3)
            lost = [(x, m[1]) for x, m in zip(where, mine, strict=True) if m[2]]
            for x, y in lost:
                axes.scatter([x], [y], s=130, marker="x", color=RED, zorder=4)
        axes.scatter([], [], s=60, marker="x", color=RED, label="lost quality")
        axes.axhline(1, linewidth=1, color=GREY)
        axes.axhspan(1, 1 + CLOSE, alpha=0.15, color="#2b9348")
        axes.set_xticks(range(len(places)), places)
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_xlabel("job, ranks")
        axes.set_ylabel("seconds of auto / best static choice")
        figure.suptitle("auto against the fastest static choice as good as dense (below 1: faster)")
        figure.legend(ncols=7, loc="outside lower center")

    return Plot(draw, points, (10.0, 4.8))


def quality_plot(setting: Setting) -> Plot:
    """Quality against time, a panel for each constant link."""
    shown = tuple(jobs.CONSTANT)
    factor = 100 if setting.job.figure == "accuracy" else 1
    data = []
    if setting.dense is not None:
        for kind, rows in (("static", setting.static), ("policy", setting.policies)):
            for row in rows.values():
                for link in shown:
                    if link in row.seconds:
                        worse = factor * setting.worse(row.figures_on.get(link, row.figures))
                        data.append([kind, row.name, link, row.seconds[link], worse])
    noise = None if setting.noise is None else factor * setting.noise
    lowest = 4.0 if factor == 100 else 0.5  # points further down stand at the edge

    def draw(figure) -> None:
        panels = figure.subplots(1, len(shown), sharey=True)
        for axes, link in zip(panels, shown, strict=True):
            mine = [(*point[:2], *point[3:]) for point in data if point[2] == link]
            draw_panel(axes, mine, lowest)
            if noise is not None:
                axes.axhline(-noise, linewidth=1, linestyle="--", color=GREY)
            axes.set_title(SHORT_LINKS[link])
            axes.set_xlabel("modelled seconds")
        panels[0].set_ylabel(f"better than dense ({unit(setting.job)}), cut at {-lowest:g}")
        figure.suptitle(
            f"{setting.job.title}, {setting.ranks} ranks. Below the dashed line: worse than dense "
            "by more than the noise. Further left: faster"
        )

    return Plot(draw, [data, noise, setting.job.title, setting.ranks], (15.0, 5.0))


def draw_panel(axes, points: list[tuple[str, str, float, float]], lowest: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for kind, name, took, worse in points:
        colour = colour_of(kind, name)
        height = -min(worse, lowest)
        diamond = kind == "policy"
        axes.scatter(
            [took],
            [height],
            s=44 if diamond else 20,
            color=colour,
            marker="Do"[not diamond],
            zorder=3,
        )
        on_front = not any(t < took and w <= worse for _, _, t, w in points)
        if diamond or on_front or name in PLAIN:
            axes.annotate(
                name, (took, height), (4, 4), textcoords="offset points", fontsize=8, color=colour
            )
    axes.set_xscale("log")
    if points:
        axes.margins(x=0.18)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def colour_of(kind: str, name: str) -> str:
    if name == "auto":
        return COLOURS[1]
    if kind == "policy":
        return COLOURS[4]
    return COLOURS[0] if name in PLAIN else GREY
