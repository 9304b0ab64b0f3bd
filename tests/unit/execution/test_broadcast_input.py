"""Broadcast records in several tasks: all tasks process the same records, and one task stores the result."""

from __future__ import annotations

import itertools

import pytest

from headrace import BroadcastState, KeyedBroadcastFunction, Process, Struct, ValueState, declare
from headrace.errors import StateSchemaError
from headrace.execution.bound_function import declared_blocks, declared_states
from headrace.execution.drain import element_of
from headrace.execution.element import Element, RecordCodec, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.options import AsyncStateOptions
from headrace.records.order import record_order
from headrace.state.broadcast import BROADCAST_KEY, BroadcastRow
from headrace.state.codec import encode
from tests.unit.support.deferred import Deferred


class Order(Struct, frozen=True):
    key: str


class Rule(Struct, frozen=True):
    number: int


class Line(Struct, frozen=True):
    key: str
    rule: int | None


class Rules(KeyedBroadcastFunction[Order, Rule, Line]):
    """Emits the newest rule in a declared block."""

    newest = BroadcastState("newest", str, int)
    seen = ValueState("seen", int)

    async def process(self, order, ctx, /):
        self.seen.value().then_accept(self.tell)

    @declare("tell")
    def tell(self, seen, order, ctx, /):
        self.seen.update((seen or 0) + 1)
        ctx.collect(Line(order.key, self.newest.get("rule")))

    def process_broadcast(self, rule, ctx, /):
        self.newest.put("rule", rule.number)


TYPES = (Order, Rule)


def task(*, owns=True, rows=(), backend=None):
    process = KeyedProcess(
        Process("rules", "key", Rules()),
        backend or Deferred(),
        records=TYPES,
        watermark=None,
        last_watermark=None,
        options=AsyncStateOptions(in_flight_records_limit=1),
        owns_broadcast=owns,
    )
    process.broadcast.load(rows)
    return process


def order(place, key="a"):
    return Element(record_order(place), place, 0, encode(key), Order(key))


def rule(place):
    return Element(record_order(place), place, 0, BROADCAST_KEY, Rule(place), 1)


def emitted_rules(process):
    return [out.record.rule for out in process.emitted]


def rows_of(process):
    return [
        (store.name, change.user_key, change.raw, change.stamp)
        for store, changes in process.broadcast.changes()
        for change in changes
    ]


def test_records_see_the_rules_before_them():
    process = task()
    process.run([[order(1), order(3)], [order(5)]], [Watermark(record_order(3), 2)], broadcast=[rule(2), rule(4)])
    assert emitted_rules(process) == [None, 2, 4]
    assert rows_of(process) == [("newest", b'"rule"', b"4", 4)]


def test_task_that_owns_no_broadcast_stores_none():
    process = task(owns=False)
    process.run([[order(3)]], [], broadcast=[rule(2)])
    assert (emitted_rules(process), rows_of(process)) == ([2], [])


def test_broadcast_records_count_in_no_operator():
    process = task()
    process.run([[order(3)]], [], broadcast=[rule(2)])
    assert process.metrics == {"records": 1}


def test_stop_waits_for_last_rule_before_cut():
    # Another task may hold nothing: its state would then be ahead of the records that this task holds.
    process = task()
    elements = [order(place, f"{place}") for place in (1, 2, 5, 6)]
    held = process.run(
        [[element] for element in elements], [], broadcast=[rule(3), rule(7)], cut=record_order(7), stop=lambda: True
    )
    assert [request.order for request in held.requests] == [record_order(place) for place in (5, 6, 7)]
    assert (emitted_rules(process), rows_of(process)) == ([None, None], [("newest", b'"rule"', b"3", 3)])


def test_one_task_holds_broadcast_records_after_cut():
    held = {}
    for owns in (True, False):
        process = task(owns=owns)
        held[owns] = process.run([[order(1), order(4)]], [], broadcast=[rule(3)], cut=record_order(2)).requests
    assert [(request.key_json, request.input) for request in held[True]] == [(BROADCAST_KEY, 1), (b'"a"', 0)]
    assert [request.key_json for request in held[False]] == [b'"a"']
    assert element_of(held[True][0], RecordCodec("rules", TYPES)) == rule(3)


def test_held_rules_and_records_resume_in_order():
    backend = Deferred()
    first = task(backend=backend)
    held = first.run([[order(1), order(4)]], [], broadcast=[rule(3)], cut=record_order(2))
    second = task(backend=backend)
    second.run([[order(6)]], [], resumed=held.requests, broadcast=[rule(5)])
    assert (emitted_rules(first), emitted_rules(second)) == ([None], [3, 5])


def test_loaded_state_is_changed_only_where_it_differs():
    process = task(rows=[BroadcastRow("newest", b'"rule"', b"1", 1), BroadcastRow("gone", b'"x"', b"1", 1)])
    assert rows_of(process) == []
    process.run([[order(3)]], [], broadcast=[rule(2)])
    assert rows_of(process) == [("newest", b'"rule"', b"2", 2)]


def test_loaded_value_of_another_type_is_refused():
    with pytest.raises(StateSchemaError, match="state 'newest' of operator 'rules' is stored as \"x\""):
        task(rows=[BroadcastRow("newest", b'"rule"', b'"x"', 1)])


def test_declarations_are_found_as_in_other_functions():
    assert [state.name for state in declared_states(Rules()).values()] == ["newest", "seen"]
    assert [*declared_blocks(Rules())] == ["tell"]


@pytest.mark.parametrize("stop_after", range(6))
def test_tasks_agree_when_one_task_stops(stop_after):
    # Task 0 stops at its `stop_after`-th question, task 1 never does.
    keys, rules = {0: "a", 1: "b"}, [rule(3), rule(6)]
    rows, requests, lines = [], {0: [], 1: []}, []
    backends = {0: Deferred(), 1: Deferred()}
    for run in range(2):
        ended = {}
        for number, key in keys.items():
            questions = itertools.count()
            process = ended[number] = task(owns=number == 1, rows=rows, backend=backends[number])
            elements = [order(place, key) for place in ((1, 2, 4, 5, 7, 8) if run == 0 else ())]
            stops = (lambda: next(questions) >= stop_after) if (number, run) == (0, 0) else None  # noqa: B023 - asked in this turn
            held = process.run(
                [[element] for element in elements],
                [],
                resumed=requests[number],
                broadcast=rules if run == 0 else (),
                stop=stops,
            )
            requests[number] = held.requests
            lines += [(key, line) for line in emitted_rules(process)]
            for store in process.stores:
                backends[number].write_batch(store.writes(list(store.changes())))
        changed = [BroadcastRow(*change) for change in rows_of(ended[1])]
        rows = changed or rows
    assert requests == {0: [], 1: []}
    expected = [None, None, 3, 3, 6, 6]
    assert {key: [line for at, line in lines if at == key] for key in "ab"} == {"a": expected, "b": expected}
