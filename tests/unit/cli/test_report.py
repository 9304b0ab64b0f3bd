"""`headrace report`: a page about a job, whose names and reasons may hold anything."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser

import pytest

from headrace.cli.page import MOST_POINTS, Graph, Series, chart, element, graph, number, page, table
from headrace.log.checkpoint import Kind
from tests.unit.support.demo_job import HOUR, START

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><svg onload=alert(1)>", "&lt;b&gt;")
WITHOUT_END = {"meta"}


class Page(HTMLParser):
    """Elements of a document, with the texts of its cells. Every element must end where it should."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside: list[tuple[str, list[str]]] = []
        self.children: list[tuple[str, list[str]]] = []
        self.feed(document)
        self.close()
        assert self.inside == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if self.inside:
            self.inside[-1][1].append(tag)
        if tag not in WITHOUT_END:
            self.inside.append((tag, []))

    def handle_endtag(self, tag):
        assert self.inside[-1][0] == tag
        self.children.append(self.inside.pop())

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def written(headrace, tmp_path):
    def write(*options: str) -> Page:
        file = tmp_path / "page.html"
        result = headrace("report", "demo", "--out", str(file), *options)
        assert result.exit_code == 0, result.output
        return Page(file.read_text())

    return write


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_in_names_is_shown_as_text(state, written, text):
    state.commit(Kind.SAVEPOINT, name=text, note=text, run_id=text)
    state.commit(Kind.BATCH, seconds={text: 1.5}, metrics={"rows_in": 1})
    shown = written()
    assert not shown.named("script")
    assert not shown.named("img")
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    assert shown.texts.count(text) >= 3


def test_page_loads_nothing(state, written):
    shown = written()
    loading = {"src", "href", "srcset", "action", "data"}
    assert not [tag for tag, attributes in shown.tags if loading & {*attributes}]
    assert "url(" not in "".join(shown.texts)
    (policy,) = [meta for meta in shown.named("meta") if "http-equiv" in meta]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_each_chart_has_words_and_its_table(state, written):
    shown = written()
    figures = [children for tag, children in shown.children if tag == "figure"]
    drawings = [svg for svg in shown.named("svg") if svg.get("role") == "img"]
    assert len(figures) + 1 == len(drawings) > 1  # the drawing of the operators is no chart
    assert all(svg["aria-label"] for svg in drawings)
    assert all("details" in children for children in figures)
    assert all(
        {"title", "desc"} <= {*children} for tag, children in shown.children if tag == "svg" and len(children) > 1
    )


def test_options_choose_the_checkpoints_of_pages(state, headrace, tmp_path):
    def told_by(*options):
        return json.loads(headrace("report", "demo", "--out", str(tmp_path / "p.html"), "--json", *options).stdout)

    assert told_by()["checkpoints"] > told_by("--at", "1")["checkpoints"]
    assert told_by("--at", "1")["checkpoint"] == 1
    assert told_by("--since", "2100-01-01")["checkpoints"] == 0


def test_restored_checkpoints_are_named_undone(state, written):
    state.commit(Kind.SAVEPOINT, name="left behind")
    state.commit(Kind.RESTORE, parent_id=1, restored_from=1)
    assert "by a restore" in written().texts
    assert "by a restore" not in written("--at", "2").texts


def test_job_that_never_ran_is_refused(home, headrace, tmp_path):
    result = headrace("report", "demo", "--out", str(tmp_path / "page.html"))
    assert result.exit_code == 2
    assert not (tmp_path / "page.html").exists()


def test_file_that_cannot_be_written_is_named(state, headrace, tmp_path):
    result = headrace("report", "demo", "--out", str(tmp_path / "missing" / "page.html"))
    assert result.exit_code == 2
    assert "page.html" in result.stderr


