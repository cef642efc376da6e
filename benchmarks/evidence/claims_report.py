# SPDX-License-Identifier: Apache-2.0
"""The page of claims.py's cells; a module for each paper."""

from . import claims_accordion, claims_flexible, claims_gravac
from .claims_gravac import FASTER
from .claims_runs import Measured, Noise
from .claims_verdict import outcomes
from .report import MISSING, Report, provenance, table
from .store import Store


def make_report(store: Store) -> Report:
    found = Measured(store)
    parts = [
        "# What the papers claim, and what we see\n",
        provenance(store.records("claims/*"), "claims/*"),
        from_virtual(found),
        verdict_table(found),
        introduction(found.noise),
        "## Accordion\n",
        claims_accordion.page(found),
        claims_accordion.batch_page(found),
        "## GraVAC\n",
        claims_gravac.page(found),
        "## Flexible communication\n",
        claims_flexible.page(found),
    ]
    report = Report()
    report.pages["claims"] = "\n".join(filter(None, parts))
    report.plots["claims-accordion"] = claims_accordion.plot(found.accordion)
    return report


def from_virtual(found: Measured) -> str:
    """Where figures come from that the command above does not make."""
    seeds = sorted({r["seed"] for run in found.beside.values() if run for r in run.results})
    if not seeds:
        return ""
    span = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else seeds[0]
    return (
        f"The first {len(found.beside)} lines of GraVAC's table, and GraVAC's noise, are not of "
        f"these cells: their cells are those of [virtual.md](virtual.md), seeds {span}.\n"
    )


def introduction(noise: dict[str, Noise | None]) -> str:
    of_parts = "; ".join(f"{part} {each or MISSING}" for part, each in noise.items())
    return f"""Small jobs: a CNN of 0.41 million parameters on Fashion-MNIST, a few hundred
steps, so figures are not those of the papers; directions can be compared. Accuracy is the mean of
the seeds with its standard deviation, MB are what one rank sent in all.

**Equal** are two accuracies that differ by no more than the noise; *better* is ahead by more than
it. The noise is the standard deviation of dense over its seeds. What is compared is paired: the
difference is the mean over the seeds that all have, and a verdict says how many those are. Seconds
are *fewer* if the other takes {FASTER:g} times as many, because runs that send the same differ by
several per cent. A verdict is made from the figures by the rule that stands beside it. A reason is
what the figures show or what is known to differ from the paper; what is only supposed is called
probable.

Noise in points: {of_parts}.
"""


def verdict_table(found: Measured) -> str:
    """In short."""
    verdicts = {
        "Accordion": claims_accordion.verdicts(found),
        "Accordion, batches": claims_accordion.batch_verdicts(found),
        "GraVAC": claims_gravac.verdicts(found),
        "Flexible": claims_flexible.verdicts(found),
    }
    rows = [
        (paper, claim, outcome)
        for paper, every in verdicts.items()
        for claim, outcome in outcomes(every).items()
    ]
    return table(["paper", "claim", "here"], rows)
