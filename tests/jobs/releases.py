"""A small job in several releases, whose states change their types between releases."""

from __future__ import annotations

from typing import Any, Final

from headrace import Context, KeyedProcessFunction, MapState, Migration, Pipeline, Struct, Timestamp, ValueState

JOB: Final[dict[str, Any]] = {
    "job": "releases",
    "pipeline": "tests.jobs.releases:first",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 1},
    "sources": {"sales": {"path": "input", "interval": "%Y-%m-%d"}},
    "sinks": {"told": {"path": "lake/told", "mode": "append"}},
}
LATER: Final = 86_400_000


class Sale(Struct, frozen=True):
    """A sale of some items."""

    at: Timestamp
    shop: str
    item: str
    number: int


class Told(Struct, frozen=True):
    """The total of a shop, or a fired timer of it."""

    shop: str
    total: float
    of_item: float
    fired: str


class Total(Struct, frozen=True):
    """A total in the second release: in pence."""

    pence: int


class Sales(KeyedProcessFunction[Sale, Told]):
    """Adds up. Sets a timer for each item, a day later."""

    total = ValueState("total", int)
    by_item = MapState("by_item", str, int)

    async def process(self, sale: Sale, ctx: Context, /) -> None:
        """Count a sale."""
        of_item = (await self.by_item.get(sale.item) or 0) + sale.number
        await self.by_item.put(sale.item, of_item)
        ctx.timers.register_event_time(sale.at + LATER, sale.item)
        ctx.collect(Told(sale.shop, await self.add(sale.number), of_item, ""))

    async def add(self, number: int) -> float:
        """The new total."""
        total = (await self.total.value() or 0) + number
        await self.total.update(total)
        return total

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the item of the timer."""
        del timestamp
        ctx.collect(Told(str(ctx.key), 0, 0, ctx.namespace))


class PreciseSales(Sales):
    """A release with another type for the total; items are counted in fractions."""

    total = ValueState("total", Total, migrate=Migration(int, lambda pounds: Total(pounds * 100)))
    by_item = MapState("by_item", str, float)

    async def add(self, number: int) -> float:
        """The new total."""
        old = await self.total.value() or Total(0)
        await self.total.update(Total(old.pence + number * 100))
        return (old.pence + number * 100) / 100


class ForgetfulSales(Sales):
    """A release with a type changed by mistake."""

    by_item = MapState("by_item", str, str)


def _pipeline(function: Sales) -> Pipeline:
    return (
        Pipeline("releases")
        .source("sales", Sale, event_time="at")
        .key_by("shop")
        .process("tally", function)
        .sink("told")
    )


first: Final = _pipeline(Sales())
second: Final = _pipeline(PreciseSales())
careless: Final = _pipeline(ForgetfulSales())
