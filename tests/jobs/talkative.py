"""The job `purchases` whose user code prints what it does."""

from __future__ import annotations

from headrace import Pipeline
from tests.jobs.purchases import LATENESS, Customers, Purchase, Reminder


class TalkativeCustomers(Customers):
    async def process(self, purchase, ctx, /):
        print("a purchase")
        await super().process(purchase, ctx)


pipeline = (
    Pipeline("purchases")
    .source("purchases", Purchase, event_time="at", order_by=("seq",), row_kind="kind", out_of_orderness=LATENESS)
    .key_by("customer")
    .process("customers", TalkativeCustomers())
    .side_output("reminders", Reminder, sink="reminders")
    .upsert_materialize("lines", primary_key=("item",))
    .sink("lines_by_item")
)
