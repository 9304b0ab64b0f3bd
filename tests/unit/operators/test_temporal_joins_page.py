"""The examples of docs/temporal-joins.md are one pipeline, and give the documented results."""

from __future__ import annotations

import pytest

from headrace.testing import PipelineHarness
from tests.unit.support.doc_pages import page_module

MINUTE = 60_000


@pytest.fixture
def page(monkeypatch):
    return page_module("temporal-joins", monkeypatch)


def test_page_joins_by_time_window_and_service(page):
    harness = PipelineHarness(page.shop, bucket=1)
    orders = [("CHF", 1), ("CHF", 11), ("USD", 12)]
    harness.feed("rates", [page.Rate("CHF", 0, 1.0), page.Rate("CHF", 10 * MINUTE, 2.0)])
    harness.feed("orders", [page.Order(at, currency, at * MINUTE, 100) for currency, at in orders])
    harness.feed("payments", [page.Payment(11, 30 * MINUTE), page.Payment(12, 90 * MINUTE)])
    harness.run(end_of_input=True)
    assert sorted((row.id, row.euros) for row in harness.sink("priced")) == [(1, 1.0), (11, 2.0), (12, None)]
    paid = sorted((row.id or 0, row.is_paid) for row in harness.sink("paid_in_the_hour"))
    assert paid == [(0, True), (1, False), (11, True), (12, False)]
    assert sorted(row.id for row in harness.sink("paid_orders")) == [11]
    assert sorted(row.id for row in harness.sink("unpaid_orders")) == [1, 12]
    shipped = sorted((row.id, row.country) for row in harness.sink("shipped"))
    assert shipped == [(1, "Switzerland"), (11, "Switzerland"), (12, None)]
