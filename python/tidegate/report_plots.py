# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report, as plotly takes them, without colours: those are the page's, by theme.

Every trace of a picture has a "tone" (which colour of the palette), every shape a "role".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import report_figures as figures

MOST_POINTS = 1500  # of a line
SMOOTHED_FROM = 30  # points that a curve has
MOST_CHANGES = 40  # of the network, marked
SHADE = 0.4  # of the height that the strip of methods takes


@dataclass
class Run:
    name: str
    trace: dict
    rows: list[figures.Row]
    times: str  # measured, emulated or modelled


def all_plots(runs: list[Run]) -> list[dict]:
    """In the order of the page: {"id", "title", "text", "data", "layout"}, or "missing" (what to do
    to see it) instead of data."""
    plots = [
        *(curve(runs, name, over) for name in curve_names(runs) for over in ("time", "bytes")),
        methods(runs),
        network(runs),
        step_times(runs),
        phases(runs),
        backlog(runs),
        kept(runs),
        gain_curve(runs),
        efficiency(runs),
        levels(runs),
        routes(runs),
    ]
    for number, plot in enumerate(plots):
        plot["id"] = f"plot-{number}"
    return plots


def curve_names(runs: list[Run]) -> list[str]:
    """The loss, and whatever else was logged more than once."""
    curves = [figures.logged(run.trace, run.rows) for run in runs]
    several = {name for each in curves for name, points in each.items() if len(points) > 1}
    return ["loss", *sorted(several - {"loss"})]


# --- building blocks ---


def line(run: int, name: str, points: list[tuple], **options: Any) -> dict:
    x, y = zip(*points, strict=True) if points else ((), ())
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "tone": run,
        "x": list(x),
        "y": list(y),
        **options,
    }


def picture(title: str, text: str, data: list[dict], missing: str, **layout: Any) -> dict:
    data = [
        trace for trace in data if any(x is not None and y is not None for x, y in points_of(trace))
    ]
    if not data:
        return {"title": title, "text": text, "missing": missing}
    return {"title": title, "text": text, "data": data, "layout": layout}


def points_of(trace: dict) -> Iterator[tuple]:
    return zip(trace["x"], trace["y"], strict=True)


def axis(title: str, **options: Any) -> dict:
    return {"title": {"text": title}, **options}


def over_steps(
    runs: list[Run], value: Callable[[figures.Row, dict], float | None], **options: Any
) -> list[dict]:
    """value(row, step) of every step, None where there is none."""
    data = []
    for number, run in enumerate(runs):
        pairs = zip(run.rows, run.trace["steps"], strict=True)
        points = figures.thin([(row.step, value(row, each)) for row, each in pairs], MOST_POINTS)
        known = [y for _, y in points if y is not None]
        data.append(line(number, run.name, points if known else [], **options))
    return data


def log_axis(title: str, data: list[dict], **options: Any) -> dict:
    """Ticks at powers of ten only, where there are enough of them."""
    values = [y for trace in data if "yaxis" not in trace for y in trace["y"] if y]
    wide = values and max(values) / min(values) > 10
    return axis(title, type="log", **({"dtick": 1} if wide else {"nticks": 5}), **options)


def time_label(runs: list[Run]) -> str:
    return " or ".join(sorted({run.times for run in runs}))


# --- learning ---


