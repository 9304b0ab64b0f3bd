"""From a pipeline to stages; graphs that cannot run."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
import pyarrow as pa
import pytest

from headrace import AsyncFunction, KeyedProcessFunction, Pipeline, SinkNode, Struct, Timestamp
from headrace.errors import ConfigError
from headrace.plan.pipelines import sink_schemas
from headrace.plan.planner import plan_stages, stage_key
from headrace.state.codec import encode


class Event(Struct, frozen=True):
    key: str
    at: Timestamp
    later: Timestamp | None = None


class Line(Struct, frozen=True):
    flight: str
    leg: int | None


class Late(Struct, frozen=True):
    at: Timestamp


class Lookup(AsyncFunction[Event, Event]):
    async def invoke(self, record, /):
        return [record]


class Lines(KeyedProcessFunction[Event, Line]):
    async def process(self, record, ctx, /):
        pass


class More(KeyedProcessFunction[Line, Line]):
    async def process(self, record, ctx, /):
        pass


def source(event_time="at"):
    return Pipeline("demo").source("events", Event, event_time=event_time)


def lookup(pipeline):
    return pipeline.async_wait("lookup", Lookup(), timeout=timedelta(seconds=1))


def lines(pipeline):
    return pipeline.key_by("key").process("lines", Lines())


@pytest.fixture
def whole():
    """All that a pipeline can have."""
    return (
        lines(lookup(source()))
        .side_output("late", Late, sink="late_events")
        .key_by("flight")
        .process("more", More())
        .upsert_materialize("latest", primary_key=("flight", "leg"))
        .sink("board")
    )


def test_each_keyed_operator_is_a_stage_that_takes_what_the_one_before_puts_out(whole):
    plan = plan_stages(whole)
    assert [wait.name for wait in plan.ingest.waits] == ["lookup"]
    assert (plan.ingest.source.name, plan.ingest.record, plan.ingest.key) == ("events", Event, ("key",))
    assert [(s.operator.name, s.takes, s.record, s.key) for s in plan.keyed] == [
        ("lines", Event, Line, ("flight",)),
        ("more", Line, Line, ("flight", "leg")),
        ("latest", Line, Line, ()),
    ]
    assert (plan.sink.name, plan.sink_record, plan.primary_key) == ("board", Line, ("flight", "leg"))


def test_every_sink_has_its_schema_and_primary_key(whole):
    schemas = sink_schemas(plan_stages(whole))
    assert {name: (schema.names, keys) for name, (schema, keys) in schemas.items()} == {
        "board": (["flight", "leg"], ("flight", "leg")),
        "late_events": (["at"], ()),
    }
    assert not schemas["board"][0].field("leg").nullable
    assert schemas["late_events"][0].field("at").type == pa.timestamp("us", tz="UTC")


def test_a_pipeline_without_a_materializer_appends():
    plan = plan_stages(lines(source()).sink("board"))
    assert (plan.primary_key, plan.keyed[-1].key) == ((), ())


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        (lambda: Pipeline("demo"), r"'demo' must start with source\(\) and end with sink\(\)"),
        (lambda: lines(source()), r"must start with source\(\) and end with sink\(\)"),
        (lambda: Pipeline("demo", (SinkNode("board"),)), r"must start with source\(\)"),
        (lambda: source().sink("board"), r"'demo' has no keyed operator: add process\(\)"),
        (lambda: lookup(source()).sink("board"), "has no keyed operator"),
        (lambda: lookup(lines(source())).sink("board"), r"async_wait\(\) must come before the first key_by\(\)"),
        (
            lambda: lines(source().upsert_materialize("m", primary_key=("key",))).sink("board"),
            r"upsert_materialize\(\) must be followed by sink\(\)",
        ),
        (
            lambda: lines(source()).side_output("late", Late, sink="board").sink("board"),
            "each output needs a sink of its own, but several go to board",
        ),
        (
            lambda: (
                lines(source()).side_output("late", Late, sink="a").side_output("odd", Line, sink="a").sink("board")
            ),
            "several go to a",
        ),
        (
            lambda: lines(source("later")).sink("board"),
            "event_time 'later' of Event must be a Timestamp, and not optional",
        ),
        (lambda: lines(source("key")).sink("board"), "event_time 'key' of Event must be a Timestamp"),
    ],
)
def test_a_graph_that_cannot_run_is_a_configuration_error(pipeline, says):
    with pytest.raises(ConfigError, match=says):
        plan_stages(pipeline())


def test_a_key_is_a_field_or_a_tuple_and_null_if_any_part_is():
    assert stage_key(Line("UA1", None), ("flight",)) == "UA1"
    assert stage_key(Line("UA1", 2), ("flight", "leg")) == ("UA1", 2)
    assert stage_key(Line("UA1", None), ("flight", "leg")) is None
    assert stage_key(Line("UA1", None), ("leg",)) is None
    assert stage_key(Line("", 0), ("flight", "leg")) == ("", 0)


class Fare(Struct):
    price: float
    discount: float | None = None
    either: int | float = 0
    limited: Annotated[float, msgspec.Meta(ge=0)] | None = None


@pytest.mark.parametrize("price", [5, 5.0, -0.5])
def test_a_key_is_the_same_before_and_after_it_was_stored(price):
    fields = ("price", "discount", "either", "limited")
    emitted = Fare(price, 3, 2, 4)
    stored = msgspec.json.decode(encode(emitted), type=Fare)
    assert encode(stage_key(emitted, fields)) == encode(stage_key(stored, fields))
    assert encode(stage_key(emitted, ("price",))) == encode(stage_key(stored, ("price",)))
    assert stage_key(Fare(1), fields) is None


def test_zero_is_one_key():
    # To SQL -0.0 is 0.0: a merge that had a row of each would not know which one is meant.
    assert encode(stage_key(Fare(-0.0), ("price",))) == encode(stage_key(Fare(0), ("price",))) == b"0.0"
