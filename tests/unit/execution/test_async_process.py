"""Asynchronous state of a keyed process, one step at a time: the reads, their order, and the view of timers and errors.

Records read through a harness that answers only on `step`, so the order does not depend on chance.
"""

from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta

import pytest

from headrace import KeyedProcessFunction, Process, StateTtl, Struct, UpdateType, ValueState
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.execution.element import Element
from headrace.execution.executor import InlineStateExecutor
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.values import ValueStore
from headrace.testing import KeyedHarness, Watermark
from tests.unit.support.programs import Do, programs_operator
from tests.unit.support.records import record_of

STATE_ORDERED = AsyncStateOptions(order_with_same_key=KeyOrder.STATE_ORDERED)


class Event(Struct, frozen=True):
    key: str
    code: str = "count"
    number: int = 0


class Line(Struct, frozen=True):
    text: str


class Scripted(KeyedProcessFunction[Event, Line]):
    """Runs the scripted events: each event names a function of the test, which gets the state calls and the context."""

    seen = ValueState("seen", int)
    other = ValueState("other", int)
    lived = ValueState("lived", int, ttl=StateTtl(timedelta(milliseconds=10), update=UpdateType.ON_CREATE))

    def __init__(self, **codes):
        self.codes = {"count": count, "remind": remind} | codes

    async def process(self, event, ctx, /):
        self.tell = lambda *words: ctx.collect(Line(" ".join(map(str, words))))
        await self.codes[event.code](self, event, ctx)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Line(f"{ctx.key} at {timestamp}: {await self.seen.value()}"))
        if "timer" in self.codes:
            await self.codes["timer"](self, timestamp, ctx)


async def count(f, event, ctx):
    seen = (await f.seen.value() or 0) + 1
    await f.seen.update(seen)
    ctx.collect(Line(f"{ctx.key}: {seen}"))


async def remind(f, event, ctx):
    await f.seen.update(event.number)
    ctx.timers.register_event_time(event.number)


@pytest.fixture
def harness():
    """Return a harness that is stepped by hand."""
    created = []

    def make(options=None, *, function=None, automatic=False, **codes):
        function = function or Scripted(**codes)
        options = options or AsyncStateOptions()
        created.append(KeyedHarness(function, key=lambda event: event.key, options=options, automatic=automatic))
        return created[-1]

    yield make
    for future in created:
        future.close()


def counts(h):
    now = h.statistics()
    return now.in_flight, now.active, now.blocking, now.occupied_keys


def texts(h):
    return [output.text if isinstance(output, Line) else output for output in h.output()]


# ------------------------------------------------------------------------------------------------- immediate execution


def test_cached_value_is_read_without_request(harness):
    h = harness()
    h.process(Event("a"), 1)
    assert counts(h) == (1, 1, 0, 1)
    h.step()
    h.process(Event("a"), 2)
    assert (counts(h), h.statistics().requests, texts(h)) == ((0, 0, 0, 0), 1, ["a: 1", "a: 2"])


def test_written_value_is_not_requested(harness):
    h = harness()
    h.process(Event("a", "remind", 5), 1)
    assert (counts(h), h.statistics().requests, h.state("seen", "a")) == ((0, 0, 0, 0), 0, 5)


def test_key_counts_in_order_while_others_overtake(harness):
    h = harness()
    for number, key in enumerate("aaba"):
        h.process(Event(key), number)
    assert counts(h) == (4, 2, 2, 2)
    h.step()
    assert (counts(h), texts(h)) == ((0, 0, 0, 0), ["a: 1", "b: 1", "a: 2", "a: 3"])


# ---------------------------------------------------------------------------- calls of one record, none of them awaited


async def read_write_read(f, event, ctx):
    calls = [f.seen.value(), f.seen.update(event.number), f.seen.value(), f.seen.clear(), f.seen.value()]
    ctx.collect(Line(str([await call for call in calls])))


