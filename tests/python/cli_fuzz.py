# SPDX-License-Identifier: Apache-2.0
"""Calls the commands of `tidegate` in this process with arguments and files that were right, and
then changed at random: every call must end by a result, or by one line that says what is wrong.

    .venv/bin/python tests/python/cli_fuzz.py --seconds 600      (a part of tools/fuzz.sh)

A call is a function of its seed, so `--first SEED --calls 1` repeats one. Numbers that would only
make a call long are kept small: what is sought is what a command does not expect."""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from tidegate import _core
from tidegate.cli import main

TRACES = Path(__file__).parents[1] / "fuzz" / "corpus" / "trace_read"
PATIENCE = 30.0  # seconds; longer than any of these calls takes on a busy machine

POLICIES = (
    "auto",
    "auto:goal=to-target,patience=3,wait=1",
    "topk:ratio=0.05",
    "fixed:method=powersgd,rank=2,route=tree",
    "dgc:ratio=0.01,momentum=0.9,warmup=4",
    "schedule:levels=0 dense;1 topk 0.1;2 powersgd 2 ring",
    "schedule:file={schedule}",
    "accordion:window=3,interval=1,weak_method=bf16,strong_method=int4",
    "accordion-batch:window=3,factor=4,ramp_steps=2",
    "gravac:window=2,threshold=0.2,climb=geometric",
    "flexible:warmup=1,lowest=0.01",
    "replay:file={trace}",
)
LINKS = ("1gbit,0.5ms", "100mbit,2ms", "25gbit,10us", "900kbit", "1.5e3mbit,0s")
SCHEDULES = ("C1", "C2*0.01", "{links}")
NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "0.5",
    "1e-400",
    "1e400",
    "nan",
    "inf",
    "",
    "2.0",
    "0x2",
    "1_0",
    "²",
    "٣",
)
PLAN = ("plan", "--compression=none", "--quiet")
SIMULATE = ("simulate", "--synthetic", "--quiet", "--ranks=2", "--steps=2", "--parameters=1e4")
# Each as it is right; {name} stands for a file, which is written anew for every call.
CALLS = (
    ("explain", "{trace}"),
    ("explain", "{trace}", "--all", "--json={out}"),
    ("export", "{trace}", "--csv={out}", "--steps=0:2"),
    ("export", "{trace}", "--perfetto={out}"),
    ("report", "{trace}", "--output={out}", "--quiet"),
    ("replay", "{trace}", "--policy={policy}"),
    ("replay", "{trace}", "--timings"),
    (*PLAN, "--shapes={shapes}", "--probe={probe}", "--compute=50ms"),
    (*PLAN, "--shapes={table}", "--link={link}", "--ranks=4", "--compute=1s"),
    (*PLAN, "--parameters=1e5", "--probe={probe}", "--compute=20ms", "--top=3"),
    (*SIMULATE, "--link={link}", "--policy={policy}"),
    (*SIMULATE, "--link-schedule={rates}", "--policy={policy}"),
    ("methods", "--elements=1000", "--ranks=4", "--ratio=0.1", "--rank=2"),
    ("policies",),
    # These take long when they are called rightly, so that each has a mistake to begin with.
    ("bench", "wire", "--seconds=1", "--no-such-option"),
    ("demo", "--link={link}", "--policy={policy}", "--no-such-option"),
    ("doctor", "--no-self-test", "--no-such-option"),
    ("probe", "--quiet", "--no-such-option"),
)


def some_files(random: Random) -> dict[str, bytes]:
    """One of each kind, as a user would have it."""
    fit = {"mbit": 940.5, "latency_ms": 0.2, "origin": "measured", "hidden": 0.3}
    network = dict.fromkeys(_core.PRICED_COLLECTIVES, fit)
    probe = {"v": 1, "kind": "probe", "ranks": 4, "hosts": 2, "network": network}
    shapes = [["conv.weight", [64, 3, 7, 7]], ["conv.bias", [64]], ["head.weight", [10, 64]]]
    return {
        "trace": random.choice(sorted(TRACES.iterdir())).read_bytes(),
        "probe": json.dumps(probe).encode(),
        "shapes": json.dumps(shapes).encode(),
        "table": b"name,dims\nconv.weight,64x3x7x7\nconv.bias,64\nhead.weight,10x64\n",
        "schedule": b"# levels\n0 dense\n1 topk 0.1 allgather\n2 powersgd 2\n",
        "links": b"# rates\n0 1gbit,0.5ms\n1 100mbit,2ms\n",
    }


# --- what is done to texts and files ---

WORDS = (
    *NUMBERS,
    *(
        ":",
        "=",
        ",",
        ";",
        "*",
        " ",
        "\n",
        "\t",
        "#",
        "\0",
        "\r",
        "%s",
        "{}",
        "..",
        "/",
        '"',
        "[",
        "]",
    ),
    *("topk", "dense", "artopk", "ratio", "window=", "file=", "mbit", "gbit", "ms", "us", "kind"),
    *(
        "é",
        "\u202e",
        "\udcff",
        "\U0001d54f",
        "99999999999999999999",
        "9223372036854775808",
        "-0",
        "1e309",
    ),
)
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf")),
    *(2**31, 2**53 + 1, 2**63, 2**64, 10**40, "", "x", "inf", "nan", "\ud800", "a" * 3000),
    *([], {}, [[]], [None], {"": 0}, [[[[[]]]]]),
)


