"""A job over readings of meters: all of them, and the last one of each meter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace import Context, Json, KeyedProcessFunction, Pipeline, RowKind, Struct, ValueState

READINGS: Final[dict[str, Any]] = {
    "job": "readings",
    "pipeline": "tests.jobs.readings:pipeline",
    "state": {"root": "state", "local": "local"},
    "sources": {"readings": {"path": "input"}},
    "sinks": {"every": {"path": "lake/every", "mode": "append"}, "last": {"path": "lake/last", "mode": "merge"}},
}
GONE: Final = "gone"
"""Name of a meter in the reading that removes it."""


class Reading(Struct, frozen=True):
    """Reading of a meter."""

    id: int
    at: datetime
    name: str | None
    n: int
    free: Json = None


class LastOfMeter(KeyedProcessFunction[Reading, Reading]):
    """Emits each reading, and a deletion for the one that says so."""

    known = ValueState("known", Reading)

    async def process(self, row: Reading, ctx: Context, /) -> None:
        """Keep the row."""
        before = await self.known.value()
        if row.name == GONE:
            if before is not None:
                await self.known.clear()
                ctx.collect(before, RowKind.DELETE)
            return
        await self.known.update(row)
        ctx.collect(row, RowKind.INSERT if before is None else RowKind.UPDATE_AFTER)


pipeline = Pipeline("readings")
readings = pipeline.source("readings", Reading, event_time="at")
readings.sink("every")
readings.key_by("id").process("last_of_meter", LastOfMeter()).upsert_materialize(
    "meters", primary_key=("id",), upsert_key=("id",)
).sink("last")


NOON: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)


def reading(number: int, meter: int, **changes: Any) -> Reading:
    """Return a reading of a meter; `number` gives its time."""
    values = {"name": f"meter {meter}", "n": number * 10, "free": {"number": number, "list": [1, "é", None]}}
    return Reading(meter, NOON + timedelta(hours=7 * number, microseconds=number), **(values | changes))


FIRST: Final = [reading(1, 1), reading(2, 2, name=None), reading(3, 3, free=None), reading(4, 1, n=-5)]
SECOND: Final = [reading(5, 2), reading(6, 3, name=GONE), reading(7, 4, free="text"), reading(8, 1)]


def last_of(rows: list[Reading]) -> list[Reading]:
    """Return the last reading of each meter, by a plain loop."""
    last: dict[int, Reading] = {}
    for row in rows:
        if row.name == GONE:
            last.pop(row.id, None)
        else:
            last[row.id] = row
    return [*last.values()]
