# SPDX-License-Identifier: Apache-2.0
"""All code in README and docs works: Python is run, commands are given to the parsers that users
meet. (C++ is compiled by ctest, tests/snippets.)"""

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stand_ins
from ranks import results

from tidegate import _core
from tidegate.attach import _resolve_policy
from tidegate.cli import make_parser

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import snippets  # noqa: E402

LANGUAGES = {"python", "cpp", "sh", "text"}
DOCUMENTS = snippets.documents()
BLOCKS = [block for document in DOCUMENTS for block in snippets.blocks(document)]
PYTHON = [block for block in BLOCKS if block.language == "python"]


# --- none is left out ---


def test_every_piece_of_code_is_fenced_and_names_a_language_that_is_tested():
    assert {
        block.place: block.language for block in BLOCKS if block.language not in LANGUAGES
    } == {}
    indented = {d.name: lines for d in DOCUMENTS if (lines := snippets.indented_code(d))}
    assert not indented, "no test finds indented code: fence it"


def test_what_is_called_text_is_neither_code_nor_a_command():
    for block in BLOCKS:
        if block.language == "text":
            code = re.search(
                r"^ *(import|from|def|tidegate|torchrun|make|\S+/tidegate) ", block.text
            )
            assert not code, f"{block.place}: say python or sh"


def test_every_piece_of_python_is_run_in_exactly_one_way():
    run = [b for kind in ("script", "ranks", *stand_ins.FRAMEWORKS) for b in of_kind(kind)]
    assert sorted(run, key=PYTHON.index) == PYTHON
    assert of_kind("script") and of_kind("ranks") and of_kind("lightning")


def kind_of(block: snippets.Block) -> str:
    """script = a whole program; ranks = a part of one; else the framework that it needs."""
    if framework := re.search(r"from tidegate\.trainers\.(\w+) import", block.text):
        return framework[1]
    return "script" if "init_process_group" in block.text else "ranks"


def of_kind(kind: str) -> list[snippets.Block]:
    return [block for block in PYTHON if kind_of(block) == kind]


# --- Python ---


PARTS = sorted({block.document for block in of_kind("ranks")})


def run_in_turn(rank, ranks, blocks, folder):
    os.chdir(folder)
    for block in blocks:
        try:
            stand_ins.run(block, rank)
        except Exception as error:
            raise AssertionError(f"{block.place}: {error!r}") from error


@pytest.mark.parametrize("document", PARTS)
def test_parts_of_programs_run_and_train(document, tmp_path):
    parts = [block for block in of_kind("ranks") if block.document == document]
    results(run_in_turn, 2, parts, tmp_path, limit=100)


