"""Records wait for others of their keys as long as no timer of the key comes between. Times are milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, Process, Struct, ValueState
from headrace.api.batches import BundleFunction
from headrace.execution.bundles import WaitingBundles
from headrace.execution.element import NO_WATERMARK, Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, KeyOrder
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from tests.unit.support.deferred import Deferred

LIFE = 5
NEVER = 1 << 60


class Event(Struct, frozen=True):
    key: str
    number: int = 1


class Line(Struct, frozen=True):
    key: str
    total: int


class Sums(KeyedProcessFunction[Event, Line], BundleFunction):
    """Emits the sum of a key's numbers `LIFE` after each record, and starts again."""

    total = ValueState("total", int)

    def __init__(self, first_timer=lambda at: at + LIFE):
        self.knows_timers = first_timer
        self.sizes = []

    async def process(self, event, ctx, /):
        self.sizes.append(1)
        await self.add(event, ctx)

    async def add(self, event, ctx):
        total = self.total.namespace("sum")  # is not read ahead
        await total.update((await total.value() or 0) + event.number)
        ctx.timers.register_event_time(ctx.timestamp + LIFE)

    def first_timer(self, timestamp, /):
        return self.knows_timers(timestamp)

    async def process_bundle(self, bundle, ctx, /):
        self.sizes.append(len(bundle.records))
        for record in bundle.walk(bundle.records):
            await self.add(record.record, ctx)

    async def on_timer(self, timestamp, ctx, /):
        total = self.total.namespace("sum")
        ctx.collect(Line(ctx.key, await total.value() or 0))
        await total.clear()


def run(items, function, *, backend=HashMapBackend, stop=None, **options):
    """Process `(key, time)` and watermarks (plain numbers); return the metrics, the outputs, and the changes of state and timers.

    What a `stop` holds is resumed at once.
    """
    elements, watermarks, latest = [], [], NO_WATERMARK
    for ordinal, item in enumerate(items):
        order = record_order(ordinal)
        if not isinstance(item, int):
            elements.append(Element(order, item[1], 0, encode(item[0]), Event(item[0], ordinal)))
        elif item > latest:
            latest = item
            watermarks.append(Watermark(order, item))
    process = KeyedProcess(
        Process("sums", "key", function),
        backend(),
        records=(Event,),
        watermark=None,
        last_watermark=watermarks[-1].timestamp if watermarks else None,
        options=AsyncStateOptions(**options),
    )
    held = process.run([elements], watermarks, stop=stop)
    if held.requests:
        process.run([], [], resumed=held.requests)
    changes = [sorted(change, key=str) for _, change in process.changes()]
    return process.metrics, process.emitted, changes, sorted(process.timers.changes())


@given(
    items=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)) | st.integers(0, 30), max_size=30),
    knows=st.booleans(),
    portion=st.sampled_from([4, 100]),
    backend=st.sampled_from([HashMapBackend, Deferred]),
    buffer_size=st.sampled_from([1, 1000]),
)
@example(
    items=[("a", 1), 2, ("a", 3), 3, ("a", 4), 6, ("a", 7)],
    knows=True,
    portion=100,
    backend=HashMapBackend,
    buffer_size=1,
)
@example(
    items=[("a", 9), 2, ("a", 3), ("b", 3), 7, ("a", 8), ("a", 1), 8],
    knows=True,
    portion=100,
    backend=Deferred,
    buffer_size=1,
)
@example(
    items=[("a", 1), ("a", 4), 6, ("a", 8), 10, ("b", 11), 16, ("b", 17)],
    knows=True,
    portion=100,
    backend=Deferred,
    buffer_size=1,
)
def test_waiting_records_equal_records_at_once(items, knows, portion, backend, buffer_size):
    function = Sums() if knows else Sums(first_timer=lambda _: None)
    singly = run(items, Sums(), in_flight_records_limit=1)
    assert run(items, function, backend=backend, in_flight_records_limit=portion, buffer_size=buffer_size) == singly


@pytest.mark.parametrize(
    ("first_timer", "sizes"),
    [
        (lambda at: at + LIFE, [4, 1]),
        (lambda _: None, [2, 1, 1, 1]),  # nothing is known: each watermark ends the bundle
    ],
)
def test_bundle_ends_with_its_first_timer(first_timer, sizes):
    items = [("a", 3), ("a", 2), 1, ("a", 4), 2, ("a", 6), 7, ("a", 9)]
    function = Sums(first_timer)
    run(items, function)
    assert function.sizes == sizes


