"""Timers in namespaces, and internal ones, as a function sees them. Times are milliseconds."""

from __future__ import annotations

import pytest

from headrace import KeyedProcessFunction, Process, Struct, TimeDomain, ValueState
from headrace.errors import UserFunctionError
from headrace.execution.element import Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.execution.process_context import ProcessContext
from headrace.records.order import record_order
from headrace.state.timers import EVENT_TIME_CLEANUP
from headrace.testing import KeyedHarness
from tests.unit.support.micro_batches import element_of


class Visit(Struct, frozen=True):
    """Registers (time, namespace) timers by event time or by processing time, and deletes timers."""

    key: str
    event: tuple[tuple[int, str], ...] = ()
    processing: tuple[tuple[int, str], ...] = ()
    forget: tuple[tuple[int, str], ...] = ()
    at: int = 0


class Fired(Struct, frozen=True):
    key: str
    domain: str | None
    at: int
    namespace: str


class Windows(KeyedProcessFunction[Visit, Fired]):
    seen = ValueState("seen", int)

    async def process(self, visit, ctx, /):
        assert ctx.namespace == ""
        for time, namespace in visit.event:
            ctx.timers.register_event_time(time, namespace)
        for time, namespace in visit.processing:
            ctx.timers.register_processing_time(time, namespace=namespace)
        for time, namespace in visit.forget:
            ctx.timers.delete_event_time(time, namespace)
            ctx.timers.delete_processing_time(time, namespace)
        await self.seen.update((await self.seen.value() or 0) + 1)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Fired(str(ctx.key), ctx.time_domain, timestamp, ctx.namespace))
        await self.seen.value()


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def kind(request):
    return request.param


def fired(harness):
    return [(output.key, output.at, output.namespace) for output in harness.output() if isinstance(output, Fired)]


def test_timer_fires_once_per_namespace_and_names_it(kind):
    with KeyedHarness(Windows(), key=lambda visit: visit.key, backend=kind) as h:
        twice = ((10, "b"), (10, ""), (10, "a"), (10, "b"), (9, "c"))
        h.process(Visit("k", event=twice, forget=((10, "a"), (9, ""))), timestamp=1)
        h.watermark(20)
        assert fired(h) == [("k", 9, "c"), ("k", 10, ""), ("k", 10, "b")]


def test_overdue_timers_of_all_namespaces_follow_record(kind):
    with KeyedHarness(Windows(), key=lambda visit: visit.key, backend=kind) as h:
        h.watermark(100)
        h.process(Visit("k", event=((60, "b"), (60, "a"), (50, "z"))), timestamp=1)
        assert fired(h) == [("k", 50, "z"), ("k", 60, "a"), ("k", 60, "b")]


def test_namespace_timers_survive_restore_on_any_backend(kind):
    with KeyedHarness(Windows(), key=lambda visit: visit.key, backend=kind) as h:
        h.process(Visit("k", event=((10, "é w"), (10, ""), (10, "x")), processing=((5, "p"),)), timestamp=1)
        h.process(Visit("k", forget=((10, "x"),)), timestamp=1)
        snapshot = h.snapshot()
    for other in ("hashmap", "rocksdb", "delta"):
        with KeyedHarness.restore(snapshot, Windows(), key=lambda visit: visit.key, backend=other) as h:
            h.clock.advance(7)
            h.watermark(10)
            assert fired(h) == [("k", 5, "p"), ("k", 10, ""), ("k", 10, "é w")]


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        ("a\x00b", "no zero character"),
        ("\ud800", "UTF-8"),
        (7, "a namespace is a text"),
        (None, "a namespace is a text"),
    ],
)
def test_namespace_that_cannot_be_stored_is_refused(namespace, message):
    class Bad(Windows):
        async def process(self, visit, ctx, /):
            ctx.timers.register_event_time(1, namespace)

    with KeyedHarness(Bad(), key=lambda visit: visit.key) as h, pytest.raises(UserFunctionError, match=message):
        h.process(Visit("k"), timestamp=1)


def test_failing_timer_is_named_with_its_namespace():
    class Bad(Windows):
        async def on_timer(self, timestamp, ctx, /):
            raise LookupError

    with KeyedHarness(Bad(), key=lambda visit: visit.key) as h:
        h.process(Visit("k", event=((5, "w 1"),)), timestamp=1)
        with pytest.raises(UserFunctionError, match="timer at 5 ms in namespace 'w 1'"):
            h.watermark(10)


def process_over(backend):
    operator = Process("windows", "key", Windows())
    return KeyedProcess(operator, backend, records=(Visit,), watermark=None, last_watermark=20)


def test_internal_timers_fire_last_and_stay_hidden(backend):
    def clean(timestamp, ctx, /):
        events.append((timestamp, ctx.namespace, ctx.watermark))

    events = []
    process = process_over(backend)
    process.due_timers.functions[EVENT_TIME_CLEANUP] = clean
    process.controller.poll()
    visit = Visit("k", event=((10, ""), (12, "")))
    element = element_of(record_order(1), 1, visit)

    def on_timer(timestamp, ctx, /):
        events.append((timestamp, TimeDomain.EVENT_TIME))

    process.due_timers.functions[TimeDomain.EVENT_TIME] = on_timer
    process.process(element)
    process.controller.drain()
    context = ProcessContext(process._outputs, process.timers, b'"k"', None, TimeDomain.EVENT_TIME)
    context.enter(record_order(1), 1, 0, 0)
    context.register(12, EVENT_TIME_CLEANUP, "group")
    process.run([], [Watermark(record_order(2), 20)])
    assert events == [(10, TimeDomain.EVENT_TIME), (12, TimeDomain.EVENT_TIME), (12, "group", 12)]
    assert process.timers.fired == 2
    assert process.timers.changes() == []


def test_simultaneous_timers_order_outputs_by_namespace(backend):
    process = process_over(backend)
    visit = Visit("k", event=((10, "b"), (10, ""), (10, "ab"), (10, "a"), (10, "\x01")))
    process.run([[element_of(record_order(1), 1, visit)]], [Watermark(record_order(2), 20)])
    assert [emitted.record.namespace for emitted in process.emitted] == ["", "\x01", "a", "ab", "b"]
    orders = [emitted.order for emitted in process.emitted]
    assert orders == sorted(set(orders))
