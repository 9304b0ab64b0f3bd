from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    ConnectedStreams,
    Emit,
    KeyedProcessFunction,
    NoRetry,
    OutputMode,
    Pipeline,
    Process,
    RowKind,
    Strategy,
    Struct,
    Timestamp,
    UpsertMaterialize,
)
from headrace.api.types import output_type

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


class Strange(KeyedProcessFunction[Line, Line]):
    def process(self, record, ctx, /):
        pass


def is_early(event: Event) -> bool:
    return event.at < 0


def named(event: Event) -> Enriched:
    return Enriched(event.key)


def names_of(event: Event) -> list[Enriched]:
    return [Enriched(event.key)]


def perhaps(event: Event) -> Enriched | None:
    return None


def unresolved(event: Event) -> Missing:  # type: ignore[name-defined]  # noqa: F821 - the case that is tested
    return event


async def asked(event: Event) -> Enriched:
    return Enriched(event.key)


def one_by_one(event: Event) -> Enriched:
    yield Enriched(event.key)


class Asked:
    async def __call__(self, event):
        return event


def key_of(event: Event) -> tuple[str, int]:
    return event.key, event.at


@pytest.fixture
def source():
    return Pipeline("demo").source("events", Event, event_time="at")


@pytest.fixture
def enriched(source):
    return source.async_wait("lookup", Lookup(), timeout=SECOND)


def test_chain_ends_in_its_pipeline(enriched):
    whole = enriched.key_by("name").process("lines", Lines()).sink("board")
    assert isinstance(whole, Pipeline)
    assert [operator.name for operator in whole.operators] == ["events", "lookup", "lines", "board"]
    assert repr(whole) == "<Pipeline 'demo': events, lookup, lines, board>"


def test_every_use_of_a_stream_joins_its_pipeline(source):
    one = source.filter(is_early).sink("one")
    other = source.map(named).sink("other")
    assert one is other
    assert [node.operator.name for node in one.nodes] == ["events", "filter is_early", "one", "map named", "other"]
    assert [node.inputs[0].node.operator.name for node in one.nodes[1:]] == [
        "events",
        "filter is_early",
        "events",
        "map named",
    ]


def test_defaults_are_the_documented_ones(source):
    whole = source.async_wait("lookup", Lookup(), timeout=SECOND).upsert_materialize("m", primary_key=("name",))
    events, lookup, materializer = whole.operators
    assert (events.order_by, events.row_kind, events.out_of_orderness) == ((), None, timedelta(0))
    assert (lookup.mode, lookup.capacity, lookup.retry) == (OutputMode.UNORDERED, 100, NoRetry())
    assert (materializer.strategy, materializer.emit) == (Strategy.ADAPTIVE, Emit.NET_CHANGE)
    assert materializer.upsert_key == ("name",)  # the stream has inserts alone


def test_record_type_is_that_of_the_last_function(source, enriched):
    assert source.record_type() is Event
    assert enriched.record_type() is Enriched
    assert enriched.key_by("name").process("lines", Lines()).record_type() is Line


def test_types_are_found_in_base_classes():
    class Nameless(KeyedProcessFunction):
        async def process(self, record, ctx, /):
            pass

    class Derived(Lines):
        pass

    assert output_type(Derived()) is Line
    with pytest.raises(TypeError, match=r"Nameless must name its types, as in KeyedProcessFunction\[Leg, Delay\]"):
        output_type(Nameless())


def lines(pipeline, name="lines"):
    return pipeline.key_by("name").process(name, Lines())


def other_source():
    return Pipeline("other").source("others", Event, event_time="at")


