"""What runs in C gives the same as what runs in Python: outputs, state, held records, counts and errors of random programs."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    AggregatingState,
    KeyedCoProcessFunction,
    Process,
    RowKind,
    SideOutput,
    StateFuture,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
    declare,
    native,
)
from headrace.errors import HeadraceError
from headrace.execution.element import Element, ProcessingTime, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from tests.jobs.home import PROJECT
from tests.unit.support.deferred import Deferred
from tests.unit.support.fuzzing import examples
from tests.unit.support.hand_executor import DrawnExecutor

LATEST = 100
"""Timers beyond it are not set again, and none sets one at its own time or before, so that programs end."""


class Acts(Struct, frozen=True):
    """Acts and their numbers, for one key at one time (ms)."""

    key: str
    at: Timestamp
    acts: tuple[tuple[str, int], ...] = ()


class OtherActs(Acts, frozen=True):
    """Acts of the second input."""


class Said(Struct, frozen=True):
    """What an act has seen."""

    text: str
    number: int | None = None


class Numbers(AggregateFunction[int, list[int], int]):
    """Sum of the numbers since the last 4; it has no result if it is 3."""

    def create_accumulator(self):
        return []

    def add(self, number, numbers, /):
        return None if number == 4 else [*numbers, number]

    def get_result(self, numbers, /):
        return None if sum(numbers) == 3 else sum(numbers)

    def merge(self, one, other, /):
        return one + other


class _Runs:
    """Acts that are the same in both ways of writing."""

    count = ValueState("count", int)
    other = ValueState("other", int)
    lived = ValueState("lived", int, ttl=StateTtl(timedelta(milliseconds=9)))
    numbers = AggregatingState("numbers", Numbers())
    lived_numbers = AggregatingState("lived_numbers", Numbers(), ttl=StateTtl(timedelta(milliseconds=9)))

    def __init__(self):
        self.kept = []

    def emit(self, number, ctx):
        ctx.collect(Said(ctx.key, number))

    def emit_kind(self, number, ctx):
        ctx.collect(Said("kind", number), tuple(RowKind)[number % 4])

    def emit_at(self, number, ctx):
        ctx.collect(Said(f"at {ctx.timestamp} {ctx.watermark} {ctx.row_kind}", number), timestamp=number)

    def emit_side(self, number, ctx):
        ctx.output("side", Said("side", number))

    def emit_wrongly(self, number, ctx):
        ctx.collect(Acts("wrong", number))

    def refuse(self, number, ctx):
        if ctx.timer is None or number == 4:
            ctx.quarantine(f"reason {number}")

    def remind(self, number, ctx):
        ctx.timers.register_event_time(ctx.timestamp + 3 * number - 6)

    def remind_by_clock(self, number, ctx):
        ctx.timers.register_processing_time(3 * number)

    def cancel(self, number, ctx):
        ctx.timers.delete_event_time(ctx.timestamp + 3 * number - 6)

    def fail(self, number, ctx):
        raise ValueError(f"{ctx.key} {number}")

    def sum_up_wrongly(self, number, ctx):
        self.numbers.add(2)
        self.numbers.add("no number" if number % 2 else None)
        self.numbers.get()

    def keep(self, number, ctx):
        self.kept.append((ctx, self.count.value(), self.other.value()))

    def tell_kept(self, number, ctx):
        for kept, *_ in self.kept:
            ctx.collect(Said(f"{kept.key} {kept.timestamp} {kept.row_kind}"))

    def timer_acts(self, timestamp):
        """Return the acts of a timer, which its time determines."""
        again = (("remind", 3),) if timestamp % 2 and timestamp < LATEST else ()
        names = [name for name in (ASYNC_ACTS if isinstance(self, AsyncActs) else COMMON_ACTS) if "remind" not in name]
        return (("emit", timestamp), (names[timestamp % len(names)], timestamp % 5), *again)


class AsyncActs(_Runs, KeyedCoProcessFunction[Acts, OtherActs, Said]):
    """Takes acts, in `async def`."""

    async def process1(self, record, ctx, /):
        await self.run(record.acts, ctx)

    async def process2(self, record, ctx, /):
        await self.run(record.acts[::-1], ctx)

    async def on_timer(self, timestamp, ctx, /):
        await self.run(self.timer_acts(timestamp), ctx)

    async def run(self, acts, ctx):
        for name, number in acts:
            done = getattr(self, name)(number, ctx)
            if done is not None:
                await done

    async def read(self, number, ctx):
        ctx.collect(Said("count", await self.count.value()))

    async def add(self, number, ctx):
        await self.count.update((await self.count.value() or 0) + number)

    async def write(self, number, ctx):
        calls = [self.count.update(number), self.other.update(number + 1), self.count.value()]
        ctx.collect(Said(str([await call for call in calls])))

    async def write_none(self, number, ctx):
        await (self.count if number % 2 else self.other).update(None)

    async def clear(self, number, ctx):
        await self.count.clear()

    async def live(self, number, ctx):
        ctx.collect(Said("lived", await self.lived.value()))
        await self.lived.update(number)

    async def live_shortly(self, number, ctx):
        await self.lived.update(number, timedelta(milliseconds=number + 1))

    async def sum_up(self, number, ctx):
        await self.numbers.add(number)
        ctx.collect(Said("sum", await self.numbers.get()))

    async def sum_up_elsewhere(self, number, ctx):
        numbers = self.numbers.namespace(f"n{number % 2}")
        calls = [numbers.add(number), numbers.get(), numbers.add(1), self.numbers.get()]
        ctx.collect(Said(str([await call for call in calls])))

    async def sum_up_shortly(self, number, ctx):
        await self.lived_numbers.add(number, timedelta(milliseconds=number + 1))
        ctx.collect(Said("short sum", await self.lived_numbers.get()))

    async def chain(self, number, ctx):
        self.count.value().then_accept(lambda value: ctx.collect(Said("chained", value)))
        self.other.value().then_compose(lambda value: self.count.update((value or 0) + number))

    async def chain_and_wait(self, number, ctx):
        await self.chain(number, ctx)
        ctx.collect(Said("waited", await self.other.value()))

    async def combine(self, number, ctx):
        both = self.count.value().then_combine(self.other.value(), lambda mine, theirs: (mine or 0) - (theirs or 0))
        ctx.collect(Said("both", await both))

    async def await_twice(self, number, ctx):
        future = self.other.value()
        ctx.collect(Said(f"{await future} {await future}"))

    async def await_made(self, number, ctx):
        ctx.collect(Said("made", await StateFuture(number)))

    async def await_kept(self, number, ctx):
        for _, first, second in self.kept[-1:]:
            ctx.collect(Said(f"{await first} {await second}"))

    async def await_other_things(self, number, ctx):
        await _Foreign()

    def chain_block(self, number, ctx):
        self.count.value().then_accept(self.block)

    @declare("block")
    def block(self, value, record, ctx, /):
        self.count.update((value or 0) + 1)
        ctx.collect(Said("block", value))


class PlainActs(_Runs, KeyedCoProcessFunction[Acts, OtherActs, Said]):
    """Takes acts, in plain `def`."""

    def process1(self, record, ctx, /):
        self.run(record.acts, ctx)

    def process2(self, record, ctx, /):
        self.run(record.acts[::-1], ctx)

    def on_timer(self, timestamp, ctx, /):
        self.run(self.timer_acts(timestamp), ctx)

    def run(self, acts, ctx):
        for name, number in acts:
            getattr(self, name)(number, ctx)

    def read(self, number, ctx):
        ctx.collect(Said("count", self.count.value()))

    def add(self, number, ctx):
        self.count.update((self.count.value() or 0) + number)

    def write(self, number, ctx):
        self.other.update(number)
        ctx.collect(Said("other", self.other.value()))

    def write_none(self, number, ctx):
        (self.count if number % 2 else self.other).update(None)

    def clear(self, number, ctx):
        self.count.clear()

    def live(self, number, ctx):
        ctx.collect(Said("lived", self.lived.value()))
        self.lived.update(number)

    def live_shortly(self, number, ctx):
        self.lived.update(number, timedelta(milliseconds=number + 1))

    def sum_up(self, number, ctx):
        self.numbers.add(number)
        ctx.collect(Said("sum", self.numbers.get()))

    def sum_up_elsewhere(self, number, ctx):
        numbers = self.numbers.namespace(f"n{number % 2}")
        numbers.add(number)
        ctx.collect(Said(f"{numbers.get()} {self.numbers.get()}"))

    def sum_up_shortly(self, number, ctx):
        self.lived_numbers.add(number, timedelta(milliseconds=number + 1))
        ctx.collect(Said("short sum", self.lived_numbers.get()))


class _Foreign:
    """Something to await that is no state."""

    def __await__(self):
        yield


COMMON_ACTS = (
    "read", "add", "add", "write", "write_none", "clear", "live", "live_shortly", "emit", "emit_kind", "emit_at",
    "emit_side", "refuse", "remind", "remind_by_clock", "cancel", "keep", "tell_kept", "sum_up", "sum_up",
    "sum_up_elsewhere", "sum_up_shortly",
)  # fmt: skip
ASYNC_ACTS = (*COMMON_ACTS, "chain", "chain_and_wait", "combine", "await_twice", "await_made", "chain_block")
FAILING_ACTS = ("fail", "emit_wrongly", "sum_up_wrongly")
ASYNC_FAILING_ACTS = (*FAILING_ACTS, "await_other_things", "await_kept")


def acts_operator(function):
    return Process("acts", "key", function(), (SideOutput("side", Said),))


@st.composite
def act_lists(draw, names, failing, max_size=25):
    """Draw records in arrival order whose times increase on average, with disorder. At most one of them has an act that may fail."""
    acts = st.lists(st.tuples(st.sampled_from(names), st.integers(0, 4)), max_size=4).map(tuple)
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from([Acts, OtherActs]),
                st.sampled_from("aaabc"),
                st.sampled_from([-24, -9, -3, 0, 0, 3]),
                acts,
            ),
            max_size=max_size,
        )
    )
    records = [kind(key, 3 * place + at, acts) for place, (kind, key, at, acts) in enumerate(drawn)]
    if records and draw(st.integers(0, 3)) == 0:
        place, act = draw(st.integers(0, len(records) - 1)), draw(st.sampled_from(failing))
        former = records[place]
        records[place] = type(former)(former.key, former.at, (*former.acts, (act, 1)))
    return records


pytestmark = pytest.mark.skipif(native.runs_in != "C", reason="the module in C is not compiled, or switched off")


@dataclass(frozen=True)
class Setting:
    """How to run the records. `runs` is the number of tasks, one after the other; `numbers` draw the order of answers."""

    options: AsyncStateOptions
    runs: int
    batch: int
    every: int
    kinds: tuple[int, ...]
    stops: tuple[bool, ...]
    numbers: tuple[int, ...] | None
    timed: bool


settings = st.builds(
    Setting,
    options=st.builds(
        AsyncStateOptions,
        in_flight_records_limit=st.integers(1, 8) | st.just(6000),
        buffer_size=st.integers(1, 6),
        cache_entries=st.sampled_from([1, 2, 1000, 1000]),
        enabled=st.sampled_from([True, True, False]),
        order_with_same_key=st.sampled_from([KeyOrder.RECORD_ORDERED, *KeyOrder]),
        event_order_watermark=st.sampled_from(EventOrder),
    ),
    runs=st.integers(1, 3),
    batch=st.integers(1, 12),
    every=st.integers(1, 9),
    kinds=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
    stops=st.lists(st.booleans(), max_size=6).map(tuple),
    numbers=st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple),
    timed=st.booleans(),
)
async_cases = st.tuples(st.just(AsyncActs), act_lists(ASYNC_ACTS, ASYNC_FAILING_ACTS), settings)
plain_cases = st.tuples(st.just(PlainActs), act_lists(COMMON_ACTS, FAILING_ACTS), settings)


def outcome(function, records, setting):
    """Return everything that can be seen of the runs, up to the first error."""
    backend = HashMapBackend() if setting.numbers is None else Deferred()
    operator, watermark, held, seen = acts_operator(function), None, (), []
    size = -(-len(records) // setting.runs) or 1
    for first in range(0, len(records), size):
        elements = [
            element(first + place, record, setting) for place, record in enumerate(records[first : first + size])
        ]
        watermarks = [
            Watermark(record_order(1 + first + place), 3 * (first + place) - 6)
            for place in range(0, len(elements), setting.every)
        ]
        process = KeyedProcess(
            operator,
            backend,
            records=(Acts, OtherActs),
            watermark=watermark,
            last_watermark=watermarks[-1].timestamp,
            processing_time=ProcessingTime(record_order(1 + first), 2 * first) if setting.timed else None,
            options=setting.options,
            executor=None if setting.numbers is None else DrawnExecutor(backend, setting.numbers),
        )
        stops = list(setting.stops)
        batches = [elements[start : start + setting.batch] for start in range(0, len(elements), setting.batch)]
        try:
            left = process.run(batches, watermarks, resumed=held, stop=lambda stops=stops: bool(stops) and stops.pop())
        except HeadraceError as error:
            return [*seen, told(process), text_of(error)]
        held, watermark = left.requests, watermarks[-1].timestamp
        seen += [told(process), left, written(process, backend)]
    return seen


def element(place, record, setting):
    kind = setting.kinds[place % len(setting.kinds)]
    return Element(record_order(1 + place), record.at, kind, encode(record.key), record, int(type(record) is OtherActs))


def told(process):
    outputs = process.emitted, process.side_outputs, process.refused
    return str(outputs), process.metrics, process.statistics()


def written(process, backend):
    """Write a task's changes, and return them."""
    changes = [list(store.changes()) for store in process.stores]
    for store, those in zip(process.stores, changes, strict=True):
        backend.write_batch(store.writes(those))
    timers = list(process.timers.changes())
    backend.write_batch(process.timers.writes(timers))
    return changes, timers