@pytest.mark.parametrize("options", [AsyncStateOptions(), AsyncStateOptions(cache_entries=1), STATE_ORDERED])
def test_calls_to_one_value_keep_their_order(harness, options):
    h = harness(options, code=read_write_read)
    h.process(Event("a"), 1)
    h.drain()
    h.process(Event("a", "code", 5), 2)
    h.process(Event("b", "code", 5), 3)
    h.drain()
    assert texts(h) == ["a: 1", "[1, None, 5, None, None]", "[None, None, 5, None, None]"]


def test_calls_for_one_value_make_one_request(harness):
    h = harness(code=read_write_read)
    h.process(Event("a", "code", 5), 1)
    assert (counts(h), h.statistics().requests) == ((1, 1, 0, 1), 1)


def test_calls_for_two_values_share_a_batch(harness):
    async def both(f, event, ctx):
        seen, other = f.seen.value(), f.other.value()
        f.tell(await seen, await other)

    h = harness(both=both)
    h.process(Event("a", "both"), 1)
    assert counts(h) == (1, 2, 0, 1)
    h.step()
    assert (texts(h), h.statistics().batches) == (["None None"], 1)


#    born at 1, ttl 10: a write of 5 at 4 may not make it younger, though nobody has read it before


def test_write_that_keeps_creation_time_reads_first(harness):
    async def write(f, event, ctx):
        f.lived.update(event.number)
        f.lived.value().then_accept(lambda value: ctx.collect(Line(f"lived: {value}")))

    h = harness(write=write)
    h.process(Event("a", "write", 1), 1)
    snapshot = h.snapshot()
    later = KeyedHarness.restore(snapshot, Scripted(write=write), key=lambda event: event.key, automatic=False)
    with later:
        later.process(Event("a", "write", 5), 4)
        assert (counts(later), later.output()) == ((1, 1, 0, 1), [])
        later.watermark(11)
        later.drain()
        assert later.state("lived", "a") == 5
        lived = later._process.stores[2]
        assert isinstance(lived, ValueStore)
        assert lived._cells[b'"a"'].stamp == 1


def test_clearing_an_unread_value_stores_nothing(harness):
    async def clear(f, event, ctx):
        await f.seen.clear()

    h = harness(clear=clear)
    h.process(Event("a"), 1)
    h.snapshot()
    h.process(Event("a", "clear"), 2)
    h.process(Event("nobody", "clear"), 2)
    assert h.statistics().requests == 0
    assert h.snapshot().entries == ()


def test_unawaited_chain_finishes_before_keys_next_record(harness):
    """A chained callback that is not awaited finishes before the next record of the key."""

    async def forget(f, event, ctx):
        f.seen.value().then_compose(lambda seen: f.seen.update((seen or 0) + 10)).then_accept(
            lambda _: ctx.collect(Line("forgotten"))
        )

    h = harness(forget=forget)
    h.process(Event("a", "forget"), 1)
    h.process(Event("a"), 2)
    assert counts(h) == (2, 1, 1, 1)
    h.drain()
    assert texts(h) == ["forgotten", "a: 11"]


# ------------------------------------------------------------------------------------------------------------- timers


@pytest.mark.parametrize("order", EventOrder)
def test_watermark_follows_state_access_of_its_timers(harness, order):
    async def timer(f, timestamp, ctx):
        ctx.collect(Line(f"other: {await f.other.value()}"))

    h = harness(AsyncStateOptions(event_order_watermark=order), timer=timer)
    h.process(Event("a", "remind", 5), 1)
    h.watermark(9)
    h.drain()
    assert texts(h) == ["a at 5: 5", "other: None", Watermark(9)]


#    a@1 reads ......... | 9 |          the timer of a for 5 is due at 9, when a@1 is still at work


def test_due_timer_waits_for_its_keys_record(harness):
    h = harness()
    h.process(Event("a", "remind", 5), 0)
    h.snapshot()
    h.process(Event("a"), 1)
    h.watermark(9)
    assert (texts(h), h.statistics().epochs) == ([], 2)
    h.drain()
    assert texts(h) == ["a: 6", "a at 5: 6", Watermark(9)]


