"""The page of all results of benchmarks, and its charts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rates
from benchmarks._page import Benchmark, Result, better, page, read_benchmarks
from benchmarks._plot import bar_chart, line_chart, share_chart, short
from benchmarks._report import figure

MACHINE = {
    "date": "2026-01-02T03:04+00:00",
    "cores": 2,
    "machine": "x86_64",
    "python": "3.11.7",
    "load": [0.5, 0.5, 0.5],
    "packages": {"pyspark": "4.2.0"},
}
SVG = "{http://www.w3.org/2000/svg}"
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from("<>&\"'"), min_size=1, max_size=20)
VALUES = st.floats(1e-3, 1e9)
SPREADS = st.tuples(VALUES, VALUES, VALUES).map(sorted)


class Cells(HTMLParser):
    """Keeps the texts of table cells, and the names of elements."""

    def __init__(self, html):
        super().__init__()
        self.texts, self.elements = [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        if tag == "td":
            self.texts.append("")

    def handle_data(self, data):
        if self.texts and self.lasttag in {"td", "a", "span"}:
            self.texts[-1] += data.strip("\n")


def benchmark(name, figures, machine=MACHINE):
    return Benchmark(name, "Measure `something` <at all>.", [Result(name, machine, figures, [])])


def pages_of(figures, name="speed"):
    return page([benchmark(name, figures)], "")


DIARY = "# Diary\n\n## What did not\n\n- [Up](#what-did-not)\n\n| step | gain |\n|---|---|\n| less `x` | 2 < 3 |\n"


def test_page_ends_with_the_diary():
    html = page([], DIARY)
    assert '<h2 id="what-did-not">What did not</h2>' in html
    assert '<a href="#what-did-not">Up</a>' in html
    assert "<td>less <code>x</code></td>\n<td>2 &lt; 3</td>" in html


def elements_of(svg, name):
    return list(ET.fromstring(svg).iter(SVG + name))  # noqa: S314 - made by the test itself


@given(st.lists(st.tuples(TEXTS, TEXTS, SPREADS), min_size=1, max_size=5))
def test_page_has_every_figure_as_text(rows):
    html = pages_of([figure(name, values, unit, goal="<= 1 & more") for name, unit, values in rows])
    cells = Cells(html).texts
    assert cells[0::9] == [name for name, _, _ in rows]
    assert cells[5::9] == [unit for _, unit, _ in rows]
    assert {*cells[7::9]} == {"<= 1 & more"}


@given(TEXTS, SPREADS)
def test_names_in_charts_and_goals_are_escaped(name, values):
    names = [name, f"<script>{name}</script>"]
    html = pages_of([figure(each_name, values, "us", goal="<= 0", met=bool) for each_name in names], "end_to_end")
    assert "script" not in Cells(html).elements
    bars = bar_chart(title=name, bars=[(name, *values) for name in names])
    assert elements_of(bars, "title")[0].text == name


def test_bars_of_peers_are_named_in_full():
    names = ("transformWithState, CPU a record (1,000,000 rows on 100,000 keys)", "Headrace, CPU a row (250,000 rows)")
    html = pages_of([figure(name, [1.0], "us") for name in names], "end_to_end")
    assert [name for name in ("transformWithState", "Headrace") if f">{name}</text>" in html] == [
        "transformWithState",
        "Headrace",
    ]


def test_page_needs_no_script_and_no_network():
    html = pages_of([figure("time", [1.0], "us")], "end_to_end")
    assert "<svg" in html
    assert not {"script", "link", "img", "iframe"} & {*Cells(html).elements}
    assert html.count("http") == html.count('xmlns="http://www.w3.org/2000/svg"')


def test_page_says_where_and_when_it_was_measured():
    html = pages_of([figure("time", [1.0], "s")])
    for fact in ("2026-01-02 03:04 UTC", "2 cores", "load 0.5", "Python 3.11.7", "pyspark 4.2.0", "make bench-speed"):
        assert fact in html
    assert "(busy: " not in html
    assert "(busy: " in page([benchmark("speed", [], {**MACHINE, "load": [8.0, 1.0, 1.0]})], "")


def test_page_counts_goals_and_lists_missed_ones():
    figures = [
        figure("reached", [1.0], "s", goal="< 2", met=lambda value: value < 2),
        figure("missed", [3.0], "s", goal="< 2", met=lambda value: value < 2),
        figure("unrated", [3.0], "s"),
    ]
    html = pages_of(figures)
    assert "1 of 2 goals are met" in html
    assert [html.count(f">{row['name']}<") for row in figures] == [1, 2, 1]


@pytest.fixture
def folder(tmp_path):
    """A folder with benchmarks, a job, and helpers; and a folder of results."""
    for name in ("async", "async_io", "log_growth", "nexmark", "end_to_end"):
        (tmp_path / f"{name}.py").write_text(f'"""Measure {name}.\n\nMore."""\n\n\ndef main():\n    pass\n')
    (tmp_path / "counting.py").write_text('"""A job."""\n')
    (tmp_path / "_helper.py").write_text('"""A helper."""\n\n\ndef main():\n    pass\n')
    (tmp_path / "out").mkdir()
    return tmp_path


def keep(folder, name, *figures):
    (folder / f"out/{name}.json").write_text(json.dumps({"machine": MACHINE, "figures": figures}))


def test_files_belong_to_the_longest_benchmark_name(folder):
    for name in ("async", "async_io", "log_growth_every_0", "log_growth_every_100", "removed_benchmark"):
        keep(folder, name, figure(name, [1.0], "s"))
    (folder / "out/async.svg").write_text("<svg/>")
    benchmarks = read_benchmarks(folder, folder / "out")
    assert {b.name: [result.name for result in b.results] for b in benchmarks} == {
        "end_to_end": [],
        "async": ["async"],
        "async_io": ["async_io"],
        "log_growth": ["log_growth_every_0", "log_growth_every_100"],
        "nexmark": [],
    }
    assert [b.name for b in benchmarks][::4] == ["end_to_end", "nexmark"]
    assert [b.results[0].pictures for b in benchmarks[1:3]] == [["<svg/>"], []]


def test_missing_results_are_named_with_their_command(folder):
    keep(folder, "async_io", figure("time", [1.0], "s"))
    html = page(read_benchmarks(folder, folder / "out"), "")
    assert html.count("Not measured yet") == 4
    for name in ("async", "log-growth", "nexmark", "end-to-end"):
        assert f"<b>Not measured yet:</b> <code>make bench-{name}</code>" in html


def test_benchmarks_of_this_project_have_subjects(tmp_path):
    benchmarks = read_benchmarks(Path("benchmarks"), tmp_path)
    assert {"end_to_end", "rates", "nexmark"} <= {b.name for b in benchmarks}
    assert "counting" not in {b.name for b in benchmarks}
    assert all(b.subject.endswith((".", ":")) for b in benchmarks)


@pytest.mark.parametrize("share", [1, 100])
def test_rates_change_only_one_setting(share):
    points = [(axis, point) for axis, line in rates.axes_of(share).items() for point in line]
    shared = [point for _, point in points if [other for _, other in points].count(point) == 3]
    base = shared[0]
    assert len(points) == 11
    for axis, point in points:
        assert point._replace(**{axis: getattr(base, axis)}) == base


def test_rates_become_charts():
    axes = rates.axes_of(1)
    cost = rates.BatchCost(2.0, 4.0, {"sources": 0.5, "commit": 1.5})
    costs = {point: [cost] * 3 for line in axes.values() for point in line}
    figures = [*rates.rates(axes, costs), *rates.phases(axes, costs)]
    html = pages_of(figures, "rates")
    by_name = {row["name"]: row["value"] for row in figures}
    assert (by_name["by keys, 1,000: rate"], by_name["by keys, 1,000: CPU"]) == (500_000, 4)
    assert (by_name["by rows, 1,000: rate"], by_name["by rows, 1,000: CPU"]) == (500, 4_000)
    assert html.count("<svg") == 7
    for label in ("keys in the state", "tasks", "rows of a micro-batch"):
        assert f"Records a second by {label}" in html
        assert f"CPU in us a record by {label}" in html
    for text in ("1 k rows", "sources: 0.5 s", "commit: 1.5 s", "2 s"):
        assert text in html


@given(st.lists(SPREADS, min_size=1, max_size=6), st.booleans())
def test_line_charts_place_higher_values_higher(spreads, logarithmic):
    points = [(10**number, *spread) for number, spread in enumerate(spreads)]
    dots = elements_of(line_chart(title="t", x="x", points=points, logarithmic=logarithmic), "circle")
    places = [(float(dot.get("cx")), -float(dot.get("cy"))) for dot in dots]
    assert len(places) == len(points)
    assert places == sorted(places, key=lambda place: place[0])
    by_height = sorted(zip(spreads, places, strict=True), key=lambda pair: pair[0][1])
    heights = [height for _, (_, height) in by_height]
    assert heights == sorted(heights)
    assert all(50 <= -height <= 220 for height in heights)


@given(st.lists(SPREADS, min_size=1, max_size=6))
def test_bars_are_proportional_to_their_values(spreads):
    rects = elements_of(bar_chart(title="t", bars=[(str(n), *spread) for n, spread in enumerate(spreads)]), "rect")
    widths = [float(rect.get("width")) for rect in rects[1:]]
    largest = max(range(len(spreads)), key=lambda number: spreads[number][1])
    for spread, width in zip(spreads, widths, strict=True):
        assert width == pytest.approx(widths[largest] * spread[1] / spreads[largest][1], abs=0.1)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_shares_fill_the_whole_bar(values):
    parts = {f"phase {number}": value for number, value in enumerate(values)}
    svg = share_chart(title="t", unit="s", bars=[("first", parts), ("second", parts)])
    widths = [float(rect.get("width")) for rect in elements_of(svg, "rect") if rect.get("height") == "18"]
    assert len(widths) == 2 * len(values)
    for value, width in zip(values, widths, strict=False):
        assert width == pytest.approx(540 * value / sum(values), abs=0.1)
    assert {f"phase {number}" for number in range(len(values))} <= {text.text for text in elements_of(svg, "text")}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.18349, "0.183"), (12.44, "12.4"), (999.7, "1 k"), (183_000, "183 k"), (1_200_000, "1.2 M")],
)
def test_short_numbers(value, expected):
    assert short(value) == expected


@pytest.mark.parametrize(
    ("unit", "goal", "expected"),
    [
        ("ratio", "<= 1", "lower"),
        ("ratio", ">= 2", "higher"),
        ("ratio", None, ""),
        ("records/s", None, "higher"),
        ("s", None, "lower"),
        ("rows", None, ""),
    ],
)
def test_better_direction_follows_goal_or_unit(unit, goal, expected):
    assert better(figure("name", [1.0], unit, goal=goal)) == expected
