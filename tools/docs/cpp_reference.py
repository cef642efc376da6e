# SPDX-License-Identifier: Apache-2.0
"""The C++ part of the reference, from the headers: what a header says about itself as text, then
its declarations with their comments. What is private, and the bodies of functions, are left out."""

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_text import from_comment

# What a program that uses the library meets. The other headers are installed because these include
# them, or are for those who change the library.
FOLDERS = {
    "session": (
        "Averages the buckets of a job, step after step. Start here.",
        "session bucket_average state checkpoint resize trace trace_file lockstep modelled",
    ),
    "comm": (
        "Collectives as values, and the engines that perform them.",
        "engine threads request topology exchange pipeline routes lockstep",
    ),
    "mpi": ("The engine over MPI: target `tidegate::mpi`.", "engine"),
    "compressors": ("The table of methods.", "method codec_speed backlog candidates"),
    "policies": (
        "The table of policies, and what a policy is told.",
        "policy options statistics job_times critical_regime repeat",
    ),
    "network": (
        "What a collective costs, measured and modelled.",
        "network price textbook calibration estimate change step_time link_schedule paced_link",
    ),
    "sim": ("Jobs that exist only as numbers, and plans.", "plan synthetic"),
    "feedback": ("What waits to be sent.", "residuals"),
    "wire": ("Messages: header, checksum, coded entries.", "message sparse dense"),
    "kernels": ("Loops over gradients, for every instruction set.", "kernels top histogram"),
    "base": ("What everything else uses.", "bucket error clock workers random half"),
}

DECLARED = re.compile(
    r"^(?:template <[^>]*>\s*)?(?:\[\[\w+\]\] )?(?:inline |constexpr |static )*"
    r"(?:(?:class|struct|enum class|using|concept) (?P<type>\w+)(?!\w|::)|"
    r"(?!static_assert|namespace|using).*?(?P<name>operator\S+|\w+)\s*[(={;])",
    re.MULTILINE,
)


@dataclass
class Part:
    """What stands between two empty lines of a header: a comment, and what it is about."""

    comment: list[str]
    code: str

    @property
    def names(self) -> list[str]:
        """Of what is declared at the outermost level."""
        found = []
        for line in outermost(self.code):
            if match := DECLARED.match(line):
                name = match["type"] or match["name"]
                if name not in found:
                    found.append(name)
        return found


def pages(root: Path) -> dict[str, str]:
    """Markdown by file name."""
    made = {"index.md": index(root)}
    for folder, (summary, headers) in FOLDERS.items():
        texts = [f"# {folder}\n\n{summary}\n"]
        texts += [header_text(root, f"{folder}/{name}.h") for name in headers.split()]
        made[f"{folder}.md"] = "\n".join(texts)
    return made


