"""Contexts, futures and waiters that user code keeps are its own: the engine does not use them again."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from headrace import (
    AggregateFunction,
    AggregatingState,
    KeyedProcessFunction,
    Process,
    RowKind,
    StateFuture,
    Struct,
    ValueState,
)
from headrace.errors import UserFunctionError
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.execution.process_context import ProcessContext
from headrace.native import RecordLoop
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.values import BlockingValueStore, ValueStore


class Event(Struct):
    key: str
    number: int
    dropped: object = None


class Line(Struct, frozen=True):
    text: str


class Texts(AggregateFunction[str, str, str]):
    """Joins texts."""

    def create_accumulator(self):
        return ""

    def add(self, text, joined, /):
        return joined + text

    def get_result(self, joined, /):
        return joined

    def merge(self, one, other, /):
        return one + other


class Scripted(KeyedProcessFunction[Event, Line]):
    """Counts, then runs the function of the test."""

    seen = ValueState("seen", int)
    texts = AggregatingState("texts", Texts())

    def __init__(self, code):
        self.code = code

    async def process(self, event, ctx, /):
        await self.seen.update((await self.seen.value() or 0) + 1)
        await self.code(self, event, ctx)


class Plain(KeyedProcessFunction[Event, Line]):
    """Runs the function of the test, in plain `def`."""

    seen = ValueState("seen", int)

    def __init__(self, code):
        self.code = code

    def process(self, event, ctx, /):
        self.code(self, event, ctx)


def process_of(function):
    return KeyedProcess(
        Process("scripted", "key", function), HashMapBackend(), records=(Event,), watermark=None, last_watermark=None
    )


def run(function, events, process=None):
    """Run events in one task, and return the texts of its outputs."""
    process = process or process_of(function)
    elements = [
        Element(record_order(1 + place), event.number, 0, encode(event.key), event)
        for place, event in enumerate(events)
    ]
    process.run([elements], [])
    return [out.record.text for out in process.emitted]


def events(keys="abab"):
    return [Event(key, number) for number, key in enumerate(keys)]


async def nothing(f, event, ctx):
    pass


@pytest.mark.parametrize("kept_of", [lambda ctx: ctx, lambda ctx: ctx.timers, lambda ctx: ctx.collect])
def test_kept_context_stays_as_it_was(kept_of):
    kept = []

    async def keep(f, event, ctx):
        kept.append((kept_of(ctx), event))

    run(Scripted(keep), events())
    contexts = [getattr(context, "__self__", context) for context, _ in kept]
    assert len({id(context) for context in contexts}) == 4
    assert [(context.key, context.timestamp, context.record) for context in contexts] == [
        (event.key, event.number, event) for _, event in kept
    ]


def test_kept_future_keeps_its_answer():
    kept = []

    async def keep(f, event, ctx):
        kept.append(f.seen.value())

    run(Scripted(keep), events())
    assert [future.answer for future in kept] == [1, 1, 2, 2]


def test_kept_result_of_an_accumulator_stays():
    kept = []

    async def keep(f, event, ctx):
        await f.texts.add(f"{event.key}{event.number}")
        kept.append(f.texts.get())
        await f.texts.add(";")

    run(Scripted(keep), events())
    assert [future.answer for future in kept] == ["a0", "b1", "a0;a2", "b1;b3"]


def test_aggregate_function_may_use_the_state():
    """Call the handle again while it adds and while it reads."""
    of: list = []

    class Nested(Texts):
        def add(self, text, joined, /):
            before = of[0].texts.get() if joined and not text.endswith("!") else StateFuture("-")
            return f"{joined}{text}[{before.answer}]"

        def get_result(self, joined, /):
            if not joined.endswith("[-]"):
                of[0].texts.add("!")
            return joined

    class Reading(Scripted):
        texts = AggregatingState("texts", Nested())

    async def add(f, event, ctx):
        of[:] = [f]
        await f.texts.add(event.key)
        ctx.collect(Line(await f.texts.get()))

    assert run(Reading(add), events("aaa")) == [
        "a[-]",
        "a[-]a[a[-]]",
        "a[-]a[a[-]]![-]a[a[-]a[a[-]]![-]]",
    ]


def test_later_record_may_await_a_kept_answer():
    kept = []

    async def await_first(f, event, ctx):
        kept.append(f.seen.value())
        ctx.collect(Line(f"{await kept[0]} {await kept[-1]}"))

    assert run(Scripted(await_first), events()) == ["1 1", "1 1", "1 2", "1 2"]


def test_closed_code_keeps_its_waiter():
    async def close(f, event, ctx):
        async def wait(future):
            return await future

        waiting, other = wait(StateFuture("mine")), wait(StateFuture("other"))
        first = waiting.send(None)
        other.send(None)
        other.close()
        with contextlib.suppress(StopIteration):
            waiting.send(None)
        ctx.collect(Line(f"{first.answer} {await f.seen.value()}"))

    assert run(Scripted(close), events()) == ["mine 1", "mine 1", "mine 2", "mine 2"]


def test_error_thrown_into_a_waiter_arrives():
    async def throw(f, event, ctx):
        waiting = f.wait()
        waiting.send(None)
        with pytest.raises(LookupError, match="thrown"):
            waiting.throw(LookupError("thrown"))
        ctx.collect(Line(str(await f.seen.value())))

    class Waiting(Scripted):
        async def wait(self):
            await StateFuture(None)

    assert run(Waiting(throw), events("ab")) == ["1", "1"]


def test_code_of_a_destructor_may_await():
    """Use the engine in destructors, which run while a context, a cell or a waiter changes."""
    answers = []

    class Dropped:
        def __del__(self):
            async def wait():
                answers.append(await StateFuture("inner", _Idle()))

            with contextlib.suppress(StopIteration):
                wait().send(None)

    async def hold(f, event, ctx):
        async def wait(future):
            await future

        event.dropped = Dropped()
        held = wait(StateFuture(Dropped()))
        held.send(None)
        del held
        ctx.collect(Line(f"{await f.seen.value()}"))

    assert run(Scripted(hold), events()) == ["1", "1", "2", "2"]
    assert set(answers) == {"inner"}


class _Idle:
    """A task without callbacks."""

    callbacks = ()

    @property
    def context(self):
        return self


def test_records_may_run_another_task():
    async def nest(f, event, ctx):
        inner = run(Scripted(tell), events(event.key * 3))
        ctx.collect(Line(f"{event.key} {await f.seen.value()} {inner}"))

    async def tell(f, event, ctx):
        ctx.collect(Line(str(await f.seen.value())))

    assert run(Scripted(nest), events()) == [f"{key} {count} ['1', '2', '3']" for count in (1, 2) for key in "ab"]


def test_traced_code_gives_the_same():
    async def tell(f, event, ctx):
        await StateFuture(None)
        ctx.collect(Line(str(await f.seen.value())))

    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        texts = run(Scripted(tell), events())
    finally:
        sys.settrace(before)
    assert texts == ["1", "1", "2", "2"]


@pytest.mark.parametrize("answer", [None, (1, 2), StopIteration(5), ValueError("kept")])
def test_answer_may_be_any_object(answer):
    async def tell(f, event, ctx):
        ctx.collect(Line(str(await StateFuture(answer) is answer)))

    assert run(Scripted(tell), events("ab")) == ["True", "True"]


@pytest.mark.parametrize(
    ("store", "function"), [(ValueStore, Scripted(nothing)), (BlockingValueStore, Plain(lambda *_: None))]
)
def test_wrong_arguments_are_refused(store, function):
    mine, *_ = process_of(function).stores
    with pytest.raises(TypeError, match="positional argument"):
        store.update(mine)
    with pytest.raises(TypeError, match="positional arguments but 1. were given"):
        store.update(mine, *range(10))
    with pytest.raises((TypeError, AttributeError)):
        store.value(5)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_exit_of_user_code_is_its_error(interrupt):
    async def stop(f, event, ctx):
        raise interrupt

    def stop_plainly(f, event, ctx):
        raise interrupt

    for function in (Scripted(stop), Plain(stop_plainly)):
        with pytest.raises(UserFunctionError, match=interrupt.__name__):
            run(function, events())


def test_endless_recursion_is_an_error_of_the_function():
    async def recur(f, event, ctx):
        await f.seen.value()
        await recur(f, event, ctx)

    def recur_plainly(f, event, ctx):
        f.seen.value()
        recur_plainly(f, event, ctx)

    for function in (Scripted(recur), Plain(recur_plainly)):
        with pytest.raises(UserFunctionError, match="RecursionError"):
            run(function, events())


def loop_of(process, function):
    """Return the loop of a process, with another function."""
    return RecordLoop(
        process.controller,
        ProcessContext,
        process._outputs,
        process.timers,
        (function,),
        tuple(RowKind),
        process.due,
        process.before,
        None,
    )


def test_code_may_be_any_awaitable():
    class _Wrapped:
        """Something other than a coroutine that can be awaited."""

        def __init__(self, call):
            self.call = call

        def __await__(self):
            return self.call.__await__()

    async def tell(f, event, ctx):
        ctx.collect(Line(str(await f.seen.value())))

    process = process_of(Scripted(tell))
    (method,) = process._inputs
    process._loop = loop_of(process, lambda event, ctx: _Wrapped(method(event, ctx)))
    assert run(None, events(), process) == ["1", "1", "2", "2"]


def test_code_that_cannot_be_awaited_is_refused():
    process = process_of(Scripted(nothing))
    process._loop = loop_of(process, lambda *_: 5)
    with pytest.raises(UserFunctionError, match="can't be (used in 'await'|awaited)"):
        run(None, events(), process)