def test_key_timers_fire_in_order_before_next_record(harness):
    h = harness()
    for time in (7, 3, 5):
        h.process(Event("a", "remind", time), 1)
    h.snapshot()
    h.process(Event("b"), 1)
    h.watermark(9)
    h.process(Event("a"), 10)
    assert counts(h) == (3, 2, 1, 2)
    h.drain()
    assert texts(h) == ["b: 1", "a at 3: 5", "a at 5: 5", "a at 7: 5", "a: 6", Watermark(9)]


#    b@1 | 9 | a@10      b@1 holds 9 up, so a@10 fires its timer for 5: it is the work of 9 all the same, and takes longer


def test_timer_of_later_record_delays_its_watermark(harness):
    async def timer(f, timestamp, ctx):
        ctx.collect(Line(f"other: {await f.other.value()}"))

    h = harness(timer=timer)
    h.process(Event("a", "remind", 5), 1)
    h.snapshot()
    h.process(Event("b"), 1)
    h.watermark(9)
    h.process(Event("a"), 10)
    h.drain()
    assert texts(h) == ["b: 1", "a at 5: 5", "other: None", "a: 6", Watermark(9)]


def test_timer_in_the_past_fires_after_its_record(harness):
    h = harness()
    h.watermark(100)
    h.process(Event("a", "remind", 5), 101)
    h.process(Event("a"), 102)
    h.drain()
    assert texts(h) == [Watermark(100), "a at 5: 5", "a: 6"]


@pytest.mark.parametrize("order", KeyOrder)
def test_timers_belong_to_the_epoch_of_their_watermark(harness, order):
    h = harness(AsyncStateOptions(order_with_same_key=order))
    h.process(Event("a", "remind", 5), 1)
    h.process(Event("b", "remind", 15), 1)
    h.snapshot()
    h.watermark(9)
    h.process(Event("a"), 10)
    h.process(Event("b"), 10)
    h.watermark(20)
    h.drain()
    output = texts(h)
    for earlier, later in itertools.pairwise(["a at 5: 5", Watermark(9), "b at 15: 16", Watermark(20)]):
        assert output.index(earlier) < output.index(later)
    assert output.index("a at 5: 5") < output.index("a: 6")
    assert output.index("b: 16") < output.index("b at 15: 16")


@pytest.mark.parametrize("order", KeyOrder)
def test_plain_function_sees_due_timers_before_record(harness, order):
    class Plain(KeyedProcessFunction[Event, Line]):
        def process(self, event, ctx, /):
            ctx.collect(Line(f"{event.key}: {event.number}"))
            for time in (5, 15, 16):
                ctx.timers.register_event_time(time)

        def on_timer(self, timestamp, ctx, /):
            ctx.collect(Line(f"{ctx.key} at {timestamp}"))

    h = harness(AsyncStateOptions(order_with_same_key=order), function=Plain())
    h.process(Event("a", number=1), 1)
    h.watermark(9)
    h.watermark(20)
    h.process(Event("a", number=2), 30)
    h.drain()
    assert [text for text in texts(h) if isinstance(text, str)][:5] == ["a: 1", "a at 5", "a at 15", "a at 16", "a: 2"]


# ------------------------------------------------------------------------------------------------------------- errors


async def fail(f, event, ctx):
    await f.seen.value()
    raise ZeroDivisionError("of all things")


async def fail_in_a_callback(f, event, ctx):
    f.seen.value().then_accept(lambda _: 1 / 0)


async def fail_in_a_chain(f, event, ctx):
    await f.seen.value().then_compose(lambda _: f.other.value()).then_apply(lambda _: 1 / 0)


@pytest.mark.parametrize("code", [fail, fail_in_a_callback, fail_in_a_chain])
@pytest.mark.parametrize("automatic", [True, False])
def test_error_names_its_record_among_others(harness, code, automatic):
    """An error names its record while other records are in flight."""
    h = harness(automatic=automatic, code=code)
    h.process(Event("b"), 1)
    with pytest.raises(UserFunctionError) as raised:
        run(h, Event("a", "code", 7), Event("c"))
    error = raised.value
    assert (error.operator, error.key, error.record) == ("function", '"a"', '{"key":"a","code":"code","number":7}')
    assert "ZeroDivisionError" in error.traceback
    assert "test_async_process.py" in error.traceback


