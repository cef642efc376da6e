# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG that can be read on a light and on a dark page: no background, text in a grey that
stands out from both, lines in colours that do."""

import hashlib
import io
import json
import re

from .report import Plot

GREY = "#808080"
# Told apart also by those who see few colours.
COLOURS = ("#2f7ed8", "#e8590c", "#2b9348", "#c2255c", "#9c6ade", "#b58900", "#0ca5b0", GREY)
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidegate",  # the same names in every run
    "font.size": 10.5,
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def render(plot: Plot, form: str = "svg", **options) -> str | bytes:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.use("agg")
    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure)
        made = io.BytesIO()
        if form != "svg":
            figure.savefig(made, format=form, **options)
            return made.getvalue()
        figure.savefig(made, format=form, transparent=True, metadata={"Date": None})
    return f"{made.getvalue().decode().rstrip()}\n<!-- data {digest(plot)} -->\n"


def digest(plot: Plot) -> str:
    """Of what is drawn. Two versions of matplotlib draw it with other bytes."""
    text = json.dumps([plot.data, plot.size], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def digest_in(svg: str) -> str | None:
    found = re.search(r"<!-- data ([0-9a-f]+) -->", svg)
    return found.group(1) if found else None