def test_long_series_become_few_points():
    generator = random.Random(7)
    for size in (0, 1, 2, MOST_POINTS, MOST_POINTS + 1, 10_000):
        values = [generator.choice([None, generator.random()]) for _ in range(size)]
        thin = Series([str(at) for at in range(size)], {"a": values}).thinned()
        assert len(thin.labels) == len(thin.lines["a"]) <= MOST_POINTS
        kept = [value for value in thin.lines["a"] if value is not None]
        assert max(kept, default=None) == max((value for value in values if value is not None), default=None)


def test_ten_thousand_checkpoints_make_small_pages():
    labels = [str(at) for at in range(10_000)]
    lines = {f"phase {line}": [float(at) for at in range(10_000)] for line in range(8)}
    assert len(page("big", *(chart(f"chart {at}", "rows", Series(labels, lines)) for at in range(8)))) < 1_000_000


def test_lines_without_values_are_drawn_empty():
    shown = Page(chart("empty", "rows", Series(["1", "2", "3"], {"none": [None] * 3, "gap": [1, None, 2]})))
    assert len(shown.named("circle")) == 2
    assert not shown.named("polyline")


def test_long_text_is_cut_and_numbers_are_grouped():
    assert "x" * 201 not in element("td", "x" * 5_000)
    assert [number(value) for value in (1_234_567, 0.5, -3)] == ["1\u202f234\u202f567", "0.5", "-3"]
    assert Page(table("t", ["a"], [[None]])).named("td") == [{}]


def test_lag_is_that_of_each_commit(state, written):
    state.commit(Kind.BATCH, committed_at=START + 9 * HOUR, watermark=START + 2 * HOUR)
    assert "7" in written().texts


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_in_stored_values_is_shown_as_text(state, written, text):
    own = {"operator": text, "key_group": 1, "key": json.dumps(text), "checkpoint_id": 3, "deleted": False}
    state.add("keyed_state", [{**own, "state": "seen", "value": json.dumps(text)}])
    state.add("quarantine", [{**own, "source": text, "position": text, "raw": text, "error": text, "origin": "row"}])
    state.commit(Kind.BATCH)
    shown = written()
    assert not {"script", "img"} & {tag for tag, _ in shown.tags}
    assert [text] * 4 == [own for own in shown.texts if own == text][:4]


def test_quarantine_is_counted_by_reason(state, written):
    own = {"operator": "orders", "key_group": 1, "key": "null", "checkpoint_id": 3, "deleted": False, "origin": "row"}
    rows = [
        {**own, "source": "orders", "position": f"a:{at}", "raw": f"row {at}", "error": "no key"} for at in range(5)
    ]
    state.add("quarantine", [*rows, {**rows[0], "position": "b:1", "error": "no time"}])
    state.commit(Kind.BATCH)
    texts = written().texts
    assert [texts[texts.index(reason) - 1] for reason in ("no key", "no time")] == ["5", "1"]
    assert "a:0, a:1, a:2" in texts


def test_tables_that_are_gone_are_said(state, written):
    state.commit(Kind.BATCH)
    for file in (state.folder / "keyed_state").rglob("*.json"):
        file.unlink()
    assert any(text.startswith("It cannot be read any more: ") for text in written().texts)


def test_drawing_has_each_name_once():
    shown = Page(graph("flow", Graph([["a"], ["b", "<b>"], ["sink c"]], [("a", "b"), ("a", "sink c")])))
    assert len(shown.named("rect")) == 4
    assert len(shown.named("path")) == 2
    assert [shown.texts.count(name) for name in ("a", "b", "<b>", "sink c")] == [1, 1, 1, 1]


def test_page_of_all_jobs_has_the_worst_first(home, headrace, tmp_path):
    other = (home / "conf" / "jobs" / "demo.yaml").read_text().replace("job: demo", "job: other")
    (home / "conf" / "jobs" / "other.yaml").write_text(other)
    result = headrace("report", "--out", str(tmp_path / "jobs.html"))
    assert result.exit_code == 0, result.output
    shown = Page((tmp_path / "jobs.html").read_text())
    assert "it never ran" in shown.texts
    assert headrace("report", "--at", "1").exit_code == 2
