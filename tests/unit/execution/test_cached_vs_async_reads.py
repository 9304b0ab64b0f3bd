"""Results do not depend on how state is read: small functions run on a backend that answers at once, and on a slow backend."""

from __future__ import annotations

import functools

import pytest

from headrace import KeyedProcessFunction, Process, StateFuture, Struct, ValueState
from headrace.errors import UserFunctionError
from headrace.execution.drain import as_it_came
from headrace.execution.element import Element, ProcessingTime, RecordCodec, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, EventOrder
from headrace.records.order import processing_time_order, record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.timers import PROCESSING_TIME, Timer, timer_entry
from tests.unit.support.deferred import Deferred
from tests.unit.support.hand_executor import DrawnExecutor


class In(Struct, frozen=True):
    key: str
    number: int = 0


class Out(Struct, frozen=True):
    answer: str


class Scripted(KeyedProcessFunction[In, Out]):
    """Runs given code: a coroutine function of the function, its output callback, and the record."""

    a, b, c = (ValueState(name, int) for name in "abc")

    def __init__(self, code):
        self.code = code

    async def process(self, record, ctx, /):
        await self.code(self, lambda value: ctx.collect(Out(str(value))), record)


def at_hand_and_late(function):
    """Return the output of one record in each case; both must be equal."""
    output = [run(function, new_backend, [In("k")]) for new_backend in (HashMapBackend, Deferred)]
    assert output[0] == output[1]
    return output[0]


def run(function, new_backend, records):
    backend = new_backend()
    process = process_of(function, backend)
    for number, record in enumerate(records, 1):
        process.process(element(number, record))
    process.controller.drain()
    return [out.record.answer for out in process.emitted]


def process_of(function, backend, **arguments):
    executor = DrawnExecutor(backend, (0,), 1) if isinstance(backend, Deferred) else None
    arguments = {"watermark": None, "last_watermark": None} | arguments
    return KeyedProcess(Process("p", "key", function), backend, records=(In,), executor=executor, **arguments)


def element(number, record):
    return Element(record_order(number), number, 0, encode(record.key), record)


# ------------------------------------------------------------------------------- futures that user code has made


def test_user_future_may_be_composed_with_state():
    async def code(f, tell, _):
        StateFuture(1).then_compose(lambda _: f.a.value()).then_accept(tell)
        tell(await StateFuture(1).then_compose(lambda _: f.a.value()))
        tell(await StateFuture(1).then_combine(f.a.value(), lambda mine, stored: (mine, stored)))
        tell(await f.a.value().then_combine(StateFuture(1), lambda stored, mine: (stored, mine)))

    assert at_hand_and_late(Scripted(code)) == ["None", "None", "(1, None)", "(None, 1)"]


def test_awaiting_user_future_waits_for_callbacks():
    async def code(f, tell, _):
        f.a.value().then_accept(lambda _: tell("first"))
        await StateFuture(None)
        tell("second")

    assert at_hand_and_late(Scripted(code)) == ["first", "second"]


@pytest.mark.parametrize("holds", [True, False])
def test_condition_chains_keep_their_place(holds):
    async def code(f, tell, _):
        output = f.a.value().then_conditionally_compose(lambda _: holds, lambda _: f.b.value())
        await f.c.value()
        f.c.value().then_accept(lambda _: tell("second"))
        output.then_accept(lambda _: tell("third"))
        tell("first")

    assert at_hand_and_late(Scripted(code)) == ["first", "second", "third"]


def test_combined_futures_keep_their_place():
    async def code(f, tell, _):
        f.a.value().then_combine(f.b.value(), lambda _, __: tell("first"))
        f.c.value().then_accept(lambda _: tell("second"))

    assert at_hand_and_late(Scripted(code)) == ["first", "second"]


def test_thousands_of_composed_futures_do_not_nest():
    async def code(f, tell, _):
        def descend(steps):
            return f.a.value().then_compose(lambda _: descend(steps - 1) if steps else StateFuture("the end"))

        descend(3_000).then_accept(tell)

    assert at_hand_and_late(Scripted(code)) == ["the end"]