def test_late_record_goes_behind_those_that_wait():
    function = Sums()
    metrics, *_ = run([("a", 4), 2, ("a", 5), ("b", 6), ("a", 1), ("a", 7)], function)
    assert function.sizes == [2, 1, 1, 1]
    assert metrics == {"records": 5, "late": 1}


class ToEnd(KeyedProcessFunction[Event, Line], BundleFunction):
    """Takes all records of a key in one bundle."""

    waits_to_end = True

    async def process(self, event, ctx, /):
        ctx.collect(Line(ctx.key, 1))

    async def process_bundle(self, bundle, ctx, /):
        ctx.collect(Line(ctx.key, len(bundle.records)))


@pytest.mark.parametrize("portion", [1, 100])
def test_late_record_that_waits_counts_once(portion):
    items = [("a", 9), 5, ("a", 1), ("a", 6), ("b", 2), 7, ("a", 7), ("c", 8)]
    metrics, emitted, *_ = run(items, ToEnd(), in_flight_records_limit=portion)
    assert [line.record for line in emitted] == [Line("a", 4), Line("b", 1), Line("c", 1)]
    assert metrics == {"records": 6, "late": 3}


@pytest.mark.parametrize("order", KeyOrder)
def test_bundles_to_the_end_take_resumed_records(order):
    items = [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5), ("a", 6)]
    options = {"in_flight_records_limit": 2, "order_with_same_key": order}
    metrics, emitted, *_ = run(items, ToEnd(), stop=lambda: True, **options)
    assert [line.record for line in emitted] == [Line("a", 2), Line("b", 2), Line("a", 2)]
    assert metrics == {"records": 6}


def element(key, at, place=0):
    return Element(record_order(place), at, 0, encode(key), Event(key))


def waiting(turns=None, occupied=()):
    return WaitingBundles(lambda at: at + LIFE, turns or {}, occupied)


def keys_of(bundles):
    return [bundle.elements[0].record.key for bundle in bundles]


def test_bundles_wait_until_their_first_timer():
    bundles = waiting()
    for key, at in [("a", 10), ("b", 12), ("a", 11), ("c", 11)]:
        bundles.add(element(key, at), 3)
    assert keys_of(bundles.take_before(14)) == []
    assert keys_of(bundles.take_before(16)) == ["a", "c"]
    assert keys_of(bundles.take_all()) == ["b"]
    assert bundles.take_all() == []


def test_earlier_record_shortens_the_wait():
    bundles = waiting()
    for at in (10, 7, 9):
        bundles.add(element("a", at), 3)
    (bundle,) = bundles.take_before(12)
    assert [record.timestamp for record in bundle.elements] == [10, 7, 9]
    assert bundles.take_before(15) == []


def test_timer_of_a_key_ends_its_wait():
    bundles = waiting({encode("a"): [(12, 0, "event_time", "")]})
    bundles.add(element("a", 10), 3)
    bundles.add(element("b", 10), 3)
    assert keys_of(bundles.take_before(12)) == ["a"]


def test_taken_key_begins_a_new_bundle():
    bundles = waiting()
    bundles.add(element("a", 10), 3)
    assert bundles.take(encode("a")).watermark == 3
    assert bundles.take(encode("a")) is None
    bundles.add(element("a", 20), 8)
    assert bundles.take_before(15) == []
    assert [bundle.watermark for bundle in bundles.take_before(25)] == [8]


def test_taken_bundles_leave_no_ends_behind():
    """A join with late records on one side takes bundles again and again, and no watermark ends them."""
    bundles = WaitingBundles(lambda _: NEVER, {}, ())
    for _ in range(10_000):
        bundles.add(element("a", 10), 3)
        bundles.take(encode("a"))
    assert len(bundles._ends) < 1100


def test_bundles_are_taken_by_the_watermark_before_them():
    bundles = waiting()
    for key, at, watermark in [("a", 10, 1), ("b", 8, 2), ("c", 9, 5)]:
        bundles.add(element(key, at), watermark)
    assert [bundle.watermark for bundle in bundles.take_before(40)] == [1, 2, 5]
