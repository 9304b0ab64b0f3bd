"""A small job with state of every kind, in namespaces, with timers that emit, clear and merge windows."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace import (
    AggregateFunction,
    AggregatingState,
    Context,
    KeyedProcessFunction,
    ListState,
    MapState,
    Pipeline,
    ReducingState,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from tests.jobs.purchase_files import day_name, day_start

JOB: Final[dict[str, Any]] = {
    "job": "clicks",
    "pipeline": "tests.jobs.clicks:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 20},
    "sources": {"clicks": {"path": "input", "interval": "%Y-%m-%d"}},
    "sinks": {"told": {"path": "lake/told", "mode": "append"}},
}
WINDOW: Final = 6 * 3_600_000


class Click(Struct, frozen=True):
    """A view of a page by a user, and its length."""

    at: Timestamp
    user: str
    page: str
    seconds: int


class Told(Struct, frozen=True):
    """The result of a window."""

    user: str
    window: Timestamp
    says: str


class Span(Struct):
    """The shortest and the longest view."""

    shortest: int = 1 << 30
    longest: int = 0


class SpanOf(AggregateFunction[int, Span, str]):
    """Computes the shortest and the longest view."""

    def create_accumulator(self) -> Span:
        """Of nothing."""
        return Span()

    def add(self, value: int, accumulator: Span, /) -> Span:
        """Widen it."""
        return Span(min(value, accumulator.shortest), max(value, accumulator.longest))

    def get_result(self, accumulator: Span, /) -> str:
        """As text."""
        return f"{accumulator.shortest}-{accumulator.longest}"

    def merge(self, one: Span, other: Span, /) -> Span:
        """Return the wider of both spans."""
        return Span(min(one.shortest, other.shortest), max(one.longest, other.longest))


class Windows(KeyedProcessFunction[Click, Told]):
    """Keeps each window separately, and merges a finished window into the user's total."""

    pages = MapState("pages", str, int, ttl=StateTtl(timedelta(hours=40)))
    looks = ListState("looks", int)
    total = ReducingState("total", int, lambda first, other: first + other)
    span = AggregatingState("span", SpanOf())
    last = ValueState("last", str)

    async def process(self, click: Click, ctx: Context, /) -> None:
        """Add the click to its window."""
        end = (click.at // WINDOW + 1) * WINDOW
        window = str(end)
        await self.pages.put(click.page, (await self.pages.get(click.page) or 0) + 1)
        await self.looks.namespace(window).add(click.seconds)
        self.total.namespace(window).add(click.seconds)
        await self.span.namespace(window).add(click.seconds)
        await self.last.namespace(click.page).update(window)
        if click.seconds == 0:
            await self.pages.remove(click.page)
        ctx.timers.register_event_time(end, window)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the window and the total."""
        window = ctx.namespace
        looks = await self.looks.namespace(window).get()
        total, span = await self.total.namespace(window).get(), await self.span.namespace(window).get()
        for state in (self.looks, self.total, self.span):
            await state.merge_namespaces("", [window])
        pages = [f"{page}:{count}" async for page, count in self.pages.entries()]
        whole = [await self.looks.get(), await self.total.get(), await self.span.get(), pages]
        ctx.collect(Told(str(ctx.key), timestamp, f"{looks} {total} {span} of {whole}"))
        if len(await self.looks.get()) > 30:
            await self.looks.clear()
            await self.pages.clear()


pipeline: Final = (
    Pipeline("clicks")
    .source("clicks", Click, event_time="at")
    .key_by("user")
    .process("windows", Windows())
    .sink("told")
)


def write_clicks(folder: Path, day: int, rows: int = 200) -> None:
    """Write the file of a day."""
    chance = random.Random(day)
    clicks = [
        {
            "at": day_start(day) + number * 86_400_000 // rows,
            "user": f"user {chance.randrange(9)}",
            "page": f"/{chance.choice('abcdé')}",
            "seconds": chance.randrange(40),
        }
        for number in range(rows)
    ]
    schema = pa.schema(
        [("at", pa.timestamp("ms", tz="UTC")), ("user", pa.string()), ("page", pa.string()), ("seconds", pa.int64())]
    )
    pq.write_table(pa.Table.from_pylist(clicks, schema=schema), folder / day_name(day))
