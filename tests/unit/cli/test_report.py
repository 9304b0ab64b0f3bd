"""`headrace report`: a page about a job, whose names and reasons may hold anything."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from html import unescape
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from headrace import clock
from headrace.async_io.metrics import ServiceMetrics
from headrace.cli.charts import MOST_POINTS, Graph, Series, chart, graph
from headrace.cli.growth import read_some
from headrace.cli.page import element, number, page, table
from headrace.config import load_job
from headrace.log.branches import Branch, Branches, BranchStatus
from headrace.log.checkpoint import Kind
from headrace.readers import state as readers
from headrace.readers import stored_sizes as stored
from headrace.readers.state import list_states
from headrace.readers.stored_sizes import stored_sizes
from tests.jobs.home import PROJECT
from tests.unit.cli.written_page import Page
from tests.unit.support.demo_job import HOUR, START, entry

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><svg onload=alert(1)>", "&lt;b&gt;")


@pytest.fixture
def written(headrace, tmp_path, at_nine):
    """Write the page of the job; the clock stands still, so that reading takes no time."""

    def write(*options: str) -> Page:
        file = tmp_path / "page.html"
        result = headrace("report", "demo", "--out", str(file), *options)
        assert result.exit_code == 0, result.output
        return Page(file.read_text())

    return write


@pytest.mark.slow
def test_markup_in_names_is_shown_as_text(state, written):
    for text in HOSTILE:
        state.commit(Kind.SAVEPOINT, name=text, note=text, run_id=text)
    state.commit(Kind.BATCH, seconds=dict.fromkeys(HOSTILE, 1.5), metrics={"rows_in": 1})
    shown = written()
    assert not shown.named("script")
    assert not shown.named("img")
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    assert min(map(shown.texts.count, HOSTILE)) >= 3


@pytest.fixture
def opened(tmp_path):
    """Open a document in a real browser; return what it is after all its scripts."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine: with it, pages are opened, and axe-core looks at them")

    def open_(document):
        file = tmp_path / "opened.html"
        file.write_text(document)
        words = [program, *IN_A_BROWSER, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout

    return open_


IN_A_BROWSER = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--virtual-time-budget=60000",
)


@pytest.mark.slow
def test_browser_runs_nothing_of_a_page(state, written, opened, tmp_path):
    planted = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    state.commit(Kind.SAVEPOINT, name=planted, note=planted, run_id=planted)
    state.commit(Kind.BATCH, seconds={planted: 1.5}, metrics={"rows_in": 1})
    written()
    shown = opened((tmp_path / "page.html").read_text())
    assert not Page(shown).named("script")
    assert not Page(shown).named("img")
    assert re.findall("<title>(.*?)</title>", shown)[0] == "Job demo"


POLICY = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
SCHEMES = {"light": "not all", "dark": "all"}
RUN_AXE = """
axe.run(document, {resultTypes: ["violations"]}).then(
  result => { document.title = JSON.stringify(result.violations.map(one => [one.id, one.nodes.map(node => node.html)])) },
  error => { document.title = JSON.stringify([["axe failed", [String(error)]]]) })
"""


