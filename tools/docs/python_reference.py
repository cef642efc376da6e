# SPDX-License-Identifier: Apache-2.0
"""The Python part of the reference, and the command line, from the installed package: signatures,
docstrings, `--help`. A public name without a docstring is an error: it would leave a hole."""

import dataclasses
import importlib
import inspect
import os
import re
from types import FunctionType

from markdown_text import escaped, from_docstring

WIDTH = 88  # of signatures

# Whatever stands in no __all__ of ours is for ourselves.
SECTIONS = {
    "Attach": (
        "From a DDP script, on every rank.",
        "tidegate.attach tidegate.Handle tidegate.comm_hook tidegate.set_rendezvous tidegate.Error",
    ),
    "Checkpoints": ("[CHECKPOINTS](../CHECKPOINTS.md) tells more.", "tidegate.save tidegate.load"),
    "Policies": (
        "`attach(policy=...)` takes these, or their names with options. "
        "[POLICIES](../POLICIES.md) tells what they do; all options with their standard values are "
        "[below the command line](command-line.md#policies-and-their-options).",
        "tidegate.policies.Auto tidegate.policies.Fixed tidegate.policies.Schedule "
        "tidegate.policies.Accordion "
        "tidegate.policies.AccordionBatch tidegate.policies.Gravac tidegate.policies.Flexible "
        "tidegate.policies.Replay tidegate.policies.Policy tidegate.policies.parse",
    ),
    "Policies of your own": (
        "[What a question holds](../POLICIES.md#write-your-own).",
        "tidegate.Choice tidegate.Decision tidegate.policies.OwnPolicy",
    ),
    "The virtual cluster": (
        "N workers in one process.",
        "tidegate.VirtualCluster tidegate.virtual_cluster.Outcome tidegate.Task "
        "tidegate.exploration.explore tidegate.exploration.Exploration tidegate.exploration.Tried",
    ),
    "Trainers": (
        "[TRAINERS](../TRAINERS.md) tells more. Each needs its framework to be installed.",
        "tidegate.trainers.lightning.TidegateCallback tidegate.trainers.accelerate.attach "
        "tidegate.trainers.transformers.attach "
        "tidegate.trainers.fsdp.attach tidegate.trainers.fsdp.ShardedHandle",
    ),
}
# Made by attach and comm_hook, not by the user.
NOT_CALLED = {"tidegate.Handle", "tidegate.trainers.fsdp.ShardedHandle"}


def page() -> str:
    texts = ["# Python", "Made from the docstrings. `import tidegate` needs torch and numpy only."]
    for heading, (about, names) in SECTIONS.items():
        texts += [f"## {heading}", about, *(described(name) for name in names.split())]
    return "\n\n".join(texts) + "\n"


