"""A Spark transform over a source in a pipeline: where it is allowed, its record type, and its use in harnesses."""

from __future__ import annotations

import pytest

from headrace import Pipeline, RowKind, Struct, Timestamp
from headrace.errors import ConfigError
from headrace.plan.planner import plan_stages, problems_of, sources_of
from headrace.testing import PipelineHarness
from tests.unit.support.doc_pages import page_module


class Order(Struct, frozen=True):
    id: int
    items: list[str]
    at: Timestamp


class Item(Struct, frozen=True):
    id: int
    item: str
    at: Timestamp


class Timeless(Struct, frozen=True):
    id: int


QUERY = "select id, explode(items) as item, at from orders"


@pytest.fixture
def orders():
    return Pipeline("shop").source("orders", Order, event_time="at", row_kind="op")


def test_plan_has_the_rows_of_the_result(orders):
    plan = plan_stages(orders.sql(QUERY, record=Item, tables=("dims",)).sink("items"))
    (source,) = plan.sources
    assert source.record is Item
    assert source.stored.record is Order
    assert source.transform.tables == ("dims",)
    assert (plan.ranks(), plan.edges()) == ({}, {})


def test_record_of_the_source_is_the_default(orders):
    (source,) = sources_of(orders.spark(lambda df: df).sink("orders_again"))
    assert source.record is source.stored.record is Order


REFUSED = {
    "behind a map": (
        lambda orders: orders.filter(bool).sql(QUERY),
        ValueError,
        r"sql\(\) of 'filter bool': Spark's transform must come first, directly behind source\(\)",
    ),
    "behind another": (
        lambda orders: orders.sql(QUERY, record=Item).spark(lambda df: df),
        ValueError,
        r"spark\(\) of 'sql': Spark's transform must come first",
    ),
    "keyed": (lambda orders: orders.key_by("id").sql(QUERY), ValueError, "must be followed by"),
    "no event time": (lambda orders: orders.sql(QUERY, record=Timeless), ValueError, "Timeless has no such field"),
    "no record": (lambda orders: orders.sql(QUERY, record=int), TypeError, "not a type of records"),
    "no query": (lambda orders: orders.sql(" "), ValueError, "takes a query"),
    "no function": (lambda orders: orders.spark("select"), TypeError, "takes a function"),
    "one text": (lambda orders: orders.sql(QUERY, tables="dims"), TypeError, r"tables=\('dims',\)"),
    "taken name": (lambda orders: orders.sql(QUERY, tables=("orders",)), ValueError, "the source's own name"),
    "bad name": (lambda orders: orders.sql(QUERY, tables=("Dims!",)), ValueError, "Dims!"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_steps_are_refused(case, orders):
    build, error, says = REFUSED[case]
    with pytest.raises(error, match=says):
        build(orders)


def test_source_with_step_has_no_other_use(orders):
    orders.sql(QUERY, record=Item).sink("items")
    orders.filter(bool).sink("orders_again")
    (problem,) = problems_of(orders._pipeline)
    assert "source 'orders' goes to Spark's transform 'sql', and to 'filter bool' as well" in problem


def test_harness_takes_rows_of_the_result(orders):
    harness = PipelineHarness(orders.sql(QUERY, record=Item, tables=("dims",)).sink("items"))
    harness.feed("orders", [Item(1, "a", 5), Item(2, "b", 6)], kinds=[RowKind.INSERT, RowKind.DELETE])
    harness.run()
    assert harness.sink("items") == [Item(1, "a", 5), Item(2, "b", 6)]
    with pytest.raises(TypeError, match="source 'orders' has records of type Item"):
        harness.feed("orders", [Order(1, [], 5)])


def test_tables_are_bound_by_the_job(orders):
    pipeline = orders.sql(QUERY, record=Item, tables=("dims",)).sink("items")
    with pytest.raises(
        ConfigError, match=r"sources.orders.tables.prices: the pipeline has no table 'prices' \(it has: dims\)"
    ):
        PipelineHarness(pipeline, job={"sources": {"orders": {"tables": {"prices": "prices"}}}}).run()


def test_code_of_the_page_runs(monkeypatch):
    page = page_module("spark-transforms", monkeypatch)
    assert [source.transform.name for pipeline in (page.shop, page.again) for source in sources_of(pipeline)] == [
        "sql",
        "spark priced",
    ]
