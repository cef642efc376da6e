# SPDX-License-Identifier: Apache-2.0
"""Reports in a real browser: no errors, every picture drawn, at the widths of a desk and a phone,
light and dark."""

import pytest
from browser import Browser
from small_task import record

from tidegate import cli

pytestmark = [pytest.mark.all, pytest.mark.timeout(300)]

FOUND = """(() => {
  const look = () => ({
    theme: document.documentElement.dataset.theme,
    paper: getComputedStyle(document.body).backgroundColor,
    button: document.getElementById("theme").textContent,
  });
  const plots = [...document.querySelectorAll(".plot")].map((each) => ({
    title: each.parentElement.querySelector("h3").textContent,
    marks: each.querySelectorAll(".trace, .point").length,
    width: each.querySelector(".main-svg").getBoundingClientRect().width,
    height: each.querySelector(".main-svg").getBoundingClientRect().height,
  }));
  const before = look();
  document.getElementById("theme").click();
  const after = look();
  document.getElementById("theme").click();
  localStorage.clear();  // where the page keeps what was chosen
  return {
    before, after, plots,
    overflow: document.documentElement.scrollWidth - innerWidth,
    fetched: performance.getEntriesByType("resource").map((each) => each.name),
  };
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    record(folder / "auto.jsonl", policy="auto", steps=60)
    record(folder / "dense.jsonl", policy="fixed", method="dense", calibrate=True)
    target = folder / "page.html"
    traces = [str(folder / name) for name in ("auto.jsonl", "dense.jsonl")]
    assert cli.main(["report", *traces, "-o", str(target), "--quiet"]) == 0
    return target


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_drawn_without_errors(browser, page, width, dark):
    browser.open(page, width, dark)
    found = browser.evaluate(FOUND)
    assert browser.complaints() == []
    assert found["fetched"] == []
    assert found["overflow"] <= 0
    assert len(found["plots"]) >= 11
    for plot in found["plots"]:
        assert plot["marks"] > 0, plot
        assert plot["height"] > 150, plot
        assert 250 < plot["width"] < width, plot
    themes = ["dark", "light"] if dark else ["light", "dark"]
    assert [found["before"]["theme"], found["after"]["theme"]] == themes
    assert found["before"]["paper"] != found["after"]["paper"]
    assert found["before"]["button"] != found["after"]["button"]


def test_complaints_of_a_page_are_heard(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('one'); thisIsNotDefined()</script>")
    browser.open(page, 1280, dark=False)
    assert "one" in browser.complaints()[0]
    assert "thisIsNotDefined" in " ".join(browser.complaints())