def both_sides(stream):
    stream.side("late", Line)
    stream.side("late", Event)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda _: Pipeline("Bad Name"), "'Bad Name' is not a valid name"),
        (lambda _: Pipeline("x" * 64), "is not a valid name"),
        (lambda p: p.sink("../board"), "'../board' is not a valid name"),
        (lambda p: lines(p).side_output("late", Line, sink="a b"), "'a b' is not a valid name"),
        (lambda _: Pipeline("d").source("e", Event, event_time="time"), "Event has no field 'time'; it has key, at"),
        (lambda _: Pipeline("d").source("e", Event, event_time="at", order_by=("seq",)), "no field 'seq'"),
        (
            lambda _: Pipeline("d").source("e", Event, event_time="at", out_of_orderness=-SECOND),
            "out_of_orderness of 'e' must be from 0 to 36,500 days, not -1 day",
        ),
        (
            lambda _: Pipeline("d").source("e", Event, event_time="at", out_of_orderness=timedelta.max),
            "out_of_orderness of 'e' must be from 0 to 36,500 days, not 999999999 days",
        ),
        (lambda p: p.key_by("key"), "Enriched has no field 'key'; it has name"),
        (lambda p: p.process("lines", Lines()), "process 'lines' needs a key"),
        (lambda p: lines(p).process("more", Lines()), "process 'more' needs a key"),
        (
            lambda p: p.key_by("name").sink("board"),
            r"key_by\('name'\) must be followed by process\(\), aggregate\(\), window\(\), join\(\), .* or async_wait\(.*\), not by sink 'board'",
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
        (lambda p: lines(p, "events"), "has two operators named 'events': give one of them another name"),
        (lambda p: p.key_by("name").map(str, record=Line), "must be followed by .* not by 'map str'"),
        (lambda p: p.key_by("name").key_by("name"), r"must be followed by .* not by key_by\(\)"),
        (lambda p: p.key_by("name").broadcast(), r"must be followed by .* not by broadcast\(\)"),
        (lambda p: p.key_by("name").union(p), "must be followed by .* not by 'union'"),
        (lambda p: p.union(p.key_by("name")), "must be followed by .* not by 'union'"),
        (lambda p: p.broadcast().sink("board"), r"broadcast\(\) of 'lookup' can only be given to connect\(\)"),
        (lambda p: p.broadcast().async_wait("again", Lookup(), timeout=SECOND), "can only be given to connect"),
        (lambda p: p.broadcast().filter(str), "can only be given to connect"),
        (lambda p: p.key_by(len, "name"), r"key_by\(len\) takes no fields after a function"),
        (lambda p: p.assign_event_time("at"), "Enriched has no field 'at'"),
        (lambda p: p.union(), "union of 'lookup' needs at least one other stream"),
        (lambda p: p.union(other_source()), "'lookup' is of pipeline 'demo', and 'others' of pipeline 'other'"),
        (lambda p: p.key_by("name").connect(other_source().key_by("key")), "connect: .* a job has one pipeline"),
        (lambda p: p.connect(p.key_by("name")), r"connect: 'lookup' needs a key: call key_by\(\) before it"),
        (lambda p: p.key_by("name").connect(p), r"'lookup' needs a key, too: call key_by\(\) .* or broadcast\(\)"),
        (lambda p: p.broadcast().connect(p.key_by("name")), r"call connect\(\) on the keyed stream"),
        (lambda p: lines(p).side("Late", Line), "'Late' is not a valid name"),
        (
            lambda p: both_sides(lines(p)),
            "side output 'late' of 'lines' has records of type Line, not Event",
        ),
        (
            lambda p: lines(p).side_output("late", Line, sink="a").side_output("late", Line, sink="b"),
            "process 'lines' has two side outputs named 'late'",
        ),
    ],
)
def test_invalid_step_error_names_its_source_line(enriched, build, says):
    with pytest.raises(ValueError, match=says):
        build(enriched)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda s: s.map(3), r"map\(\) takes a function, not 3"),
        (lambda s: s.flat_map("x", record=Line), r"flat_map\(\) takes a function, not 'x'"),
        (lambda s: s.map(lambda event: event), r"map\(<lambda>\) needs the type of its records: .* or give record="),
        (lambda s: s.map(names_of), r"map\(names_of\): .* returns list\[.*Enriched\], .* use flat_map\(\)"),
        (lambda s: s.map(perhaps), r"map\(perhaps\): .* returns .*Enriched \| None, .* use flat_map\(\)"),
        (lambda s: s.map(unresolved), r"map\(unresolved\): .* cannot be resolved .*: give record="),
        (lambda s: s.map(asked), r"map\(asked\): the function is 'async def'; use async_wait\(\)"),
        (lambda s: s.filter(Asked()), r"filter\(Asked\): the function is 'async def'"),
        (lambda s: s.flat_map(asked, record=Enriched), r"flat_map\(asked\): the function is 'async def'"),
        (lambda s: s.map(one_by_one), r"map\(one_by_one\): the function has a yield; use flat_map\(\)"),
        (lambda s: s.key_by(one_by_one), r"key_by\(one_by_one\): the function has a yield"),
        (lambda s: s.assign_event_time(one_by_one), r"assign_event_time\(one_by_one\): the function has a yield"),
        (lambda s: s.map(named, record=int), r"map\(named\): <class 'int'> is not a type of records"),
        (lambda s: s.flat_map(names_of, record=list[Enriched]), "is not a type of records: derive a class from Struct"),
        (lambda _: Pipeline("d").source("e", int, event_time="at"), "source 'e': <class 'int'> is not a type of rec"),
        (lambda s: lines(s.map(named)).side("late", int), "is not a type of records"),
        (
            lambda s: s.map(named).filter(is_early),
            "filter is_early takes Event, but 'map named' before it gives Enriched",
        ),
        (lambda s: s.map(named).key_by(key_of), "key_by key_of takes Event, but 'map named' before it gives Enriched"),
        (
            lambda s: s.key_by("key").process("more", Strange()),
            "process 'more' takes Line, but 'events' .* gives Event",
        ),
        (
            lambda s: s.map(named).async_wait("again", Lookup(), timeout=SECOND),
            r"async_wait 'again' takes Event, but 'map named' before it gives Enriched: map\(\) the records",
        ),
        (
            lambda s: s.key_by("key").process("more", Lookup()),
            "takes an instance of a class derived from KeyedProcessF",
        ),
        (lambda s: s.key_by("key").process("more", Lines), r"not the class Lines; write Lines\(\)"),
        (lambda s: s.async_wait("again", Lines(), timeout=SECOND), "of a class derived from AsyncFunction, not"),
        (
            lambda s: s.union(s.map(named)),
            r"union: 'events' gives Event, and 'map named' gives Enriched: map\(\) them to one type",
        ),
        (
            lambda s: s.key_by("key").connect(s.key_by("at")),
            r"'events' is keyed by key \(str\), and 'events' by at \(int\): a key must have the same type .* converts one",
        ),
        (
            lambda s: s.key_by("key").connect(s.key_by(key_of)),
            r"'events' is keyed by key \(str\), and 'events' by key_of \(str, int\)",
        ),
    ],
)
def test_types_that_do_not_fit_name_both_operators(source, build, says):
    with pytest.raises(TypeError, match=says):
        build(source)


