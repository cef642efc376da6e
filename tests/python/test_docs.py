# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: what is generated for it, and the whole."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tidegate

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
sys.path.insert(0, str(ROOT / "tools/docs"))
import cpp_reference  # noqa: E402
import markdown_text  # noqa: E402
import python_reference  # noqa: E402

# --- what is generated ---


def test_lists_of_names_become_tables_and_indented_lines_code():
    table = 'ratio   share that is sent,\n        in (0, 1]\nbits    as "*"'
    text = f"Takes it.\n\n{table}\n\n    x = f()\n"
    assert markdown_text.from_docstring(text).split("\n\n") == [
        "Takes it.",
        '| | |\n|---|---|\n| `ratio` | share that is sent, in (0, 1\\] |\n| `bits` | as "\\*" |',
        "```python\nx = f()\n```",
    ]


def test_text_that_is_spaced_out_by_chance_is_no_table():
    text = "One line,\nand  another that has\nno names at all."
    assert markdown_text.from_docstring(text).startswith("One line, and")


HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// What it is.
//
//   use(it);
#pragma once

#include <vector>

namespace tidegate {

struct Later;

// Of something.
class Thing : public Base {
 public:
  explicit Thing(int size) : size_(size) {}
  // How large.
  int size() const { return size_; }
  std::vector<int> parts{1, 2};

 private:
  int size_;
};

int f(int x);
int g(const Thing& thing = {});

}  // namespace tidegate
"""


def test_a_header_is_shown_without_what_is_private(tmp_path):
    (tmp_path / "tidegate/x").mkdir(parents=True)
    (tmp_path / "tidegate/x/thing.h").write_text(HEADER)
    text = cpp_reference.header_text(tmp_path, "x/thing.h")
    assert text.startswith("## x/thing.h {#x-thing-h}")
    assert "What it is.\n\n```cpp\nuse(it);\n```" in text
    assert "### Thing\n\nOf something.\n\n```cpp\nclass Thing : public Base {" in text
    assert "  explicit Thing(int size);\n  // How large.\n  int size() const;\n" in text
    assert "parts{1, 2};\n};" in text and "private" not in text and "Later" not in text
    assert "### f, g" in text


def test_the_cpp_reference_names_what_programs_use():
    pages = cpp_reference.pages(ROOT)
    for page, name in [
        ("session.md", "Session"),
        ("session.md", "Settings"),
        ("comm.md", "Engine"),
        ("comm.md", "Exchange"),
        ("policies.md", "Policy"),
        ("compressors.md", "Method"),
        ("network.md", "Network"),
        ("mpi.md", "MpiEngine"),
        ("base.md", "Error"),
    ]:
        assert f"\n### {name}\n" in pages[page]


def test_the_python_reference_names_everything_public():
    named = " ".join(names for _, names in python_reference.SECTIONS.values()).split()
    public = {f"tidegate.{name}" for name in tidegate.__all__ if name != "policies"}
    public |= {f"tidegate.policies.{name}" for name in tidegate.policies.__all__}
    assert public <= set(named)


def test_a_public_name_without_a_docstring_is_an_error():
    def bare():
        pass

    with pytest.raises(ValueError, match=r"tidegate\.bare has no docstring"):
        python_reference.text_of(bare, "tidegate.bare")


# --- the whole ---


def without_network() -> list[str]:
    """A prefix for commands that must not need one, where this process may do that."""
    tried = ["unshare", "--net", "true"]
    if shutil.which("unshare") and subprocess.run(tried, capture_output=True).returncode == 0:
        return tried[:-1]
    return []


@pytest.fixture(scope="module")
def site() -> Path:
    built = subprocess.run(
        [*without_network(), "make", "-C", ROOT, "docs"], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return SITE


class Loads(HTMLParser):
    """What a page loads by itself: not what it links to."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given.get("href", ""))
        elif tag != "a":
            self.found += [given[name] for name in ("src", "srcset", "data") if given.get(name)]


@pytest.mark.all
@pytest.mark.timeout(600)
def test_the_site_is_complete_and_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    for page in ("index", "docs/GUIDE", "docs/SCIENCE", "docs/FAQ", "docs/reference/python"):
        assert site / f"{page}.html" in pages
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.found
        assert not [link for link in loads.found if re.match(r"(https?:)?//", link)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", sheet.read_text()), sheet


@pytest.mark.all
@pytest.mark.timeout(600)
@pytest.mark.parametrize("link", ["(missing.md)", "(POLICIES.md#missing)", "(/docs/missing.md)"])
def test_a_broken_link_is_an_error(site, link, tmp_path):
    shutil.copytree(ROOT / "build/docs", tmp_path / "docs")
    with (tmp_path / "docs/docs/FAQ.md").open("a") as page:
        page.write(f"\n[Look here]{link}.\n")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nsite_dir: site\n"
    )
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        build, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode != 0
    assert "missing" in done.stderr