def torchrun(ranks: int, *command, folder: Path, limit: int = 100) -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    done = subprocess.run(
        [sys.executable, *map(str, launcher), *map(str, command)],
        capture_output=True,
        text=True,
        timeout=limit,
        cwd=folder,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "terminate called" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("block", of_kind("script"), ids=lambda block: block.place)
def test_whole_programs_run_under_torchrun(block, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(block.placed_text())
    assert "'steps': 20" in torchrun(2, script, folder=tmp_path)


@pytest.mark.all
@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", stand_ins.FRAMEWORKS)
def test_parts_of_programs_with_frameworks_run_and_train(framework, tmp_path):
    if framework != "fsdp" and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: tools/setup.sh --all does it")
    assert of_kind(framework)
    for block in of_kind(framework):
        part = tmp_path / "part.py"
        part.write_text(block.placed_text())
        told = torchrun(
            4 if framework == "fsdp" else 2,
            stand_ins.__file__,
            framework,
            part,
            block.document,
            folder=tmp_path,
            limit=280,
        )
        assert "'steps': 0" not in told and "'steps': " in told


# --- commands ---


def commands() -> list[tuple[str, list[str]]]:
    return [
        (block.place, command)
        for block in BLOCKS
        if block.language == "sh"
        for command in snippets.commands(block.text)
    ]


def mentions() -> list[tuple[str, list[str]]]:
    """Commands in the text, which may be cut short."""
    return [
        (f"{document.name}:{line}", command)
        for document in DOCUMENTS
        for line, text in snippets.inline_code(document)
        if re.match(
            r"(sudo |make |torchrun |mpirun )|(tidegate|\S+/(tidegate|python)|tools/\S+) ", text
        )
        for command in snippets.commands(text)
    ]


def ours(command: list[str]) -> list[str] | None:
    """The arguments of `tidegate`, whoever starts it."""
    for index, word in enumerate(command):
        if word == "tidegate" or word.endswith("bin/tidegate"):
            return command[index + 1 :]
    return None


def test_commands_of_ours_are_taken_by_the_parser(capsys):
    parser, seen = make_parser(), 0
    for place, command in commands():
        if (words := ours(command)) is None:
            continue
        seen += 1
        try:
            arguments = parser.parse_args(words)
        except SystemExit as end:
            assert end.code == 0, f"{place}: {capsys.readouterr().err}"  # 0: --help
            continue
        check_policies(place, getattr(arguments, "policy", None))
    assert seen > 10


def check_policies(place: str, policies) -> None:
    """Their options exist, too."""
    for text in [policies] if isinstance(policies, str) else policies or []:
        if text.startswith("replay:") or re.fullmatch(r"my_\w+:\w+", text):
            continue  # names a file or a module of the reader's
        name, _, rest = text.partition(":")
        if name in {row["name"] for row in _core.methods()}:
            text = f"fixed:method={name}" + (f",{rest}" if rest else "")
        chosen = _resolve_policy(text, {})
        _core.Session(0, 2, chosen.name, chosen.options)


def test_commands_in_the_text_exist_with_their_options():
    subcommands = make_parser()._subparsers._group_actions[0].choices
    for place, command in mentions():
        if not (words := ours(command)):
            continue
        assert words[0] in subcommands or words[0].startswith("-"), f"{place}: {words[0]}"
        known = subcommands.get(words[0], make_parser())._option_string_actions
        for flag in flags(words):
            assert flag in known, f"{place}: tidegate {words[0]} has no {flag}"


def flags(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]


OF_OURS = r"(tools|benchmarks|examples)/"


def test_other_programs_of_ours_exist_with_their_options():
    seen = 0
    for place, command in commands() + mentions():
        for index, word in enumerate(command):
            if re.match(OF_OURS, word):
                seen += 1
                assert (ROOT / word).exists(), f"{place}: there is no {word}"
                text = (ROOT / word).read_text()
                rest = command[index + 1 :]
                rest = list(
                    itertools.takewhile(lambda w: w != "--" and not re.match(OF_OURS, w), rest)
                )
                for flag in flags(rest):
                    known = flag in text if word.endswith(".sh") else f'"{flag}"' in text
                    assert known, f"{place}: {word} has no {flag}"
    assert seen > 5


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (place, word)
        for place, command in commands() + mentions()
        if command[0] == "make"
        for word in command[1:]
        if not word.startswith("-")
    }
    assert len(named) > 5
    assert {(place, word) for place, word in named if word not in targets} == set()


def test_examples_in_the_help_are_taken_by_the_parser(capsys):
    parser = make_parser()
    for name, command in parser._subparsers._group_actions[0].choices.items():
        # Indented lines; what follows after two spaces tells what it is for.
        lines = re.findall(r"^  (\S.*)", re.sub(r"\\\n *", "", command.epilog), re.MULTILINE)
        examples = [re.split(r"\s{2,}", line)[0] for line in lines]
        taken = [words for text in examples for c in snippets.commands(text) if (words := ours(c))]
        assert any(words[0] == name for words in taken), name
        for words in taken:
            try:
                parser.parse_args(words)
            except SystemExit:
                raise AssertionError(f"{name}: {words}: {capsys.readouterr().err}") from None


# --- texts of errors ---


def sources() -> str:
    """All that we could say, with texts that are written in pieces joined."""
    files = [*ROOT.glob("python/tidegate/**/*.py"), *ROOT.glob("tidegate/*/*.cpp")]
    text = "\n".join(file.read_text() for file in sorted(files)).replace('\\"', '"')
    return re.sub(r'"\s*f?"', "", text)


def test_errors_in_the_guide_are_those_that_are_raised():
    said = sources()
    texts = [block for block in BLOCKS if block.document == "docs/GUIDE.md"]
    lines = [
        line for block in texts if block.language == "text" for line in block.text.splitlines()
    ]
    assert len(lines) > 20
    for line in lines:
        for part in filter(None, re.split(r'[\s"]*\.\.\.[\s"]*', line)):
            assert part.strip('".,:; ') in said, f"nobody says {part!r} any more"


# --- the finder itself ---


def found(tmp_path, text: str) -> Path:
    (tmp_path / "x.md").write_text(text)
    return tmp_path / "x.md"


def test_code_is_found_in_lists_and_between_other_fences(tmp_path):
    text = (
        "# One\n\n* item\n\n  ```python\n  a = 1\n\n  b = 2\n  ```\n\n````text\n```python\n````\n"
    )
    first, second = snippets.blocks(found(tmp_path, text), tmp_path)
    assert (first.language, first.section, first.line) == ("python", "One", 6)
    assert first.text == "a = 1\n\nb = 2\n"
    assert second.text == "```python\n"
    assert ast.parse(first.placed_text()).body[1].lineno == 8


def test_a_fence_that_is_never_closed_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"x\.md:3: this fence is never closed"):
        snippets.blocks(found(tmp_path, "text\n\n```sh\nmake\n"), tmp_path)


def test_indented_code_is_found_but_not_what_belongs_to_a_list(tmp_path):
    text = "text\n\n    a = 1\n\n* item\n  goes on\n\n    its own text\n\n      code\n\nend\n"
    assert snippets.indented_code(found(tmp_path, text)) == [3, 10]


def test_commands_are_joined_and_taken_apart():
    text = "tidegate demo \\\n  --ranks 2  # two\n\ntidegate demo --json - | python3 -m json.tool\n"
    assert snippets.commands(text) == [
        ["tidegate", "demo", "--ranks", "2"],
        ["tidegate", "demo", "--json", "-"],
        ["python3", "-m", "json.tool"],
    ]
    assert snippets.commands("tidegate demo --link-schedule 'C2*0.01'")[0][-1] == "C2*0.01"
