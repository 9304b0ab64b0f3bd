"""A process function sets records aside: each record gets a reason, and other results are unchanged."""

from __future__ import annotations

import pytest

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness, PipelineHarness


class Reading(Struct, frozen=True):
    sensor: str
    at: Timestamp
    value: int


class Positive(KeyedProcessFunction[Reading, Reading]):
    """Passes on records that are not negative."""

    last = ValueState("last", int)

    async def process(self, record, ctx, /):
        before = await self.last.value()
        if record.value < 0:
            ctx.quarantine(f"{record.value} is negative, after {before}")
            return
        await self.last.update(record.value)
        ctx.collect(record)


class PlainPositive(KeyedProcessFunction[Reading, Reading]):
    """The same function, blocking on each call."""

    last = ValueState("last", int)

    def process(self, record, ctx, /):
        before = self.last.value()
        if record.value < 0:
            ctx.quarantine(f"{record.value} is negative, after {before}")
            return
        self.last.update(record.value)
        ctx.collect(record)


GOOD, BAD = Reading("a", 1, 5), Reading("a", 2, -1)


@pytest.mark.parametrize("function", [Positive(), PlainPositive()])
@pytest.mark.parametrize("backend", ["hashmap", "delta"])
def test_record_is_set_aside_with_its_reason(function, backend):
    with KeyedHarness(function, key=lambda reading: reading.sensor, backend=backend) as harness:
        for record in (GOOD, BAD):
            harness.process(record, timestamp=record.at)
        assert harness.output() == [GOOD]
        assert harness.quarantined() == [(BAD, "-1 is negative, after 5")]
        assert harness.state("last", "a") == 5


def test_timer_has_no_record_to_set_aside():
    class TooLate(KeyedProcessFunction[Reading, Reading]):
        async def process(self, record, ctx, /):
            ctx.timers.register_event_time(record.at)

        async def on_timer(self, timestamp, ctx, /):
            ctx.quarantine("of a timer")

    with KeyedHarness(TooLate(), key=lambda reading: reading.sensor) as harness:
        harness.process(GOOD, timestamp=1)
        with pytest.raises(UserFunctionError, match=r"quarantine\(\) in a timer: there is no record to set aside"):
            harness.watermark(5)


@pytest.mark.parametrize("crash_at", [None, "task.half", "commit.before", "commit.after"])
def test_quarantine_has_each_record_once(crash_at):
    source = Pipeline("p").source("readings", Reading, event_time="at")
    harness = PipelineHarness(source.key_by("sensor").process("positive", Positive()).sink("good"))
    harness.feed("readings", [GOOD, BAD, Reading("b", 3, -7)])
    harness.run(crash_at=crash_at)
    harness.run()
    rows = harness.table("quarantine").to_pylist()
    assert sorted((row["operator"], row["key"], row["error"]) for row in rows) == [
        ("positive", '"a"', "-1 is negative, after 5"),
        ("positive", '"b"', "-7 is negative, after None"),
    ]
    assert harness.sink("good") == [GOOD]
