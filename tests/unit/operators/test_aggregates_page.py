"""The example of docs/aggregates.md is a pipeline, and gives the documented result."""

from __future__ import annotations

import pytest

from headrace.testing import PipelineHarness
from tests.unit.support.doc_pages import page_module


@pytest.fixture
def page(monkeypatch):
    return page_module("aggregates", monkeypatch)


def test_example_keeps_totals_of_customers(page):
    harness = PipelineHarness(page.pipeline, bucket=1)
    harness.feed("orders", [page.Order("ann", 1, "north", 5), page.Order("bob", 2, "south", 1)])
    harness.run()
    harness.feed("orders", [page.Order("ann", 3, "south", 7)])
    harness.run()
    rows = sorted(harness.sink("spent_by_customer"), key=lambda row: row.customer)
    assert rows == [page.Spent("ann", 2, 12, "south"), page.Spent("bob", 1, 1, "south")]
