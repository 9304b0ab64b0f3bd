"""A job that puts whole numbers into fields of type float, keeps them, and takes back what it kept."""

from __future__ import annotations

from typing import Final

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState


class Reading(Struct, frozen=True):
    """One row of the input."""

    sensor: str
    at: Timestamp
    value: int


class Level(Struct, frozen=True):
    """What the sensor has shown last. To a type checker an int is a float, to JSON it isn't."""

    sensor: str
    value: float


class Levels(KeyedProcessFunction[Reading, Level]):
    """Takes back the old level, and tells the new one."""

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