def violations(opened, document, scheme):
    """Return what axe-core has against a document: rules with elements. Its policy is taken out, which lets no script run."""
    (package,) = find_spec("axe_playwright_python").submodule_search_locations
    axe = Path(package, "axe.min.js").read_text().replace("</script", "<\\/script")
    colours = document.replace("(prefers-color-scheme:dark)", SCHEMES[scheme])
    scripts = f"<script>{axe}</script><script>{RUN_AXE}</script></body>"
    shown = opened(POLICY.sub("", colours).replace("</body>", scripts))
    return json.loads(unescape(re.findall("<title>(.*?)</title>", shown, re.DOTALL)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_readers_of_screens_can_read_a_page(state, written, opened, tmp_path, scheme):
    for text in HOSTILE:
        state.commit(Kind.SAVEPOINT, name=text, note=text, run_id=text)
    state.commit(Kind.BATCH, seconds={"run stages": 1.5}, metrics={"rows_in": 1})
    state.commit(Kind.RESTORE, parent_id=1, restored_from=1)
    written()
    assert violations(opened, (tmp_path / "page.html").read_text(), scheme) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("job", ["flights", "shop"])
def test_readers_of_screens_can_read_the_examples(opened, job, scheme):
    assert violations(opened, (PROJECT / f"docs/reports/{job}.html").read_text(), scheme) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("<img src=x>", "image-alt"),
        ('<p style="color:#777;background:#666">pale</p>', "color-contrast"),
        ("<table><tr><th></th></tr></table>", "empty-table-header"),
    ],
)
def test_unreadable_parts_are_found(opened, part, rule):
    document = page("Job demo", element("p", "text")).replace("</main>", f"{part}</main>")
    assert rule in [own for own, _ in violations(opened, document, "light")]


@pytest.mark.slow
def test_page_loads_nothing(state, written):
    shown = written()
    loading = {"src", "href", "srcset", "action", "data"}
    assert not [tag for tag, attributes in shown.tags if loading & {*attributes}]
    assert "url(" not in "".join(shown.texts)
    (policy,) = [meta for meta in shown.named("meta") if "http-equiv" in meta]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.slow
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


@pytest.mark.slow
def test_options_choose_the_checkpoints_of_pages(state, headrace, tmp_path):
    def told_by(*options):
        return json.loads(headrace("report", "demo", "--out", str(tmp_path / "p.html"), "--json", *options).stdout)

    assert told_by()["checkpoints"] > told_by("--at", "1")["checkpoints"]
    assert told_by("--at", "1")["checkpoint"] == 1
    assert told_by("--since", "2100-01-01")["checkpoints"] == 0


@pytest.mark.slow
def test_restored_checkpoints_are_named_undone(state, written):
    state.commit(Kind.SAVEPOINT, name="left behind")
    state.commit(Kind.RESTORE, parent_id=1, restored_from=1)
    assert "by restore 6" in written().texts
    assert not [text for text in written("--at", "2").texts if text.startswith("by restore")]


def test_job_that_never_ran_is_refused(home, headrace, tmp_path):
    result = headrace("report", "demo", "--out", str(tmp_path / "page.html"))
    assert result.exit_code == 2
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
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
    assert [path["d"] for path in shown.named("path") if path["class"].startswith("dot")] == [
        "M166.7 50.0h0",
        "M833.3 0.0h0",
    ]
    assert not shown.named("polyline")


def test_long_text_is_cut_and_numbers_are_grouped():
    assert "x" * 201 not in element("td", "x" * 5_000)
    assert [number(value) for value in (1_234_567, 0.5, -3)] == ["1\u202f234\u202f567", "0.5", "-3"]
    assert Page(table("t", ["a"], [[None]])).named("td") == [{}]


@pytest.mark.slow
def test_lag_is_that_of_each_commit(state, written):
    state.commit(Kind.BATCH, committed_at=START + 9 * HOUR, watermark=START + 2 * HOUR)
    assert "7" in written().texts


@pytest.mark.slow
def test_markup_in_stored_values_is_shown_as_text(state, written):
    for text in HOSTILE:
        own = {"operator": text, "key_group": 1, "key": json.dumps(text), "checkpoint_id": 3, "deleted": False}
        state.add("keyed_state", [{**own, "state": "seen", "value": json.dumps(text)}])
        state.add(
            "quarantine", [{**own, "source": text, "position": text, "raw": text, "error": text, "origin": "row"}]
        )
    state.commit(Kind.BATCH)
    shown = written()
    assert not {"script", "img"} & {tag for tag, _ in shown.tags}
    assert min(map(shown.texts.count, HOSTILE)) >= 4


