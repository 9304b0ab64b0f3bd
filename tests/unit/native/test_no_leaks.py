"""Records, whether their code ends or fails, leave no reference and no memory behind."""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc

import msgspec
import pytest

from headrace import (
    AggregateFunction,
    AggregatingState,
    KeyedProcessFunction,
    Process,
    StateFuture,
    Struct,
    ValueState,
    native,
)
from headrace.errors import HeadraceError
from headrace.execution.element import Element, Emitted
from headrace.execution.keyed_process import KeyedProcess
from headrace.execution.process_context import ProcessContext
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend, stored_value, value_entry


class Event(Struct, frozen=True):
    do: str
    number: object = 0


class Counted(Struct, frozen=True):
    count: object


class Numbers(AggregateFunction[int, int, int]):
    """Adds numbers up to 2, and takes no negative ones."""

    def create_accumulator(self):
        return 0

    def add(self, number, total, /):
        if number < 0:
            raise ValueError(number)
        return (total + number) % 3

    def get_result(self, total, /):
        return total or None

    def merge(self, one, other, /):
        return one + other


class Counts(KeyedProcessFunction[Event, Counted]):
    """Counts, then does what the event names."""

    seen = ValueState("seen", int)
    numbers = AggregatingState("numbers", Numbers())

    async def process(self, event, ctx, /):
        count = (await self.seen.value() or 0) + 1
        await self.seen.update(count)
        ctx.collect(Counted(count))
        if event.do:
            await DOES[event.do](self, event, ctx)


class PlainCounts(KeyedProcessFunction[Event, Counted]):
    """Does the same in plain `def`."""

    seen = ValueState("seen", int)
    numbers = AggregatingState("numbers", Numbers())

    def process(self, event, ctx, /):
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        ctx.collect(Counted(count))
        return PLAIN_DOES[event.do](self, event, ctx)


async def fail(f, event, ctx):
    raise ValueError(event)


async def emit_wrongly(f, event, ctx):
    ctx.collect(event)


async def await_nothing(f, event, ctx):
    await _Foreign()


async def await_made(f, event, ctx):
    await StateFuture(event)


async def chain(f, event, ctx):
    f.seen.value().then_accept(lambda count: ctx.collect(Counted((event, count))))


async def keep(f, event, ctx):
    event.number.append((ctx, f.seen.value()))


async def close(f, event, ctx):
    waiting = await_made(f, event, ctx)
    waiting.send(None)
    waiting.close()


async def sum_up(f, event, ctx):
    numbers = f.numbers.namespace("there")
    for number in (1, 2, 1):
        await f.numbers.add(number)
        await numbers.add(number)
        ctx.collect(Counted(await f.numbers.get()))
        event.number.append(numbers.get())


async def sum_up_wrongly(f, event, ctx):
    await f.numbers.add(1)
    await f.numbers.add(-1)


async def call_wrongly(f, event, ctx):
    with contextlib.suppress(TypeError):
        f.numbers.add(*[event] * 9, ttl=event)
    with contextlib.suppress(TypeError):
        f.seen.update(*[event] * 9, ttl=event)
    with contextlib.suppress(TypeError):
        ctx.collect(event, wrong=event)


async def remind(f, event, ctx):
    ctx.timers.register_event_time(-5)


def fail_plainly(f, event, ctx):
    raise ValueError(event)


def sum_up_plainly(f, event, ctx):
    for number in (1, 2, 1):
        f.numbers.add(number)
        ctx.collect(Counted(f.numbers.get()))


class _Foreign:
    def __await__(self):
        yield


DOES = {function.__name__: function for function in (fail, emit_wrongly, await_nothing, await_made, chain, keep, close)}
DOES |= {function.__name__: function for function in (call_wrongly, remind, sum_up, sum_up_wrongly)}
PLAIN_DOES = {"": lambda *_: None, "fail": fail_plainly, "sum_up": sum_up_plainly}
PLAIN_DOES["return"] = lambda _, event, __: event
PLAIN_DOES["start"] = fail  # its coroutine is closed


def process_of(function):
    operator = Process("counts", "key", function())
    return KeyedProcess(operator, HashMapBackend(), records=(Event,), watermark=0, last_watermark=0)


