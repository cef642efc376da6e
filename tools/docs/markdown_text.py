# SPDX-License-Identifier: Apache-2.0
"""Comments and docstrings as Markdown. Both are written to be read as they are, so little is
needed: paragraphs, lists of names with their meaning, and code that is indented."""

import re
import textwrap

NAMED = re.compile(r"^(\S+(?: \S+)*)(?: {2,}(\S.*))?$")


def from_comment(lines: list[str], language: str) -> str:
    """The text after // of some lines."""
    return from_text("\n".join(line.rstrip() for line in lines), language, indent=2)


def from_docstring(text: str, language: str = "python") -> str:
    return from_text(text, language, indent=4)


def from_text(text: str, language: str, indent: int) -> str:
    made = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        made += pieces(paragraph.splitlines(), language, indent)
    return "\n\n".join(made)


def pieces(lines: list[str], language: str, indent: int) -> list[str]:
    """A paragraph, or a table of names, or code; or text with code right below it."""
    if rows := named(lines):
        cells = [
            f"| `{name}` | {escaped(meaning).replace('|', '&#124;')} |" for name, meaning in rows
        ]
        return ["\n".join(["| | |", "|---|---|", *cells])]
    deep = [line.startswith(" " * indent) for line in lines]
    if all(deep):
        block = textwrap.dedent("\n".join(lines))
        if rows := named(block.splitlines()):
            return pieces(block.splitlines(), language, indent)
        # Of a language only if it looks like it: some are pictures.
        kind = language if re.search(r"[;=()]", block) and "-->" not in block else "text"
        return [f"```{kind}\n{block}\n```"]
    if not deep[0] and any(deep):
        first = deep.index(True)
        return pieces(lines[:first], language, indent) + pieces(lines[first:], language, indent)
    return [escaped(" ".join(line.strip() for line in lines))]


def named(lines: list[str]) -> list[tuple[str, str]]:
    """Lines such as `ratio    share of the elements`, with more of the same further right."""
    columns = {m.start(2) for line in lines if (m := NAMED.match(line)) and m[2] and line[0] != " "}
    if len(columns) != 1 or len(lines) < 2:
        return []
    column, rows = columns.pop(), []
    for line in lines:
        if line.startswith(" " * column):
            if not rows:
                return []
            rows[-1][1].append(line.strip())
        elif (match := NAMED.match(line)) and (match[2] or len(match[1].split()) == 1):
            rows.append((match[1], [match[2] or ""]))
        else:
            return []
    if len(rows) < 2:
        return []
    return [(name, " ".join(words).strip()) for name, words in rows]


def escaped(text: str) -> str:
    """Signs that Markdown would take for its own, outside of `code`; other documents as links."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*<\[\]_])", r"\\\1", part) for part in parts[::2]]
    text = "".join(parts)
    return re.sub(r"\bdocs/([A-Z]+\.md)", r"[\1](/docs/\1)", text)
