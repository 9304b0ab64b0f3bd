"""What runs in C gives the same as what runs in Python: outputs, state, held records, counts and errors of random programs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import native
from headrace.errors import HeadraceError
from headrace.execution.element import Element, ProcessingTime, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from tests.unit.support.acts import (
    ASYNC_ACTS,
    ASYNC_FAILING_ACTS,
    COMMON_ACTS,
    FAILING_ACTS,
    Acts,
    AsyncActs,
    OtherActs,
    PlainActs,
    act_lists,
    acts_operator,
)
from tests.unit.support.deferred import Deferred
from tests.unit.support.fuzzing import examples
from tests.unit.support.hand_executor import DrawnExecutor

pytestmark = pytest.mark.skipif(not native.is_on(), reason="the module in C is not compiled, or switched off")


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


def assert_same(function, records, setting):
    with native.in_python():
        expected = outcome(function, records, setting)
    assert outcome(function, records, setting) == expected


@given(case=async_cases)
def test_coroutines_give_the_same(case):
    assert_same(*case)


@given(case=plain_cases)
def test_plain_functions_give_the_same(case):
    assert_same(*case)


@pytest.mark.long
@examples(3_000)
@given(case=async_cases | plain_cases)
def test_many_more_programs_give_the_same(case):
    assert_same(*case)
