"""The clock at a watermark: one that moves far equals many that move by a millisecond, in one operator and in chains."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import (
    AggregateFunction,
    AggregatingState,
    Emit,
    JoinType,
    KeyedProcessFunction,
    Late,
    Lifetime,
    ListState,
    MapState,
    OnConflict,
    Pipeline,
    ReducingState,
    RowKind,
    StateTtl,
    Strategy,
    Struct,
    Timestamp,
    UpdateType,
    ValueState,
)
from headrace.api.functions import function_types
from headrace.api.graph import UpsertMaterialize
from headrace.execution.element import Element
from headrace.execution.element import Watermark as ElementWatermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.operators import Count, Cumulative, Hopping, Lag, Lead, Max, Rank, RowNumber, Session, Sum, Tumbling
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.key_groups import key_group, key_group_range
from headrace.testing import KeyedHarness, MaterializerHarness, PipelineHarness, Watermark
from tests.unit.support.fuzzing import examples

GROUPS = 16
LATEST = 80
"""Timers beyond it are not set again, so that programs end (ms)."""

FIRST = -20
"""A timestamp before all records and timers (ms)."""


class Event(Struct, frozen=True):
    key: str
    at: Timestamp
    number: int = 0


class Other(Event, frozen=True):
    """An event of the second input."""


class Pair(Struct, frozen=True):
    left: Event | None
    right: Other | None


class Total(Struct, frozen=True):
    key: str
    events: Annotated[int, Count()]
    sum: Annotated[int, Sum("number")]


class WindowTotal(Struct, frozen=True):
    key: str
    window_start: Timestamp
    window_end: Timestamp
    events: Annotated[int, Count()]
    sum: Annotated[int, Sum("number")]


class Ranked(Struct, frozen=True):
    key: str
    number: int
    rank: Annotated[int, Rank()]


class Summed(Struct, frozen=True):
    key: str
    at: Timestamp
    sum: Annotated[int, Sum("number")]


class Running(Summed, frozen=True):
    most: Annotated[int, Max("number")]
    row: Annotated[int, RowNumber()]
    before: Annotated[int | None, Lag("number", offset=2)]


class Ahead(Running, frozen=True):
    next: Annotated[int | None, Lead("number", offset=2)]


def ms(count):
    return timedelta(milliseconds=count)


def mixed(*parts):
    """Return a number of three digits that depends on all parts."""
    return zlib.crc32(repr(parts).encode()) % 1000


class Numbers(AggregateFunction[int, int, int]):
    """Mixes numbers, so that their order matters."""

    def create_accumulator(self):
        return 1

    def add(self, value, accumulator, /):
        return mixed(accumulator, value)

    def get_result(self, accumulator, /):
        return accumulator

    def merge(self, one, other, /):
        return mixed(one, other)


class Timed(KeyedProcessFunction[Event, Event]):
    """Has each kind of state with a TTL, and timers that set timers, some of them for the past."""

    value = ValueState("value", int, ttl=StateTtl(ms(7)))
    born = ValueState("born", int, ttl=StateTtl(ms(11), update=UpdateType.ON_CREATE))
    items = ListState("items", int, ttl=StateTtl(ms(5)))
    entries = MapState("entries", int, int, ttl=StateTtl(ms(9), update=UpdateType.ON_READ_AND_WRITE))
    most = ReducingState("most", int, max, ttl=StateTtl(ms(6)))
    numbers = AggregatingState("numbers", Numbers(), ttl=StateTtl(ms(8), update=UpdateType.ON_READ_AND_WRITE))

    async def seen(self):
        """Return all that is alive."""
        entries = [entry async for entry in self.entries.entries()]
        values = [await state for state in (self.value.value(), self.born.value(), self.items.get())]
        return (*values, sorted(entries), await self.most.get(), await self.numbers.get())

    async def process(self, record, ctx, /):
        number = record.number
        seen = mixed(await self.seen(), ctx.watermark, number)
        await self.value.update(number)
        if await self.born.value() is None:
            await self.born.update(number)
        await self.items.add(number)
        await self.entries.put(number % 3, number)
        await self.most.add(number)
        await self.numbers.add(number)
        ctx.timers.register_event_time(ctx.timestamp + (-2, 1, 3, 6, 7, 14)[number % 6])
        ctx.collect(Event(ctx.key, ctx.timestamp, seen))

    async def on_timer(self, timestamp, ctx, /):
        assert ctx.watermark >= timestamp
        seen = mixed(await self.seen(), timestamp, ctx.watermark)
        ctx.collect(Event(ctx.key, timestamp, seen))
        if seen % 3 == 0:
            await self.value.update(seen)
            await self.items.add(seen)
        if seen % 2 and timestamp < LATEST:
            ctx.timers.register_event_time(timestamp + 1 + seen % 7, "again")
            if not ctx.namespace:
                ctx.timers.register_event_time(timestamp - seen % 3, "past")


def keyed(name="events", record=Event, pipeline=None):
    return (pipeline or Pipeline("timestamps")).source(name, record, event_time="at").key_by("key")


def both():
    """Return the streams of both inputs."""
    pipeline = Pipeline("timestamps")
    return keyed(pipeline=pipeline), keyed("others", Other, pipeline)


def joined(**options):
    left, right = both()
    return left.join("joined", right, emit=Pair, **options)


def as_of(how):
    left, right = both()
    return left.join_as_of("joined", right, emit=Pair, how=how, state_ttl=ms(10))


def windows(kind, **options):
    return keyed().window(kind).aggregate("windows", WindowTotal, **options)


def over(result=Running, **options):
    return keyed().over("over", result, order_by="number", **options)


def window_join():
    left, right = both()
    return left.window(Tumbling(ms(8))).join("joined", right.window(Tumbling(ms(8))), emit=Pair)


STREAMS = {
    "code": lambda: keyed().process("timed", Timed()),
    "tumbling": lambda: windows(Tumbling(ms(10))),
    "tumbling, late": lambda: windows(Tumbling(ms(6)), allowed_lateness=ms(9)),
    "tumbling, early": lambda: windows(Tumbling(ms(12)), early=ms(4)),
    "hopping": lambda: windows(Hopping(ms(9), ms(3))),
    "cumulative": lambda: windows(Cumulative(ms(12), ms(4))),
    "cumulative, late, early": lambda: windows(Cumulative(ms(12), ms(6)), allowed_lateness=ms(5), early=ms(2)),
    "sessions": lambda: windows(Session(ms(5))),
    "sessions, late": lambda: windows(Session(ms(4)), allowed_lateness=ms(7)),
    "sessions, early": lambda: windows(Session(ms(7)), early=ms(3)),
    "top of windows": lambda: keyed().window(Tumbling(ms(8))).top("top", 2, by="number", result=Ranked),
    "top": lambda: keyed().top("top", 2, by="number", result=Ranked, state_ttl=ms(9)),
    "aggregate": lambda: keyed().aggregate("total", Total, state_ttl=ms(9)),
    "first at once": lambda: keyed().first_by_time("first", state_ttl=ms(6)),
    "first": lambda: keyed().first_by_time("first", at_watermark=True, state_ttl=ms(6)),
    "last": lambda: keyed().last_by_time("last", state_ttl=ms(6)),
    "regular join": lambda: joined(how=JoinType.LEFT, state_ttl=ms(8)),
    "interval join": lambda: joined(within=(ms(-3), ms(6))),
    "outer interval join": lambda: joined(how=JoinType.FULL, within=(ms(-3), ms(6))),
    "window join": window_join,
    "as-of join": lambda: as_of(JoinType.LEFT),
    "inner as-of join": lambda: as_of(JoinType.INNER),
    "over": lambda: over(state_ttl=ms(9)),
    "over, rows": lambda: over(rows=3, state_ttl=ms(9)),
    "over, range": lambda: over(within=ms(6), state_ttl=ms(9)),
    "over, sums of a range": lambda: over(Summed, within=ms(6)),
    "over, next rows": lambda: over(Ahead, rows=3, state_ttl=ms(9)),
    "over, late": lambda: over(late=Late.CORRECT, keep=ms(8), state_ttl=ms(9)),
    "over, late, for ever": lambda: over(late=Late.CORRECT, keep=ms(8), state_ttl=Lifetime.FOREVER),
    "over, late, rows": lambda: over(rows=2, late=Late.CORRECT, keep=ms(8), state_ttl=ms(5)),
    "over, late, range": lambda: over(Summed, within=ms(6), late=Late.CORRECT, keep=ms(8)),
    "over, late, next rows": lambda: over(Ahead, within=ms(6), late=Late.CORRECT, keep=ms(8), state_ttl=ms(9)),
}
"""A stream behind each kind of operator, by name."""

MATERIALIZERS = {
    "materializer": {"ttl": StateTtl(ms(9))},
    "materializer, per key": {"ttl": StateTtl(ms(9)), "strategy": Strategy.LEGACY},
    "materializer, first": {"ttl": StateTtl(ms(9)), "on_conflict": OnConflict.DO_NOTHING},
    "materializer, last": {"on_conflict": OnConflict.DEDUPLICATE},
}
"""Options of materializers, which end a chain, by name."""


def operator_of(name):
    """Return a new operator of a kind."""
    if name in MATERIALIZERS:
        options = {"strategy": Strategy.VALUE, "emit": Emit.EVERY_CHANGE, **MATERIALIZERS[name]}
        return UpsertMaterialize(name="materializer", primary_key=("key",), upsert_key=None, **options)
    return STREAMS[name]().operators[-1]


def far(last, watermark, place):
    """Return one watermark that moves far, with its place."""
    del last
    return [(place, watermark)]


def each_timestamp(last, watermark, place):
    """Return a watermark for each millisecond, each at a place of its own."""
    return [(place + count, timestamp) for count, timestamp in enumerate(range(last + 1, watermark + 1))]


def each_at_one_place(last, watermark, place):
    """Return a watermark for each millisecond, all at one place."""
    return [(place, timestamp) for timestamp in range(last + 1, watermark + 1)]


def few(last, watermark, place):
    """Return some watermarks, each at a place of its own."""
    timestamps = [timestamp for timestamp in range(last + 1, watermark) if mixed(timestamp, watermark) % 4 == 0]
    return [(place + count, timestamp) for count, timestamp in enumerate([*timestamps, watermark])]


APART = 1000
"""Distance between the places of two records: there is room for watermarks."""


@dataclass
class Chain:
    """A chain of operators with their state, and what each of them has emitted, as (place, time, kind, record)."""

    names: tuple[str, ...]
    steps: Any = far
    parallelism: int = 1
    new_backend: Any = HashMapBackend
    place: int = 0
    watermark: int | None = None
    backends: dict = field(default_factory=dict)
    late: int = 0

    def __post_init__(self):
        self.operators = [operator_of(name) for name in self.names]
        self.emitted = [[] for _ in self.operators]

    def run(self, *micro_batches):
        """Process events and watermarks (plain numbers) in order; return the outputs of all operators in order, and the number of late records."""
        for micro_batch in micro_batches:
            self.take(micro_batch)
        return [
            [output[1:] for output in sorted(emitted, key=lambda output: output[0])] for emitted in self.emitted
        ], self.late

    def take(self, micro_batch):
        rows, watermarks, before = [], [], self.watermark
        for item in micro_batch:
            self.place += APART
            if not isinstance(item, int):
                rows.append((record_order(self.place), item.at, RowKind.INSERT, item))
            elif self.watermark is None or item > self.watermark:
                last = FIRST if self.watermark is None else self.watermark
                watermarks += self.steps(last, item, self.place)
                self.watermark = item
        marks = [ElementWatermark(record_order(place), time) for place, time in watermarks]
        for stage, operator in enumerate(self.operators):
            outputs = []
            for task in range(self.parallelism):
                outputs += self.task(stage, operator, (task, before, marks), rows)
            self.emitted[stage] += outputs
            rows = [(order, at, RowKind.INSERT, event_of(kind, record)) for order, at, kind, record in outputs]

    def task(self, stage, operator, position, rows):
        task, before, marks = position
        groups = key_group_range(task, GROUPS, self.parallelism)
        backend = self.backends.setdefault((stage, task), self.new_backend())
        elements = [self.element(operator, *row) for row in sorted(rows, key=lambda row: row[0])]
        owned = [element for element in elements if key_group(element.key_json, GROUPS) in groups]
        if isinstance(operator, UpsertMaterialize):
            return materialized(operator, backend, owned, before, marks)
        process = KeyedProcess(
            operator,
            backend,
            records=function_types(operator.function)[0],
            watermark=before,
            last_watermark=marks[-1].timestamp if marks else before,
            stage=stage,
        )
        process.run([owned], marks)
        for store, changes in process.changes():
            backend.write_batch(store.writes(changes))
        backend.write_batch(process.cleanup.writes())
        backend.write_batch(process.timers.writes(process.timers.changes()))
        self.late += process.metrics["late"]
        return [tuple(emitted) for emitted in process.emitted]

    @staticmethod
    def element(operator, order, at, kind, event):
        types = (Event,) if isinstance(operator, UpsertMaterialize) else function_types(operator.function)[0]
        number = int(len(types) == 2 and isinstance(event, Other))
        if not number:
            event = Event(event.key, event.at, event.number)
        return Element(order, at, kind, encode(event.key), event, number)


def event_of(kind, record):
    """Return what an operator emitted as an event for the next one."""
    number = mixed(int(kind), record)
    at = getattr(record, "at", 0)
    return (Other if number % 3 == 0 else Event)("abc"[number % 3 if number % 2 else 0], at, number)


def materialized(operator, backend, elements, before, marks):
    """Return the changes of a materializer in one micro-batch, in the form of what operators emit."""
    task = UpsertMaterializer(operator, backend, record=Event, watermark=before, watermarks=marks)
    task.run([elements])
    changes, sweeps = task.changes(), task.timer_changes()
    del changes
    backend.write_batch([*task.writes(), *task.timer_writes(sweeps)])
    return [(out.order, 0, out.kind, msgspec.json.decode(out.raw, type=Event)) for out in task.outputs()]


OPERATORS = [*STREAMS, *MATERIALIZERS]


@st.composite
def event_lists(draw, max_size=14):
    """Events in arrival order, and watermarks (plain numbers) among them that mostly move far. The last one is behind all."""
    event = st.builds(
        lambda kind, **fields: kind(**fields),
        st.sampled_from([Event, Event, Other]),
        key=st.sampled_from("aab"),
        at=st.integers(-9, 6),
        number=st.integers(0, 9),
    )
    drawn, now, items = draw(st.lists(event | st.integers(1, 25), max_size=max_size)), 0, []
    for item in drawn:
        now += 2
        items.append(
            max(now := now + item - 3, 0) if isinstance(item, int) else replace(item, at=max(now + item.at, -9))
        )
    return [*items, 150]


def cut(items, places):
    """Return the micro-batches that begin at these places."""
    bounds = [0, *sorted({place % len(items) for place in places}), len(items)]
    return [items[start:end] for start, end in itertools.pairwise(bounds)]


def check(names, items, *, cuts=(), steps=far, parallelism=1, new_backend=None):
    options = {} if new_backend is None else {"new_backend": new_backend}
    wanted = Chain(names, each_timestamp).run(items)
    assert Chain(names, steps, parallelism, **options).run(*cut(items, cuts)) == wanted


ways = {
    "cuts": st.lists(st.integers(0, 20), max_size=2),
    "steps": st.sampled_from([far, far, few, each_at_one_place]),
    "parallelism": st.sampled_from([1, 1, 3]),
}


@pytest.mark.parametrize("name", OPERATORS)
@examples(4)
@given(items=event_lists(), **{name: ways[name] for name in ("cuts", "steps")})
def test_steps_of_the_watermark_change_nothing(name, items, cuts, steps):
    check((name,), items, cuts=cuts, steps=steps)


@examples(15)
@given(
    first=st.sampled_from([*STREAMS]),
    second=st.sampled_from([*STREAMS]),
    third=st.none() | st.sampled_from(OPERATORS),
    items=event_lists(),
    **ways,
)
def test_steps_of_the_watermark_change_no_chain(first, second, third, items, **ways):
    check((first, second, *([] if third is None else [third])), items, **ways)


@examples(2)
@given(chain=st.lists(st.sampled_from([*STREAMS]), min_size=2, max_size=2), items=event_lists(), **ways)
def test_chains_over_each_backend_are_the_same(backends, chain, items, **ways):
    with backends.lent() as new:
        check(tuple(chain), items, **ways, new_backend=new)


@pytest.mark.long
@examples(400)
@given(
    chain=st.lists(st.sampled_from([*STREAMS]), min_size=1, max_size=2),
    last=st.sampled_from(OPERATORS),
    items=event_lists(max_size=25),
    **ways,
)
def test_many_chains_are_the_same(chain, last, items, **ways):
    check((*chain, last), items, **ways)


# ------------------------------------------------------------------------------------------------ examples

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize("stops", [[], [30 * MINUTE], [HOUR - 1, HOUR], [HOUR, HOUR + 1]])
def test_timer_finds_state_as_of_its_time(backend, stops):
    class Alarm(Struct, frozen=True):
        key: str
        at: Timestamp
        number: int | None = None

    class Alarms(KeyedProcessFunction[Alarm, Alarm]):
        """Keeps a number for an hour, and looks for it half an hour later, when it expires, and after that."""

        number = ValueState("number", int, ttl=StateTtl(timedelta(hours=1)))

        async def process(self, record, ctx, /):
            await self.number.update(7)
            for delay in (30 * MINUTE, HOUR, HOUR + 1):
                ctx.timers.register_event_time(record.at + delay)

        async def on_timer(self, timestamp, ctx, /):
            assert ctx.watermark == ctx.timestamp == timestamp
            ctx.collect(Alarm(ctx.key, timestamp, await self.number.value()))

    with KeyedHarness(Alarms(), key=lambda alarm: alarm.key, backend=backend) as h:
        h.process(Alarm("a", 0), timestamp=0)
        for stop in [*stops, 2 * HOUR]:
            h.watermark(stop)
        seen = [(alarm.at, alarm.number) for alarm in h.output() if not isinstance(alarm, Watermark)]
    assert seen == [(30 * MINUTE, 7), (HOUR, 7), (HOUR + 1, None)]


def emitted_by(stream, key, *steps):
    """Return what an operator emits: a number is a watermark, a record goes to the input of its type."""
    function = stream.operators[-1].function
    with KeyedHarness(function, key=key) as h:
        for step in steps:
            if isinstance(step, int):
                h.watermark(step)
            elif isinstance(key, tuple):
                (h.process2 if isinstance(step, Other) else h.process1)(step, timestamp=step.at)
            else:
                h.process(step, timestamp=step.at)
        return [record for _, record in h.kinds()]


def key_of(event):
    return event.key


def first(state_ttl):
    events = Pipeline("p").source("events", Event, event_time="at").key_by("key")
    return events.first_by_time("first", at_watermark=True, state_ttl=state_ttl)


def test_far_watermark_finds_the_first_record():
    assert emitted_by(first(timedelta(milliseconds=10)), key_of, Event("a", 5), 100) == [Event("a", 5)]


@pytest.mark.parametrize("waiting", [[], [Event("a", 15)]])
def test_record_at_the_watermark_is_late(waiting):
    late, later = Event("a", 10, 1), Event("a", 15)
    assert emitted_by(first(Lifetime.FOREVER), key_of, 10, *waiting, late, later, 20) == [later]


def test_first_record_waits_through_a_quiet_week():
    events = Pipeline("p").source("events", Event, event_time="at", out_of_orderness=timedelta(minutes=5)).key_by("key")
    firsts = events.first_by_time("first", at_watermark=True, state_ttl=timedelta(days=7)).sink("firsts")
    h = PipelineHarness(firsts, bucket=1)
    h.feed("events", [Event("a", day * DAY) for day in (0, 8, 9)])
    h.run()
    assert [row.at for row in h.sink("firsts")] == [0]
    h.run(end_of_input=True)
    assert {row.at for row in h.sink("firsts")} == {0, 9 * DAY}  # that of day 8 came while the first one waited


@pytest.mark.parametrize("how", [JoinType.LEFT, JoinType.INNER])
def test_version_is_valid_as_of_the_record(how):
    pipeline = Pipeline("p")
    left = pipeline.source("events", Event, event_time="at").key_by("key")
    right = pipeline.source("versions", Other, event_time="at").key_by("key")
    joined = left.join_as_of("joined", right, emit=Pair, how=how, state_ttl=timedelta(milliseconds=10))
    version, order, later = Other("a", 5), Event("a", 8), Event("a", 16)
    pairs = emitted_by(joined, (key_of, key_of), version, order, later, 100)
    assert pairs == [Pair(order, version), *([Pair(later, None)] if how is JoinType.LEFT else [])]


class Heard(Struct, frozen=True):
    text: str


class Hears(KeyedProcessFunction[Event, Heard]):
    """Tells of each record, and 10 ms after it."""

    async def process(self, record, ctx, /):
        ctx.collect(Heard(f"record of {ctx.timestamp} at {ctx.watermark}"))
        ctx.timers.register_event_time(ctx.timestamp + 10)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Heard(f"timer of {timestamp} at {ctx.watermark}"))


@pytest.mark.parametrize("stop", [None, "ingest.after"])
def test_timers_of_two_operators_take_turns(stop):
    """One watermark fires all of them, also where a run that had to stop left it to the next one."""

    class Later(KeyedProcessFunction[Event, Event]):
        """Emits an event when its `number` is reached."""

        async def process(self, record, ctx, /):
            ctx.timers.register_event_time(record.number)

        async def on_timer(self, timestamp, ctx, /):
            ctx.collect(Event("k", timestamp))

    events = Pipeline("p").source("events", Event, event_time="at").key_by("key")
    h = PipelineHarness(
        events.process("later", Later()).key_by("key").process("hears", Hears()).sink("heard"), bucket=4
    )
    h.feed("events", [Event("a", 1, 20), Event("b", 1, 50), Event("c", 1, 60), Event("d", 1000, 2000)])
    h.run(budget_ends_at=stop)
    assert bool(h.sink("heard")) == (stop is None)
    h.run()
    assert [row.text for row in h.sink("heard")] == [
        "record of 20 at 19",
        "timer of 30 at 30",
        "record of 50 at 49",
        "record of 60 at 59",
        "timer of 60 at 60",
        "timer of 70 at 70",
    ]


def test_conflict_is_decided_before_its_row_expires():
    ttl = StateTtl(timedelta(milliseconds=10))
    with MaterializerHarness(Event, ("key",), ttl=ttl, on_conflict=OnConflict.DO_NOTHING) as h:
        h.process(RowKind.INSERT, Event("a", 1), timestamp=1)
        h.process(RowKind.INSERT, Event("a", 4), timestamp=4)
        h.watermark(12)
        assert h.history("a") == []
