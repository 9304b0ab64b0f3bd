"""Keys, headers, times and places of messages as fields, and compacted topics as the last rows of their keys."""

from __future__ import annotations

import json
import random

import pytest

from headrace import COMPACTED, DEBEZIUM, Pipeline, Struct, Timestamp, field
from headrace.errors import ConfigError
from headrace.testing import MemoryTopic, PipelineHarness
from tests.jobs.schema_registry import Registry, avro, framed, running

pytestmark = pytest.mark.delta


class Read(Struct, frozen=True):
    at: Timestamp = field(name="__timestamp")
    key: str | None = field(name="__key")
    topic: str = field(name="__topic")
    partition: int = field(name="__partition")
    offset: int = field(name="__offset")
    headers: dict[str, str] = field(name="__headers")
    trace: str | None = field(name="__headers.trace", default=None)
    size: int = 0


NAMES = {name: name for name in Read.__struct_fields__}


def harness(record=Read, *, partitions=1, key=None, names=NAMES, drops=False, **source):
    stream = Pipeline("read").source("rows", record, event_time="at", row_kind=COMPACTED if key else None)
    if key:
        stream = stream.normalize("latest", key=key, drops_unmatched=drops)
        stream = stream.upsert_materialize("table", primary_key=key)
    topic = MemoryTopic("shop.rows", partitions)
    tombstones = {"on_tombstone": "delete"} if key else {}
    rename = {name: names[name] for name in record.__struct_fields__ if name in names}
    h = PipelineHarness(
        stream.sink("out"),
        topics={"rows": topic},
        job={"sources": {"rows": {**tombstones, **source}}, "sinks": {"out": {"rename": rename}}},
    )
    return h, topic


def quarantine(h):
    return [row["error"] for row in h.live("quarantine")]


def test_fields_may_be_parts_of_messages():
    h, topic = harness(partitions=2, idle_after="0s")
    topic.append([{"size": 3}, {}], partition=1, key=b"ann", timestamp=1_000, headers={"trace": b"t1", "x": b""})
    topic.append([{}], timestamp=2_000)
    h.run()
    assert sorted(h.sink("out"), key=lambda row: (row.at, row.offset)) == [
        Read(1_000, "ann", "shop.rows", 1, 0, {"trace": "t1", "x": ""}, "t1", 3),
        Read(1_000, "ann", "shop.rows", 1, 1, {"trace": "t1", "x": ""}, "t1", 0),
        Read(2_000, None, "shop.rows", 0, 0, {}, None, 0),
    ]


def test_member_of_the_value_stands_before():
    h, topic = harness()
    topic.append([{"__key": "own", "__offset": 7, "__headers": {"a": "b"}}], key=b"k", timestamp=5)
    h.run()
    assert h.sink("out") == [Read(5, "own", "shop.rows", 0, 7, {"a": "b"})]


def test_keys_and_headers_may_be_bytes():
    class Raw(Struct, frozen=True):
        at: Timestamp = field(name="__timestamp")
        key: bytes = field(name="__key")
        mark: bytes = field(name="__headers.mark")

    h, topic = harness(Raw, names={name: name for name in Raw.__struct_fields__})
    topic.append([{}], key=b"\xff\0", headers={"mark": b"\xfe"}, timestamp=1)
    topic.append([{}], headers={"mark": b"\xfe"}, timestamp=1)
    topic.append([{}], key=b"k", timestamp=1)
    h.run()
    assert h.sink("out") == [Raw(1, b"\xff\0", b"\xfe")]
    assert quarantine(h) == [
        "shop.rows-0@1: __key is null",
        "shop.rows-0@2: __headers.mark is missing",
    ]


class Traced(Struct, frozen=True):
    id: int
    at: Timestamp
    cause: str = field(name="__headers.__connect.errors.topic", default="none")
    mark: bytes = field(name="__headers.x.y", default=b"-")
    plain: str = field(name="__headers.x", default="-")


