"""A small job for tests, with every feature except calls to services.

Purchases of customers, keyed by customer: state without and with TTL, timers that are moved, timers for past times, a
side output, retractions, and a materializer with another key. `purchases_by_hand.py` computes the same in a plain
loop.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, StateTtl, Struct, Timestamp, ValueState

HOUR: Final = 3_600_000
BASKET_LIFETIMES: Final = timedelta(hours=3)
REMIND_AFTER: Final = 2 * HOUR
LATENESS: Final = timedelta(minutes=15)
LOOK_BACK: Final = 100
"""Each purchase whose cents are a multiple of this registers a timer in the past."""

Item = Literal["apples", "bread", "cheese", "dates", "eggs"]


class Purchase(Struct, frozen=True):
    """One row of the input."""

    seq: int
    at: Timestamp
    customer: str | None
    item: Item
    cents: int
    note: str | None = None


class Line(Struct, frozen=True):
    """The board's line of an item: the purchases of its last customer."""

    item: str
    customer: str
    bought: int
    cents: int
    in_basket: int
    idle: bool


class Reminder(Struct, frozen=True):
    """A reminder for an idle customer, or for a customer who asked for it."""

    customer: str
    due: Timestamp
    purchases: int
    cents: int


class Spent(Struct, frozen=True):
    """The total that a customer has spent."""

    purchases: int = 0
    cents: int = 0
    remind_at: int = 0
    lines: tuple[Line, ...] = ()


class Basket(Struct, frozen=True):
    """The recent purchases of a customer."""

    items: tuple[str, ...] = ()


class Customers(KeyedProcessFunction[Purchase, Line]):
    """Keeps the lines of a customer, and reminds idle customers."""

    spent = ValueState("spent", Spent)
    basket = ValueState("basket", Basket, ttl=StateTtl(BASKET_LIFETIMES))

    async def process(self, purchase: Purchase, ctx: Context, /) -> None:
        """Process a purchase: kind -D retracts the customer's line of the item; kind -U is ignored."""
        if ctx.row_kind is RowKind.UPDATE_BEFORE:
            return
        if purchase.note == "explode":
            raise ValueError("a purchase that explodes")
        spent = await self.spent.value() or Spent()
        old = next((line for line in spent.lines if line.item == purchase.item), None)
        others = tuple(line for line in spent.lines if line is not old)
        if ctx.row_kind is RowKind.DELETE:
            # Without a line there is nothing to retract: the materializer finds no row either, and counts the
            # retraction as unmatched.
            ctx.collect(old or Line(purchase.item, str(ctx.key), 0, 0, 0, False), RowKind.DELETE)
            await self.basket.clear()
            await self.spent.update(Spent(spent.purchases, spent.cents, spent.remind_at, others))
            return
        basket = await self.basket.value() or Basket()
        await self.basket.update(Basket((*basket.items, purchase.item)))
        line = _next_line(old, purchase, str(ctx.key), len(basket.items) + 1)
        if old is not None:
            ctx.collect(old, RowKind.UPDATE_BEFORE)
        ctx.collect(line, RowKind.UPDATE_AFTER)
        remind_at = self._move_reminder(spent, purchase, ctx)
        await self.spent.update(Spent(spent.purchases + 1, spent.cents + purchase.cents, remind_at, (*others, line)))

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Remind, and mark the customer's last line as idle."""
        spent = await self.spent.value() or Spent()
        ctx.output("reminders", Reminder(str(ctx.key), timestamp, spent.purchases, spent.cents))
        if spent.lines and not spent.lines[-1].idle:
            last = spent.lines[-1]
            idle = Line(last.item, last.customer, last.bought, last.cents, last.in_basket, True)
            ctx.collect(last, RowKind.UPDATE_BEFORE)
            ctx.collect(idle, RowKind.UPDATE_AFTER)
            await self.spent.update(Spent(spent.purchases, spent.cents, spent.remind_at, (*spent.lines[:-1], idle)))

    def _move_reminder(self, spent: Spent, purchase: Purchase, ctx: Context) -> int:
        if spent.remind_at:
            ctx.timers.delete_event_time(spent.remind_at)
        remind_at = purchase.at + REMIND_AFTER
        ctx.timers.register_event_time(remind_at)
        if purchase.cents % LOOK_BACK == 0:
            ctx.timers.register_event_time(purchase.at - 24 * HOUR)
        return remind_at


def _next_line(old: Line | None, purchase: Purchase, customer: str, in_basket: int) -> Line:
    bought, cents = (old.bought, old.cents) if old else (0, 0)
    return Line(purchase.item, customer, bought + 1, cents + purchase.cents, in_basket, False)


pipeline: Final = (
    Pipeline("purchases")
    .source("purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS)
    .key_by("customer")
    .process("customers", Customers())
    .side_output("reminders", Reminder, sink="reminders")
    .upsert_materialize("lines", primary_key=("item",))
    .sink("lines_by_item")
)

renamed: Final = (
    Pipeline("purchases")
    .source("purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS)
    .key_by("customer")
    .process("clients", Customers())
    .side_output("reminders", Reminder, sink="reminders")
    .upsert_materialize("lines", primary_key=("item",))
    .sink("lines_by_item")
)
"""The same after somebody has given an operator another name."""

anew: Final = (
    Pipeline("purchases")
    .source("purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS)
    .key_by("customer")
    .process("clients", Customers())
    .side_output("reminders", Reminder, sink="reminders")
    .upsert_materialize("board", primary_key=("item",))
    .sink("lines_by_item")
)
"""The same with other names for all operators."""

other_sink: Final = (
    Pipeline("purchases")
    .source("purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS)
    .key_by("customer")
    .process("customers", Customers())
    .side_output("reminders", Reminder, sink="reminders")
    .upsert_materialize("lines", primary_key=("item",))
    .sink("board")
)
"""The same after somebody has given a sink another name."""

other_sinks: Final = (
    Pipeline("purchases")
    .source("purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS)
    .key_by("customer")
    .process("customers", Customers())
    .side_output("calls", Reminder, sink="calls")
    .upsert_materialize("lines", primary_key=("item",))
    .sink("board")
)
"""The same after somebody has given both sinks another name."""
