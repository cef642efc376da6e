# SPDX-License-Identifier: Apache-2.0
"""The picture of `tidegate plan`: modelled seconds per step over the rate of the link."""

from pathlib import Path

from . import _core
from .errors import Error

FORMATS = (".svg", ".png", ".pdf")
SLOWEST, FASTEST = 10.0, 25_000.0  # Mbit/s
POINTS = 160


def check(path: str) -> None:
    if Path(path).suffix not in FORMATS:
        raise Error("config", f'--plot "{path}": the name must end with {", ".join(FORMATS)}')
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Error(
            "config", "--plot needs matplotlib; install it with: pip install tidegate[plot]"
        ) from None


def draw(path: str, plan: _core.Plan, network: dict) -> None:
    from matplotlib.figure import Figure

    here = network["fits"]["all-reduce"][0] * 8 / 1e6
    slowest, fastest = min(SLOWEST, here / 2), max(FASTEST, here * 2)
    steps = range(POINTS + 1)
    rates = [slowest * (fastest / slowest) ** (i / POINTS) for i in steps]
    factors = [rate / here for rate in rates]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.loglog(rates, plan.fp32_curve(factors), "--", color="black", label="dense fp32")
    axes.loglog(rates, plan.bf16_curve(factors), "--", color="gray", label="dense bf16")
    for index in best_of_kinds(plan):
        row = plan.rows[index]
        axes.loglog(rates, plan.curve(index, factors), label=row["choice"])
    axes.axvline(here, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(
        "your link",
        (here, 0),
        (4, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
    )
    axes.set_xlabel("rate of the link per rank and direction (Mbit/s)")
    axes.set_ylabel("seconds per step (modelled)")
    axes.set_title(
        f"Modelled step, {network['ranks']} ranks; the fastest of each kind on your link"
    )
    axes.set_xlim(slowest, fastest)
    axes.grid(which="both", alpha=0.2)
    axes.legend(loc="upper right")
    figure.savefig(path, dpi=130)


def best_of_kinds(plan: _core.Plan) -> list[int]:
    """The fastest rows with error feedback: one that selects, one of low rank, one of few bits; and
    the mildest level that is hardly slower than the best."""
    fastest: dict[tuple[bool, bool], int] = {}
    for index, row in enumerate(plan.rows):
        if row["error_feedback"]:
            fastest.setdefault((row["ratio"] is None, row["rank"] is None), index)
    gentlest = [] if plan.gentlest is None else [plan.gentlest]
    return sorted({*fastest.values(), *gentlest})