# ------------------------------------------------------------------------------------------- what is not a process()


class Yields(Scripted):
    async def process(self, record, ctx, /):
        yield Out("lost")


class PlainYields(Scripted):
    def process(self, record, ctx, /):
        yield Out("lost")


@pytest.mark.parametrize("function", [Yields(None), PlainYields(None)])
def test_yield_is_refused(function):
    with pytest.raises(TypeError, match=r"has a yield: emit with ctx\.collect"):
        process_of(function, HashMapBackend())


def wrapped(method):
    @functools.wraps(method)
    def logged(*arguments):
        return method(*arguments)

    return logged


class Wrapped(Scripted):
    @wrapped
    async def process(self, record, ctx, /):
        ctx.collect(Out("lost"))


class Returns(Scripted):
    def process(self, record, ctx, /):
        return [Out("lost")]


@pytest.mark.parametrize(("function", "what"), [(Wrapped(None), "coroutine"), (Returns(None), "list")])
def test_return_value_of_plain_function_is_refused(function, what):
    with pytest.raises(UserFunctionError, match=f"must return nothing, not {what}"):
        run(function, HashMapBackend, [In("k")])


@pytest.mark.parametrize("form", ["then_accept", "then_apply"])
@pytest.mark.parametrize("new_backend", [HashMapBackend, Deferred])
def test_coroutine_function_is_no_callback(form, new_backend):
    async def callback(_):
        raise AssertionError("never runs")

    async def code(f, _, __):
        getattr(f.a.value(), form)(callback)

    with pytest.raises(UserFunctionError, match="callbacks are plain functions: await the state call instead"):
        run(Scripted(code), new_backend, [In("k")])


def test_plain_function_need_not_handle_its_timers():
    class PlainWithoutTimers(KeyedProcessFunction[In, Out]):
        def process(self, record, ctx, /):
            ctx.timers.register_event_time(0)

    process = process_of(PlainWithoutTimers(), HashMapBackend(), last_watermark=5)
    process.run([[element(1, In("k"))]], [Watermark(record_order(2), 5)])
    assert process.timers.fired == 1


# ------------------------------------------------------------------------------- what an earlier run has left comes first


@pytest.mark.parametrize("order", EventOrder)
@pytest.mark.parametrize("new_backend", [HashMapBackend, Deferred])
def test_held_records_precede_new_processing_time(order, new_backend):
    """Held records and repeated watermarks come before the new processing time."""

    class Clocks(KeyedProcessFunction[In, Out]):
        fired = ValueState("fired", int)

        async def process(self, record, ctx, /):
            ctx.collect(Out(f"record {record.number} after {await self.fired.value()}"))

        async def on_timer(self, timestamp, ctx, /):
            fired = (await self.fired.value() or 0) + 1
            await self.fired.update(fired)
            ctx.collect(Out(f"timer {timestamp} is the {fired}. at {ctx.watermark}"))

    backend = new_backend()
    key = encode("k")
    timers = (Timer(5, key), Timer(6, key), Timer(150, key, PROCESSING_TIME))
    backend.write_batch([(timer_entry(timer), b"") for timer in timers])
    process = process_of(
        Clocks(),
        backend,
        watermark=0,
        last_watermark=50,
        processing_time=ProcessingTime(processing_time_order(10, 2), 200),
        options=AsyncStateOptions(event_order_watermark=order),
    )
    process._prefetch = lambda _: None
    held = [as_it_came(element(number, In("k", number)), RecordCodec("clocks", (In,))) for number in (7, 8)]
    process.run([[]], [Watermark(record_order(9), 5), Watermark(record_order(10), 50)], resumed=held)
    assert [out.record.answer for out in process.emitted] == [
        "record 7 after None",
        "record 8 after None",
        "timer 5 is the 1. at 5",
        "timer 6 is the 2. at 6",
        "timer 150 is the 3. at 50",
    ]