def curve(runs: list[Run], name: str, over: str) -> dict:
    """What was logged in many steps is noisy: drawn faintly, with its running mean on top."""
    data = []
    for number, run in enumerate(runs):
        logged = figures.logged(run.trace, run.rows).get(name, [])
        place = 1 if over == "time" else 2
        x = [point[place] if over == "time" else point[place] / 1e6 for point in logged]
        y = [value for *_, value in logged]
        noisy = len(y) > SMOOTHED_FROM
        points = figures.thin(list(zip(x, y, strict=True)), MOST_POINTS // 3)
        if noisy:
            data.append(line(number, run.name, points, opacity=0.3, showlegend=False))
            smooth = figures.smooth(y, max(5, len(y) // 25))
            points = figures.thin(list(zip(x, smooth, strict=True)), MOST_POINTS // 3)
        data.append(line(number, run.name, points, mode="lines" if noisy else "lines+markers"))
    better = "Lower and further left is better." if name == "loss" else "As it was logged."
    text = {
        "time": f"What was learned in the time that steps took. {better}",
        "bytes": "The same over what was sent: how much learning a byte buys.",
    }[over]
    return picture(
        f"{name.capitalize()} over {over}",
        text,
        data,
        f"No {name} was logged: call handle.log({name}=...) after steps to see it.",
        xaxis=axis(
            f"seconds ({time_label(runs)})" if over == "time" else "MB sent by a rank",
            rangemode="tozero",
        ),
        yaxis=axis(name),
    )


# --- what was sent ---


def methods(runs: list[Run]) -> dict:
    """Bytes against fp32 above, methods in use below, critical regimes shaded."""
    data = over_steps(
        runs, lambda row, _: 100 * row.bytes_sent / row.fp32_bytes if row.fp32_bytes else None
    )
    for trace in data:
        trace["line"] = {"shape": "hv"}
    shapes = []
    for number, run in enumerate(runs):
        suffix = f" · {run.name}" if len(runs) > 1 else ""
        for name, parts in figures.stretches(run.trace).items():
            x, y = [], []
            for first, last in parts:
                x += [first, last + 1, None]
                y += [name + suffix] * 2 + [None]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": x,
                    "y": y,
                    "yaxis": "y2",
                    "name": name,
                    "tone": number,
                    "line": {"width": 9},
                    "connectgaps": False,
                    "showlegend": False,
                    "hovertemplate": f"{name}, step %{{x}}<extra>{run.name}</extra>",
                }
            )
        shapes += [
            {
                "type": "rect",
                "role": "critical",
                "tone": number,
                "x0": first,
                "x1": last + 1,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
            }
            for first, last in figures.regimes(run.trace)
        ]
    shaded = " Shaded: critical regimes, in which the policy is gentler." if shapes else ""
    return picture(
        "Ratio and method over steps",
        f"Above, bytes sent in per cent of fp32; below, what was in use.{shaded}",
        data,
        "The trace holds no steps.",
        xaxis=axis("step", anchor="y2"),
        yaxis=log_axis("% of fp32 bytes", data, domain=[SHADE + 0.08, 1]),
        yaxis2={"type": "category", "domain": [0, SHADE], "automargin": True, "ticks": ""},
        shapes=shapes,
        tall=True,
    )


def step_times(runs: list[Run]) -> dict:
    data = over_steps(runs, lambda row, _: row.seconds and 1e3 * row.seconds)
    # Of one run: others on the same network would draw the same lines again.
    chosen = [run for run in runs if not figures.baseline(run.trace)]
    chosen = [run for run in chosen if figures.savings(run.trace, run.rows).trusted][:1]
    for run in chosen:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        for place, (name, key, dash) in enumerate(
            (("fp32", "fp32", "dash"), ("16-bit", "bf16", "dot"))
        ):
            points = [
                (each["step"], 1e3 * each["modelled_seconds"][key])
                for each in run.trace["steps"]
                if each["modelled_seconds"][key] is not None
            ]
            data.append(
                line(
                    len(runs) + place,
                    f"{prefix}{name} all-reduce, modelled",
                    figures.thin(points, MOST_POINTS),
                    line={"dash": dash},
                )
            )
    broken = ""
    if chosen:
        broken = (
            " Broken: what plain all-reduces would have taken on the network as the run knew it "
            "(modelled)."
        )
    return picture(
        "Time per step",
        f"What steps took ({time_label(runs)}).{broken}",
        data,
        "The trace holds fewer than two steps, so no step was timed.",
        xaxis=axis("step"),
        yaxis=log_axis("milliseconds", data),
    )


def backlog(runs: list[Run]) -> dict:
    data = over_steps(runs, lambda _, each: each["backlog"])
    if all(not any(trace["y"]) for trace in data):
        data = []
    return picture(
        "Backlog",
        "Energy of what waits to be sent, in gradients of a step. Nothing of it is lost; the more "
        "waits, the later it arrives.",
        data,
        "Nothing ever waited: every gradient was sent whole.",
        xaxis=axis("step"),
        yaxis=axis("residual / gradient energy", rangemode="tozero"),
    )


def kept(runs: list[Run]) -> dict:
    data = over_steps(
        runs, lambda _, each: each["kept"] if each["backlog"] > 0 or each["ratio"] < 1 else None
    )
    return picture(
        "Kept per step",
        "Energy that was sent in a step, in gradients of that step. Above 1, what had waited was "
        "sent too.",
        data,
        "Every gradient was sent whole.",
        xaxis=axis("step"),
        yaxis=axis("sent / gradient energy", rangemode="tozero"),
    )


def gain_curve(runs: list[Run]) -> dict:
    data = []
    for number, run in enumerate(runs):
        prefix = f"{run.name}, " if len(runs) > 1 else ""
        for place, (step, points) in enumerate(figures.gain_curves(run.trace)):
            tone = number if len(runs) > 1 else place
            dash = ("solid", "dash", "dot")[place] if len(runs) > 1 else "solid"
            percents = [(100 * ratio, 100 * gain) for ratio, gain in points]
            data.append(line(tone, f"{prefix}step {step}", percents, line={"dash": dash}))
    return picture(
        "Gain curve",
        "How much of a gradient's energy its largest elements hold: the steeper on the left, the "
        "better it compresses.",
        data,
        "The policy did not look at the magnitudes of gradients, so the trace does not hold them.",
        xaxis=axis("% of elements sent", type="log", dtick=1),
        yaxis=axis("% of energy kept", range=[0, 103]),
    )


# --- network and time ---


def network(runs: list[Run]) -> dict:
    data, shapes = [], []
    for number, run in enumerate(runs):
        known = [(each["step"], *each["link"]) for each in run.trace["steps"] if each["link"]]
        rates = [(step, rate * 8 / 1e6) for step, rate, _ in known if rate < float("inf")]
        latencies = [(step, 1e3 * latency) for step, _, latency in known]
        rates, latencies = (figures.thin(each, MOST_POINTS) for each in (rates, latencies))
        data.append(line(number, run.name, rates, line={"shape": "hv"}))
        below = {"yaxis": "y2", "showlegend": False, "line": {"shape": "hv"}}
        data.append(line(number, f"{run.name}, latency", latencies, **below))
        changes = [each["step"] for each in run.trace["steps"] if each["changes"]]
        shapes += [
            {
                "type": "line",
                "role": "change",
                "tone": number,
                "x0": step,
                "x1": step,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
            }
            for step in changes[:MOST_CHANGES]
        ]
    marked = " Dotted: the run decided that the network has changed." if shapes else ""
    return picture(
        "Network, as estimated",
        f"From what transfers took; rate above, latency below.{marked}",
        data,
        "The run did not measure its network; policies that act on it do, or "
        "attach(calibrate=True).",
        xaxis=axis("step", anchor="y2"),
        yaxis=log_axis("Mbit/s", data, domain=[0.5, 1]),
        yaxis2=axis("ms", rangemode="tozero", domain=[0, 0.4]),
        shapes=shapes,
        tall=True,
    )


def stacked(runs: list[Run], parts: list[dict[str, float]], scale: float, unit: str) -> list[dict]:
    """Horizontal bars, one per run, of parts that share their names."""
    names = list(dict.fromkeys(name for each in parts for name in each))
    labels = [run.name for run in runs]
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "tone": tone,
            "y": labels,
            "x": [scale * each.get(name, 0.0) for each in parts],
            "hovertemplate": f"{name}: %{{x:.3g}} {unit}<extra></extra>",
        }
        for tone, name in enumerate(names)
    ]


