"""Promise 1, asynchronously: in whatever order state is answered, each key sees the values of a plain loop."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.functions import function_types
from headrace.execution.element import Element, Watermark
from headrace.execution.executor import ThreadedStateExecutor
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder
from headrace.records.order import record_order
from headrace.state.backend import GROUPED_PREFIX, VALUE_PREFIX, named, unpacked
from headrace.state.broadcast import BROADCAST_KEY
from headrace.state.codec import decode_key
from headrace.state.key_groups import key_group, key_group_range
from headrace.state.spilled_changes import SpilledChanges
from tests.unit.support.by_hand import End, Stage
from tests.unit.support.deferred import Deferred
from tests.unit.support.fuzzing import examples
from tests.unit.support.hand_executor import DrawnExecutor
from tests.unit.support.inputs import broadcast_apart, element_for, owned_by, stored_broadcast
from tests.unit.support.programs import (
    PATIENT_WAYS,
    CoPrograms,
    Do,
    Programs,
    RuledPrograms,
    event_lists,
    programs_operator,
)

GROUPS = 16


class Slow(Deferred):
    """A backend that lets threads read only while the task waits for them, one batch at a time."""

    def __init__(self):
        super().__init__()
        self.permits = threading.Semaphore(0)

    def get_many(self, keys, /):
        if threading.current_thread() is not threading.main_thread():
            self.permits.acquire()
        return super().get_many(keys)


class Patient(ThreadedStateExecutor):
    """Several threads over a slow backend."""

    _backend: Slow

    def completed(self, *, wait):
        if wait and self.in_flight:
            self._backend.permits.release()
        return super().completed(wait=wait)

    def close(self):
        self._backend.permits.release(self.in_flight + 1)
        super().close()


@dataclass
class Outcome:
    """Everything that must not depend on the way of running the programs."""

    sent: list = field(default_factory=list)
    sides: list = field(default_factory=list)
    values: dict = field(default_factory=dict)
    timers: set = field(default_factory=set)


def by_hand(events, function=Programs):
    """Return the results of a plain loop over the events."""
    end = End()
    stage = Stage(function(), end)
    for event in events:
        if isinstance(event, Do):
            stage.take(event, event.at)
        else:
            stage.advance(event)
    states = stage.states | stage.rules
    values = {(name, key): values for name, state in states.items() for key, values in state.found.items()}
    return Outcome(end.records, [record for _, record in stage.sides], values, stage.due)


@dataclass(frozen=True)
class Setting:
    """How to run the programs. `cuts` are the checkpoints, and `parallelism` that of the runs between them."""

    options: AsyncStateOptions
    prefetch: bool = False
    cuts: tuple[int, ...] = ()
    parallelism: tuple[int, ...] = (1,)
    numbers: tuple[int, ...] = (0,)
    batches: int = 1


options_of = functools.partial(
    st.builds,
    AsyncStateOptions,
    in_flight_records_limit=st.integers(1, 8) | st.just(6000),
    buffer_size=st.integers(1, 6),
    event_order_watermark=st.sampled_from(EventOrder),
    io_parallelism=st.integers(1, 3),
    cache_entries=st.sampled_from([1, 1000]),
)
settings_of = functools.partial(
    st.builds,
    Setting,
    prefetch=st.booleans(),
    cuts=st.lists(st.integers(0, 20), max_size=2).map(tuple),
    parallelism=st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=3).map(tuple),
    numbers=st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple),
    batches=st.integers(1, 4),
)


class Job:
    """The programs' operator, over state that outlives its tasks."""

    def __init__(self, setting, new_backend=Deferred, executor_of=None, function=Programs, *, spills=False):
        self.setting = setting
        self.spills = spills
        self.operator = programs_operator(function)
        self.new_backend = new_backend
        self.executor_of = executor_of or (lambda backend: DrawnExecutor(backend, setting.numbers, setting.batches))
        self.entries = {}
        self.ordinal = 1
        self.watermark = None
        self.sent = []
        self.sides = []

    def run(self, events):
        """Run all events, with a checkpoint at each cut."""
        places = [0, *sorted(min(cut, len(events)) for cut in self.setting.cuts), len(events)]
        for (start, end), tasks in zip(
            itertools.pairwise(places), itertools.cycle(self.setting.parallelism), strict=False
        ):
            self.take(events[start:end], tasks)
        values, timers = left_behind(self.entries)
        sent = [(out.record, out.timestamp) for out in sorted(self.sent, key=lambda out: out.order)]
        sides = [out.record for out in sorted(self.sides, key=lambda out: out.order)]
        return Outcome(sent, sides, values, timers)

    def take(self, events, tasks):
        """Run the events between two checkpoints."""
        before = self.watermark
        elements, watermarks = [], []
        for event in events:
            order = record_order(self.ordinal)
            if isinstance(event, Do):
                elements.append(element_for(self.operator.function, order, event.at, event))
                self.ordinal += 1
            else:
                watermarks.append(Watermark(order, event))
                self.watermark = event
        rules = stored_broadcast(self.entries.items())
        for task in range(tasks):
            self.run_task(key_group_range(task, GROUPS, tasks), elements, watermarks, before, rules)

    def run_task(self, groups, elements, watermarks, before, rules):
        """Run one task: its keys, over its part of the state."""
        backend = self.new_backend()
        backend.write_batch((entry, value) for entry, value in self.entries.items() if group_of(entry) in groups)
        spilled = SpilledChanges(backend, 0) if self.spills else None
        process = KeyedProcess(
            self.operator,
            backend,
            records=function_types(self.operator.function)[0],
            watermark=before,
            last_watermark=watermarks[-1].timestamp if watermarks and self.setting.prefetch else None,
            options=self.setting.options,
            executor=self.executor_of(backend),
            owns_broadcast=key_group(BROADCAST_KEY, GROUPS) in groups,
            spilled=spilled,
        )
        process.broadcast.load(rules)
        elements = owned_by(groups, GROUPS, elements)
        owned, broadcast = broadcast_apart(elements)
        if self.setting.prefetch:
            process.run([owned[:3], owned[3:]], watermarks, broadcast=broadcast)
        else:
            with contextlib.closing(process.controller):
                self.run_without_prefetching(process, elements, watermarks)
        states: list[tuple[Any, list]] = [(store, list(store.changes())) for store in process.stores]
        for store, changes in [*states, *process.broadcast.changes()]:
            backend.write_batch(store.writes(changes))
            if spilled is not None and spilled.has(store):
                spilled.add(store, changes)
        if spilled is not None:
            check_spilled(spilled, backend)
        backend.write_batch(process.timers.writes(process.timers.changes()))
        self.entries = {entry: value for entry, value in self.entries.items() if group_of(entry) not in groups}
        self.entries |= dict(backend.items())
        self.sent += process.emitted
        self.sides += process.side_outputs["odd"]

    def run_without_prefetching(self, process, elements, watermarks):
        """Every read waits for the executor."""
        # A watermark is before the record of the same order.
        for item in sorted([*watermarks, *elements], key=lambda item: (item.order, isinstance(item, Element))):
            if isinstance(item, Watermark):
                process.advance(item)
            elif item.key_json == BROADCAST_KEY:
                process.process_broadcast(item)
            else:
                process.process(item)
            if self.spills:
                process.make_room()
        process.controller.drain()
        statistics = process.controller.statistics()
        assert (statistics.in_flight, statistics.blocking, statistics.occupied_keys, statistics.epochs) == (0, 0, 0, 1)