def edit_text(text: str, random: Random) -> str:
    first, last = sorted(random.randrange(len(text) + 1) for _ in range(2))
    last = min(last, first + random.choice((0, 1, 1, 2, 8)))
    cut = text[first:last]
    return random.choice(
        (
            text[:first] + text[last:],
            text[:first] + random.choice(WORDS) + text[last:],
            text[:last] + cut + text[last:],
            text[:first] + cut[::-1] + text[last:],
            re.sub(r"\d+(\.\d+)?", lambda _: random.choice(NUMBERS), text, count=1),
            text[:first],
        )
    )


def places(value, path=()):
    """Of all that a JSON value is made of."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def edit_json(document, random: Random):
    path = random.choice(list(places(document)))
    if not path:
        return random.choice(VALUES)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    deed = random.randrange(4)
    if deed == 0:
        del holder[path[-1]]
    elif deed == 1 and isinstance(holder, list):
        holder.insert(path[-1], random.choice(VALUES))
    elif deed == 2 and isinstance(holder, dict):
        holder[random.choice(WORDS)] = holder.pop(path[-1])
    else:
        holder[path[-1]] = random.choice(VALUES)
    return document


def edit_file(content: bytes, random: Random) -> bytes:
    deed = random.randrange(6)
    if deed == 0:
        changed = bytearray(content)
        for _ in range(random.choice((1, 1, 3, 20))):
            changed[random.randrange(len(changed))] = random.randrange(256)
        return bytes(changed)
    if deed == 1:
        return content[: random.randrange(len(content))]
    if deed == 2:
        text = edit_text(content.decode(), random)
        return text.encode(errors="surrogateescape")
    lines = content.splitlines(keepends=True)
    at = random.randrange(len(lines))
    if deed == 3:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
        return b"".join(lines[: random.choice((len(lines), other + 1))] + lines[:at][:1])
    try:
        document = json.loads(lines[at])
    except ValueError:
        return b"".join(lines) + lines[at]
    for _ in range(random.choice((1, 1, 2))):
        document = edit_json(document, random)
    lines[at] = (
        json.dumps(document, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")
        + b"\n"
    )
    return b"".join(lines)


# --- calls ---


# Whole numbers, which make a call long if they are large.
COUNTS = {"--ranks", "--steps", "--parameters", "--elements", "--rank", "--top", "--seconds"}
# Files that would be written wherever it says; and what keeps a call from being a long one.
LEFT_ALONE = {"--csv", "--perfetto", "--output", "--json", "--no-such-option"}


def edit_argument(argument: str, random: Random) -> str:
    option, equals, value = argument.partition("=")
    if option in LEFT_ALONE:
        return argument
    if not equals or random.random() < 0.1:
        return edit_text(option, random) + equals + value
    if option in COUNTS:
        return f"{option}={random.choice(NUMBERS)}"
    return f"{option}={edit_text(value, random)}"


def make_call(seed: int, folder: Path) -> list[str]:
    """Writes the files of a call into the folder, and returns its arguments."""
    random = Random(seed)
    call = list(random.choice(CALLS))
    files = some_files(random)
    used = " ".join(call)
    texts = {
        "policy": random.choice(POLICIES),
        "link": random.choice(LINKS),
        "rates": random.choice(SCHEDULES),
        "out": os.devnull,
    }
    used += "".join(texts[name] for name in ("policy", "rates") if f"{{{name}}}" in used)
    mentioned = [name for name in files if f"{{{name}}}" in used]
    wrong_files = bool(mentioned) and random.random() < 0.7
    if wrong_files:
        name = random.choice(mentioned)
        files[name] = edit_file(files[name], random)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        texts[name] = str(folder / name)
    # Twice: a policy may name a file.
    filled = [re.sub(r"\{(\w+)\}", lambda m: texts[m[1]], part) for part in call]
    filled = [re.sub(r"\{(\w+)\}", lambda m: texts.get(m[1], m[0]), part) for part in filled]
    if not wrong_files or random.random() < 0.2:
        for _ in range(random.choice((1, 1, 2))):
            # The name of the command is soon said to be wrong.
            at = random.randrange(0 if random.random() < 0.1 or len(filled) < 2 else 1, len(filled))
            if random.random() < 0.15:
                filled.insert(at, filled.pop(random.randrange(len(filled))))
            else:
                filled[at] = edit_argument(filled[at], random)
    return filled


def complaint_about(arguments: list[str]) -> str | None:
    """What is wrong with how this call ends; None if nothing is."""
    said = io.StringIO()
    began = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main(arguments)
    except BaseException:
        return traceback.format_exc()
    if time.monotonic() - began > PATIENCE:
        return f"took {time.monotonic() - began:.0f} s"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    text = said.getvalue()
    if code == 0 or (code == 1 and arguments[0] == "replay" and not text):  # decisions differ
        return None
    if text.count("\n") != 1 or not re.match(r"tidegate( \S+)*: \S", text):
        return f"exit code {code}, and not one line: {text!r}"
    return None


def fuzz(seeds, folder: Path) -> int:
    """Makes these calls; returns how many. Raises AssertionError about the first that is wrong."""
    calls = 0
    for seed in seeds:
        arguments = make_call(seed, folder)
        complaint = complaint_about(arguments)
        assert complaint is None, f"seed {seed}: {arguments}: {complaint}"
        calls += 1
    return calls


def until(end: float, first: int):
    seed = first
    while time.monotonic() < end:
        yield seed
        seed += 1


def run() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--calls", type=int, help="that many, instead of --seconds")
    options = parser.parse_args()
    seeds = until(time.monotonic() + options.seconds, options.first)
    if options.calls is not None:
        seeds = range(options.first, options.first + options.calls)
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(f"stat::number_of_executed_units: {fuzz(seeds, Path(folder))}")
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