def index(root: Path) -> str:
    rows = []
    for folder, (summary, headers) in FOLDERS.items():
        links = ", ".join(
            f"[{name}.h]({folder}.md#{anchor(f'{folder}/{name}.h')})" for name in headers.split()
        )
        rows.append(f"| [{folder}]({folder}.md) | {summary} | {links} |")
    return (
        "# C++\n\n"
        "Made from the headers. Every name is in the namespace `tidegate`, or `tidegate::kernels` "
        "and `tidegate::wire` where a page says so. `find_package(tidegate)` gives the target "
        "`tidegate::tidegate`; with `COMPONENTS mpi` also `tidegate::mpi`. Errors are thrown as "
        "`tidegate::Error`. [The walk of a bucket](../../ARCHITECTURE.md) tells how the parts fit "
        "together; [quickstart.cpp](../../../examples/quickstart.cpp.md) is a whole program.\n\n"
        "| folder | what it has | headers |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def anchor(path: str) -> str:
    """As headings are named in addresses; said in the page, so that both sides agree."""
    return re.sub(r"\W", "-", path)


def header_text(root: Path, path: str) -> str:
    source = (root / "tidegate" / path).read_text()
    about, namespaces, body = taken_apart(source)
    if not about:
        raise ValueError(f"tidegate/{path}: a header begins with what it is")
    inner = f", namespace `tidegate::{namespaces[-1]}`" if len(namespaces) > 1 else ""
    texts = [f"## {path} {{#{anchor(path)}}}", f'`#include "tidegate/{path}"`{inner}']
    texts.append(from_comment(about, "cpp"))
    for part in parts(body):
        names = part.names
        if not names:
            continue
        texts.append(f"### {', '.join(names[:4])}{', …' if len(names) > 4 else ''}")
        if part.comment:
            texts.append(from_comment(part.comment, "cpp"))
        texts.append(f"```cpp\n{part.code.rstrip()}\n```")
    return "\n\n".join(texts) + "\n"


def taken_apart(source: str) -> tuple[list[str], list[str], str]:
    """What the header says of itself, the namespaces it is in, and what stands in them."""
    lines = source.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("#pragma once"))
    about = [line[3:] for line in lines[:start] if line.startswith("//") and "SPDX" not in line]
    opened = [i for i, line in enumerate(lines) if re.match(r"namespace [\w:]+ \{", line)]
    closed = [i for i, line in enumerate(lines) if line.startswith("}  // namespace")]
    names = ":: ".join(re.findall(r"^namespace ([\w:]+) \{", source, re.MULTILINE))
    body = "\n".join(lines[opened[0] + 1 : closed[-1]])
    body = re.sub(r"^(namespace [\w:]+ \{|\}  // namespace.*)$", "", body, flags=re.MULTILINE)
    return about, re.split(r"::\s*", names), body


def parts(body: str) -> list[Part]:
    """Public declarations, in order."""
    made = []
    for text in paragraphs(body):
        lines = text.splitlines()
        count = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
        code = without_bodies(without_private("\n".join(lines[count:])))
        code = re.sub(r"^(class|struct) \w+;\n?", "", code, flags=re.MULTILINE)  # said elsewhere
        if code.strip() and not code.lstrip().startswith(("#", "static_assert")):
            made.append(Part([line[3:] for line in lines[:count]], code))
    return made


def paragraphs(body: str) -> list[str]:
    """Between empty lines that are in no braces."""
    found, present, depth = [], [], 0
    for line in body.splitlines():
        if not line.strip() and depth == 0:
            found.append("\n".join(present))
            present = []
            continue
        present.append(line)
        depth += braces(line)
    found.append("\n".join(present))
    return [text for text in found if text.strip()]


def braces(line: str) -> int:
    code = re.sub(r'//.*|"(\\.|[^"\\])*"|\'.\'', "", line)
    return code.count("{") - code.count("}")


def outermost(code: str) -> list[str]:
    """The lines at which declarations begin."""
    found, depth, open_parentheses = [], 0, 0
    for line in code.splitlines():
        if depth == 0 and open_parentheses == 0 and re.match(r"[\w\[]", line):
            found.append(line)
        depth += braces(line)
        bare = re.sub(r"//.*", "", line)
        open_parentheses += bare.count("(") - bare.count(")")
    if found and found[0].startswith("template"):
        found[0] = " ".join(code.splitlines()[:2])
    return found


def without_private(code: str) -> str:
    kept, hidden = [], False
    for line in code.splitlines():
        if re.match(r" (private|protected|public):", line):
            hidden = line.startswith(" private:")
            if hidden:
                while kept and not kept[-1].strip():
                    kept.pop()
        if line.startswith("}"):
            hidden = False
        if not hidden:
            kept.append(line)
    return "\n".join(kept)


def without_bodies(code: str) -> str:
    """`int f() const { return 1; }` becomes `int f() const;`. Initialisers stay."""
    made, i = [], 0
    while i < len(code):
        if code[i] == "{" and re.search(r"\)( const)?( noexcept)?( override)?\s*$", "".join(made)):
            made = [re.sub(r"\)\s*:\s[^;{}]*\)\s*$", ")", "".join(made)).rstrip()]
            i = closing(code, i) + 1
            made.append(";")
            continue
        made.append(code[i])
        i += 1
    return "".join(made).replace(";;", ";")


def closing(code: str, start: int) -> int:
    depth = 0
    for i in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"no closing brace: {code[start : start + 60]!r}")
