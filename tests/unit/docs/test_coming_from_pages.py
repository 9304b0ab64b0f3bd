"""The pages for those who come from elsewhere: the programs of Headrace run, and those of others as far as this machine can."""

from __future__ import annotations

import ast
import inspect
from datetime import UTC, date, datetime

import duckdb
import jinja2
import pytest
from pyspark import pipelines
from pyspark.sql.group import GroupedData

from headrace import RowKind
from headrace.testing import PipelineHarness
from tests.unit.support.doc_pages import blocks_of, page_module

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.fixture
def page(monkeypatch):
    """Run the blocks of a page as a module."""
    return lambda name: page_module(name, monkeypatch)


def block_of(name, language, number=0):
    """Return a block of a page, by its language."""
    return [block.text for block in blocks_of(name) if block.language == language][number]


@pytest.mark.slow
def test_headrace_shows_an_offer_that_merge_loses(page):
    module = page("from-merge")
    offer = module.Offer
    batches = [
        [("+I", offer("tea", "A", 300, 1, 1)), ("+I", offer("jam", "A", 200, 2, 2))],
        [("+I", offer("tea", "B", 250, 3, 3))],
        [("-D", offer("tea", "B", 250, 3, 4))],
    ]
    harness = PipelineHarness(module.pipeline)
    with duckdb.connect() as database:
        database.sql("create table current_offers (product varchar, shop varchar, cents bigint, seq bigint)")
        for batch in batches:
            harness.feed("offers", [row for _, row in batch], kinds=[RowKind.parse(kind) for kind, _ in batch])
            harness.run()
            database.sql(
                "create or replace table batch (kind varchar, product varchar, shop varchar, cents bigint, seq bigint)"
            )
            rows = [(kind, row.product, row.shop, row.cents, row.seq) for kind, row in batch]
            database.executemany("insert into batch values (?, ?, ?, ?, ?)", rows)
            database.sql(block_of("from-merge", "sql"))
        assert database.sql("select product, shop from current_offers").fetchall() == [("jam", "A")]
    assert {(row.product, row.shop) for row in harness.sink("current_offers")} == {("jam", "A"), ("tea", "A")}


@pytest.mark.slow
def test_changes_in_any_order_give_current_customers(page):
    module = page("from-declarative-pipelines")
    harness = PipelineHarness(module.pipeline)
    for lsn, op, number, tier in (
        (10, "c", 7, "basic"),
        (40, "u", 7, "gold"),
        (30, "d", 8, None),
        (20, "c", 8, "late"),
    ):
        harness.feed("changes", [module.Change(number, lsn, op, DAY + lsn, tier, "Rome")])
        harness.run()
    assert harness.sink("customers") == [module.Customer(7, "gold", "Rome")]


def calls_in(name, functions):
    """Yield each call of these functions in the Python of others, with its function."""
    for node in ast.walk(ast.parse(block_of(name, "py"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in functions:
            yield node, functions[node.func.attr]


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        (
            "from-declarative-pipelines",
            {key: getattr(pipelines, key) for key in ("create_streaming_table", "create_auto_cdc_flow")},
        ),
        ("from-transform-with-state", {"transformWithState": GroupedData.transformWithState}),
    ],
)
def test_calls_fit_the_signatures_of_pyspark(name, functions):
    calls = list(calls_in(name, functions))
    assert len(calls) == len(functions)
    for call, function in calls:
        inspect.signature(function).bind_partial(*call.args, **{keyword.arg: None for keyword in call.keywords})


@pytest.mark.slow
def test_reminders_come_an_hour_after_the_last(page):
    module = page("from-transform-with-state")
    harness = PipelineHarness(module.pipeline, bucket=1)
    harness.feed("added", [module.Added("a", 0), module.Added("b", MINUTE), module.Added("a", 50 * MINUTE)])
    harness.run()
    harness.feed("added", [module.Added("c", 70 * MINUTE)])
    harness.run()
    assert harness.sink("reminders") == [module.Reminder("b", 1)]
    harness.run(end_of_input=True)
    assert {(row.cart, row.n) for row in harness.sink("reminders")} == {("a", 2), ("b", 1), ("c", 1)}


def test_processor_of_spark_can_be_defined():
    names = {}
    exec(compile(block_of("from-transform-with-state", "py"), "from-transform-with-state", "exec"), names)  # noqa: S102
    assert not inspect.isabstract(names["Reminders"])


def test_window_of_flink_page_sums_hours(page):
    module = page("from-flink")
    harness = PipelineHarness(module.revenue, bucket=1)
    harness.feed(
        "orders", [module.Order("ann", 5, HOUR), module.Order("ann", 7, HOUR + 1), module.Order("bob", 1, 2 * HOUR)]
    )
    harness.run(end_of_input=True)
    totals = {(row.customer, row.window_start, row.orders, row.cents) for row in harness.sink("revenue")}
    assert totals == {("ann", HOUR, 2, 12), ("bob", 2 * HOUR, 1, 1)}


def test_function_of_flink_page_forgets_after_days(page):
    module = page("from-flink")
    harness = PipelineHarness(module.first)
    for days, cents in ((0, 1), (0, 2), (2, 3)):
        harness.clock.advance(days * DAY)
        harness.feed("orders", [module.Order("ann", cents, cents)])
        harness.run()
    assert sorted(row.cents for row in harness.sink("first_orders")) == [1, 3]


def run_dbt(database, *, is_incremental):
    """Run the model of dbt once: it replaces rows with the same unique key."""
    template = jinja2.Environment(autoescape=False).from_string(block_of("from-dbt-and-sqlmesh", "sql"))  # noqa: S701
    names = {"config": lambda **_: "", "source": lambda *_: "orders", "this": "spent"}
    database.sql(
        f"create or replace temp table new as {template.render(is_incremental=lambda: is_incremental, **names)}"
    )
    database.sql("create table if not exists spent as from new limit 0")
    database.sql("delete from spent where (day, customer) in (select (day, customer) from new)")
    database.sql("insert into spent from new")


@pytest.mark.slow
def test_late_order_counts_beside_dbt_model(page):
    module = page("from-dbt-and-sqlmesh")
    harness = PipelineHarness(module.pipeline)
    first, last = date(1970, 1, 1), date(1970, 1, 4)
    with duckdb.connect() as database:
        database.sql("create table orders (customer varchar, cents bigint, placed_at timestamp)")
        for number, (day, cents) in enumerate([(0, 5), (3, 7), (0, 20)]):
            harness.feed("orders", [module.Order("ann", cents, day * DAY)])
            harness.run()
            database.execute("insert into orders values ('ann', ?, ?)", [cents, datetime(1970, 1, 1 + day, tzinfo=UTC)])
            run_dbt(database, is_incremental=number > 0)
        assert set(database.sql("select day, cents from spent").fetchall()) == {(first, 5), (last, 7)}
    assert {(row.day, row.cents) for row in harness.sink("spent")} == {(first, 25), (last, 7)}
