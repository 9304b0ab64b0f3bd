"""Events of Debezium in Avro, as its converter writes them, with the schemas of a registry."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Annotated

import pytest

from headrace import DEBEZIUM, Digits, NaiveDatetime, Pipeline, Struct, Timestamp, field
from headrace.testing import MemoryTopic, PipelineHarness
from tests.jobs.connect_avro import avro_schema, avro_value
from tests.jobs.schema_registry import Registry, avro, running


class Item(Struct, frozen=True):
    id: int
    price: Annotated[Decimal, Digits(12, 2)] | None
    weight: Annotated[Decimal, Digits(12, 3)] | None
    day: dt.date | None
    opens: dt.time | None
    written: NaiveDatetime | None
    changed: NaiveDatetime | None
    tags: list[str] | None
    text: str | None
    at: Timestamp = field(name="__source_ts_ms")
    lsn: int = field(name="__lsn", default=0)
    offset: int = field(name="__offset", default=-1)


def part(name, kind, of=None, **more):
    return {"field": name, "type": kind, "optional": True, **({"name": of} if of else {}), **more}


SCALED = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]
KEY = {"type": "struct", "name": "shop.items.Key", "fields": [{"field": "id", "type": "int64"}]}
ROW = {
    "type": "struct",
    "name": "shop.items.Value",
    "optional": True,
    "fields": [
        {"field": "id", "type": "int64"},
        part("price", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
        part("weight", "struct", "io.debezium.data.VariableScaleDecimal", fields=SCALED),
        part("day", "int32", "io.debezium.time.Date"),
        part("opens", "int64", "io.debezium.time.MicroTime"),
        part("written", "int64", "io.debezium.time.MicroTimestamp"),
        part("changed", "int64", "org.apache.kafka.connect.data.Timestamp"),
        part("tags", "array", items={"type": "string", "optional": True}),
        part("text", "string"),
    ],
}
SOURCE = {
    "type": "struct",
    "name": "io.debezium.connector.postgresql.Source",
    "fields": [part("table", "string"), {"field": "ts_ms", "type": "int64"}, part("lsn", "int64")],
}
BLOCK = {
    "type": "struct",
    "name": "event.block",
    "optional": True,
    "fields": [{"field": "id", "type": "string"}, {"field": "total_order", "type": "int64"}],
}
EVENT = {
    "type": "struct",
    "name": "shop.items.Envelope",
    "fields": [
        {**ROW, "field": "before"},
        {**ROW, "field": "after"},
        {**SOURCE, "field": "source"},
        {**BLOCK, "field": "transaction"},
        {"field": "op", "type": "string"},
        part("ts_ms", "int64"),
    ],
}
HEARTBEAT = {"type": "struct", "name": "io.debezium.Heartbeat", "fields": [{"field": "ts_ms", "type": "int64"}]}


def based(number):
    return base64.b64encode(number.to_bytes(2, "big", signed=True)).decode()


FULL = {
    "id": 1,
    "price": based(-1234),
    "weight": {"scale": 3, "value": based(1500)},
    "day": -1,
    "opens": 86_399_999_999,
    "written": -1,
    "changed": 1_500,
    "tags": ["x", "y"],
    "text": "a",
}


class Topic:
    """A topic of Debezium, and a job that follows it."""

    def __init__(self, registry, **source):
        self.registry, self.topic, self.numbers = registry, MemoryTopic("items"), {}
        pipeline = Pipeline("items").source("rows", Item, event_time="at", row_kind=DEBEZIUM)
        pipeline = pipeline.normalize("latest", key=("id",)).upsert_materialize("table", primary_key=("id",))
        settings = {"envelope": "debezium", "values": "avro", "registry": {"url": registry.url}, **source}
        names = {name: name for name in ("at", "lsn", "offset")}
        self.harness = PipelineHarness(
            pipeline.sink("out"),
            topics={"rows": self.topic},
            job={"sources": {"rows": settings}, "sinks": {"out": {"rename": names}}},
        )

    def encoded(self, connect, value):
        schema = avro_schema(connect)
        number = self.numbers.get(repr(schema)) or self.registry.add(schema)
        self.numbers[repr(schema)] = number
        return avro(number, schema, avro_value(connect, value))

    def send(self, op, before=None, after=None, *, key=1, connect=EVENT):
        source = {"table": "items", "ts_ms": 9, "lsn": 7}
        event = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
        self.topic.append([self.encoded(connect, event)], key=key and self.encoded(KEY, {"id": key}))

    def rows(self):
        self.harness.run()
        return sorted(self.harness.sink("out"), key=lambda row: row.id)

    def errors(self):
        return [row["error"].partition(": ")[2] for row in self.harness.live("quarantine")]


@pytest.fixture
def topic():
    with running(Registry()) as registry:
        yield Topic(registry)


def test_names_of_connect_decide_types(topic):
    topic.send("c", after=FULL)
    assert topic.rows() == [
        Item(
            1,
            Decimal("-12.34"),
            Decimal("1.500"),
            dt.date(1969, 12, 31),
            dt.time(23, 59, 59, 999_999),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001 - a local time
            dt.datetime(1970, 1, 1, 0, 0, 1, 500_000),  # noqa: DTZ001 - a local time
            ["x", "y"],
            "a",
            9,
            7,
            0,
        )
    ]
    assert topic.errors() == []


def test_events_change_the_rows_of_the_table(topic):
    topic.send("r", after={"id": 1, "text": "a"})
    topic.send("c", after={"id": 2, "text": "b"}, key=2)
    topic.send("u", {"id": 1, "text": "a"}, {"id": 1, "text": "c"})
    topic.topic.append([topic.encoded(HEARTBEAT, {"ts_ms": 5})], key=topic.encoded(KEY, {"id": 1}))
    assert [(row.id, row.text) for row in topic.rows()] == [(1, "c"), (2, "b")]
    topic.send("d", {"id": 1, "text": "c"})
    topic.topic.append([None], key=topic.encoded(KEY, {"id": 1}))
    topic.send("d", key=2)  # the key alone tells the row
    topic.send("c", after={"id": 3, "text": "d"}, key=3)
    assert [(row.id, row.text) for row in topic.rows()] == [(3, "d")]
    assert topic.errors() == []


def test_table_changes_in_the_middle(topic):
    topic.send("c", after={"id": 1, "text": "a"})
    row = {
        **ROW,
        "fields": [{"field": "note", "type": "string", "optional": True}, *ROW["fields"][:1], *ROW["fields"][-1:]],
    }
    names = {"before": row, "after": row}
    fields = [
        {**names[part["field"]], "field": part["field"]} if part["field"] in names else part for part in EVENT["fields"]
    ]
    topic.send("c", after={"id": 2, "text": "b", "note": "new"}, key=2, connect={**EVENT, "fields": fields})
    topic.send("u", {"id": 1, "text": "a"}, {"id": 1, "text": "c"})
    assert [(row.id, row.text, row.day) for row in topic.rows()] == [(1, "c", None), (2, "b", None)]
    assert topic.errors() == []


def test_value_without_a_log_is_the_old(topic):
    topic.send("c", after={"id": 1, "text": "a"})
    topic.send("u", {"id": 1, "text": "a"}, {"id": 1, "text": "__debezium_unavailable_value"})
    topic.send("u", None, {"id": 1, "text": "__debezium_unavailable_value"})
    topic.send("u", {"id": 2}, {"id": 1, "text": "z"})
    assert [(row.id, row.text) for row in topic.rows()] == [(1, "a")]
    assert [why[:30] for why in topic.errors()] == ["the value lacks the value of t", "the value changes id from 2 to"]


@pytest.mark.parametrize(
    ("send", "error"),
    [
        (lambda topic: topic.send("x"), "the value has op 'x', not one of c, r, u, d, t, m"),
        (lambda topic: topic.send("t"), "the value is a truncate (op t)"),
        (
            lambda topic: topic.send("c"),
            "the value is an event of Debezium without a row: op is c, and after is no row",
        ),
        (lambda topic: topic.send("d", key=None), "the value is an event of Debezium without a row: op is d"),
        (
            lambda topic: topic.topic.append([topic.encoded({"type": "int64"}, 5)]),
            "the value is not an object (it is 5)",
        ),
        (lambda topic: topic.topic.append([topic.encoded(KEY, {"id": 5})]), "the value is no event of Debezium"),
        (lambda topic: topic.topic.append([b"{}"]), "the value begins with 7b 7d"),
        (lambda topic: topic.send("c", after=FULL | {"day": 2**31 - 1}), "day is 2147483647 (io.debezium.time.Date)"),
        (lambda topic: topic.send("c", after=FULL | {"opens": 86_400_000_000}), "opens is 86400000000 (io.debezium"),
    ],
)
def test_bad_event_affects_no_other(topic, send, error):
    topic.send("c", after={"id": 1, "text": "a"})
    send(topic)
    topic.send("c", after={"id": 2, "text": "b"}, key=2)
    assert [(row.id, row.text) for row in topic.rows()] == [(1, "a"), (2, "b")]
    (why,) = topic.errors()
    assert why.startswith(error), why