def found(path: str):
    """The object of a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def described(path: str) -> str:
    thing = found(path)
    texts = [f"### {path} {{#{path}}}"]
    if dataclasses.is_dataclass(thing) and thing.__init__.__qualname__.startswith("__create"):
        texts.append(code(fields_of(thing)))
    elif path not in NOT_CALLED:
        texts.append(code(signature(path, thing)))
    texts.append(text_of(thing, path))
    if inspect.isclass(thing):
        texts += [member_text(path, name, member) for name, member in members(thing)]
    return "\n\n".join(texts)


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def text_of(thing, path: str) -> str:
    doc = inspect.getdoc(thing) if not inspect.isclass(thing) else thing.__dict__.get("__doc__")
    doc = inspect.cleandoc(doc) if doc else ""
    if doc.startswith("See the module"):
        module = inspect.getdoc(inspect.getmodule(thing))
        doc = f"{module}\n\n{doc.partition('. ')[2]}"
    if not doc or doc.startswith(f"{getattr(thing, '__name__', '')}("):  # what dataclasses make up
        raise ValueError(f"{path} has no docstring")
    return from_docstring(doc)


def members(thing: type) -> list[tuple[str, object]]:
    """Public methods and properties, in the order of the source; not those by which a framework
    calls a class of ours."""
    return [
        (name, member)
        for name, member in vars(thing).items()
        if not name.startswith("_")
        and isinstance(member, FunctionType | property | staticmethod)
        and not any(hasattr(base, name) for base in thing.__bases__)
    ]


def member_text(path: str, name: str, member) -> str:
    short = path.rpartition(".")[2]
    if isinstance(member, property):
        shown = f"{short}.{name}"
    else:
        shown = signature(f"{short}.{name}", member)
    return "\n\n".join(
        [f"#### {short}.{name} {{#{path}.{name}}}", code(shown), text_of(member, f"{path}.{name}")]
    )


def fields_of(thing: type) -> str:
    """A dataclass as it is written, up to its methods: comments say what fields are."""
    source = inspect.getsource(thing)
    source = re.sub(r'\n    """.*?"""\n', "\n", source, count=1, flags=re.DOTALL)
    source = re.split(r"\n\n?    (?:@\w+\n    )?def ", source)[0]
    return re.sub(r"\n{2,}", "\n", source).rstrip()


def signature(path: str, thing) -> str:
    """On one line, or one parameter a line."""
    given = inspect.signature(thing)
    parameters = [p for p in given.parameters.values() if p.name != "self"]
    words, starred = [], False
    for parameter in parameters:
        if parameter.kind == parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        starred |= parameter.kind == parameter.VAR_POSITIONAL
        words.append(str(parameter.replace(annotation=plain(parameter.annotation))))
    returned = plain(given.return_annotation)
    result = "" if returned is given.empty else f" -> {Written(returned)!r}"
    line = f"{path}({', '.join(words)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{path}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


class Written:
    """A type as one writes it."""

    def __init__(self, text):
        self.text = text if isinstance(text, str) else getattr(text, "__name__", str(text))

    def __repr__(self) -> str:
        return self.text


def plain(annotation):
    if annotation is inspect.Parameter.empty or annotation is inspect.Signature.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return Written(re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text.strip("'\"")))


# --- the command line ---


def command_line_page() -> str:
    os.environ["COLUMNS"] = "100"
    from tidegate import _core
    from tidegate.cli import make_parser

    parser = make_parser()
    texts = ["# Command line", "As `--help` shows it."]
    texts += ["## tidegate", f"```text\n{parser.format_help().rstrip()}\n```"]
    for name, command in parser._subparsers._group_actions[0].choices.items():
        texts += [f"## tidegate {name}", f"```text\n{command.format_help().rstrip()}\n```"]
    texts += ["## Methods", methods_table(_core.methods())]
    texts += ["## Policies and their options", *map(policy_text, _core.policies())]
    return "\n\n".join(texts) + "\n"


def methods_table(rows: list[dict]) -> str:
    lines = [
        "| method | level | routes | error feedback | what it sends |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        level = {"ratio": "ratio", "rank": "rank, 1 to 8", "none": "-"}[row["level"]]
        routes = ", ".join(f"`{route}`" for route in row["routes"])
        kept = "yes" if row["error_feedback"] else "no"
        bits = f" ({' or '.join(map(str, row['bits']))} bits)" if row["bits"] else ""
        lines.append(f"| `{row['name']}` | {level} | {routes} | {kept} | {row['summary']}{bits} |")
    return "\n".join(lines)


def policy_text(row: dict) -> str:
    text = f"### {row['name']}\n\n{escaped(row['summary'])}"
    if not row["options"]:
        return text
    lines = ["| option | standard | meaning |", "|---|---|---|"]
    for option in row["options"]:
        meaning = escaped(option["meaning"]).replace("|", "&#124;")
        standard = f"`{option['standard']}`" if option["standard"] else ""
        lines.append(f"| `{option['name']}` | {standard} | {meaning} |")
    return text + "\n\n" + "\n".join(lines)