def run(function, events, keys=7):
    """Run events as one task, whose error does not count."""
    process = process_of(function)
    elements = [
        Element(record_order(1 + place), place % 3, 0, b"%d" % (place % keys), event)
        for place, event in enumerate(events)
    ]
    with contextlib.suppress(HeadraceError):
        process.run([elements], [])
    process.drop()


def references():
    """The references to what the objects in C count by themselves."""
    gc.collect()
    shared = (Event, Counted, Emitted, ProcessContext, StateFuture, Counts, True, False, None, 0, 1, 2, "")
    return [sys.getrefcount(thing) for thing in shared], len(gc.get_objects())


def left_behind(action):
    """Return how many references, objects and bytes an action leaves when it is done once more."""
    for _ in range(2):
        action()
    before = references()
    tracemalloc.start()
    action()
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    after = references()
    counts = [new - old for old, new in zip(before[0], after[0], strict=True)]
    return max(map(abs, counts)), abs(after[1] - before[1]), traced


@pytest.mark.slow
@pytest.mark.parametrize("function", [Counts, PlainCounts])
def test_records_leave_nothing_behind(function):
    events = [Event("")] * 30_000
    counts, objects, traced = left_behind(lambda: run(function, events))
    assert (counts < 50, objects < 50, traced < 50_000) == (True, True, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "do"),
    [*((Counts, name) for name in sorted(DOES)), *((PlainCounts, name) for name in sorted(PLAIN_DOES))],
)
def test_uncommon_ends_leave_nothing_behind(function, do):
    def often():
        for _ in range(100):
            kept: list = []
            run(function, [Event("", kept), Event(do, kept), Event(do, kept), Event("", kept)])

    counts, objects, traced = left_behind(often)
    assert (counts < 50, objects < 50, traced < 100_000) == (True, True, True)


class Sorted(HashMapBackend):
    """Backend whose values are read ahead."""

    is_sorted = True


def run_ahead(stored):
    """Run records of keys whose values were read ahead, and of one whose value was not."""
    backend = Sorted()
    keys = [b"%d" % number for number in range(7)]
    backend.write_batch([(value_entry("seen", key), stored) for key in keys[:-2]])
    operator = Process("counts", "key", Counts())
    process = KeyedProcess(operator, backend, records=(Event,), watermark=0, last_watermark=0)
    process.read_ahead(keys[:-1])
    elements = [Element(record_order(1 + place), 0, 0, keys[place % 7], Event("")) for place in range(21)]
    with contextlib.suppress(HeadraceError):
        process.run([elements], [])
    process.drop()


@pytest.mark.slow
@pytest.mark.parametrize("stored", [stored_value(5, b"7", 3), stored_value(5, b"{")], ids=["fits", "does not fit"])
def test_values_read_ahead_leave_nothing_behind(stored):
    def often():
        for _ in range(100):
            run_ahead(stored)
            with contextlib.suppress(ValueError, msgspec.DecodeError):
                native.Cell.all_of([stored, None, stored[:-1]], msgspec.json.decode)

    counts, objects, traced = left_behind(often)
    assert (counts < 50, objects < 50, traced < 100_000) == (True, True, True)


@pytest.mark.parametrize(
    "element",
    [
        1,
        (),
        (b"", 1, 0, b"", None),
        (b"", "no time", 0, b"", None, 0),
        (b"", 1, 9, b"", None, 0),
        (b"", 1, None, b"", None, 0),
        (b"", 1, 0, b"", None, 9),
    ],
)
def test_refused_elements_leave_nothing_behind(element):
    def often():
        for _ in range(80):
            process = process_of(Counts)
            with pytest.raises((TypeError, IndexError, ValueError)):
                process._loop.run(iter([element]), 0)
            process.controller.context = None

    counts, objects, _ = left_behind(often)
    assert (counts < 50, objects < 50) == (True, True)


@pytest.mark.parametrize("arguments", [(), (1, 2), (len, (), (), (), (), (), (), (), ())])
def test_refused_arguments_leave_nothing_behind(arguments):
    def often():
        for _ in range(80):
            with contextlib.suppress(TypeError):
                native.RecordLoop(*arguments)

    counts, objects, _ = left_behind(often)
    assert (counts < 50, objects < 50) == (True, True)
