"""A shop as a newcomer writes it: an event a row, a file a day, quiet nights, an alert for each order that is not paid within two days.

    home/input/events/2026-03-02.json      {"order_id": "o0021", "customer": "c3", "what": "placed", "at": "2026-03-02T09:14:00Z", "cents": 1250}

The state of an order lives exactly as long as the alert waits (`TTL`): what a newcomer takes for enough. Nobody orders at night, and
Sundays have an empty file, so the watermark moves in large steps, and beyond the last event only at the end of the input.
`expected` computes the three tables again from the files alone, in SQL, and shares no code with the pipeline.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import duckdb

from headrace import Context, KeyedProcessFunction, Pipeline, StateTtl, Struct, Timestamp, TtlTime, ValueState
from headrace.operators import Count, Sum, Tumbling

PATIENCE: Final = timedelta(hours=48)
PATIENCE_MS: Final = PATIENCE // timedelta(milliseconds=1)
DAY: Final = timedelta(days=1)
FIRST_DAY: Final = date(2026, 3, 2)
OPENS, CLOSES = timedelta(hours=8), timedelta(hours=20)


class Event(Struct, frozen=True):
    order_id: str
    customer: str
    what: str
    at: Timestamp
    cents: int | None = None


class Alert(Struct, frozen=True):
    order_id: str
    customer: str
    placed_at: Timestamp
    alerted_at: Timestamp
    cents: int


class Day(Struct, frozen=True):
    """What was ordered on a day."""

    window_start: Timestamp
    orders: Annotated[int, Count()]
    cents: Annotated[int | None, Sum("cents")]


class Alerts(Struct, frozen=True):
    """The alerts of a customer on a day: a second keyed stage, behind timers."""

    customer: str
    window_start: Timestamp
    alerts: Annotated[int, Count()]


class Unpaid(KeyedProcessFunction[Event, Alert]):
    """Emit an alert for an order that is not paid within `PATIENCE`."""

    placed = ValueState("placed", Event, ttl=StateTtl(PATIENCE, time=TtlTime.EVENT))

    async def process(self, event: Event, ctx: Context, /) -> None:
        if event.what == "placed":
            await self.placed.update(event)
            ctx.timers.register_event_time(event.at + PATIENCE_MS)
            return
        placed = await self.placed.value()
        if placed is not None and event.at <= placed.at + PATIENCE_MS:
            await self.placed.clear()

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        placed = await self.placed.value()
        if placed is not None:
            ctx.collect(Alert(placed.order_id, placed.customer, placed.at, timestamp, placed.cents or 0))


pipeline = Pipeline("shop")
events = pipeline.source("events", Event, event_time="at", out_of_orderness=timedelta(minutes=5))
alerts = events.key_by("order_id").process("unpaid", Unpaid())
alerts.sink("alerts")
alerts.key_by("customer").window(Tumbling(DAY)).aggregate("alerts_a_day", Alerts).sink("alerts_by_day")
placed = events.filter(lambda event: event.what == "placed")
placed.key_by(lambda _: 0).window(Tumbling(DAY)).aggregate("sales", Day).sink("sales_by_day")

JOB: Final[dict[str, Any]] = {
    "job": "shop",
    "pipeline": "tests.jobs.shop:pipeline",
    "state": {"root": "state", "local": "local"},
    "sources": {"events": {"format": "json", "path": "input/events", "interval": "%Y-%m-%d"}},
    "sinks": {name: {"path": f"lake/{name}", "mode": "append"} for name in ("alerts", "alerts_by_day", "sales_by_day")},
}
"""The job as a newcomer writes it: all settings that are not named here have their defaults."""


@dataclass
class Book:
    """What happens in the shop, drawn from a seed: the lines of each day's file."""

    seed: int
    days: int = 12
    orders_a_day: int = 8
    _lines: dict[date, list[tuple[datetime, str]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Draw all orders and their payments; those of payments after the last day stay out."""
        chance = random.Random(self.seed)
        self._lines = {FIRST_DAY + number * DAY: [] for number in range(self.days)}
        for day in list(self._lines):
            for number in range(chance.randrange(self.orders_a_day) if day.weekday() < 6 else 0):
                self._order(f"o{day:%d}{number:02}", _opening(day, chance), chance)

    def _order(self, order: str, placed: datetime, chance: random.Random) -> None:
        customer = f"c{chance.randrange(4)}"
        self._add(placed, order_id=order, customer=customer, what="placed", cents=chance.randrange(100, 9_900))
        paid = placed + chance.choice((timedelta(minutes=chance.randrange(1, 600)), PATIENCE, DAY, 3 * DAY, 99 * DAY))
        self._add(paid, order_id=order, customer=customer, what="paid")

    def _add(self, at: datetime, **values: Any) -> None:
        if at.date() in self._lines:
            self._lines[at.date()].append((at, json.dumps({**values, "at": f"{at:%Y-%m-%dT%H:%M:%SZ}"})))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each day's file, in the order of the days; rows in the order of their times."""
        for day, lines in self._lines.items():
            yield f"{day}.json", "".join(f"{line}\n" for _, line in sorted(lines)).encode()


def _opening(day: date, chance: random.Random) -> datetime:
    opens = datetime(day.year, day.month, day.day, tzinfo=UTC) + OPENS
    return opens + timedelta(minutes=chance.randrange((CLOSES - OPENS) // timedelta(minutes=1)))


_READ: Final = """
create temp view events as
select order_id, customer, what, strptime("at", '%Y-%m-%dT%H:%M:%SZ') as timestamp, cents
from read_json($files, format = 'newline_delimited',
    columns = {order_id: 'varchar', customer: 'varchar', what: 'varchar', "at": 'varchar', cents: 'varchar'})
where try_cast(cents as bigint) is not null or cents is null
"""
_ALERTS: Final = """
create temp view alerts as
select order_id, customer, timestamp as placed_at, timestamp + interval 48 hours as alerted_at, cents::bigint as cents
from events placed
where what = 'placed' and timestamp < $horizon and not exists (
    select 1 from events paid where paid.order_id = placed.order_id and what = 'paid' and paid.timestamp <= placed.timestamp + interval 48 hours)
"""
_TABLES: Final = {
    "alerts": "select order_id, customer, placed_at, alerted_at, cents from alerts",
    "alerts_by_day": "select customer, date_trunc('day', alerted_at) as window_start, count(*) as alerts from alerts group by all",
    "sales_by_day": (
        "select date_trunc('day', timestamp) as window_start, count(*) as orders, sum(cents::bigint)::bigint as cents from events "
        "where what = 'placed' and timestamp < $horizon group by all"
    ),
}


def expected(files: Path, horizon: date = date(2030, 1, 1)) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table at the end of the input, sorted, from the files in a folder alone.

    Rows at or after `horizon`, such as those of a clock that runs ahead, and rows whose `cents` is no number do not count.
    """
    with duckdb.connect() as database:
        for statement in (_READ, _ALERTS):
            text = statement.replace("$files", f"'{files}/*.json'").replace("$horizon", f"timestamp '{horizon}'")
            database.execute(text)
        return {
            name: sorted(database.execute(query.replace("$horizon", f"timestamp '{horizon}'")).fetchall())
            for name, query in _TABLES.items()
        }
