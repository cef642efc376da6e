# SPDX-License-Identifier: Apache-2.0
"""`tidegate report`: one page about one run or several, from their traces. See docs/REPORT.md."""

import datetime
import html
import json
import math
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from . import __version__, _core
from . import report_figures as figures
from .cli import check_writable, shows, write_json
from .errors import Error
from .explain import header, tell, times_are
from .report_plots import Run, all_plots
from .report_words import headline, how_known, tiles

MOST_EVENTS = 400  # of a run's story that the page holds
MOST_RUNS = 8  # as many as there are colours
TEMPLATE = Path(__file__).with_name("report_page.html")


def run(arguments: Namespace) -> int:
    check_writable("--output", arguments.output)
    plotly = find_plotly()
    runs = read(arguments.traces)
    if arguments.json:
        write_json(arguments.json, as_json(runs))
    page = make_page(runs, plotly)
    Path(arguments.output).write_text(page, encoding="utf-8")
    if shows(arguments):
        for each in runs:
            print(f"{each.name}: {headline(each, figures.savings(each.trace, each.rows))}")
        print(f"Written to {arguments.output}; open it in a browser.")
    return 0


def find_plotly() -> str:
    """The text of plotly.js, which becomes a part of the page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise Error(
            "config",
            "a report is drawn by plotly, which is not installed; pip install 'tidegate[report]'",
        ) from None
    return get_plotlyjs()


def read(paths: list[str]) -> list[Run]:
    if len(paths) > MOST_RUNS:
        raise Error("config", f"{len(paths)} traces: a page compares at most {MOST_RUNS}")
    if len(set(paths)) < len(paths):
        raise Error("config", "the same trace is given twice; name each once")
    runs = []
    for path, name in zip(paths, names_of(paths), strict=True):
        trace = _core.read_trace(path)
        runs.append(Run(name, trace, figures.rows(trace), times_are(trace["start"])))
    return runs


def names_of(paths: list[str]) -> list[str]:
    """As short as they can be told apart."""
    stems = [Path(path).stem for path in paths]
    return stems if len(set(stems)) == len(stems) else paths


def as_json(runs: list[Run]) -> dict:
    return {"v": 1, "kind": "report", "runs": [summary(each) for each in runs]}


def summary(each: Run) -> dict:
    saved = figures.savings(each.trace, each.rows)
    return {
        "name": each.name,
        "times": each.times,
        "headline": headline(each, saved),
        **vars(saved),
        "speedup_fp32": saved.speedup_fp32,
        "speedup_half": saved.speedup_half,
        "efficiency": figures.efficiency(each.trace, each.rows),
        "phases": figures.phases(each.trace, each.rows),
        "shares": figures.shares(each.trace),
    }


# --- the page ---


def make_page(runs: list[Run], plotly: str) -> str:
    plots = all_plots(runs)
    parts = {
        "title": html.escape("Tidegate: " + ", ".join(each.name for each in runs)),
        "made": f"made {datetime.date.today().isoformat()}",
        "body": "\n".join(
            [
                *(overview(each, [r for r in runs if r is not each]) for each in runs),
                "<h2>Pictures</h2>",
                f'<div class="plots">{"".join(map(card, plots))}</div>',
                "<h2>What was decided, and why</h2>",
                *map(story, runs),
            ]
        ),
        "footer": f"Made by tidegate {__version__} from traces. Emulated: real processes whose "
        "exchanges were held back as a link would. Modelled: computed from what was measured. "
        "docs/REPORT.md tells how to read each picture.",
        "plots": embed(plots),
        "plotly": plotly.replace("</script", "<\\/script"),
    }
    # In one pass: what is put in may look like a place to put something.
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def embed(plots: list[dict]) -> str:
    """JSON that can stand inside a script."""
    known = [{key: plot[key] for key in ("id", "data", "layout") if key in plot} for plot in plots]
    text = json.dumps(rounded(known), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def rounded(value: Any) -> Any:
    """Six digits are more than a picture shows; what is not finite leaves a gap."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def overview(each: Run, others: list[Run]) -> str:
    saved = figures.savings(each.trace, each.rows)
    share = figures.efficiency(each.trace, each.rows)
    name = f"<h2>{html.escape(each.name)}</h2>" if others else ""
    facts = [*header(each.trace["start"]), *how_known(each, saved, others)]
    return "\n".join(
        [
            "<section>",
            name,
            f'<p class="headline">{html.escape(headline(each, saved))}</p>',
            *(f'<p class="note">{html.escape(text)}</p>' for text in notes(each)),
            '<div class="tiles">',
            *(
                f'<div class="tile"><b>{html.escape(figure)}</b>'
                f"<span>{html.escape(what)}</span></div>"
                for figure, what in tiles(each, saved, share)
            ),
            "</div>",
            f'<ul class="known">{"".join(f"<li>{html.escape(line)}</li>" for line in facts)}</ul>',
            "</section>",
        ]
    )


def notes(each: Run) -> list[str]:
    """What the reader must know of the trace itself."""
    trace, found = each.trace, []
    if trace["start"]["part"]:
        found.append(
            f"The first {trace['start']['part']} parts of this trace were removed to keep it "
            "within trace_mb: the page tells of the rest."
        )
    if trace["incomplete"]:
        found.append(trace["incomplete"])
    if trace["end"] is None and trace["steps"]:
        found.append("The run did not come to its end, or is still going on.")
    if not trace["start"]["holds_inputs"]:
        found.append("An earlier version wrote this trace: some of what it decided by is missing.")
    found += [f"Step {f['step']}: {f['fault']} error: {f['text']}" for f in trace["faults"]]
    return found


def card(plot: dict) -> str:
    layout = plot.get("layout", {})
    shape = "tall" if layout.get("tall") else "flat" if layout.get("flat") else ""
    inside = (
        f'<p class="missing">{html.escape(plot["missing"])}</p>'
        if "missing" in plot
        else f'<p>{html.escape(plot["text"])}</p><div class="plot" id="{plot["id"]}"></div>'
    )
    return f'<article class="card {shape}"><h3>{html.escape(plot["title"])}</h3>{inside}</article>'


def story(each: Run) -> str:
    events = tell(each.trace)
    shown = events[:MOST_EVENTS]
    rows = "".join(
        f'<tr><td class="number">{event["step"]}</td>'
        f'<td><span class="kind">{html.escape(event["what"])}</span></td>'
        f"<td>{html.escape(event['text'])}</td></tr>"
        for event in shown
    )
    if not rows:
        return f"<p>{html.escape(each.name)} decided nothing that was written down.</p>"
    more = len(events) - len(shown)
    rest = f"<p>{more} more events: tidegate explain --all tells them.</p>" if more else ""
    return (
        f'<details open class="card"><summary>{html.escape(each.name)}: {len(events)} events'
        '</summary><div class="scroll"><table class="story"><thead><tr><th class="number">step</th>'
        f"<th>what</th><th>why</th></tr></thead><tbody>{rows}</tbody></table></div>{rest}</details>"
    )
