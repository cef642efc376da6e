# SPDX-License-Identifier: Apache-2.0
"""Whatever a user types or names as a file, a command of `tidegate` answers with its result or with
one line that says what is wrong. Each command is called rightly but for one argument, which is
every hostile value in turn. Options are read off the parsers, so that a new one is tested the day
it is added; a new command must get a row in RIGHTLY."""

import argparse
import json
import os
import random
import re
from pathlib import Path

import pytest

from tidegate.cli import main, make_parser

TRACE = str(Path(__file__).parents[1] / "fuzz" / "corpus" / "trace_read" / "run_of_two_ranks")
# How each command is called rightly, in as short a time as it can. None = in no short time: these
# are given an option that does not exist, after whatever else is wrong.
RIGHTLY = {
    "bench": None,
    "demo": None,
    "doctor": None,
    "explain": [TRACE],
    "export": [TRACE, f"--csv={os.devnull}"],
    "methods": [],
    "plan": ["--ranks=4", "--link=1gbit", "--parameters=1e6", "--compute=50ms"],
    "policies": [],
    "probe": None,
    "report": [TRACE, f"--output={os.devnull}"],
    "replay": [TRACE, "--policy=topk:ratio=0.05"],
    "simulate": ["--synthetic", "--ranks=2", "--steps=3", "--parameters=1e4", "--quiet"],
}
# Files, which are written wherever one says.
WRITTEN = (
    "--json",
    "--plot",
    "--trace",
    "--output",
    "--csv",
    "--perfetto",
    "--tensorboard",
    "--wandb",
)
# Counts of steps and ranks that are valid, but would take for ever.
TAKES_LONG = {"1e6", "1e400", "9" * 40}
VALUES = (
    *("", "0", "1", "-1", "0.01", "1e6", "1e400", "nan", "inf", "-inf", "1e-400", "9" * 40),
    *("dense", "auto", "topk:ratio=0.1", "fixed:ratio=nan", "gravac:x", "replay", ":::", "a:b"),
    *("100mbit,2ms", "1gbit", "0mbit", "mbit", "1gbit,-1ms", "nanmbit", "C1", "C2*0", "os:path"),
    *("\0", "\n", "é", "\udcff", "%s", "{}", "../..", "a" * 5000),  # \udcff = not UTF-8
)


def contents() -> dict[str, bytes]:
    """Files that are not what a command wants, or nearly."""
    start = {"v": 1, "kind": "start", "step": 0, "ranks": 2, "policy": "fixed"}
    return {
        "empty": b"",
        "zeros": bytes(100),
        "noise": random.Random(1).randbytes(1000),
        "text": "Grüße\n".encode("latin-1"),
        "null.json": b"null",
        "list.json": b"[1, [2]]",
        "deep.json": b"[" * 100_000,
        "numbers.json": b'{"links": 1e999, "ranks": -1, "parameters": [[0]]}',
        "start.jsonl": json.dumps(start).encode() + b"\n",
        "newer.jsonl": json.dumps(start | {"v": 99}).encode() + b"\n",
        "cut.jsonl": json.dumps(start).encode() + b'\n{"v": 1, "kind": "st',
        "odd.jsonl": b'{"v": 1, "kind": "step", "step": -1, "buckets": {}}\n' * 3,
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    for name, content in contents().items():
        (folder / name).write_bytes(content)
    return [str(folder), str(folder / "missing"), *(str(folder / name) for name in contents())]


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = make_parser()
    [choices] = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return choices


def calls(command: str, files: list[str]):
    """Every call that is right but for one argument."""
    rightly = RIGHTLY[command]
    for action in commands()[command]._actions:
        option = action.option_strings[-1] if action.option_strings else None
        if action.nargs == 0 or option in WRITTEN:
            continue
        others = [a for a in rightly or ["--no-such-option"] if a.partition("=")[0] != option]
        if option is None:
            others = [a for a in others if a.startswith("--")]
        for value in (*VALUES, *files):
            if action.type is int and value in TAKES_LONG:
                continue
            yield [*others, f"{option}={value}" if option else value]


@pytest.mark.parametrize("command", sorted(commands()))
def test_a_command_answers_in_one_line_whatever_it_is_given(command, files, capsys):
    if RIGHTLY[command] is not None:
        assert main([command, *RIGHTLY[command]]) == 0
        capsys.readouterr()
    for arguments in calls(command, files):
        code = main([command, *arguments])
        said = capsys.readouterr().err
        assert code in (0, 1, 2), arguments
        if code != 0:
            assert said.count("\n") == 1, (arguments, said)
            assert re.match(rf"tidegate( {command})?( \S+)?: ", said), (arguments, said)


def test_a_mistake_in_bytes_that_are_no_text_is_shown(tmp_path, capsys):
    links = tmp_path / "links"
    links.write_bytes(b"0 1gbit,0.5ms\n1 100\xfbmbit,2ms\n")
    assert main(["simulate", *RIGHTLY["simulate"], f"--link-schedule={links}"]) == 2
    assert "\\xfb" in capsys.readouterr().err


def test_a_line_break_in_an_option_does_not_break_the_line(capsys):
    assert main(["policies", "-\n-json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
