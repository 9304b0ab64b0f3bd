"""A job whose records hold lists, maps and structs: in the source, in state, in a merged sink and in an appended one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState

ORDERS: Final[dict[str, Any]] = {
    "job": "orders",
    "pipeline": "tests.jobs.orders:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 2},
    "sources": {"orders": {"path": "input", "on_bad_row": "quarantine"}},
    "sinks": {
        "baskets": {"path": "lake/baskets", "mode": "merge"},
        "parcels": {"path": "lake/parcels", "mode": "append"},
    },
}


class Line(Struct, frozen=True):
    """One line of an order."""

    item: str
    price: float
    at: Timestamp


class Order(Struct, frozen=True):
    """One row of the input."""

    number: int
    at: Timestamp
    customer: str
    lines: list[Line]
    labels: dict[str, str | None] = msgspec.field(default_factory=dict)


class Basket(Struct, frozen=True):
    """All lines that a customer has ordered."""

    customer: str
    lines: tuple[Line, ...]
    last: Line | None
    spent: dict[str, float]
    times: list[Timestamp]


class Parcel(Struct, frozen=True):
    """The lines sent for one order."""

    number: int
    lines: list[Line]
    labels: dict[str, str | None]


class Baskets(KeyedProcessFunction[Order, Basket]):
    """Fills a customer's basket."""

    basket = ValueState("basket", Basket)

    async def process(self, order: Order, ctx: Context, /) -> None:
        """Add the order's lines."""
        before = await self.basket.value()
        lines = (*(before.lines if before else ()), *order.lines)
        spent: dict[str, float] = {}
        for line in lines:
            spent[line.item] = spent.get(line.item, 0.0) + line.price
        times = [*(before.times if before else []), order.at]
        basket = Basket(order.customer, lines, lines[-1] if lines else None, spent, times)
        await self.basket.update(basket)
        ctx.collect(basket, RowKind.UPDATE_AFTER)
        ctx.output("parcels", Parcel(order.number, order.lines, order.labels))


pipeline = (
    Pipeline("orders")
    .source("orders", Order, event_time="at", order_by=("number",))
    .key_by("customer")
    .process("fill", Baskets())
    .side_output("parcels", Parcel, sink="parcels")
    .upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",))
    .sink("baskets")
)