def phases(runs: list[Run]) -> dict:
    parts = [figures.phases(run.trace, run.rows) for run in runs]
    names = list(dict.fromkeys(name for each in parts for name in each))
    data = [
        {
            "type": "bar",
            "name": run.name,
            "tone": number,
            "x": names,
            "y": [1e3 * each.get(name, 0.0) for name in names],
            "hovertemplate": "%{x}: %{y:.3g} ms<extra></extra>",
        }
        for number, (run, each) in enumerate(zip(runs, parts, strict=True))
    ]
    return picture(
        "Time per phase",
        f"Mean milliseconds of a step ({time_label(runs)}). A step is computing and waiting; "
        "compressing, wire and decoding run beside the computation as far as they can.",
        data,
        "The trace holds no steps.",
        xaxis={"type": "category"},
        yaxis=axis("milliseconds"),
        barmode="group",
    )


def levels(runs: list[Run]) -> dict:
    parts = [figures.shares(run.trace)["level"] for run in runs]
    return picture(
        "Share of steps by method and level",
        "Within a step a bucket counts by its elements.",
        stacked(runs, parts, 100, "% of steps"),
        "The trace holds no decisions.",
        xaxis=axis("% of steps", range=[0, 100]),
        yaxis={"type": "category", "automargin": True, "autorange": "reversed"},
        barmode="stack",
        flat=True,
    )


def routes(runs: list[Run]) -> dict:
    parts = [figures.shares(run.trace)["route"] for run in runs]
    return picture(
        "Share of steps by collective",
        "How contributions came together: see tidegate methods.",
        stacked(runs, parts, 100, "% of steps"),
        "The trace holds no decisions.",
        xaxis=axis("% of steps", range=[0, 100]),
        yaxis={"type": "category", "automargin": True, "autorange": "reversed"},
        barmode="stack",
        flat=True,
    )


def efficiency(runs: list[Run]) -> dict:
    known = [(run, share) for run in runs if (share := figures.efficiency(run.trace, run.rows))]
    trusted = [figures.savings(run.trace, run.rows).trusted for run, _ in known]
    labels = {"run": "this run", "16-bit": "16-bit, modelled", "fp32": "fp32, modelled"}
    data = [
        {
            "type": "bar",
            "name": label,
            "tone": tone,
            "x": [run.name for run, _ in known],
            "y": [
                100 * share[key] if key == "run" or believed else None
                for (_, share), believed in zip(known, trusted, strict=True)
            ],
            "hovertemplate": f"{label}: %{{y:.3g}} %<extra></extra>",
        }
        for tone, (key, label) in enumerate(labels.items())
    ]
    return picture(
        "Scaling efficiency",
        "Time that computing takes, in per cent of the step: 100 % would be a network that costs "
        "nothing.",
        data,
        "The run knew neither its network nor what computing takes.",
        xaxis={"type": "category"},
        yaxis=axis("%", range=[0, 100]),
        barmode="group",
    )