@pytest.mark.parametrize("envelope", [False, True])
def test_names_of_headers_may_have_dots(envelope):
    stream = Pipeline("read").source("rows", Traced, event_time="at", row_kind=DEBEZIUM if envelope else None)
    topic, names = MemoryTopic("shop.rows"), {name: name for name in Traced.__struct_fields__}
    job = {"sources": {"rows": {"envelope": "debezium"} if envelope else {}}, "sinks": {"out": {"rename": names}}}
    h = PipelineHarness(stream.sink("out"), topics={"rows": topic}, job=job)
    values = [{"id": number, "at": number} for number in range(3)]
    values = [{"op": "c", "after": value, "before": None} if envelope else value for value in values]
    topic.append(values[:1], headers={"__connect.errors.topic": b"a.b", "x.y": b"\xff", "x": b"z"})
    topic.append(values[1:2], headers={"x.y": b"1"})
    topic.append(values[2:])
    h.run()
    assert h.sink("out") == [Traced(0, 0, "a.b", b"\xff", "z"), Traced(1, 1, mark=b"1"), Traced(2, 2)]
    assert quarantine(h) == []


def test_key_that_is_no_text_is_bad():
    h, topic = harness()
    topic.append([{}], key=b"\xff", timestamp=1)
    topic.append([{}], key=b"k", headers={"trace": b"\xff"}, timestamp=1)
    topic.append([{}], key=b"k", timestamp=1)
    h.run()
    assert [row.offset for row in h.sink("out")] == [2]
    assert [why.startswith(f"shop.rows-0@{at}: ") and "xff" in why for at, why in enumerate(quarantine(h))] == [
        True
    ] * 2


class Customer(Struct, frozen=True):
    id: int
    email: str | None
    at: Timestamp = field(name="__timestamp")


def test_members_of_keys_are_fields_by_path():
    class Keyed(Struct, frozen=True):
        email: str
        id: int = field(name="__key.id")
        at: Timestamp = field(name="__timestamp")

    h, topic = harness(Keyed, names={name: name for name in Keyed.__struct_fields__}, keys="json")
    topic.append([{"email": "a"}], key=b'{"id": 1}', timestamp=1)
    topic.append([{"email": "b"}], key=b"{", timestamp=1)
    topic.append([{"email": "c"}], key=b"7", timestamp=1)
    topic.append([{"email": "d"}], timestamp=1)
    h.run()
    assert h.sink("out") == [Keyed("a", 1, 1)]
    assert [why.partition(": ")[2][:34] for why in quarantine(h)] == [
        "the key is not JSON (Input data wa",
        "__key is 7, which is no object wit",
        "__key.id is null",
    ]


def test_tombstone_deletes_the_row_of_its_key():
    h, topic = harness(Customer, key=("id",), keys="json")
    for number, email in ((1, "a"), (2, "b"), (1, "c")):
        topic.append([{"id": number, "email": email}], key=b'{"id": %d}' % number, timestamp=number)
    h.run()
    assert sorted((row.id, row.email) for row in h.sink("out")) == [(1, "c"), (2, "b")]
    topic.append([None], key=b'{"id": 1}', timestamp=3)
    topic.append([None], key=b'{"id": 9}', timestamp=3)
    topic.append([None], key=b'{"no": 9}', timestamp=3)
    topic.append([None], timestamp=3)
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(2, "b")]
    assert [why.rpartition(": ")[2] for why in quarantine(h)] == [
        "a retraction (-D) that matches none of the records of its key",
        "id is missing",
        "id is missing",
    ]


def test_value_that_is_null_is_no_tombstone():
    h, topic = harness(Customer, key=("id",), keys="json")
    topic.append([{"id": 1, "email": "a"}], key=b'{"id": 1}', timestamp=1)
    topic.append([b"null", b" null "], key=b'{"id": 1}', timestamp=2)
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(1, "a")]
    assert [why.partition(": ")[2] for why in quarantine(h)] == ["the value is not an object (it is None)"] * 2


def test_tombstones_of_unknown_keys_may_be_dropped():
    h, topic = harness(Customer, key=("id",), keys="json", drops=True)
    topic.append([None], key=b'{"id": 9}', timestamp=3)
    topic.append([{"id": 9, "email": "x"}], key=b'{"id": 9}', timestamp=4)
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(9, "x")]
    assert quarantine(h) == []


class Flat(Struct, frozen=True):
    id: int
    at: Timestamp


