"""Keyed functions written as one function do what a class does."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    Context,
    KeyedProcessFunction,
    MapState,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
    ValueState,
    keyed_function,
)
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.fuzzing import examples


class Reading(Struct, frozen=True):
    sensor: str
    at: Timestamp
    celsius: float


class Warmer(Struct, frozen=True):
    sensor: str
    before: float
    celsius: float


@keyed_function
async def warmed_up(reading: Reading, last: ValueState[float] = ValueState("last", float)) -> Warmer | None:  # noqa: B008 - a declaration
    """Emit each reading that is warmer than the one before it."""
    before = await last.value()
    await last.update(reading.celsius)
    return None if before is None or before >= reading.celsius else Warmer(reading.sensor, before, reading.celsius)


@keyed_function
def warmed_up_plainly(reading: Reading, last=ValueState("last", float)) -> Warmer | None:  # noqa: B008 - a declaration
    before = last.value()
    last.update(reading.celsius)
    return None if before is None or before >= reading.celsius else Warmer(reading.sensor, before, reading.celsius)


class WarmedUp(KeyedProcessFunction[Reading, Warmer]):
    last = ValueState("last", float)

    async def process(self, reading, ctx, /):
        before = await self.last.value()
        await self.last.update(reading.celsius)
        if before is not None and before < reading.celsius:
            ctx.collect(Warmer(reading.sensor, before, reading.celsius))


READINGS = st.lists(st.builds(Reading, st.sampled_from("ab"), st.integers(0, 50), st.sampled_from([0.5, 1.0, 2.0])))


def end_of(function, readings, seed):
    pipeline = Pipeline("sensors")
    pipeline.source("readings", Reading, event_time="at").key_by("sensor").process("warm", function).sink("warm")
    harness, chance, rest = PipelineHarness(pipeline, parallelism=2), random.Random(seed), list(readings)
    while rest:
        size = chance.randint(1, 5)
        harness.feed("readings", rest[:size])
        rest = rest[size:]
        harness.run()
    return sorted(map(repr, harness.sink("warm")))


@pytest.mark.slow
@examples(4)
@given(readings=READINGS, seed=st.integers(0, 99))
def test_function_equals_a_class(readings, seed):
    assert end_of(warmed_up, readings, seed) == end_of(WarmedUp(), readings, seed)
    assert end_of(warmed_up_plainly, readings, seed) == end_of(WarmedUp(), readings, seed)


@keyed_function
async def seen(
    reading: Reading,
    ctx: Context,
    times: MapState[str, int] = MapState("times", str, int),  # noqa: B008 - a declaration
) -> list[Reading]:
    await times.put(str(ctx.timestamp), 1)
    return [reading] * len([name async for name in times.keys()])  # noqa: SIM118 - it is a state


def test_list_is_emitted_and_context_given():
    with KeyedHarness(seen, key=lambda reading: reading.sensor) as harness:
        for at in (5, 5, 7):
            harness.process(Reading("a", at, 1.0), timestamp=at)
        assert [row.at for _, row in harness.kinds()] == [5, 5, 7, 7]


def test_retraction_fails_the_run():
    with (
        KeyedHarness(warmed_up, key=lambda reading: reading.sensor) as harness,
        pytest.raises(UserFunctionError, match="takes inserts alone, and this record is -U: call additions"),
    ):
        harness.process(Reading("a", 1, 1.0), timestamp=1, kind=RowKind.UPDATE_BEFORE)


def test_result_is_a_stream_of_inserts():
    source = Pipeline("sensors").source("readings", Reading, event_time="at")
    assert str(source.key_by("sensor").process("warm", warmed_up)._changes) == "insert"


def test_names_are_those_of_the_function():
    assert type(warmed_up).__name__ == "warmed_up"
    assert type(warmed_up).__doc__.startswith("Emit each reading")


async def without_types(reading, ctx):
    return None


async def without_result(reading: Reading) -> None:
    return None


def with_yield(reading: Reading) -> Iterator[Reading]:
    yield reading


async def with_option(reading: Reading, limit: int = 5) -> Reading:
    return reading


async def with_two(reading: Reading, ctx: Context, more: int) -> Reading:
    return reading


async def with_nothing() -> Reading:
    return None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_types, "parameter 'reading' needs the type of the record"),
        (without_result, "it needs the type of its results"),
        (with_yield, "it has a yield: return a list of records"),
        (with_option, "parameter 'limit' gets no value"),
        (with_two, "parameter 'more' gets no value"),
        (with_nothing, "takes no record"),
    ],
)
def test_unclear_function_is_refused(function, message):
    with pytest.raises(TypeError, match=f"keyed_function {function.__name__}.*{message}"):
        keyed_function(function)
