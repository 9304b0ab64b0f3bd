"""The job `purchases` with a second source, which meets the first: what customers bring back."""

from __future__ import annotations

from typing import Final

from headrace import Context, KeyedCoProcessFunction, Pipeline, Struct, Timestamp
from tests.jobs.purchases import LATENESS, Customers, Purchase, Reminder


class Return(Struct, frozen=True):
    """One row of the second source."""

    at: Timestamp
    customer: str | None


class Visit(Struct, frozen=True):
    """A visit of a customer, and the watermark at that moment."""

    customer: str
    at: Timestamp
    watermark: Timestamp
    is_return: bool


class Visits(KeyedCoProcessFunction[Purchase, Return, Visit]):
    """Emits each visit."""

    async def process1(self, purchase: Purchase, ctx: Context, /) -> None:
        """Emit the visit of a purchase."""
        ctx.collect(Visit(str(ctx.key), purchase.at, ctx.watermark, False))

    async def process2(self, brought: Return, ctx: Context, /) -> None:
        """Emit the visit of a return."""
        ctx.collect(Visit(str(ctx.key), brought.at, ctx.watermark, True))


def _pipeline() -> Pipeline:
    p = Pipeline("purchases")
    purchases = p.source(
        "purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS
    )
    returns = p.source("returns", Return, event_time="at")
    by_customer = purchases.key_by("customer")
    customers = by_customer.process("customers", Customers())
    customers.side("reminders", Reminder).sink("reminders")
    customers.upsert_materialize("lines", primary_key=("item",)).sink("lines_by_item")
    return by_customer.connect(returns.key_by("customer")).process("visits", Visits()).sink("visits")


pipeline: Final = _pipeline()
