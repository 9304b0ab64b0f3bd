"""From a graph to stages: the end of each stage, the edges between stages, and the numbers in the order of records."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from headrace import (
    AsyncFunction,
    KeyedProcessFunction,
    OutputMode,
    Pipeline,
    Process,
    ProcessedStream,
    Struct,
    Timestamp,
)
from headrace.cli.graphs import mermaid
from headrace.plan.loader import sink_schemas
from headrace.plan.planner import plan_stages
from headrace.plan.stages import (
    Flow,
    Through,
    ToSink,
    ToStage,
    flows_into_waits,
    transforms_of,
    waits_in,
    waits_of,
)


class Event(Struct, frozen=True):
    key: str
    at: Timestamp


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


class Events(KeyedProcessFunction[Event, Event]):
    async def process(self, record, ctx, /):
        pass


def is_early(event: Event) -> bool:
    return event.at < 0


@pytest.fixture
def p():
    return Pipeline("demo")


@pytest.fixture
def orders(p):
    return p.source("orders", Event, event_time="at")


@pytest.fixture
def payments(p):
    return p.source("payments", Event, event_time="at")


def lookup(stream, name="lookup", **options):
    return stream.async_wait(name, Lookup(), timeout=timedelta(seconds=1), **options)


def keyed(stream, name):
    return stream.key_by("key").process(name, Events())


def shape(flow: Flow) -> list[object]:
    """Return a flow as nested lists: edge, step and the following flow, or the end."""
    return [(use.edge, *_shape_of(use.to)) for use in flow.uses]


def _shape_of(to):
    match to:
        case ToSink(sink):
            return (f"sink {sink}",)
        case ToStage(stage, number, key):
            return (f"{stage}/{number} by {key}",)
        case Through(step, flow):
            return (step.name, shape(flow))


@pytest.fixture
def chain(orders):
    """Build a chain with every kind of step."""
    return (
        lookup(orders)
        .key_by("key")
        .process("lines", Lines())
        .side_output("late", Late, sink="late_events")
        .key_by("flight", "leg")
        .process("more", More())
        .upsert_materialize("latest", primary_key=("flight", "leg"))
        .sink("board")
    )


def test_chain_keeps_names_and_ranks(chain):
    plan = plan_stages(chain)
    assert [source.name for source in plan.sources] == ["orders"]
    assert [(stage.number, stage.name, stage.takes, stage.record) for stage in plan.keyed] == [
        (0, "lines", (Event,), Line),
        (1, "more", (Line,), Line),
        (2, "latest", (Line,), Line),
    ]
    assert [stage.after for stage in plan.keyed] == [
        ("lookup",),
        ("lookup", "lines"),
        ("lookup", "lines", "more"),
    ]
    assert (plan.ranks(), plan.edges()) == ({"lines": 0, "more": 1, "latest": 2}, {})


def test_flows_of_a_chain_have_no_edges(chain):
    plan = plan_stages(chain)
    assert shape(plan.source_stages[0].flow) == [(None, "lookup", [(None, "lines/0 by key")])]
    lines, more, latest = plan.keyed
    assert shape(lines.flows[None]) == [(None, "more/0 by flight, leg")]
    assert shape(lines.flows["late"]) == [(None, "sink late_events")]
    assert shape(more.flows[None]) == [(None, "latest/0 by flight, leg")]
    assert shape(latest.flows[None]) == [(None, "sink board")]


def test_every_sink_has_its_schema_and_primary_key(chain):
    plan = plan_stages(chain)
    assert {name: (sink.record, sink.primary_key) for name, sink in plan.sinks.items()} == {
        "late_events": (Late, ()),
        "board": (Line, ("flight", "leg")),
    }
    schemas = sink_schemas(plan)
    assert {name: (schema.names, keys) for name, (schema, keys) in schemas.items()} == {
        "board": (["flight", "leg"], ("flight", "leg")),
        "late_events": (["at"], ()),
    }
    assert not schemas["board"][0].field("leg").nullable
    assert schemas["late_events"][0].field("at").type == pa.timestamp("us", tz="UTC")


def test_pipeline_needs_no_keyed_operator(orders):
    def late_of(event: Event) -> Late:
        return Late(event.at)

    plan = plan_stages(orders.filter(is_early).map(late_of).sink("late"))
    assert plan.keyed == ()
    assert shape(plan.source_stages[0].flow) == [
        (None, "filter is_early", [(None, "map late_of", [(None, "sink late")])])
    ]
    assert (plan.sinks["late"].record, plan.groups) == (Late, (("orders",),))


def test_each_use_of_a_stream_has_an_edge(orders):
    orders.sink("raw")
    early = orders.filter(is_early)
    early.sink("early")
    plan = plan_stages(keyed(early, "totals").sink("totals"))
    assert shape(plan.source_stages[0].flow) == [
        (0, "sink raw"),
        (1, "filter is_early", [(0, "sink early"), (1, "totals/0 by key")]),
    ]
    assert plan.ranks() == {"totals": 0}
    assert plan.edges() == {
        "orders#0->raw": 0,
        "orders#1->early,totals": 1,
        "orders#1#0->early": 0,
        "orders#1#1->totals": 1,
    }


def test_diamond_gives_each_arm_an_edge(orders):
    split = keyed(orders, "split")
    arms = split.filter(is_early).union(split.assign_event_time("at"))
    plan = plan_stages(keyed(arms, "joined").sink("board"))
    assert shape(plan.stage("split").flows[None]) == [
        (0, "filter is_early", [(None, "union", [(None, "joined/0 by key")])]),
        (1, "assign_event_time at", [(None, "union", [(None, "joined/0 by key")])]),
    ]
    assert plan.edges()["split#1->joined"] == 1


def test_stream_united_with_itself_is_read_twice(orders):
    plan = plan_stages(keyed(orders.union(orders), "twice").sink("board"))
    arm = ("union", [(None, "twice/0 by key")])
    assert shape(plan.source_stages[0].flow) == [(0, *arm), (1, *arm)]
    assert plan.edges() == {"orders#0->twice": 0, "orders#1->twice": 1}


def test_side_output_flows_to_keyed_operators(orders):
    lines = orders.key_by("key").process("lines", Lines())
    odd = lines.side("odd", Event)
    odd.sink("odd")
    keyed(odd, "again").sink("again")
    plan = plan_stages(lines.sink("board"))
    assert shape(plan.stage("lines").flows["odd"]) == [(0, "sink odd"), (1, "again/0 by key")]
    assert plan.edges()["lines.odd#1->again"] == 1
    assert (plan.stage("again").takes, plan.stage("again").after) == ((Event,), ("lines",))


def test_operator_ranks_after_its_inputs(orders):
    first = keyed(orders, "first")
    second = keyed(first, "second")
    other = keyed(orders, "other")
    second.union(other).sink("both")
    plan = plan_stages(keyed(other, "third").sink("third"))
    assert [stage.name for stage in plan.keyed] == ["first", "other", "second", "third"]
    assert [stage.number for stage in plan.keyed] == [0, 1, 2, 3]


def test_sources_that_meet_share_a_group(p, orders, payments):
    stocks = p.source("stocks", Event, event_time="at")
    refunds = p.source("refunds", Event, event_time="at")
    keyed(orders.union(refunds), "net").sink("net")
    keyed(stocks, "levels").sink("levels")
    plan = plan_stages(payments.sink("payments"))
    assert plan.groups == (("orders", "refunds"), ("payments",), ("stocks",))
    assert plan.group_of("net") == plan.group_of("refunds") == ("orders", "refunds")
    assert plan.stage("net").sources == ("orders", "refunds")


def test_groups_that_meet_later_are_merged(p, orders, payments):
    one, other = keyed(orders, "one"), keyed(payments, "other")
    plan = plan_stages(keyed(one.union(other), "both").sink("board"))
    assert plan.groups == (("orders", "payments"),)
    assert plan.stage("both").after == ("one", "other")


def test_calls_run_in_the_stage_of_their_source(orders):
    first = lookup(lookup(orders), "again")
    first.sink("raw")
    plan = plan_stages(lookup(first.key_by("key"), "keyed", mode=OutputMode.KEYED_ORDERED).sink("board"))
    flow = plan.source_stages[0].flow
    assert [wait.name for wait in waits_in(flow)] == ["lookup", "again"]
    assert [step.name for step in transforms_of(flow)] == ["lookup", "again"]
    assert [wait.name for wait in waits_of(plan)] == ["lookup", "again", "keyed"]
    assert plan.stage("keyed").keys[0].fields == ("key",)


def test_source_of_plain_and_waiting_streams_is_shared(p, orders, payments):
    keyed(lookup(payments), "of_payments").sink("of_payments")
    keyed(lookup(orders.filter(is_early), "orders_too"), "of_answers").sink("of_answers")
    lookup(orders.key_by("key"), "keyed", mode=OutputMode.KEYED_ORDERED).sink("by_key")
    counted = keyed(orders, "counted")
    counted.sink("counts")
    plan = plan_stages(keyed(counted, "again").sink("again"))
    assert [plan.is_shared(stage) for stage in plan.source_stages] == [True, False]
    plain, others = plan.plain_and_others()
    assert [stage.name for stage in plain] == ["counted", "again"]
    assert [stage.name for stage in others] == ["of_payments", "of_answers", "keyed"]


def test_plain_sink_and_join_with_answers_share_nothing(orders):
    answers = lookup(orders)
    orders.sink("raw")
    plan = plan_stages(keyed(orders.union(answers), "both").sink("both"))
    assert not plan.is_shared(plan.source_stages[0])
    assert plan.plain_and_others()[0] == []


def test_way_into_wait_ends_there(orders):
    lookup(lookup(orders.filter(is_early), "first"), "second").sink("twice")
    plan = plan_stages(lookup(orders, "third").sink("once"))
    ways = dict(flows_into_waits(plan.source_stages[0].flow))
    assert [(wait.name, shape(flow)) for wait, flow in ways.items()] == [
        ("first", [(None, "first", [(None, "second", [(None, "sink twice")])])]),
        ("third", [(None, "third", [(None, "sink once")])]),
    ]


def test_inputs_of_an_operator_are_distinguished(p, orders, payments):
    connected = orders.filter(is_early).key_by("key"), payments.union(orders).broadcast()
    node = p._add(Process("joined", "key", Events()), *(stream._use() for stream in connected))
    plan = plan_stages(ProcessedStream(p, node, Event).sink("board"))
    (stage,) = plan.keyed
    assert (stage.takes, [key and key.fields for key in stage.keys]) == ((Event, Event), [("key",), None])
    assert shape(plan.source_stages[0].flow) == [
        (0, "filter is_early", [(None, "joined/0 by key")]),
        (1, "union", [(None, "joined/1 by None")]),
    ]
    assert plan.edges() == {"orders#0->joined/1": 0, "orders#1->joined/2": 1}
    assert '-. "broadcast" .->' in mermaid(p)
    assert 'n2 -- "by key" --> n4' in mermaid(p)


def test_edges_distinguish_swapped_uses(orders):
    def plan(*sinks):
        pipeline = Pipeline("demo")
        stream = pipeline.source("orders", Event, event_time="at")
        for sink in sinks:
            stream.sink(sink)
        return plan_stages(pipeline)

    assert plan("a", "b").edges() == {"orders#0->a": 0, "orders#1->b": 1}
    assert plan("a", "b").edges() != plan("b", "a").edges()
    assert plan("a").edges() == {}


def test_many_diamonds_are_planned_at_once(orders):
    stream = orders
    for number in range(60):
        stream = keyed(stream.union(stream), f"union_{number}")
    plan = plan_stages(stream.sink("board"))
    assert [stage.number for stage in plan.keyed] == [*range(60)]
    assert len(plan.keyed[-1].after) == 59
