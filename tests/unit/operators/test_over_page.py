"""The examples of docs/over.md are pipelines, and give the documented results."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest

from headrace import Late, Lifetime, Pipeline, Struct
from headrace.operators import Max, Sum
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


class Balance(Struct, frozen=True):
    id: int
    card: str
    cents: int
    total: Annotated[int, Sum("cents")]
    largest: Annotated[int, Max("cents")]


def test_late_payment_corrects_the_balances(page):
    source = Pipeline("balances").source("payments", page.Payment, event_time="at")
    balances = source.key_by("card").over(
        "balances", Balance, order_by="id", late=Late.CORRECT, keep=timedelta(days=1), state_ttl=Lifetime.FOREVER
    )
    too_late = balances.side_output("late", page.Payment, sink="late_payments")
    pipeline = too_late.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",)).sink("balances")
    day = 1440
    rows = [(0, 5), (30, 2), (20, 10), (day + 60, 1), (10, 100)]
    harness = run(pipeline, payments(page, *rows), bucket=1)
    corrected = sorted(harness.sink("balances"), key=lambda row: row.id)
    assert [(row.id, row.total, row.largest) for row in corrected] == [(1, 5, 5), (2, 17, 10), (3, 15, 10), (4, 18, 10)]
    assert [row.id for row in harness.sink("late_payments")] == [5]