@pytest.mark.slow
def test_slow_state_is_read_once(state, written, monkeypatch):
    for _ in range(3):
        state.commit(Kind.BATCH)
    seconds, reads = iter(range(0, 1000, 10)), Mock(side_effect=list_states)
    monkeypatch.setattr(clock, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(readers, "list_states", reads)
    logs = Mock(side_effect=stored_sizes)
    monkeypatch.setattr(stored, "stored_sizes", logs)
    assert "How it grew is not shown: reading the state of one checkpoint takes 10 s." in written().texts
    assert (reads.call_count, logs.call_count) == (1, 1)


@pytest.mark.slow
def test_slow_state_grew_as_its_logs_tell(state, written, monkeypatch):
    state.add("keyed_state", [{**entry("N9", '"JFK"', 5), "operator": "other"}])
    state.commit(Kind.BATCH)
    state.commit(Kind.BATCH)
    monkeypatch.setattr(clock, "monotonic", Mock(side_effect=[0, 10, 10, 10.1]))
    reads = Mock(side_effect=list_states)
    monkeypatch.setattr(readers, "list_states", reads)
    texts = written().texts
    assert reads.call_count == 1
    assert "Reading the state of one checkpoint takes 10 s, so how it grew is that of what is stored." in texts
    assert "How it grew, read from the logs of the tables, at 7 of 7 checkpoints." in texts
    assert {"Stored rows by operator", "Bytes of files by operator", "latest", "legs", "other"} <= {*texts}


@pytest.mark.slow
def test_largest_keys_come_first(state, written):
    state.add("keyed_state", [entry(f"N{size}", f'"{"x" * size}"', 5) for size in (5, 90, 7)])
    state.commit(Kind.BATCH)
    texts = written().texts
    first = texts.index("Largest keys")
    assert texts[first:].index('"N90"') < texts[first:].index('"N7"') < texts[first:].index('"N5"')


@pytest.mark.slow
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
    shown = Page(
        graph("flow", Graph([["a"], ["b", "<b>"], ["sink c"]], [("a", "b"), ("a", "sink c")], {"b": "7 rows"}))
    )
    assert len(shown.named("rect")) == 4
    assert len(shown.named("path")) == 2
    assert [shown.texts.count(name) for name in ("a", "b", "<b>", "sink c", "7 rows")] == [1] * 5


def test_page_of_all_jobs_has_the_worst_first(home, headrace, tmp_path):
    other = (home / "conf" / "jobs" / "demo.yaml").read_text().replace("job: demo", "job: other")
    (home / "conf" / "jobs" / "other.yaml").write_text(other)
    result = headrace("report", "--out", str(tmp_path / "jobs.html"))
    assert result.exit_code == 0, result.output
    shown = Page((tmp_path / "jobs.html").read_text())
    assert "it never ran" in shown.texts
    assert headrace("report", "--at", "1").exit_code == 2


def test_unreadable_jobs_come_before_new_ones(state, home, headrace, tmp_path):
    job = (home / "conf/jobs/demo.yaml").read_text()
    for name, text in {"a_new": job, "z_new": job, "m_broken": f"{job}parallelism: many\n"}.items():
        (home / f"conf/jobs/{name}.yaml").write_text(text.replace("job: demo", f"job: {name}"))
    answer = json.loads(headrace("report", "--all", "--out", str(tmp_path / "jobs.html"), "--json").stdout)
    assert [row["job"] for row in answer["jobs"]] == ["m_broken", "a_new", "z_new", "demo"]


def test_page_of_all_jobs_has_one_job(state, headrace, tmp_path):
    state.commit(Kind.BATCH, metrics={"rows_in": 1, "quarantined": 3})
    answer = json.loads(headrace("report", "--all", "--out", str(tmp_path / "jobs.html"), "--json").stdout)
    (row,) = answer["jobs"]
    assert (row["job"], row["problem"], row["set_aside"]) == ("demo", None, 3)
    assert row["checkpoint"] == json.loads(headrace("status", "demo", "--json").stdout)["jobs"][0]["checkpoint"]
    for words in (("demo", "--all"), ("--all", "--run", "r"), ("--all", "--at", "1")):
        assert headrace("report", *words).exit_code == 2


@pytest.mark.slow
def test_run_names_its_last_checkpoint(state, headrace, tmp_path):
    first = state.commit(Kind.BATCH, run_id="ours")
    state.commit(Kind.BATCH, run_id="ours")
    state.commit(Kind.BATCH, run_id="theirs")
    file = ("--out", str(tmp_path / "page.html"))
    answer = json.loads(headrace("report", "demo", *file, "--run", "ours", "--json").stdout)
    assert answer["checkpoint"] == first.checkpoint_id + 1
    refused = headrace("report", "demo", *file, "--run", "nobody's")
    assert "run 'nobody's' has committed no checkpoint of job 'demo'" in refused.output
    assert headrace("report", "demo", *file, "--run", "ours", "--at", "1").exit_code == 2


@pytest.fixture(scope="module")
def pages():
    """Pages that tests have written once for all."""
    return {}


@pytest.fixture
def whole(request, pages):
    """A page with all of its parts: lanes of each kind, charts, services, rows that were set aside."""
    if "whole" not in pages:
        pages["whole"] = whole_page(request.getfixturevalue("state"), request.getfixturevalue("written"))
    return pages["whole"]


def whole_page(state, written):
    service = {"weather": ServiceMetrics(calls=7, failures=2, retries=2)}
    state.commit(Kind.EDIT, note="wrong leg")
    state.commit(Kind.RESTORE, restored_from=4, note="wrong input")
    state.commit(Kind.BATCH, metrics={"rows_in": 9, "late": 2}, seconds={"read": 1.5, "commit": 0.1}, services=service)
    state.commit(Kind.PROMOTION, name="better", restored_from=7, parent_id=7)
    return written()


@pytest.mark.slow
def test_page_has_a_language_and_ordered_headings(whole):
    assert [html["lang"] for html in whole.named("html")] == ["en"]
    levels = [int(tag[1]) for tag, _ in whole.tags if tag in {"h1", "h2", "h3", "h4", "h5", "h6"}]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(then <= level + 1 for level, then in pairwise(levels))
    assert len(whole.named("main")) == 1


def test_each_drawing_is_described_or_hidden(whole):
    drawings = [
        attributes
        for (tag, attributes), path in zip(whole.tags, whole.paths, strict=True)
        if tag == "svg" and "svg" not in path and attributes.get("aria-hidden") != "true"
    ]
    assert len(drawings) >= 7
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)