def test_steps_take_the_type_from_the_annotation(source):
    assert source.map(named).record_type() is Enriched
    assert source.map(lambda event: event, record=Enriched).record_type() is Enriched
    assert source.flat_map(names_of, record=Enriched).record_type() is Enriched
    assert source.filter(is_early).assign_event_time("at").union(source).record_type() is Event


def test_users_do_not_name_operators_of_steps(source):
    both = source.union(source).union(source)
    result = both.map(named).key_by("name").process("union", Lines())
    assert [operator.name for operator in result.operators] == ["events", "union", "union", "map named", "union"]


@pytest.mark.parametrize(
    ("keyed", "fields"),
    [
        (lambda s: s.key_by("key"), ("key",)),
        (lambda s: s.key_by("key", "at"), ("key", "at")),
        (lambda s: s.key_by(key_of), ()),
    ],
)
def test_key_is_fields_or_a_function(source, keyed, fields):
    key = keyed(source)._key
    assert key.fields == fields
    assert str(key) == (", ".join(fields) or "key_of")


@pytest.mark.parametrize(("field", "shown"), [("parts", r"list\[str\]"), ("part", "Event")])
def test_key_holds_one_value(field, shown):
    class Nested(Struct, frozen=True):
        at: Timestamp
        parts: list[str]
        part: Event | None
        number: int | None
        score: float

    nested = Pipeline("demo").source("nested", Nested, event_time="at")
    with pytest.raises(ValueError, match=rf"field '{field}' of Nested is {shown}, which cannot be a key: key_by\(\) a"):
        nested.key_by(field)
    assert nested.key_by("number", "score")._key.fields == ("number", "score")


def test_keys_without_known_types_are_not_compared(source):
    assert isinstance(source.key_by("key").connect(source.key_by(lambda event: event.at)), ConnectedStreams)
    assert isinstance(source.key_by("key", "at").connect(source.key_by(key_of)), ConnectedStreams)
    assert isinstance(source.key_by("key").connect(source.broadcast()), ConnectedStreams)


def test_side_output_is_a_stream(enriched):
    processed = lines(enriched)
    late = processed.side("late", Event)
    assert (late.record_type(), processed.record_type()) == (Event, Line)
    assert repr(late) == "<Stream of Event from 'lines.late'>"
    assert repr(late.map(named).key_by("name").process("again", Lines())) == "<Stream of Line from 'again'>"
    assert processed.side("late", Event).record_type() is Event


def test_side_output_may_name_its_sink(enriched):
    both = lines(enriched).side_output("late", Line, sink="a").side_output("odd", Line, sink="b").sink("board")
    (process,) = (operator for operator in both.operators if isinstance(operator, Process))
    assert [(side.name, side.sink) for side in process.side_outputs] == [("late", "a"), ("odd", "b")]
    assert [operator.name for operator in both.operators][-3:] == ["a", "b", "board"]


def test_row_kind_symbol_parses_back():
    assert [kind.symbol for kind in RowKind] == ["+I", "-U", "+U", "-D"]
    assert [RowKind.parse(kind.symbol) for kind in RowKind] == [*RowKind]
    assert [kind.symbol for kind in RowKind if kind.is_retraction] == ["-U", "-D"]
    with pytest.raises(KeyError):
        RowKind.parse("+X")


def test_one_field_is_a_key_everywhere(source):
    source.normalize("normalized", key="key").upsert_materialize("m1", primary_key="key").sink("s1")
    source.apply_changes("applied", key="key", sequence_by="at").sink("s2", key="key")
    source.first_value("first", key="key").sink("s3")
    source.last_value("last", key="key", upsert_key="key").sink("s4")
    source.deduplicate("once", key="key").sink("s5")
    source.snapshot_changes("snapshots", key="key", time="at", every=SECOND)
    materializers = [operator for operator in source.operators if isinstance(operator, UpsertMaterialize)]
    assert [operator.primary_key for operator in materializers] == [("key",)] * 5
