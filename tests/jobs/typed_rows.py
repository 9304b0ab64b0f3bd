"""A job whose records have a field of each type: kept as they are in one sink, and as the last row of each UUID in another."""

from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final
from uuid import UUID

from headrace import (
    Context,
    Digits,
    Float32,
    Int8,
    Int16,
    Int32,
    Json,
    KeyedProcessFunction,
    NaiveDatetime,
    Pipeline,
    RowKind,
    Struct,
    TimestampMicros,
    ValueState,
)

TYPED_ROWS: Final[dict[str, Any]] = {
    "job": "typed_rows",
    "pipeline": "tests.jobs.typed_rows:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 2},
    "sources": {"rows": {"path": "input"}},
    "sinks": {"every": {"path": "lake/every", "mode": "append"}, "last": {"path": "lake/last", "mode": "merge"}},
}


class Level(enum.IntEnum):
    """Levels by numbers."""

    LOW = 1
    HIGH = 10


class Typed(Struct, frozen=True):
    """A row with a field of each type."""

    at: datetime
    id: UUID
    local: NaiveDatetime
    micros: TimestampMicros
    day: date
    clock: time
    took: timedelta
    price: Annotated[Decimal, Digits(12, 2)]
    tiny: Int8
    small: Int16
    plain: Int32
    share: Float32
    level: Level
    free: Json
    by_day: dict[date, int]
    times: list[datetime]


class LastOfId(KeyedProcessFunction[Typed, Typed]):
    """Emits each row again if it is later than the last one of its key."""

    last = ValueState("last", Typed)

    async def process(self, row: Typed, ctx: Context, /) -> None:
        """Keep the row."""
        before = await self.last.value()
        if before is None or before.at <= row.at:
            await self.last.update(row)
            ctx.collect(row, RowKind.UPDATE_AFTER)


pipeline = Pipeline("typed_rows")
rows = pipeline.source("rows", Typed, event_time="at")
rows.sink("every")
rows.key_by("id").process("last_of_id", LastOfId()).upsert_materialize(
    "rows_of_id", primary_key=("id",), upsert_key=("id",)
).sink("last")