def test_each_column_has_its_heading(whole):
    headings = whole.named("th")
    assert headings
    assert all(heading["scope"] == "col" for heading in headings)
    tables = [children for tag, children in whole.children if tag == "table"]
    assert all(children[0] == "caption" for children in tables)


def test_places_to_scroll_have_names(whole):
    scrolled = [attributes for _, attributes in whole.tags if "tabindex" in attributes]
    assert scrolled
    assert all(attributes["role"] == "region" and attributes["aria-label"] for attributes in scrolled)


def test_ids_are_unique_and_links_lead_somewhere(whole):
    ids = [attributes["id"] for _, attributes in whole.tags if "id" in attributes]
    assert len(ids) == len({*ids})
    values = [value or "" for _, attributes in whole.tags for value in attributes.values()]
    used = {name for value in values for name in re.findall(r"url\(#([^)]*)\)", value)}
    assert used == {*ids}


def test_texts_and_lines_stand_out_in_both_themes(whole):
    style = next(text for text in whole.texts if ":root{" in text)
    light, dark = (dict(re.findall(r"--(\w+):(#\w+)", theme)) for theme in re.findall(r":root\{([^}]*)\}", style))
    assert light.keys() == dark.keys()
    texts = re.findall(r"[{;]color:var\(--(\w+)\)", style) + re.findall(r"text\{fill:var\(--(\w+)\)", style)
    assert {*texts} == {"text", "soft"}
    for theme in (light, dark):
        assert min(contrast(theme[name], theme["back"]) for name in texts) >= 4.5
        assert min(contrast(theme[name], theme["back"]) for name in ("c0", "c1", "c2", "c3", "soft")) >= 3


