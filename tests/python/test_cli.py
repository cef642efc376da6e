# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import pytest

import tidegate
from tidegate import _core, cli

PARSERS = cli.parsers_of(cli.make_parser())
COMMANDS = (
    *("demo", "probe", "simulate", "plan", "bench", "explain", "replay", "report", "export"),
    *("doctor", "methods", "policies"),
)


def said(capsys, *argv: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_help_names_the_commands_and_where_to_start(capsys):
    code, out, _ = said(capsys, "--help")
    assert code == 0
    for text in COMMANDS:
        assert f"\n    {text} " in out
    assert set(COMMANDS) == set(PARSERS)
    assert "Start with:\n  tidegate demo" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(capsys, command):
    code, out, _ = said(capsys, command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"tidegate {command}" in out[out.index("Example") :]


@pytest.mark.parametrize("word", ["a\0b", "\udcff"])
def test_words_that_cannot_be_names_are_told(capsys, word):
    code, out, err = said(capsys, "plan", "--shapes", word)
    assert (code, out) == (2, "")
    assert "is not UTF-8 text without zero bytes" in err


def test_version(capsys):
    assert said(capsys, "--version") == (0, f"tidegate {tidegate.__version__}\n", "")


def test_no_command_shows_the_help_and_is_a_mistake(capsys):
    code, out, err = said(capsys)
    assert (code, out) == (2, "")
    assert "commands:" in err


def test_an_unknown_command_is_answered_with_the_known_ones(capsys):
    code, out, err = said(capsys, "dmeo")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "'dmeo'" in err
    assert "demo" in err
    assert "tidegate --help" in err


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--link", "fast"], "write for example 100mbit,2ms"),
        (["--link", "0mbit,2ms"], "write for example 100mbit,2ms"),
        (["--link", "100mbit,-2ms"], "write for example 100mbit,2ms"),
        (["--link-schedule", "C7"], "such as C2*0.01"),
        (["--link-schedule", "C2*fast"], "write for example C2*0.01"),
        (["--link-schedule", "C2*0"], "must be above 0"),
        (["--link-schedule", "C1", "--link", "1gbit,1ms"], "not allowed with argument --link"),
        (["--ratio", "0"], "must be above 0 and at most 1"),
        (["--ratio", "nan"], "must be above 0 and at most 1"),
        (["--ratio", "2"], "must be above 0 and at most 1"),
        (["--ratio", "-0.1"], "must be above 0 and at most 1"),
        (["--ratio", "much"], "invalid float value: 'much'; see tidegate demo --help"),
        (["--method", "topkk"], 'unknown method "topkk"; known: dense'),
        (["--method", "bf16", "--ratio", "0.1"], "has no ratio; leave it out"),
        (["--policy", "fixed:method"], "has no value; write fixed:key=value"),
        (["--policy", "fixed:metod=topk"], "metod"),
        (["--policy", "wise"], 'unknown policy "wise"; known: fixed'),
        (["--policy", "schedule:levels=0 dense", "--method", "topk"], "go with policy"),
        (["--ranks", "0"], "--ranks 0: must be between 1 and 16"),
        (["--ranks", "17"], "--ranks 17: must be between 1 and 16"),
        (["--epochs", "0"], "--epochs 0: must be between 1 and"),
        (["--steps", "0"], "--steps 0: must be between 1 and"),
        (["--batch", "0"], "--batch 0: must be between 1 and 15000"),
        (["--batch", "15001"], "--batch 15001: must be between 1 and 15000"),
        (["--seed", "-1"], "--seed -1: must be between 0 and"),
        (["--trace", "missing/trace.jsonl"], "name a file in a folder that exists"),
        (["--json", "missing/result.json"], "name a file in a folder that exists"),
        (["--rnaks", "2"], "unrecognized arguments: --rnaks 2; see tidegate demo --help"),
    ],
)
def test_a_bad_value_is_told_in_one_line_before_anything_starts(
    capsys, monkeypatch, tmp_path, options, advice
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    code, out, err = said(capsys, "demo", *options)
    assert (code, out) == (2, "")
    assert err.startswith("tidegate")
    assert err.count("\n") == 1
    assert advice in err
    assert list(tmp_path.iterdir()) == []


def texts_of(parser):
    """The options and arguments that take a text, as a user would leave each empty."""
    for action in parser._actions:
        if action.nargs == 0 or action.type is not None or action.choices:
            continue
        yield [f"{action.option_strings[-1]}="] if action.option_strings else [""]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_text_is_a_mistake_and_not_left_out(capsys, command):
    empty = list(texts_of(PARSERS[command]))
    assert ["--json="] in empty
    for options in empty:
        code, out, err = said(capsys, command, *options)
        assert (code, out, err.count("\n")) == (2, "", 1), options
        assert f"is empty; give a value, or leave it out; see tidegate {command} --help" in err


def test_missing_data_is_a_mistake_that_names_the_package(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEGATE_DATA", str(tmp_path))
    code, _, err = said(capsys, "demo")
    assert code == 2
    assert err.startswith("tidegate demo: Fashion-MNIST is missing")
    assert "apt-get install dataset-fashion-mnist" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_quiet(command):
    options = PARSERS[command]._option_string_actions
    assert {"--json", "--quiet", "--help"} <= set(options)


@pytest.mark.parametrize("command", ["methods", "policies"])
def test_a_quiet_table_is_only_written(capsys, tmp_path, command):
    file = tmp_path / "table.json"
    assert said(capsys, command, "--quiet", "--json", str(file)) == (0, "", "")
    assert json.loads(file.read_text())[command]


@pytest.mark.parametrize("command", ["methods", "policies"])
def test_tables_as_json_on_standard_output_and_nothing_else(capsys, command):
    code, out, err = said(capsys, command, "--json", "-")
    assert (code, err) == (0, "")
    table = json.loads(out)
    rows = getattr(_core, command)()
    assert table["v"] == 1
    assert [row | known for row, known in zip(table[command], rows, strict=True)] == table[command]


def test_methods_tell_the_bytes_of_every_route_for_a_given_size(capsys):
    options = ("--elements", "1e6", "--ranks", "4", "--ratio", "0.1", "--json", "-")
    code, out, _ = said(capsys, "methods", *options)
    assert code == 0
    rows = {row["name"]: row["bytes_sent"] for row in json.loads(out)["methods"]}
    assert rows["dense"]["engine"] == 6e6  # 2 (N - 1) / N of 4 MB
    assert rows["bf16"]["ring"] == 3e6
    assert 1e5 * 3 < rows["topk"]["owner"] < rows["topk"]["allgather"] < 3 * 1e5 * 3
    for name, by_route in rows.items():
        assert by_route, name


def test_methods_refuse_sizes_that_cannot_be(capsys):
    for options in (["--ranks", "0"], ["--ratio", "2"], ["--rank", "9"]):
        code, out, err = said(capsys, "methods", *options)
        assert (code, out) == (2, "")
        assert err.startswith("tidegate methods: ")


@pytest.mark.parametrize("command", ["methods", "policies"])
def test_tables_for_people_and_as_json_in_a_file(capsys, tmp_path, command):
    file = tmp_path / "rows.json"
    code, out, _ = said(capsys, command, "--json", str(file))
    assert code == 0
    for row in json.loads(file.read_text())[command]:
        assert row["name"] in out


def test_an_unwritable_json_file_is_a_mistake(capsys, tmp_path):
    code, _, err = said(capsys, "methods", "--json", str(tmp_path))
    assert code == 2
    assert err.startswith(f'tidegate methods: --json "{tmp_path}": cannot be written')


def test_runs_as_a_module_and_leaves_quietly_when_nobody_reads():
    command = f"'{sys.executable}' -m tidegate methods | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_importing_tidegate_loads_no_part_of_the_command_line():
    code = "import sys, tidegate; print([m for m in ('rich', 'tidegate.demo') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"


SUITES = [("kernels", 10), ("wire", 10), ("exchange", 9), ("policies", 5)]


@pytest.mark.parametrize(("suite", "least"), SUITES)
def test_bench_gives_rows_with_values_and_goals(capsys, suite, least):
    options = ("--seconds", "0.001", "--largest", "10000", "--json", "-", "--quiet")
    code, out, err = said(capsys, "bench", suite, *options)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["suite"] == suite
    assert len(result["rows"]) >= least
    for row in result["rows"]:
        assert {"name", "n", "ratio", "value", "unit", "goal", "met"} <= row.keys()
        assert row["value"] >= 0
        assert (row["met"] is None) == (row["goal"] is None)


def test_bench_refuses_what_is_no_number(capsys):
    code, _, err = said(capsys, "bench", "kernels", "--seconds", "-1")
    assert code == 2
    assert "must be a number above 0 and below 1e10" in err
