"""The harness from a user's point of view. Processing-time timers in it: see test_processing_time.py."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import KeyedProcessFunction, RowKind, StateTtl, Struct, TtlTime, ValueState
from headrace import clock as engine_clock
from headrace.errors import UserFunctionError
from headrace.options import AsyncStateOptions, EventOrder
from headrace.state.backend import HashMapBackend
from headrace.testing import KeyedHarness, LateRecord, SideRecord, Watermark


class Visit(Struct, frozen=True):
    page: str
    seconds: int = 1


class Total(Struct, frozen=True):
    page: str
    seconds: int


class Long(Struct, frozen=True):
    page: str


class TimeOnPage(KeyedProcessFunction[Visit, Total]):
    """Sums up seconds per page, emits the sum 10 ms after each visit, and visits longer than a minute to the side output."""

    total = ValueState("total", int)
    lately = ValueState("lately", int, ttl=StateTtl(timedelta(milliseconds=50), time=TtlTime.PROCESSING))

    async def process(self, visit, ctx, /):
        total = (await self.total.value() or 0) + visit.seconds
        await self.total.update(total)
        if visit.seconds > 60:
            ctx.output("long", Long(ctx.key))
        if await self.lately.value() is None:
            ctx.collect(Total(ctx.key, 0), RowKind.UPDATE_BEFORE)
        await self.lately.update(1)
        ctx.timers.register_event_time(ctx.timestamp + 10)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Total(ctx.key, await self.total.value()))


def page(visit):
    return visit.page


def new(**arguments):
    return KeyedHarness(TimeOnPage(), key=page, side_outputs={"long": Long}, **arguments)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def harness(request):
    with new(backend=request.param) as h:
        yield h


@pytest.fixture
def real_clock():
    """Return the clock that is active before a harness is opened."""
    real = engine_clock.VirtualClock(7_000)
    with engine_clock.installed(real):
        yield real


def test_function_is_driven_record_by_record(harness):
    harness.process(Visit("a", 5), timestamp=1)
    assert harness.output() == [Total("a", 0)]
    harness.process(Visit("a", 7), timestamp=2)
    assert harness.output() == []
    harness.watermark(20)
    assert harness.output() == [Total("a", 12), Total("a", 12), Watermark(20)]


def test_output_returns_each_item_once_in_order(harness):
    harness.process(Visit("a", 61), 1)
    harness.watermark(11)
    harness.process(Visit("a", 2), 11)
    harness.watermark(30)
    output = [
        *(SideRecord("long", Long("a")), Total("a", 0), Total("a", 61), Watermark(11)),
        *(LateRecord(Visit("a", 2)), Total("a", 63), Watermark(30)),
    ]
    assert (harness.output(), harness.output()) == (output, [])


def test_harness_shows_the_state(harness):
    harness.process(Visit("a", 5), 1)
    assert [harness.state("total", key) for key in ("a", "b")] == [5, None]


def test_kinds_returns_row_kinds_of_emitted_records(harness):
    harness.process(Visit("a"), 1)
    harness.snapshot()
    harness.watermark(20)
    assert harness.kinds() == [(RowKind.UPDATE_BEFORE, Total("a", 0)), (RowKind.INSERT, Total("a", 1))]


#    visits at 0, 49, 99: 50 ms after the second visit the page is forgotten


def test_processing_time_is_that_of_its_clock(harness):
    for span in (0, 49, 50):
        harness.clock.advance(span)
        harness.process(Visit("a"), 1)
    assert harness.output() == [Total("a", 0)] * 2


def test_record_without_timestamp_has_the_clocks_time(harness):
    harness.clock.advance(5)
    harness.process(Visit("a"))
    harness.watermark(14)
    assert harness.output() == [Total("a", 0), Watermark(14)]
    harness.watermark(15)
    assert harness.output() == [Total("a", 1), Watermark(15)]


def test_watermark_cannot_go_back(harness):
    harness.watermark(5)
    harness.watermark(5)
    with pytest.raises(ValueError, match="at 5 and cannot go back to 4"):
        harness.watermark(4)


def test_error_of_the_function_is_raised(harness):
    with pytest.raises(UserFunctionError, match="Expected `int`, got `str`"):
        harness.process(Visit("a", "long"), 1)


# --------------------------------------------------------------------------------------------------- step by step


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def steps(request):
    with new(backend=request.param, automatic=False) as h:
        yield h


def test_each_step_answers_one_request_batch(steps):
    steps.process(Visit("a"), 1)
    steps.process(Visit("b"), 1)
    assert (steps.statistics().active, steps.output()) == (2, [])
    assert steps.step()
    assert (steps.statistics().active, steps.output()) == (2, [])
    assert steps.step()
    assert steps.output() == [Total("a", 0), Total("b", 0)]
    assert not steps.step()


def test_watermark_waits_for_steps_of_earlier_records(steps):
    steps.process(Visit("a"), 1)
    steps.watermark(5)
    assert (steps.statistics().epochs, steps.output()) == (2, [])
    steps.drain()
    assert (steps.statistics().epochs, steps.output()) == (1, [Total("a", 0), Watermark(5)])


def test_statistics_are_the_same_on_every_backend(steps):
    for key in "aab":
        steps.process(Visit(key), 1)
    steps.step()
    now = steps.statistics()
    assert (now.in_flight, now.active, now.blocking, now.occupied_keys) == (3, 2, 1, 2)
    assert (now.batches, now.batches_in_flight, now.requests, now.cache_hits, now.cache_misses) == (1, 0, 4, 0, 4)
    steps.drain()
    now = steps.statistics()
    assert (now.in_flight, now.requests, now.cache_hits, now.cache_misses) == (0, 4, 2, 4)


def test_statistics_count_late_records_and_timers(harness):
    harness.process(Visit("a"), 1)
    harness.watermark(20)
    harness.process(Visit("a"), 2)
    now = harness.statistics()
    assert (now.late, now.timers_fired, now.expired) == (1, 2, 0)


def test_options_are_those_of_a_job():
    with new(options=AsyncStateOptions(event_order_watermark=EventOrder.STRICTLY_ORDERED), automatic=False) as h:
        h.process(Visit("a"), 1)
        h.watermark(5)
        assert h.output() == [Total("a", 0), Watermark(5)]


# ------------------------------------------------------------------------------------------------------- snapshots


def visits(h, *numbers):
    for number in numbers:
        h.process(Visit("ab"[number % 2], number), number)
        h.watermark(number - 3)


@pytest.mark.parametrize("other", ["hashmap", "rocksdb", "delta"])
@pytest.mark.parametrize("automatic", [True, False])
def test_restored_harness_continues_unchanged(harness, other, automatic):
    def by_key(records):
        """Return the outputs of each key, and the watermarks."""
        keyed = {}
        for one in records:
            keyed.setdefault(getattr(one, "page", None), []).append(one)
        return keyed

    visits(harness, *range(1, 30))
    snapshot = harness.snapshot()
    harness.output()
    function = TimeOnPage()
    sides = {"long": Long}
    with KeyedHarness.restore(
        snapshot, function, key=page, backend=other, automatic=automatic, side_outputs=sides
    ) as restored:
        visits(restored, 30, 31)
        restored.watermark(99)
        restored.drain()
        output = restored.output()
    visits(harness, 30, 31)
    harness.watermark(99)
    assert by_key(harness.output()) == by_key(output)


def test_snapshots_of_all_backends_are_the_same():
    results = []
    for backend in ("hashmap", "rocksdb"):
        with new(backend=backend) as h:
            visits(h, *range(20))
            results.append(h.snapshot())
    assert results[0] == results[1]


def test_snapshot_leaves_nothing_in_flight(steps):
    visits(steps, 1, 2, 3)
    steps.snapshot()
    now = steps.statistics()
    assert (now.in_flight, now.active, now.blocking, now.occupied_keys, now.epochs) == (0, 0, 0, 0, 1)


def test_snapshot_of_other_key_groups_is_refused(real_clock):
    with new() as h:
        snapshot = h.snapshot()
    with pytest.raises(ValueError, match="has 128 key groups, not 64"):
        KeyedHarness.restore(snapshot, TimeOnPage(), key=page, max_parallelism=64)
    assert engine_clock.now() == 7_000


# ----------------------------------------------------------------------------------------------------------- closing


def test_closing_puts_the_real_clock_back(real_clock):
    with new() as h:
        h.clock.advance(5)
        assert engine_clock.now() == 5
    assert engine_clock.now() == 7_000


def test_two_harnesses_have_a_clock_each(real_clock):
    first = new()
    first.process(Visit("a"), 1)
    second = KeyedHarness.restore(first.snapshot(), TimeOnPage(), key=page)
    second.clock.advance(60)
    for h in (first, second):
        h.output()
        h.process(Visit("a"), 2)
    assert (first.output(), second.output()) == ([], [Total("a", 0)])
    first.close()
    second.close()
    assert engine_clock.now() == 7_000


def test_backend_that_was_given_stays_open(real_clock):
    given = HashMapBackend()
    given.close = lambda: pytest.fail("it was closed")
    with new(backend=given) as h:
        h.process(Visit("a", 5), 1)
        snapshot = h.snapshot()
    assert sorted(given.items()) == list(snapshot.entries)
    with new(backend=given) as later:
        assert later.state("total", "a") == 5


def test_harness_closes_after_an_error_too(real_clock):
    with pytest.raises(ZeroDivisionError), new(backend="rocksdb"):
        raise ZeroDivisionError
    assert engine_clock.now() == 7_000