def test_error_in_a_timer_names_the_timer(harness):
    async def timer(f, timestamp, ctx):
        await f.other.value()
        raise ZeroDivisionError

    h = harness(timer=timer)
    h.process(Event("a", "remind", 5), 1)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as raised:
        run(h, 9, Event("b"))
    assert (raised.value.key, raised.value.record) == ('"a"', "timer at 5 ms")


def test_foreign_records_future_may_not_be_awaited(harness):
    async def keep(f, event, ctx):
        f.kept = f.seen.value()

    async def borrow(f, event, ctx):
        await f.kept

    h = harness(keep=keep, borrow=borrow)
    h.process(Event("a", "keep"), 1)
    with pytest.raises(UserFunctionError, match="awaited something other than its own state") as raised:
        h.process(Event("b", "borrow"), 2)
    assert raised.value.key == '"b"'


class Lost(HashMapBackend):
    """A backend whose values cannot be read."""

    is_in_memory = False

    def get_many(self, keys, /):
        raise OSError("the disk is gone")


@pytest.mark.parametrize("buffer_size", [1, 1000])
@pytest.mark.parametrize("executor", [None, InlineStateExecutor(Lost())])
def test_backend_error_fails_task_unchanged(executor, buffer_size):
    process = KeyedProcess(
        programs_operator(),
        Lost(),
        records=(Do,),
        watermark=None,
        last_watermark=None,
        options=AsyncStateOptions(buffer_size=buffer_size),
        executor=executor,
    )
    with pytest.raises(OSError, match="the disk is gone"), contextlib.closing(process.controller):
        drained(process, Do("a", 1, calls=(("plain", "value", 0),)))


def test_state_misfit_is_not_blamed_on_function(harness):
    class Before(Scripted):
        seen = ValueState("seen", str)

    async def write(f, event, ctx):
        await f.seen.update("text")

    h = harness(function=Before(write=write))
    h.process(Event("a", "write"), 1)
    later = KeyedHarness.restore(h.snapshot(), Scripted(), key=lambda event: event.key, automatic=False)
    with later, pytest.raises(StateSchemaError, match="state 'seen' of operator 'function'"):
        run(later, Event("a"))


def run(h, *items):
    """Give the harness records and watermarks, then run to quiescence."""
    for item in items:
        if isinstance(item, int):
            h.watermark(item)
        else:
            h.process(item, 1)
    h.drain()


def drained(process, record):
    """Run a record to its end."""
    process.process(Element(record_order(1), record.at, 0, encode(record.key), record))
    process.controller.drain()


# --------------------------------------------------------------------------------------------------------- many records


@pytest.mark.parametrize("order", KeyOrder)
def test_thousands_of_records_of_one_key(harness, order):
    h = harness(AsyncStateOptions(order_with_same_key=order))
    for number in range(5_000):
        h.process(Event("a"), number)
    assert counts(h) == (5_000, 1, 4_999, 1)
    h.drain()
    assert h.state("seen", "a") == 5_000


@pytest.mark.parametrize("cache_entries", [1, 1_000])
def test_tiny_cache_costs_reads_and_changes_nothing(backend, cache_entries):
    options = AsyncStateOptions(cache_entries=cache_entries, in_flight_records_limit=2)
    process = KeyedProcess(
        Process("counts", "key", Scripted()),
        backend,
        records=(Event,),
        watermark=None,
        last_watermark=None,
        options=options,
    )
    events = [Event(key) for key in "abacabaa"]
    process.run([[Element(record_order(n), n, 0, encode(e.key), e) for n, e in enumerate(events)]], [])
    assert [record_of(out).text for out in process.emitted] == [
        *("a: 1", "b: 1", "a: 2", "c: 1", "a: 3", "b: 2", "a: 4", "a: 5"),
    ]