def check_spilled(spilled, backend):
    """Check that all spilled changes are those of the backend, one for each entry; then remove their marks."""
    changes = [(store, change) for store, part in spilled.parts() for change in part]
    spilled.drop_marks()
    left = dict(backend.items())
    changed = [write for store, change in changes for write in store.writes([change])]
    assert len(dict(changed)) == len(changed)
    assert {entry: left.get(entry) for entry, _ in changed} == dict(changed)


def group_of(entry):
    return key_group(named(entry).key_json if entry[:1] in {VALUE_PREFIX, GROUPED_PREFIX} else entry[10:], GROUPS)


def left_behind(entries):
    """The values as (state, key) to (value, stamp), and the timers as (time, key)."""
    values, timers = {}, set()
    for entry, stored in entries.items():
        if entry[:1] == VALUE_PREFIX:
            state, _, key = entry[1:].partition(b"\x00")
            stamp, _, raw = unpacked(stored)
            values[state.decode(), decode_key(key)] = msgspec.json.decode(raw), stamp
        elif entry[:1] == GROUPED_PREFIX:
            stamp, _, raw = unpacked(stored)
            values[named(entry).state, named(entry).user_key.decode()] = msgspec.json.decode(raw), stamp
        else:
            timers.add((int.from_bytes(entry[2:10], "big") - (1 << 63), decode_key(entry[10:])))
    return values, timers