@pytest.mark.parametrize(
    ("kinds", "source"),
    [
        (DEBEZIUM, {}),
        (DEBEZIUM, {"on_tombstone": "delete", "keys": "json"}),
        ({"field": "__op", "c": "+U", "d": "-D"}, {"on_tombstone": "skip"}),
    ],
)
def test_flattened_events_say_their_own_kinds(kinds, source):
    stream = Pipeline("read").source("rows", Flat, event_time="at", row_kind=kinds)
    stream = stream.normalize("latest", key=("id",), drops_unmatched=True).upsert_materialize(
        "table", primary_key=("id",)
    )
    topic = MemoryTopic("shop.rows")
    h = PipelineHarness(stream.sink("out"), topics={"rows": topic}, job={"sources": {"rows": source}})
    events = [(1, 1_000, "c"), (2, 2_000, "c"), (1, 3_000, "d")]
    topic.append([{"id": number, "at": at, "__op": op} for number, at, op in events])
    h.run()
    assert (h.sink("out"), quarantine(h)) == ([Flat(2, 2_000)], [])


def test_compacted_topics_take_no_kinds_from_values():
    h, topic = harness(Customer, key=("id",), keys="json")
    topic.append([{"id": 1, "email": "a", "__op": "d"}], key=b'{"id": 1}', timestamp=1)
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(1, "a")]


class Named(Struct, frozen=True):
    size: int
    name: str = field(name="__key")
    at: Timestamp = field(name="__timestamp")


@pytest.mark.parametrize("seed", range(3))
def test_compacted_topic_equals_a_dict(seed):
    chance, expected = random.Random(seed), {}
    h, topic = harness(Named, key=("name",), drops=True)
    for _ in range(3):
        for _ in range(20):
            key, size = f"k{chance.randrange(6)}", chance.randrange(100)
            is_tombstone = chance.random() < 0.3
            topic.append([None if is_tombstone else {"size": size}], key=key.encode(), timestamp=1_000)
            expected.pop(key, None)
            expected |= {} if is_tombstone else {key: size}
        h.run()
        assert {row.name: row.size for row in h.sink("out")} == expected
    assert quarantine(h) == []


KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
VALUE = {"type": "record", "name": "Value", "fields": [{"name": "email", "type": ["null", "string"]}]}


class ByKey(Struct, frozen=True):
    email: str | None
    id: int = field(name="__key.id")
    at: Timestamp = field(name="__timestamp")


@pytest.mark.parametrize("values", ["avro", "json"])
def test_keys_may_be_in_avro(values):
    with running(Registry()) as registry:
        of_key, of_value = registry.add(KEY, subject="rows-key"), registry.add(VALUE)
        h, topic = harness(
            ByKey,
            names={name: name for name in ByKey.__struct_fields__},
            key=("id",),
            values=values,
            keys="avro",
            registry={"url": registry.url},
        )

        def value(email):
            of_json = framed(of_value, json.dumps({"email": email}).encode())
            return avro(of_value, VALUE, {"email": email}) if values == "avro" else of_json

        for number, email in ((1, "a"), (2, None), (1, "c")):
            topic.append([value(email)], key=avro(of_key, KEY, {"id": number}), timestamp=number)
        topic.append([value("x")], key=b"7", timestamp=5)
        topic.append([None], key=avro(of_key, KEY, {"id": 2}), timestamp=6)
        h.run()
        assert [(row.id, row.email) for row in h.sink("out")] == [(1, "c")]
        assert [why[:46] for why in quarantine(h)] == ["shop.rows-0@3: the key begins with 37, not wit"]


@pytest.mark.parametrize(
    ("kinds", "source", "error"),
    [
        (None, {"on_tombstone": "delete"}, "give the source row_kind=COMPACTED in the pipeline"),
        (COMPACTED, {"on_tombstone": "delete", "envelope": "debezium"}, "a tombstone behind each deletion"),
    ],
)
def test_deletions_need_row_kinds(kinds, source, error):
    pipeline = Pipeline("read").source("rows", Named, event_time="at", row_kind=kinds)
    pipeline = pipeline.sink("out") if kinds is None else pipeline.normalize("l", key=("name",)).sink("out")
    rename = {"name": "name", "at": "at"}
    with pytest.raises(ConfigError, match=error):
        PipelineHarness(
            pipeline,
            topics={"rows": MemoryTopic()},
            job={"sources": {"rows": source}, "sinks": {"out": {"rename": rename}}},
        ).run()
