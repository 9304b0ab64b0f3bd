"""The example of docs/aggregates.md is a pipeline, and gives the documented result."""

from __future__ import annotations

import re
from typing import Annotated

import pytest

from headrace import Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.operators import First
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.doc_pages import PAGES, page_module


class Scan(Struct, frozen=True):
    name: str
    city: str
    at: Timestamp


class Firsts(Struct, frozen=True):
    at: Timestamp
    city: Annotated[str, First("city")]
    scan: Annotated[Scan, First()]


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


def test_equal_values_give_the_shown_results():
    lines = re.findall(
        r'^(..) (\w) (\w+) +First\("city"\) (\w+) +First\(\) (\w)$', PAGES["aggregates"].read_text(), re.MULTILINE
    )
    scans = Pipeline("parcels").source("scans", Scan, event_time="at", row_kind="kind").key_by("at")
    function = scans.aggregate("firsts", Firsts, state_ttl=Lifetime.FOREVER).operators[-1].function
    with KeyedHarness(function, key=lambda scan: scan.at) as harness:
        for kind, name, city, first_city, first_name in lines:
            harness.process(Scan(name, city, 5), timestamp=5, kind=RowKind.parse(kind))
            harness.drain()
            _, row = harness.kinds()[-1]
            assert (row.city, row.scan.name) == (first_city, first_name)
    assert len(lines) == len("abcac")
