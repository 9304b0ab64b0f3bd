"""A job that puts whole numbers into fields of type float, stores them, and retracts the stored values."""

from __future__ import annotations

from typing import Final

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState


class Reading(Struct, frozen=True):
    """One row of the input."""

    sensor: str
    at: Timestamp
    value: int


class Level(Struct, frozen=True):
    """The last level of the sensor. A type checker accepts an int as a float, but JSON distinguishes them."""

    sensor: str
    value: float


class Levels(KeyedProcessFunction[Reading, Level]):
    """Retracts the old level, and emits the new level."""

    level = ValueState("level", Level)

    async def process(self, reading: Reading, ctx: Context, /) -> None:
        """A level that was stored comes back as a float."""
        old = await self.level.value()
        if old is not None:
            ctx.collect(old, RowKind.UPDATE_BEFORE)
        new = Level(reading.sensor, reading.value)
        await self.level.update(new)
        ctx.collect(new, RowKind.UPDATE_AFTER)


pipeline: Final = (
    Pipeline("whole_numbers")
    .source("readings", Reading, event_time="at")
    .key_by("sensor")
    .process("levels", Levels())
    .upsert_materialize("latest", primary_key=("sensor",))
    .sink("levels_now")
)
