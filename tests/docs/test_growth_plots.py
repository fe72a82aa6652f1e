"""Plots of the growth benchmark are well-formed, and the page shows those that exist."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.growth.__main__ import PARTS, with_table
from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.result import Result, rounded

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
LINES = {"warm & fast": [(1, 0.5), (256, 2.0)], "unseen": [(1, 1.0), (16, 1.1), (256, 40.0)]}


def plotted(x=Axis("replicas"), y=Axis("ms <CPU>"), lines=LINES):  # noqa: B008 - frozen
    return ElementTree.fromstring(Plot("Time & growth", x, y, lines).svg())


@pytest.mark.parametrize("log", [True, False])
def test_a_plot_has_its_points_lines_and_words(log):
    svg = plotted(Axis("replicas", log=log), Axis("ms <CPU>", log=log))
    assert len(svg.findall(f"{SVG}circle")) == 5
    assert [len(line.get("points").split()) for line in svg.findall(f"{SVG}polyline")] == [2, 3]
    words = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"Time & growth", "replicas", "ms <CPU>", "warm & fast", "unseen"} <= set(words)


@pytest.mark.parametrize("log", [True, False])
def test_larger_values_stand_further_right_and_higher_and_inside_the_picture(log):
    svg = plotted(Axis("x", log=log), Axis("y", log=log), {"all": [(10.0**n, 10.0**n) for n in range(-2, 7)]})
    points = [(float(circle.get("cx")), float(circle.get("cy"))) for circle in svg.findall(f"{SVG}circle")]
    if log:
        assert len(set(points)) == len(points)
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    _, _, width, height = map(float, svg.get("viewBox").split())
    assert all(0 < x < width and 0 < y < height for x, y in points)


def test_one_point_and_equal_values_make_a_plot():
    assert len(plotted(lines={"one": [(1000, 3.0)]}).findall(f"{SVG}circle")) == 1
    assert len(plotted(lines={"equal": [(1000, 1.0), (1000, 1.0)]}).findall(f"{SVG}circle")) == 2


def test_colours_follow_the_readers_scheme():
    assert "prefers-color-scheme:dark" in Plot("t", Axis("x"), Axis("y"), LINES).svg()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234567, "1,234,567"), (0.01234, "0.0123"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits_and_whole_ones_all(value, text):
    assert rounded(value) == text


def test_a_table_replaces_the_old_one():
    result = Result(("n", "ms"), [(1, 0.25)], Plot("t", Axis("x"), Axis("y"), LINES), ["A note."])
    page = with_table("a\n<!-- growth prompt -->\nold\n<!-- end -->\nb", "prompt", result.markdown())
    assert (
        page == "a\n<!-- growth prompt -->\n\n| n | ms |\n| ---: | ---: |\n| 1 | 0.250 |\n\nA note.\n\n<!-- end -->\nb"
    )
    with pytest.raises(SystemExit):
        with_table("without a mark", "prompt", "")


def test_the_page_shows_every_plot_with_a_place_for_its_table():
    page = (DOCS / "performance.md").read_text()
    assert re.findall(r"\]\(images/growth-(\w+)\.svg\)", page) == list(PARTS)
    assert re.findall(r"<!-- growth (\w+) -->", page) == list(PARTS)
    for name in PARTS:
        ElementTree.parse(DOCS / "images" / f"growth-{name}.svg")
