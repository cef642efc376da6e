# SPDX-License-Identifier: Apache-2.0
"""Plots of sockets.py's cells."""

from .plots import COLOURS, GREY
from .report import Plot
from .sockets import (
    POLICIES,
    RIVALS,
    SLOW,
    STATIC,
    changing_name,
    learning_name,
    policy_name,
    timed_name,
)
from .sockets_changing import phases
from .sockets_rows import LINK_NAMES, NAMES, TARGET, Row, seconds_after
from .store import Store

STYLES = {
    "policy": {"linewidth": 2.4},
    "rival": {"linewidth": 1.4, "linestyle": "--"},
    "static": {"linewidth": 1.2, "linestyle": ":"},
}


def curve_plot(store: Store, rows: dict[str, Row | None], link: str) -> Plot:
    lines = []
    for way, row in rows.items():
        if row is None:
            continue
        name = learning_name(way, 0) if way in STATIC else policy_name(link, way, 0)
        found, timed = store.result(name), store.result(timed_name(link, way))
        if found is None:
            continue
        points = [
            [seconds_after(timed, steps) if way in STATIC else at, 100 * accuracy]
            for steps, at, accuracy in found["curve"]
        ]
        kind = "policy" if way in POLICIES else "rival" if way in RIVALS else "static"
        lines.append({"name": NAMES[way].replace("`", ""), "kind": kind, "points": points})

    def draw(figure):
        axes = figure.subplots()
        for kind, style in STYLES.items():
            alike = [line for line in lines if line["kind"] == kind]
            for line, colour in zip(alike, COLOURS, strict=False):
                points = zip(*line["points"], strict=True)
                axes.plot(*points, label=line["name"], color=colour, **style)
        axes.axhline(100 * TARGET, linewidth=0.8, color=GREY)
        axes.set_xscale("log")
        axes.set_xlabel(f"seconds of training at {LINK_NAMES[link]}, seed 0")
        axes.set_ylabel("accuracy on test images, %")
        axes.set_ylim(bottom=76)
        axes.legend(fontsize=8, ncols=2, loc="lower right")

    return Plot(draw, [lines, link], (9.0, 5.5))


def reaction_plot(store: Store) -> Plot:
    lines = []
    for policy in POLICIES:
        found = store.result(changing_name(policy, 0))
        if found is None:
            continue
        lines.append({"name": policy, "ms": found["step_ms"], "bytes": found["bytes"]})

    def draw(figure):
        upper, lower = figure.subplots(2, 1, sharex=True)
        for line in lines:
            steps = [step for step, _ in line["bytes"]] + [len(line["ms"])]
            sent = [value / 1e6 for _, value in line["bytes"]]
            upper.plot(line["ms"], label=line["name"], linewidth=1.1)
            lower.step(steps, [*sent, sent[-1]], where="post", linewidth=1.6)
        for axes in (upper, lower):
            axes.set_yscale("log")
            for start, end, link in phases():
                if link == SLOW:
                    axes.axvspan(start, end, alpha=0.12, color=GREY)
        upper.set_ylabel("ms a step")
        lower.set_ylabel("MB sent a step")
        links = ", ".join(f"{LINK_NAMES[link]} from step {start}" for start, _, link in phases())
        lower.set_xlabel(f"step ({links})")
        if lines:
            upper.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))

    return Plot(draw, lines, (9.0, 6.0))
