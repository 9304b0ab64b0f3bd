"""Pipelines whose sources have a transform of Spark's, and the rows that a plain program makes of the same input."""

from __future__ import annotations

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState

QUERY = """
    with large as (select * from orders where amount > 0)
    select o.id, upper(o.name) as name, d.label, o.item, o.at
    from (select id, name, explode(items) as item, at from large) o left join dims d on o.id % 10 = d.id
"""


class Order(Struct, frozen=True):
    id: int
    name: str
    items: list[str]
    amount: float
    at: Timestamp


class Item(Struct, frozen=True):
    id: int
    name: str
    label: str
    item: str
    at: Timestamp


class Numbered(Struct, frozen=True):
    number: int
    id: int
    name: str
    label: str
    item: str


class Numbers(KeyedProcessFunction[Item, Numbered]):
    """Numbers all rows in the order in which they come."""

    count = ValueState("count", int)

    async def process(self, item, ctx, /):
        number = (await self.count.value() or 0) + 1
        await self.count.update(number)
        ctx.collect(Numbered(number, item.id, item.name, item.label, item.item))


def everything(_: Item) -> str:
    return "all"


pipeline = Pipeline("transforms")
orders = pipeline.source("orders", Order, event_time="at")
items = orders.sql(QUERY, record=Item, tables=("dims",))
items.key_by(everything).process("numbers", Numbers()).sink("numbered")


class Change(Struct, frozen=True):
    id: int
    amount: float
    at: Timestamp


changes = Pipeline("changes")
changes.source("orders", Change, event_time="at", row_kind="op").spark(lambda df: df.filter("amount > 10")).sink("seen")