functions = st.sampled_from([Programs, CoPrograms, RuledPrograms])
record_ordered = settings_of(options=options_of())
state_ordered = settings_of(options=options_of(order_with_same_key=st.just(KeyOrder.STATE_ORDERED)))


# In state order, only code that waits for state is in order: code that continues after a callback does not wait.
ordered_either_way = st.tuples(event_lists(least_calls=1), record_ordered) | st.tuples(
    event_lists(ways=PATIENT_WAYS, least_calls=1), state_ordered
)


@given(events=event_lists(), setting=record_ordered, function=functions)
def test_any_answer_order_equals_plain_loop(events, setting, function):
    assert Job(setting, function=function).run(events) == by_hand(events, function)


@given(events=event_lists(ways=PATIENT_WAYS, least_calls=1), setting=state_ordered, function=functions)
def test_state_ordered_programs_equal_plain_loop(events, setting, function):
    """Programs in state order that begin with a state access equal a plain loop."""
    assert Job(setting, function=function).run(events) == by_hand(events, function)


@given(
    events=event_lists(),
    setting=settings_of(options=options_of(enabled=st.just(False), order_with_same_key=st.sampled_from(KeyOrder))),
    function=functions,
)
def test_switched_off_equals_plain_loop(events, setting, function):
    assert Job(setting, function=function).run(events) == by_hand(events, function)


@given(case=ordered_either_way, function=functions)
def test_every_backend_in_a_task_equals_plain_loop(backends, case, function):
    events, setting = case
    with backends.lent() as new:
        assert Job(setting, new, executor_of=lambda _: None, function=function).run(events) == by_hand(events, function)


@pytest.mark.parametrize("backends", ["rocksdb", "rocksdb that waits"], indirect=True)
@given(case=ordered_either_way, function=functions)
def test_spilled_state_equals_plain_loop(backends, case, function):
    """Before each few records, all state goes to the database, and is read again."""
    events, setting = case
    with backends.lent() as new:
        job = Job(setting, new, executor_of=lambda _: None, function=function, spills=True)
        assert job.run(events) == by_hand(events, function)


@given(case=ordered_either_way, function=functions)
def test_late_answering_threads_equal_plain_loop(case, function):
    events, setting = case
    threads = setting.options.io_parallelism
    job = Job(setting, Slow, executor_of=lambda backend: Patient(backend, threads), function=function)
    assert job.run(events) == by_hand(events, function)


@pytest.mark.long
@examples(2_000)
@given(events=event_lists(max_size=40), setting=record_ordered, function=functions)
def test_many_more_answer_orders_equal_plain_loop(events, setting, function):
    assert Job(setting, function=function).run(events) == by_hand(events, function)


@pytest.mark.long
@examples(1_000)
@given(events=event_lists(ways=PATIENT_WAYS, least_calls=1, max_size=40), setting=state_ordered, function=functions)
def test_many_more_state_ordered_programs_equal_plain_loop(events, setting, function):
    assert Job(setting, function=function).run(events) == by_hand(events, function)
