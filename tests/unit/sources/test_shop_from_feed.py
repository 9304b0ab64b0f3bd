"""A shop from a change feed equals the shop from snapshots: orders change and vanish, and the tables follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace import DEBEZIUM, Lifetime, Pipeline, Struct, Timestamp, field
from headrace.operators import Count, Sum
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples


class Order(Struct, frozen=True):
    id: int
    customer: str
    cents: int
    paid: bool
    at: Timestamp = field(name="__source_ts_ms")


class OfCustomer(Struct, frozen=True):
    customer: str
    orders: Annotated[int, Count()]
    cents: Annotated[int | None, Sum("cents")]


def shop(*, from_feed: bool) -> Pipeline:
    """Return the shop over events of its table, or over rows of a snapshot."""
    kinds: dict[str, Any] = {"row_kind": DEBEZIUM} if from_feed else {}
    orders = Pipeline("shop").source("orders", Order, event_time="at", **kinds)
    if from_feed:
        orders = orders.normalize("latest", key=("id",))
    orders.upsert_materialize("current", primary_key=("id",)).sink("current_orders")
    unpaid = orders.filter(lambda order: not order.paid)
    totals = unpaid.key_by("customer").aggregate("totals", OfCustomer, state_ttl=Lifetime.FOREVER)
    return totals.upsert_materialize("per_customer", primary_key=("customer",)).sink("unpaid_of_customers")


def harness(*, from_feed: bool, **options: Any) -> PipelineHarness:
    names = {"rename": {"at": "at"}}
    source = {"format": "json", "max_quarantined": "none", **({"envelope": "debezium"} if from_feed else {})}
    job = {"sources": {"orders": source}, "sinks": {"current_orders": names}}
    return PipelineHarness(shop(from_feed=from_feed), job=job, bucket=3, **options)


def tables(h: PipelineHarness) -> dict[str, list[Any]]:
    return {name: sorted(h.sink(name), key=repr) for name in ("current_orders", "unpaid_of_customers")}


def change(op: str, row: dict[str, Any], time: int, before: dict[str, Any] | None = None) -> dict[str, Any]:
    old = row if op == "d" else before
    return {"op": op, "before": old, "after": None if op == "d" else row, "source": {"ts_ms": time, "table": "orders"}}


ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 4),
        "customer": st.sampled_from("ab"),
        "cents": st.integers(0, 9),
        "paid": st.booleans(),
    }
)
CHANGES = st.lists(st.one_of(ORDERS, st.integers(0, 4)), max_size=25)
"""Orders as they are written, and ids of those that are deleted."""


def events_of(changes: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the events of changes of a table, and its rows at the end, by a plain loop."""
    table: dict[int, dict[str, Any]] = {}
    events = []
    for time, wanted in enumerate(changes, 1):
        number = wanted if isinstance(wanted, int) else wanted["id"]
        before = table.get(number)
        if not isinstance(wanted, int):
            table[number] = wanted
            events.append(change("c" if before is None else "u", wanted, time, before))
        elif before is not None:
            events.append(change("d", table.pop(number), time))
    times = {event["after"]["id"]: event["source"]["ts_ms"] for event in events if event["after"] is not None}
    return events, [row | {"__source_ts_ms": times[number]} for number, row in table.items()]


@pytest.mark.slow
@examples(40)
@given(CHANGES, st.integers(1, 5), st.integers(1, 3))
def test_feed_gives_the_tables_of_a_snapshot(changes, files, parallelism):
    events, rows = events_of(changes)
    from_feed = harness(from_feed=True, parallelism=parallelism)
    size = max(1, -(-len(events) // files))
    for number in range(0, len(events), size):
        lines = "".join(f"{json.dumps(event)}\n" for event in events[number : number + size])
        from_feed.feed_bytes("orders", lines.encode(), file=f"{number:03d}.json")
        from_feed.run()
    from_snapshot = harness(from_feed=False)
    if rows:
        from_snapshot.feed_bytes("orders", "".join(f"{json.dumps(row)}\n" for row in rows).encode(), file="1.json")
        from_snapshot.run()
    if events:
        assert tables(from_feed) == (tables(from_snapshot) if rows else {name: [] for name in tables(from_feed)})
        assert from_feed.table("quarantine").num_rows == 0


@pytest.mark.parametrize("ops", ["r", "c"])
def test_rows_of_a_first_snapshot_count_once(ops):
    h = harness(from_feed=True)
    row = {"id": 1, "customer": "a", "cents": 5, "paid": False}
    for name, time in (("1.json", 1), ("2.json", 2)):  # the connector was started again
        h.feed_bytes("orders", json.dumps(change(ops, row, time)).encode(), file=name)
        h.run()
    assert h.sink("unpaid_of_customers") == [OfCustomer("a", 1, 5)]
