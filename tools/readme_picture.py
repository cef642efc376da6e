#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The picture of the README: the time of a step over a link that changes, dense and under `auto`.

    .venv/bin/python tools/readme_picture.py --measure     # some minutes; leave the machine alone
    .venv/bin/python tools/readme_picture.py               # draws what was measured

Measured by `tidegate demo`, once for every run: real processes, an emulated link. What it found is
in docs/images/changing_link.json, so that the picture can be drawn again without measuring."""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tidegate import _core

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
DATA, PICTURE = IMAGES / "changing_link.json", IMAGES / "changing_link.svg"

STEPS = 234  # an epoch of the demo
SCHEDULE = {0: "100mbit,2ms", 60: "20mbit,10ms", 120: "1gbit,0.5ms", 180: "100mbit,2ms"}
RUNS = {"dense": ["--method", "dense"], "bf16": ["--method", "bf16"], "auto": []}


# --- measuring ---


def measure() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        schedule = Path(folder) / "schedule.txt"
        schedule.write_text("".join(f"{step} {link}\n" for step, link in SCHEDULE.items()))
        runs = {name: run(options, schedule, folder) for name, options in RUNS.items()}
    links = [{"step": step, "link": link} for step, link in SCHEDULE.items()]
    return {"links": links, "runs": runs}


def run(options: list[str], schedule: Path, folder: str) -> dict:
    trace, result = Path(folder) / "run.jsonl", Path(folder) / "run.json"
    command = [sys.executable, "-m", "tidegate", "demo", *options, "--steps", STEPS]
    command += ["--link-schedule", schedule, "--trace", trace, "--json", result]
    subprocess.run([str(word) for word in command], check=True)
    return {"accuracy": json.loads(result.read_text())["runs"][-1]["accuracy"], **read(trace)}


def read(trace: Path) -> dict:
    """Of every step but the first, which has none before it: its time, and what was sent."""
    steps = [step for step in _core.read_trace(str(trace))["steps"] if step["step_seconds"] > 0]
    return {
        "step": [step["step"] for step in steps],
        "ms": [round(1e3 * step["step_seconds"], 1) for step in steps],
        "method": [max(step["buckets"], key=lambda b: b["elements"])["method"] for step in steps],
        "mbytes": round(sum(step["bytes_sent"] for step in steps) / 1e6, 1),
    }


# --- drawing ---

WIDTH, HEIGHT = 860, 360
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 58, 40  # margins
LOWEST, HIGHEST = 15, 2000  # milliseconds
TICKS = (20, 50, 100, 200, 500, 1000, 2000)
# Readable on white and on black, because pages have either.
INK, FAINT = "#7d8590", "#7d859050"
LINES = {
    "dense": ("#c9705f", "dense fp32"),
    "bf16": ("#b8902f", "bf16"),
    "auto": ("#159c8c", "Tidegate, auto"),
}
SMOOTHED = 5  # steps: each point is the median of so many


def x(step: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * step / STEPS, 1)


def y(milliseconds: float) -> float:
    share = math.log(milliseconds / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)


def text(at: tuple, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{at[0]}" y="{at[1]}" text-anchor="{anchor}" {more}>{words}</text>'


def line(start: tuple, end: tuple, more: str = "") -> str:
    ends = f'x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"'
    return f'<line {ends} stroke="{FAINT}" {more}/>'


def axes() -> list[str]:
    made = []
    for tick in TICKS:
        made.append(line((LEFT, y(tick)), (WIDTH - RIGHT, y(tick))))
        made.append(text((LEFT - 8, y(tick) + 4), str(tick), "end"))
    made += [text((x(step), HEIGHT - BOTTOM + 18), str(step)) for step in range(0, STEPS, 30)]
    made.append(text((x(STEPS / 2), HEIGHT - 6), "step"))
    made.append(text((8, TOP - 30), "ms per step", "start"))
    return made


def link_names(links: list[dict]) -> list[str]:
    made = []
    ends = [link["step"] for link in links[1:]] + [STEPS]
    for link, end in zip(links, ends, strict=True):
        rate, latency = link["link"].split(",")
        rate = rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
        middle = x((link["step"] + end) / 2)
        made.append(text((middle, TOP - 12), f"{rate}, {latency.replace('ms', ' ms')}"))
        if link["step"]:
            start = x(link["step"])
            made.append(line((start, TOP - 24), (start, HEIGHT - BOTTOM), 'stroke-dasharray="4 4"'))
    return made


def curve(run: dict, colour: str) -> str:
    half = SMOOTHED // 2
    points = []
    for i, step in enumerate(run["step"]):
        near = run["ms"][max(0, i - half) : i + half + 1]
        points.append(f"{x(step)},{y(min(HIGHEST, max(LOWEST, statistics.median(near))))}")
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def legend(runs: dict) -> list[str]:
    """Above everything, with what the whole run came to."""
    made, place = [], LEFT + 40
    for name, (colour, words) in LINES.items():
        run = runs[name]
        words += f": {sum(run['ms']) / 1e3:.0f} s, {run['mbytes']:.0f} MB"
        made.append(f'<rect x="{place}" y="8" width="18" height="4" fill="{colour}"/>')
        made.append(text((place + 24, 15), words, "start"))
        place += 60 + 7 * len(words)
    return made


def draw(data: dict) -> str:
    parts = [*axes(), *link_names(data["links"])]
    parts += [curve(data["runs"][name], colour) for name, (colour, _) in LINES.items()]
    parts += legend(data["runs"])
    about = (
        "Time of a step on an emulated link that changes: fp32 and bf16 all-reduce, and Tidegate"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">'
    )
    return "\n".join([head, f"<title>{about}</title>", *parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure anew, then draw")
    if parser.parse_args().measure:
        DATA.write_text(json.dumps(measure()) + "\n")
    PICTURE.write_text(draw(json.loads(DATA.read_text())))


if __name__ == "__main__":
    main()
