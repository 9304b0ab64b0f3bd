"""The progress of an operator's fired timers, combined by the driver from its tasks. Times are milliseconds."""

from __future__ import annotations

import pytest

from headrace import KeyedProcessFunction, Process, Struct
from headrace.execution.element import ProcessingTime, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.records.order import processing_time_order, record_order
from headrace.run.messages import TaskReport
from headrace.run.result import BatchResult
from tests.unit.support.micro_batches import element_of
from tests.unit.support.records import record_of


def put_together(*fired):
    result = BatchResult()
    result.add("alarms", [TaskReport(timers_fired=times) for times in fired])
    return result.timers_fired


def test_slowest_task_decides_progress_of_operator():
    assert put_together({"event_time": 7, "processing_time": 9}, {"event_time": 5, "processing_time": 11}) == {
        "alarms": {"event_time": 5, "processing_time": 9}
    }


def test_clock_unknown_to_task_stays_unknown():
    assert put_together({"event_time": 7, "processing_time": 9}, {"processing_time": 11}) == {
        "alarms": {"processing_time": 9}
    }
    assert put_together({}, {}) == {}


@pytest.mark.parametrize("stops_at", [None, 0, 1, 2])
def test_every_timer_fires_exactly_once(backend, stops_at):
    class Ask(Struct, frozen=True):
        key: str

    class Alarm(KeyedProcessFunction[Ask, Ask]):
        """A record sets a timer at 50 in event time and one at 60 in processing time; each timer sets itself once again, immediately."""

        async def process(self, ask, ctx, /):
            ctx.timers.register_event_time(50)
            ctx.timers.register_processing_time(60)

        async def on_timer(self, timestamp, ctx, /):
            if timestamp in {50, 60}:
                getattr(ctx.timers, f"register_{ctx.time_domain}")(timestamp - 7, "again")
            ctx.collect(Ask(f"{timestamp}{ctx.namespace}"))

    events, fired = [], {}
    for number, records in enumerate([[Ask("a")], [], [Ask("b")], []]):
        stop = number == stops_at
        order, now = record_order(number + 1), 100 * number
        process = KeyedProcess(
            Process("alarm", "key", Alarm()),
            backend,
            records=(Ask,),
            watermark=None if not number else 100 * (number - 1) - 1,
            last_watermark=now - 1,
            processing_time=ProcessingTime(processing_time_order(number + 1, number), now),
            timers_fired=fired,
        )
        elements = [element_of(order, now, record) for record in records]
        held = process.run([elements], [Watermark(record_order(number + 2), now - 1)], stop=lambda: stop)  # noqa: B023
        backend.write_batch(process.timers.writes(process.timers.changes()))
        fired = process.timers.fired_until()
        events += [record_of(emitted).key for emitted in process.emitted]
        if not stop:
            assert held.cut is None
            assert fired == {"event_time": now - 1, "processing_time": now}
    assert sorted(events) == sorted(["50", "43again", "60", "53again"] * 2)
