"""Invalid graphs: each problem comes with advice, and all problems are reported together."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import AsyncFunction, KeyedProcessFunction, Pipeline, Struct, Timestamp
from headrace.errors import ConfigError
from headrace.plan.planner import MOST_EDGES, MOST_STAGES, plan_stages, problems_of


class Event(Struct, frozen=True):
    key: str
    at: Timestamp
    later: Timestamp | None = None
    seq: int = 0


class Odd(Struct, frozen=True):
    at: Timestamp
    parts: set[str]


class Lookup(AsyncFunction[Event, Event]):
    async def invoke(self, record, /):
        return [record]


class Events(KeyedProcessFunction[Event, Event]):
    async def process(self, record, ctx, /):
        pass


def is_early(event: Event) -> bool:
    return event.at < 0


def odd_of(event: Event) -> Odd:
    return Odd(event.at, set())


def source(event_time="at", name="events", pipeline=None):
    return (pipeline or Pipeline("demo")).source(name, Event, event_time=event_time)


def lookup(stream):
    return stream.async_wait("lookup", Lookup(), timeout=timedelta(seconds=1))


def keyed(stream, name="lines"):
    return stream.key_by("key").process(name, Events())


def unread_side():
    lines = keyed(source())
    lines.side("late", Event)
    return lines.sink("board")


def unread_step():
    events = source()
    events.filter(is_early)
    return events.sink("board")


def unread_union():
    events = source()
    events.union(source(name="more", pipeline=events._pipeline))
    return events.sink("board")


def branch_behind_materializer():
    latest = source().upsert_materialize("m", primary_key=("key",))
    latest.sink("one")
    return latest.sink("two")


def wait_behind_union():
    events = source()
    more = source(name="more", pipeline=events._pipeline)
    return lookup(events.union(more)).sink("board")


def many_uses():
    events = source()
    for number in range(MOST_EDGES + 1):
        events.sink(f"sink_{number}")
    return events._pipeline


def many_stages():
    stream = source()
    for number in range(MOST_STAGES + 1):
        stream = keyed(stream, f"stage_{number}")
    return stream.sink("board")


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        (lambda: Pipeline("demo"), r"it has no source: begin with source\(\)"),
        (lambda: keyed(source())._pipeline, r"it has no sink: end with sink\(\)"),
        (lambda: keyed(source())._pipeline, r"nobody reads the stream of 'lines': give it a sink\(\), or take it out"),
        (unread_side, r"nobody reads the stream of 'lines', side output 'late': give it a sink\(\)"),
        (unread_step, "nobody reads the stream of 'filter is_early'"),
        (unread_union, "nobody reads the stream of 'union'"),
        (many_uses, r"'events' is used 251 times, more than 250: let several of them use a filter\(\) of it"),
        (many_stages, "it has 251 keyed operators, more than 250: divide it into two jobs"),
        (
            lambda: lookup(keyed(source())).sink("board"),
            r"'lookup' comes behind 'lines': call async_wait\(\) before .* or write key_by\(\) .* mode=KEYED_ORDERED",
        ),
        (
            wait_behind_union,
            r"'lookup' gets several streams \(of 'events', 'more'\): call async_wait\(\) before union\(\)",
        ),
        (
            lambda: lookup((events := source()).union(events)).sink("board"),
            r"'lookup' gets several streams \(of 'events'\): call async_wait\(\) before union\(\)",
        ),
        (
            lambda: keyed(source().upsert_materialize("m", primary_key=("key",))).sink("board"),
            r"must be followed by one sink\(\), .* but 'm' goes to 'lines': take what these need from the stream before",
        ),
        (branch_behind_materializer, "but 'm' goes to 'one', 'two': take what these need"),
        (
            lambda: keyed(source()).side_output("late", Event, sink="board").sink("board"),
            r"each output needs a sink of its own, but several go to 'board': union\(\) the streams first, or name an",
        ),
        (
            lambda: keyed(source("later")).sink("board"),
            "event_time 'later' of Event must be a Timestamp, and not optional",
        ),
        (lambda: keyed(source("key")).sink("board"), "event_time 'key' of Event must be a Timestamp"),
        (
            lambda: keyed(source("seq")).sink("board"),
            r"event_time 'seq' of Event must be a Timestamp, .* write 'seq: Timestamp' \(from headrace import Timestamp\)",
        ),
        (
            lambda: source().assign_event_time("seq").sink("board"),
            "assign_event_time 'seq' of Event must be a Timestamp, .* write 'seq: Timestamp'",
        ),
        (
            lambda: source().assign_event_time("later").sink("board"),
            "assign_event_time 'later' of Event must be a Timestamp, and not optional",
        ),
        (lambda: source().map(odd_of).sink("board"), r"field 'parts' of Odd is set\[str\]"),
    ],
)
def test_graph_that_cannot_run_is_refused(pipeline, says):
    with pytest.raises(ConfigError, match=rf"pipeline 'demo': .*{says}"):
        plan_stages(pipeline())


def test_all_problems_are_reported_at_once():
    events = source("later")
    events.map(odd_of)
    more = lookup(keyed(events))
    more.sink("board")
    keyed(more, "again").sink("board")
    assert [problem.removeprefix("pipeline 'demo': ")[:39] for problem in problems_of(events._pipeline)] == [
        "event_time 'later' of Event must be a T",
        "nobody reads the stream of 'map odd_of'",
        "async_wait 'lookup' comes behind 'lines",
        "each output needs a sink of its own, bu",
        "field 'parts' of Odd is set[str], which",
    ]


def test_problem_of_record_is_reported_once():
    events = Pipeline("demo").source("odd", Odd, event_time="at")
    events.filter(str).sink("one")
    (problem,) = problems_of(events.sink("two"))
    assert "field 'parts' of Odd" in problem


def test_graph_that_can_run_has_no_problems():
    assert problems_of(keyed(lookup(source())).sink("board")) == []