def text_of(error):
    """The text of an error without the stack, where the engine's own functions differ."""
    lines = str(error).splitlines()
    return type(error), lines[0], lines[-1]


def serve():
    """Answer cases that come by the standard input with their outcomes, until it ends. In a process of its own."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what code prints is no answer
    with contextlib.suppress(EOFError):
        while True:
            case = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
            pickle.dump((native.runs_in, outcome(*case)), answers)
            answers.flush()


@pytest.fixture(scope="module")
def in_python():
    """Return a function that gives the outcome of a case in a process without the objects in C."""
    with subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        cwd=PROJECT,
        env={**os.environ, "HEADRACE_PURE_PYTHON": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def ask(case):
            pickle.dump(case, process.stdin)
            process.stdin.flush()
            runs_in, outcome = pickle.load(process.stdout)  # noqa: S301 - from a process of this test
            assert runs_in == "Python (HEADRACE_PURE_PYTHON is 1)"
            return outcome

        yield ask
        process.stdin.close()


@given(case=async_cases)
def test_coroutines_give_the_same(in_python, case):
    assert outcome(*case) == in_python(case)


@given(case=plain_cases)
def test_plain_functions_give_the_same(in_python, case):
    assert outcome(*case) == in_python(case)


@pytest.mark.long
@examples(3_000)
@given(case=async_cases | plain_cases)
def test_many_more_programs_give_the_same(in_python, case):
    assert outcome(*case) == in_python(case)
