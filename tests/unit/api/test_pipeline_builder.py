from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    Emit,
    KeyedProcessFunction,
    NoRetry,
    OutputMode,
    Pipeline,
    RowKind,
    Strategy,
    Struct,
    Timestamp,
)
from headrace.api._pipeline import output_type

SECOND = timedelta(seconds=1)


class Event(Struct, frozen=True):
    key: str
    at: Timestamp


class Enriched(Struct, frozen=True):
    name: str


class Line(Struct, frozen=True):
    line: str


class Lookup(AsyncFunction[Event, Enriched]):
    async def invoke(self, _, /):
        return []


class Lines(KeyedProcessFunction[Enriched, Line]):
    async def process(self, record, ctx, /):
        pass


class Nameless(KeyedProcessFunction):
    async def process(self, record, ctx, /):
        pass


@pytest.fixture
def source():
    return Pipeline("demo").source("events", Event, event_time="at")


@pytest.fixture
def enriched(source):
    return source.async_wait("lookup", Lookup(), timeout=SECOND)


def test_a_pipeline_is_a_chain_and_every_call_makes_a_new_one(enriched):
    whole = enriched.key_by("name").process("lines", Lines()).sink("board")
    assert [operator.name for operator in whole.operators] == ["events", "lookup", "lines", "board"]
    assert [operator.name for operator in enriched.operators] == ["events", "lookup"]


def test_defaults_are_the_documented_ones(source):
    whole = source.async_wait("lookup", Lookup(), timeout=SECOND).upsert_materialize("m", primary_key=("name",))
    events, lookup, materializer = whole.operators
    assert (events.order_by, events.row_kind, events.out_of_orderness) == ((), None, timedelta(0))
    assert (lookup.mode, lookup.capacity, lookup.retry) == (OutputMode.UNORDERED, 100, NoRetry())
    assert (materializer.strategy, materializer.emit) == (Strategy.LEGACY, Emit.NET_CHANGE)
    assert materializer.upsert_key is None


def test_the_record_type_is_what_the_last_function_puts_out(source, enriched):
    assert source.record_type() is Event
    assert enriched.record_type() is Enriched
    assert enriched.key_by("name").process("lines", Lines()).record_type() is Line


def test_types_are_found_in_base_classes():
    class Derived(Lines):
        pass

    assert output_type(Derived()) is Line
    with pytest.raises(TypeError, match=r"Nameless must name its types, as in KeyedProcessFunction\[Leg, Delay\]"):
        output_type(Nameless())


def lines(pipeline, name="lines"):
    return pipeline.key_by("name").process(name, Lines())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda _: Pipeline("Bad Name"), "'Bad Name' is not a valid name"),
        (lambda _: Pipeline("x" * 64), "is not a valid name"),
        (lambda p: p.sink("../board"), "'../board' is not a valid name"),
        (lambda p: lines(p).side_output("late", Line, sink="a b"), "'a b' is not a valid name"),
        (lambda _: Pipeline("demo").sink("board"), "must start with one source"),
        (lambda p: p.source("more", Event, event_time="at"), "must start with one source"),
        (lambda _: Pipeline("demo").record_type(), "has no source yet"),
        (lambda _: Pipeline("d").source("e", Event, event_time="time"), "Event has no field 'time'; it has key, at"),
        (lambda _: Pipeline("d").source("e", Event, event_time="at", order_by=("seq",)), "no field 'seq'"),
        (
            lambda _: Pipeline("d").source("e", Event, event_time="at", out_of_orderness=-SECOND),
            "out_of_orderness of 'e' must not be negative",
        ),
        (lambda p: p.key_by("key"), "Enriched has no field 'key'; it has name"),
        (lambda p: p.process("lines", Lines()), "process 'lines' needs a key"),
        (lambda p: lines(p).process("more", Lines()), "process 'more' needs a key"),
        (
            lambda p: p.key_by("name").sink("board"),
            r"key_by\('name'\) must be followed by process\(\) or async_wait\(\), not by 'board'",
        ),
        (
            lambda p: p.key_by("name").async_wait("again", Lookup(), timeout=SECOND),
            r"key_by\('name'\) must be followed by process\(\)",
        ),
        (lambda p: p.upsert_materialize("m", primary_key=("id",)), "no field 'id'"),
        (lambda p: p.upsert_materialize("m", primary_key=("name",), upsert_key=("u",)), "no field 'u'"),
        (lambda p: p.upsert_materialize("m", primary_key=()), "'m' needs a primary key"),
        (
            lambda p: p.async_wait("again", Lookup(), timeout=SECOND, capacity=0),
            "capacity of 'again' must be at least 1",
        ),
        (lambda p: p.async_wait("again", Lookup(), timeout=timedelta(0)), "timeout of 'again' must be positive"),
        (lambda p: lines(p, "lookup"), "has two operators named 'lookup'"),
        (lambda p: p.sink("board").sink("other"), "'other' follows sink 'board', which ends pipeline 'demo'"),
        (lambda p: lines(p.sink("board")), "'lines' follows sink 'board'"),
        (
            lambda p: lines(p).side_output("late", Line, sink="a").side_output("late", Line, sink="b"),
            "process 'lines' has two side outputs named 'late'",
        ),
    ],
)
def test_a_step_that_makes_no_sense_is_refused_where_it_is_written(enriched, build, says):
    with pytest.raises(ValueError, match=says):
        build(enriched)


def test_a_side_output_follows_a_process_function(enriched):
    with pytest.raises(TypeError, match=r"side output 'late' must follow process\(\)"):
        enriched.side_output("late", Line, sink="late")
    both = lines(enriched).side_output("late", Line, sink="a").side_output("odd", Line, sink="b")
    assert [side.name for side in both.operators[-1].side_outputs] == ["late", "odd"]


def test_a_row_kind_has_a_symbol_that_can_be_read_back():
    assert [kind.symbol for kind in RowKind] == ["+I", "-U", "+U", "-D"]
    assert [RowKind.parse(kind.symbol) for kind in RowKind] == [*RowKind]
    assert [kind.symbol for kind in RowKind if kind.is_retraction] == ["-U", "-D"]
    with pytest.raises(KeyError):
        RowKind.parse("+X")
