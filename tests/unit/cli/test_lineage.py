"""`headrace lineage`: as a page shows it, for machines, and what it refuses."""

from __future__ import annotations

import json

from tests.jobs.home import PROJECT
from tests.unit.support.doc_pages import calls_of


def test_page_shows_the_lineage_of_a_column(headrace, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(PROJECT))
    ((command, shown),) = calls_of("lineage", "headrace lineage")
    assert headrace(command.removeprefix("headrace ")).stdout.split() == shown.split()


def test_machines_read_kinds_and_functions(headrace):
    report = json.loads(headrace("lineage demo --json").stdout)
    assert report["job"] == "demo"
    (sink,) = report["sinks"]
    assert [column["column"] for column in sink["columns"]] == ["tail", "at"]
    (first, *_) = sink["columns"][0]["from"]
    assert {*first} == {"source", "column", "kind", "function", "is_sure"}
    assert first["source"] == "events"


def test_unknown_column_is_refused(headrace):
    result = headrace("lineage demo --column board.tial")
    assert result.exit_code == 2
    assert "there is no 'board.tial'" in str(result.output) + str(result.exception)
