"""Timers of processing time: at the start of a micro-batch, before its records. Times are milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, Process, Struct, TimeDomain, ValueState, declare
from headrace.errors import UserFunctionError
from headrace.execution.element import ProcessingTime, Watermark
from headrace.execution.executor import InlineStateExecutor
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, KeyOrder
from headrace.records.order import processing_time_order, record_order
from headrace.state.key_groups import key_group, key_group_range
from headrace.state.timers import Timer, timer_entry
from headrace.tables.changelog import Changelog
from headrace.tables.entries import rebuild
from headrace.tables.schemas import TIMERS
from headrace.testing import KeyedHarness
from tests.unit.support.arrow_tables import views_of
from tests.unit.support.deferred import Deferred
from tests.unit.support.micro_batches import GROUPS, element_of, no_rows
from tests.unit.support.records import record_of

EVENT, PROCESSING = TimeDomain
NOON = 1_000


class Ask(Struct, frozen=True):
    """The timers to set and to delete, by their times."""

    key: str
    wake: tuple[int, ...] = ()
    remind: tuple[int, ...] = ()
    forget: tuple[int, ...] = ()
    at: int = 0


class Told(Struct, frozen=True):
    key: str
    what: str
    number: int


class Waking(KeyedProcessFunction[Ask, Told]):
    """Sets the requested timers, counts the events of a key, and emits everything that it sees."""

    seen = ValueState("seen", int)

    def __init__(self, again=None):
        self.again = again or (lambda *_: None)

    async def process(self, ask, ctx, /):
        for time in ask.remind:
            ctx.timers.register_event_time(time)
        for time in ask.wake:
            ctx.timers.register_processing_time(time)
        for time in ask.forget:
            ctx.timers.delete_processing_time(time)
        await self.tell(ctx, f"record at {ctx.processing_time}")

    async def on_timer(self, timestamp, ctx, /):
        self.again(timestamp, ctx)
        await self.tell(ctx, f"{ctx.time_domain} {timestamp}")

    async def tell(self, ctx, what):
        seen = (await self.seen.value() or 0) + 1
        await self.seen.update(seen)
        ctx.collect(Told(str(ctx.key), what, seen))


class MicroBatches:
    """A chain of micro-batches of one operator, each in a given number of tasks. State is restored from rows of tables."""

    def __init__(self, new_backend, function=None, options=None):
        self.new_backend = new_backend
        self.operator = Process("waking", "key", function or Waking())
        self.options = options
        self.tables, self.orders = no_rows(), []
        self.ordinal, self.number, self.watermark = 1, 0, None

    def run(self, now, *items, tasks=1):
        """Process requests and watermarks (numbers) at a processing time; return the output in the order of the order keys."""
        self.number += 1
        time = ProcessingTime(processing_time_order(self.ordinal, self.number), now)
        elements, watermarks = self._arriving(items)
        emitted = []
        for task in range(tasks):
            groups = key_group_range(task, GROUPS, tasks)
            owned = [element for element in elements if key_group(element.key_json, GROUPS) in groups]
            emitted += self._task(groups, owned, watermarks, time)
        self.watermark = watermarks[-1].timestamp if watermarks else self.watermark
        self.orders += sorted(out.order for out in emitted)
        emitted.sort(key=lambda out: out.order)
        return [(record_of(out).key, record_of(out).what) for out in emitted]

    def _arriving(self, items):
        elements, watermarks = [], []
        for item in items:
            if isinstance(item, int):
                watermarks.append(Watermark(record_order(self.ordinal), item))
            else:
                elements.append(element_of(record_order(self.ordinal), item.at, item))
                self.ordinal += 1
        return elements, watermarks

    def _task(self, groups, elements, watermarks, time):
        backend = self.new_backend()
        rebuild(backend, views_of(self.tables), "waking", groups)
        process = KeyedProcess(
            self.operator,
            backend,
            records=(Ask,),
            watermark=self.watermark,
            last_watermark=watermarks[-1].timestamp if watermarks else None,
            processing_time=time,
            options=self.options,
        )
        process.run([elements], watermarks)
        rows = Changelog("waking", self.number, GROUPS)
        for store in process.stores:
            self.tables["keyed_state"].append(rows.values(store, list(store.changes())))
        self.tables[TIMERS].append(rows.timers(process.timers.changes()))
        return process.emitted


@pytest.fixture
def micro_batches(backends):
    with backends.lent() as new:
        yield lambda again=None, **options: MicroBatches(
            new, Waking(again), AsyncStateOptions(**options) if options else None
        )


#    noon: record sets 1010, 1005      1004: -      1010: both, in order, then the record


def test_due_timer_precedes_records_of_its_micro_batch(micro_batches):
    """A due timer fires before the records of the first micro-batch after its time."""
    job = micro_batches()
    assert job.run(NOON, Ask("a", wake=(1010, 1005))) == [("a", "record at 1000")]
    assert job.run(1004, Ask("b")) == [("b", "record at 1004")]
    assert job.run(1010, Ask("b"), Ask("a")) == [
        ("a", "processing_time 1005"),
        ("a", "processing_time 1010"),
        ("b", "record at 1010"),
        ("a", "record at 1010"),
    ]
    assert job.run(2000) == []


def test_timer_fires_without_any_record(micro_batches):
    job = micro_batches()
    job.run(NOON, Ask("b", wake=(1001,)), Ask("a", wake=(1002, 1001)))
    assert job.run(5000) == [
        ("a", f"processing_time {1001}"),
        ("b", "processing_time 1001"),
        ("a", "processing_time 1002"),
    ]


def test_repeated_timer_fires_once_deleted_timer_never(micro_batches):
    job = micro_batches()
    job.run(NOON, Ask("a", wake=(1001, 1002)), Ask("a", wake=(1001,)))
    job.run(NOON, Ask("a", wake=(1001,), forget=(1002, 1003)))
    assert job.run(5000) == [("a", "processing_time 1001")]


def test_due_timer_fires_after_record_that_set_it(micro_batches):
    job = micro_batches()
    assert job.run(NOON, Ask("a", wake=(1000, 7, 1001)), Ask("a")) == [
        ("a", "record at 1000"),
        ("a", "processing_time 7"),
        ("a", "processing_time 1000"),
        ("a", "record at 1000"),
    ]
    assert job.run(1001) == [("a", "processing_time 1001")]


def test_timer_set_by_timer_fires_in_turn(micro_batches):
    """If the time of the set timer has passed, it fires next."""

    def again(timestamp, ctx):
        if timestamp == 1050:
            for time in (1060, 1020, 9999):
                ctx.timers.register_processing_time(time)

    job = micro_batches(again)
    job.run(NOON, Ask("a", wake=(1050, 1055)))
    assert [what for _, what in job.run(1100)] == [f"processing_time {time}" for time in (1050, 1020, 1055, 1060)]
    assert job.run(9999) == [("a", "processing_time 9999")]


def test_timer_domains_of_a_key_are_independent(micro_batches):
    job = micro_batches()
    job.run(NOON, Ask("a", wake=(1005,), remind=(1005,)), Ask("a", forget=(1,)))
    assert job.run(NOON, Ask("b"), 1005)[1:] == [("a", "event_time 1005")]
    assert job.run(1005, Ask("a", remind=(1006,)), 1006) == [
        ("a", "processing_time 1005"),
        ("a", "record at 1005"),
        ("a", "event_time 1006"),
    ]


def test_event_time_does_not_advance(micro_batches):
    timestamps = []
    job = micro_batches(lambda _, ctx: timestamps.append((ctx.timestamp, ctx.watermark, ctx.processing_time)))
    job.run(NOON, Ask("a", wake=(1001, 1002, 1003)))
    job.run(1001, Ask("b"), 50)
    job.run(1002, Ask("b"), 60)
    job.run(1003)
    no_watermark = timestamps[0][1]
    assert timestamps == [(0, no_watermark, 1001), (51, 50, 1002), (61, 60, 1003)]


def test_timers_set_overdue_timers_of_other_domain(micro_batches):
    def again(timestamp, ctx):
        if ctx.time_domain is PROCESSING and timestamp == 1001:
            ctx.timers.register_event_time(3)
        if ctx.time_domain is EVENT and timestamp == 60:
            ctx.timers.register_processing_time(4)

    job = micro_batches(again)
    job.run(NOON, Ask("a", wake=(1001,), remind=(60,)), 50)
    assert [what for _, what in job.run(1001, Ask("b"), 60)] == [
        "processing_time 1001",
        "event_time 3",
        "record at 1001",
        "event_time 60",
        "processing_time 4",
    ]


def test_outputs_sort_apart_after_earlier_micro_batches(micro_batches):
    def again(timestamp, ctx):
        if ctx.time_domain is PROCESSING and timestamp > NOON:
            ctx.timers.register_processing_time(timestamp + 5)

    job = micro_batches(again)
    job.run(NOON, Ask("a", wake=(1001,), remind=(5,)), Ask("b", wake=(1001,)), 8)
    for now in (1001, 1006, 1006, 1011):
        job.run(now)
    job.run(1016, Ask("c", wake=(3,)))
    assert len(job.orders) == 2 + 1 + 3 * 2 + 4
    assert job.orders == sorted(set(job.orders))


def test_state_ordered_execution_fires_processing_timers(micro_batches):
    job = micro_batches(order_with_same_key=KeyOrder.STATE_ORDERED)
    job.run(NOON, Ask("a", wake=(1002, 1001)), Ask("b", wake=(1001,)))
    assert [what for _, what in job.run(1010, Ask("a"), Ask("b"))][:3] == [
        "processing_time 1001",
        "processing_time 1001",
        "processing_time 1002",
    ]


def test_error_names_the_timer(micro_batches):
    def again(*_):
        raise ZeroDivisionError

    job = micro_batches(again)
    job.run(NOON, Ask("a", wake=(1001,)))
    with pytest.raises(UserFunctionError) as raised:
        job.run(1001)
    assert (raised.value.key, raised.value.record) == ('"a"', "processing-time timer at 1001 ms")


keys = st.sampled_from(["a", "b", "c", "dé"])
offsets = st.lists(st.integers(-5, 30), max_size=3).map(tuple)
asks = st.builds(Ask, keys, wake=offsets, forget=offsets)
histories = st.lists(st.tuples(st.integers(0, 12), st.lists(asks, max_size=4), st.sampled_from([1, 2, 7])), max_size=6)


def by_hand(history):
    """Return the output of each key, micro-batch by micro-batch, by the naive model."""
    output, timers, now = {}, set(), 0

    def fire(due):
        for time, key in sorted(due):
            timers.discard((time, key))
            output.setdefault(key, []).append(f"processing_time {time}")

    for step, batch, _ in history:
        now += step
        fire({timer for timer in timers if timer[0] <= now})
        for ask in batch:
            output.setdefault(ask.key, []).append(f"record at {now}")
            timers |= {(now + time, ask.key) for time in ask.wake}
            timers -= {(now + time, ask.key) for time in ask.forget}
            fire({timer for timer in timers if timer[0] <= now and timer[1] == ask.key})
    return output


@given(history=histories)
def test_any_history_at_any_parallelism_equals_loop(backends, history):
    with backends.lent() as new:
        job, output, now = MicroBatches(new), {}, 0
        for step, batch, tasks in history:
            now += step
            moved = [
                Ask(ask.key, tuple(now + time for time in ask.wake), forget=tuple(now + time for time in ask.forget))
                for ask in batch
            ]
            for key, what in job.run(now, *moved, tasks=tasks):
                output.setdefault(key, []).append(what)
        assert output == by_hand(history)
        assert job.orders == sorted(set(job.orders))


# ------------------------------------------------------------------------------------------------- the fast drain


class InBlocks(KeyedProcessFunction[Ask, Told]):
    """Does all its work in a declared block."""

    seen = ValueState("seen", int)

    async def process(self, ask, ctx, /):
        for time in ask.wake:
            ctx.timers.register_processing_time(time)
        self.seen.value().then_accept(self.count)

    async def on_timer(self, timestamp, ctx, /):
        self.seen.value().then_accept(self.count)

    @declare("count")
    def count(self, seen, subject, ctx, /):
        self.seen.update((seen or 0) + 1)
        ctx.collect(Told(str(ctx.key), str(subject if ctx.time_domain else "record"), (seen or 0) + 1))


def in_blocks(backend, ordinal, number, now, asks, **how):
    """Run one micro-batch; return the output, and the held records."""
    process = KeyedProcess(
        Process("blocks", "key", InBlocks()),
        backend,
        records=(Ask,),
        watermark=None,
        last_watermark=None,
        processing_time=ProcessingTime(processing_time_order(ordinal, number), now),
        options=AsyncStateOptions(),
        executor=InlineStateExecutor(backend),
    )
    elements = [element_of(record_order(ordinal + place), ask.at, ask) for place, ask in enumerate(asks)]
    held = process.run([[element] for element in elements], [], **how)
    for store in process.stores:
        backend.write_batch(store.writes(list(store.changes())))
    backend.write_batch(process.timers.writes(process.timers.changes()))
    return [(record_of(out).what, record_of(out).number) for out in process.emitted], held


def test_stopping_run_finishes_started_timers():
    backend = Deferred()
    in_blocks(backend, 1, 1, NOON, [Ask("a", wake=(1001,))])
    output, held = in_blocks(backend, 2, 2, 1001, [Ask("b")], stop=lambda: True)
    assert (("1001", 2) in output, [request.raw for request in held.requests if b"1001" in request.raw]) == (True, [])
    assert timer_entry(Timer(1001, b'"a"', PROCESSING)) not in dict(backend.items())


#    held: a's second record      in the next run it comes before the timer, which is of a later micro-batch


def test_held_records_precede_timers_of_this_run():
    backend = Deferred()
    in_blocks(backend, 1, 1, NOON, [Ask("a", wake=(1001,))])
    output, held = in_blocks(backend, 2, 2, NOON, [Ask("a"), Ask("b")], cut=record_order(2))
    assert (output, len(held.requests)) == ([], 2)
    output, held = in_blocks(backend, 4, 3, 1001, [Ask("a")], resumed=held.requests)
    assert [output for output in output if output != ("record", 1)] == [("record", 2), ("1001", 3), ("record", 4)]
    assert held.requests == []


def test_no_timer_fires_after_a_cut():
    backend = Deferred()
    in_blocks(backend, 1, 1, NOON, [Ask("a", wake=(1001,))])
    output, _ = in_blocks(backend, 4, 2, 1001, [], cut=record_order(2))
    assert output == []
    assert timer_entry(Timer(1001, b'"a"', PROCESSING)) in dict(backend.items())


# ---------------------------------------------------------------------------------------------------- the harness


@pytest.fixture(params=["hashmap", "rocksdb"])
def harness(request):
    with KeyedHarness(Waking(), key=lambda ask: ask.key, backend=request.param) as h:
        yield h


def test_moving_the_harness_clock_fires_timers(harness):
    harness.process(Ask("a", wake=(10, 20)))
    harness.clock.advance(9)
    assert harness.output() == [Told("a", "record at 0", 1)]
    harness.clock.advance(1)
    assert harness.output() == [Told("a", "processing_time 10", 2)]
    harness.clock.advance(50)
    harness.process(Ask("a", wake=(30,)))
    assert [output.what for output in harness.output()] == ["processing_time 20", "record at 60", "processing_time 30"]


def test_harness_resumes_from_snapshot_at_its_time(harness):
    harness.clock.advance(5)
    harness.process(Ask("a", wake=(10,)))
    snapshot = harness.snapshot()
    with KeyedHarness.restore(snapshot, Waking(), key=lambda ask: ask.key) as other:
        other.clock.advance(4)
        assert (other.output(), other.clock.now()) == ([], 9)
        other.clock.advance(1)
        assert [output.what for output in other.output()] == ["processing_time 10"]


#    a: its record asks for state, its timer waits for the record      b: its timer asks for state


def test_due_timer_waits_for_own_key_only():
    with KeyedHarness(Waking(), key=lambda ask: ask.key, automatic=False) as h:
        h.process(Ask("a", wake=(10,)))
        h.process(Ask("b", wake=(10,)))
        h.drain()
        h.snapshot()
        h.output()
        h.process(Ask("a"))
        h.clock.advance(10)
        assert (h.statistics().active, h.statistics().occupied_keys) == (2, 2)
        assert h.step()
        output = [(output.key, output.what) for output in h.output()]
        assert [what for key, what in output if key == "a"] == ["record at 0", "processing_time 10"]
        assert ("b", "processing_time 10") in output