def contrast(first: str, second: str) -> float:
    """Return the ratio of two colours as WCAG 2 defines it."""
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.slow
@pytest.mark.parametrize("text", ["try_it", "a" * 90, "".join(HOSTILE)])
def test_open_branch_is_drawn_to_the_end(state, written, home, text):
    facts = {"versions": {}, "sinks": {}, "created_at": START, "made_at": 4, "note": text}
    Branches(load_job("demo", home)).add(Branch(name=text, status=BranchStatus.OPEN, fork_id=2, **facts))
    shown = written()
    (way,) = [line for line in shown.named("line") if "stroke-dasharray" in line and "way" in line["class"]]
    assert (way["x1"], way["x2"]) == ("50.0%", "100.0%")
    assert f"branch {text}, from checkpoint 2, open" in shown.texts
    assert "Open branches" in shown.texts
    assert "Open branches" not in written("--at", "1").texts


def test_points_tell_their_values(whole):
    assert "checkpoint 7: rows_in 9, rows_out none" in whole.texts


@pytest.mark.slow
def test_state_over_time_is_that_of_each_checkpoint(state, headrace, written):
    state.commit(Kind.BATCH)
    rows = [f"checkpoint {number}: latest {history}, legs {entries}" for number, entries, history in sizes(headrace)]
    texts = written().texts
    at = texts.index("Live entries by operator")
    assert [text for text in texts[at:] if text.startswith("checkpoint ") and ": latest" in text][: len(rows)] == rows


def sizes(headrace):
    """Yield entries by checkpoint, as `state list` has them."""
    for place in range(6):
        states = json.loads(headrace("state", "list", "demo", "--at", str(place), "--json").stdout)["states"]
        counts = {name: sum(s["entries"] for s in states if s["operator"] == name) for name in ("legs", "latest")}
        yield place, counts["legs"], counts["latest"]


@pytest.mark.slow
def test_checkpoints_whose_state_is_gone_are_named(state, written):
    for place in range(6):
        state.add("keyed_state", [entry(f"X{place}", '"A"', place + 5)], whole=True)
        state.commit(Kind.BATCH)
    version = state.log.checkpoints[1].versions["keyed_state"]
    for name in DeltaTable(str(state.folder / "keyed_state"), version=version).file_uris():
        Path(name).unlink()
    state.commit(Kind.VACUUM)
    sentences = [text for text in written().texts if text.startswith("It cannot be read any more at")]
    assert sentences == [
        "It cannot be read any more at 3 of these checkpoints (1, 2, 3): vacuum 11 came after them, which removes files that the retention does not keep."
    ]


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(2, 20))
def test_few_checkpoints_are_read_and_the_last(size, lost, most):
    past = [SimpleNamespace(checkpoint_id=number) for number in range(size)]
    lost, calls = min(lost, size - 1), []

    def read(checkpoint):
        calls.append(checkpoint.checkpoint_id)
        return None if checkpoint.checkpoint_id < lost else {}

    sizes_read = read_some(past, most, read)
    assert sizes_read == {number: None if number < lost else {} for number in sorted(calls)}
    assert len(calls) == len({*calls}) <= 12 * most
    assert {0, size - 1} <= {*calls}
    assert sum(size is not None for size in sizes_read.values()) >= min(size - lost, most // 2)


@pytest.mark.parametrize(("job", "part"), [("shop", "Live entries by operator"), ("flights", "Largest keys")])
def test_example_pages_name_no_machine(job, part):
    text = (PROJECT / "docs" / "reports" / f"{job}.html").read_text()
    assert len(text) < 500_000
    assert not re.search(r"/(?:tmp|root|home|work|Users)/|127\.0\.0|localhost", text)
    shown = Page(text)
    assert {f"Job {job}", "Timeline", part} <= {*shown.texts}
    assert not shown.named("script")
