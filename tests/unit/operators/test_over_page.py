"""The examples of docs/over.md are pipelines, and give the documented results."""

from __future__ import annotations

import pytest

from headrace.testing import PipelineHarness
from tests.unit.support.doc_pages import page_module

MINUTE = 60_000
TEN = 600 * MINUTE


@pytest.fixture
def page(monkeypatch):
    return page_module("over", monkeypatch)


def payments(page, *given):
    """Return payments of one card, with the minutes after ten o'clock."""
    return [page.Payment(number, "a", TEN + minute * MINUTE, cents) for number, (minute, cents) in enumerate(given, 1)]


def run(pipeline, records, **options):
    harness = PipelineHarness(pipeline, **options)
    harness.feed("payments", records)
    harness.run(end_of_input=True)
    return harness


def test_third_payment_raises_the_alarm(page):
    rows = run(page.alarms, payments(page, (0, 5), (4, 7), (10, 1), (15, 2))).sink("alarms")
    assert rows == [page.Recent("a", TEN + 10 * MINUTE, 3, 13)]


def test_changes_have_the_rows_around_them(page):
    rows = run(page.changes._pipeline, payments(page, (0, 5), (4, 7))).sink("changes")
    assert rows == [
        page.Change(1, "a", 1, 5.0, None, TEN + 4 * MINUTE),
        page.Change(2, "a", 2, 6.0, 5, None),
    ]


def test_late_payment_corrects_the_balances(page):
    pipeline = page.too_late._pipeline
    day = 1440
    rows = [(0, 5), (30, 2), (20, 10), (day + 60, 1), (10, 100)]
    harness = run(pipeline, payments(page, *rows), bucket=1)
    balances = sorted(harness.sink("balances"), key=lambda row: row.id)
    assert [(row.id, row.total, row.largest) for row in balances] == [(1, 5, 5), (2, 17, 10), (3, 15, 10), (4, 18, 10)]
    assert [row.id for row in harness.sink("late_payments")] == [5]
