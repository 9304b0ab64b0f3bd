"""Events of change feeds: those of Debezium and Maxwell in the forms that their documentation shows, in files and in a topic."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Annotated, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace import DEBEZIUM, MAXWELL, Digits, Pipeline, Struct, Timestamp, field
from headrace.errors import ConfigError, SourceError
from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.fuzzing import examples

pytestmark = pytest.mark.delta

SOURCE = {
    "version": "3.0.5.Final",
    "connector": "postgresql",
    "name": "shop",
    "ts_ms": 1_714_000_000_000,
    "snapshot": "false",
    "db": "inventory",
    "schema": "public",
    "table": "customers",
    "txId": 555,
    "lsn": 24_023_128,
    "xmin": None,
}


class Customer(Struct, frozen=True):
    id: int
    email: str
    at: Timestamp = field(name="__source_ts_ms")
    lsn: int = field(name="__lsn")


def customers(kinds=DEBEZIUM, record=Customer):
    stream = Pipeline("customers").source("rows", record, event_time="at", row_kind=kinds)
    return stream.normalize("latest", key=("id",)).upsert_materialize("customers", primary_key=("id",)).sink("out")


def job(envelope="debezium", **source):
    source = {"envelope_table": "people"} | source if envelope == "maxwell" else source
    names = {"at": "at", "lsn": "lsn"}
    return {
        "sources": {"rows": {"format": "json", "envelope": envelope, "max_quarantined": "none", **source}},
        "sinks": {"out": {"rename": names}},
    }


def event(op, before=None, after=None, lsn=1, **more):
    source = {**SOURCE, "lsn": lsn, "ts_ms": lsn}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 9, "transaction": None, **more}


def ann(email="ann@example.com"):
    return {"id": 1, "email": email}


def harness(pipeline=None, **source):
    return PipelineHarness(pipeline or customers(), job=job(**source))


def feed(h, *events, name="1.json"):
    h.feed_bytes("rows", "".join(f"{json.dumps(row)}\n" for row in events).encode(), file=name)
    h.run()
    return {row.id: row.email for row in h.sink("out")}


def errors(h):
    return [row["error"] for row in h.table("quarantine").to_pylist()]


# ------------------------------------------------------------------------------------------------------------- Debezium


def test_row_is_inserted_updated_and_deleted():
    h = harness()
    assert feed(h, event("r", after=ann()), name="1.json") == {1: "ann@example.com"}
    assert feed(h, event("u", ann(), ann("new@example.com"), 2), name="2.json") == {1: "new@example.com"}
    assert feed(h, event("d", {"id": 1, "email": None}, None, 3), name="3.json") == {}
    assert errors(h) == []


def test_members_beside_the_row_have_names():
    class Beside(Struct, frozen=True):
        id: int
        at: Timestamp = field(name="__ts_ms")
        table: str = field(name="__table")
        lsn: int = field(name="__source_lsn")
        transaction: str | None = field(name="__transaction_id", default=None)
        order: int | None = field(name="__transaction_total_order", default=None)
        nothing: str | None = field(name="__nothing", default=None)
        op: str = field(name="__op", default="?")

    source = Pipeline("p").source("rows", Beside, event_time="at", row_kind=DEBEZIUM)
    sink = source.normalize("l", key=("id",)).upsert_materialize("m", primary_key=("id",)).sink("out")
    names = {name: name for name in Beside.__struct_fields__}
    h = PipelineHarness(sink, job=job() | {"sinks": {"out": {"rename": names}}})
    transaction = {"id": "571:53195832", "total_order": 2, "data_collection_order": 1}
    h.feed_bytes(
        "rows", json.dumps(event("c", after={"id": 1}, lsn=7, transaction=transaction)).encode(), file="1.json"
    )
    h.run()
    assert h.sink("out") == [Beside(1, 9, "customers", 7, "571:53195832", 2, None, "c")]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": 1, "email": "x"}, "line 1 is no event of Debezium: it has no op"),
        (event("x", ann(), ann()), "line 1 has op 'x', not one of c, r, u, d, t, m"),
        (event("t"), "line 1 is a truncate (op t), which removes all rows of the table"),
        (event("u", before=ann()), "line 1 is an event of Debezium without a row: op is u, and after is no row"),
        (event("d"), "line 1 is an event of Debezium without a row: op is d, and before is null, and so is the key"),
        (event("c", after=[1]), "line 1 is an event of Debezium without a row: op is c, and after is no row"),
        (event("c", after={"id": "x", "email": "x"}), "id is 'x', which is not int"),
        (event("c", after={"email": "x"}), "id is missing"),
        ([1], "line 1 is not a JSON object"),
        (event(None, ann(), ann()), "line 1 has op None, not one of"),
        (event(["c"], after=ann()), "line 1 has op ['c'], not one of"),
        ({"payload": "x"}, "line 1 has a payload that is not a JSON object"),
        (ann() | {"ts_ms": 5}, "line 1 is no event of Debezium: it has no op"),
        (event("u", ann("a") | {"id": 7}, ann("b")), "line 1 changes id from 7 to 1"),
    ],
)
def test_wrong_event_is_a_bad_row(wrong, why):
    h = harness()
    assert feed(h, wrong, event("c", after={"id": 2, "email": "bob"})) == {2: "bob"}
    (error,) = errors(h)
    assert error.startswith(why), error


def test_file_without_any_event_is_refused():
    h = PipelineHarness(customers(), job=job() | {"sources": {"rows": {"format": "json", "envelope": "debezium"}}})
    h.feed_bytes("rows", json.dumps(ann()).encode(), file="1.json")
    with pytest.raises(SourceError, match="no event of Debezium: it has no op"):
        h.run()


def test_large_value_comes_from_the_old_row():
    lacking = "__debezium_unavailable_value"
    h = harness()
    assert feed(h, event("u", ann("old"), ann(lacking)), name="1.json") == {1: "old"}
    feed(h, event("u", None, {"id": 2, "email": lacking}), name="2.json")
    assert "lacks the value of email" in errors(h)[0]
    assert {row.id: row.email for row in h.sink("out")} == {1: "old"}


# --------------------------------------------------------------------------------------------------------------- topics


def in_topic(**source):
    topic = MemoryTopic("customers")
    kafka = {"format": "kafka", "envelope": "debezium", "servers": "broker:9092", "topic": "customers", **source}
    settings = {"sources": {"rows": kafka}, "sinks": {"out": {"rename": {"at": "at", "lsn": "lsn"}}}}
    return PipelineHarness(customers(), job=settings, topics={"rows": topic}), topic


def test_topic_of_events_with_tombstones_and_heartbeats():
    h, topic = in_topic()
    topic.append([event("c", after=ann()), event("c", after={"id": 2, "email": "bob"}, lsn=2)])
    topic.append([event("d", ann(), None, 3), None, {"ts_ms": 5}, event("m")])
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(2, "bob")]
    assert errors(h) == []


@pytest.mark.parametrize(
    "key",
    [{"id": 1}, {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int32"}]}, "payload": {"id": 1}}],
)
def test_key_names_the_deleted_row(key):
    h, topic = in_topic()
    topic.append([event("c", after=ann()), event("c", after={"id": 2, "email": "bob"}, lsn=2)])
    topic.append([event("d", None, None, 3)], key=json.dumps(key).encode())
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(2, "bob")]
    assert errors(h) == []


CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete", "heartbeat"]), st.integers(0, 3), st.text("ab", max_size=2)),
    max_size=25,
)


@pytest.mark.slow
@examples(10)
@given(changes=CHANGES, cut=st.integers(0, 25), bucket=st.sampled_from([1, 3, 100]), with_before=st.booleans())
def test_topic_equals_the_table_of_the_database(changes, cut, bucket, with_before):
    """The database is a dictionary; its log has what Debezium writes of it."""
    database: dict[int, str] = {}
    messages: list[tuple[Any, Any]] = []
    for lsn, (what, key, email) in enumerate(changes, 1):
        old = {"id": key, "email": database[key]} if key in database else None
        shown = old if with_before else None
        if what == "heartbeat":
            messages.append((None, {"ts_ms": lsn}))
        elif what == "put":
            database[key] = email
            op = "c" if old is None else "u"
            messages.append(({"id": key}, event(op, shown, {"id": key, "email": email}, lsn)))
        elif old is not None:
            del database[key]
            messages += [({"id": key}, event("d", shown, None, lsn)), ({"id": key}, None)]
    h, topic = in_topic()
    h.change(job=h.job | {"watermark": {"bucket": bucket}})
    for part in (messages[:cut], messages[cut:]):
        for key, value in part:
            topic.append([value], key=None if key is None else json.dumps(key).encode())
        h.run()
    assert {row.id: row.email for row in h.sink("out")} == database
    assert errors(h) == []


# -------------------------------------------------------------------------------------------------------------- schemas


class Typed(Struct, frozen=True):
    id: int
    day: dt.date
    seen: dt.datetime
    price: Annotated[Decimal, Digits(12, 2)]
    opens: dt.time
    wait: dt.timedelta
    free: Annotated[Decimal, Digits(9, 3)]
    at: Timestamp


TYPES = {
    "id": None,
    "day": "io.debezium.time.Date",
    "seen": "io.debezium.time.ZonedTimestamp",
    "price": "org.apache.kafka.connect.data.Decimal",
    "opens": "io.debezium.time.MicroTime",
    "wait": "io.debezium.time.MicroDuration",
    "free": "io.debezium.data.VariableScaleDecimal",
    "at": "io.debezium.time.MicroTimestamp",
}


def schema(types):
    fields = [
        {"field": name, "type": "any", "name": kind, "parameters": {"scale": "2"}} for name, kind in types.items()
    ]
    return {
        "type": "struct",
        "fields": [{"field": part, "type": "struct", "fields": fields} for part in ("before", "after")],
    }


def unscaled(number):
    """Write an integer as Java's `BigInteger.toByteArray` in Base64, with a loop of its own."""
    length = 1
    while not -(1 << (8 * length - 1)) <= number < 1 << (8 * length - 1):
        length += 1
    return base64.b64encode(number.to_bytes(length, signed=True)).decode()


@pytest.mark.slow
@examples(15)
@given(
    day=st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    at=st.datetimes(),
    cents=st.integers(-(10**12) + 1, 10**12 - 1),
    opens=st.times(),
    wait=st.timedeltas(dt.timedelta(-99), dt.timedelta(99)),
    mills=st.integers(-999_999, 999_999),
)
def test_schema_names_days_times_and_decimals(day, at, cents, opens, wait, mills):
    epoch, micro = dt.datetime.fromisoformat("1970-01-01"), dt.timedelta(microseconds=1)
    row = {
        "id": 1,
        "day": (day - epoch.date()).days,
        "seen": f"{at.isoformat()}Z",
        "price": unscaled(cents),
        "opens": (dt.datetime.combine(epoch, opens) - epoch) // micro,
        "wait": wait // micro,
        "free": {"scale": 3, "value": unscaled(mills)},
        "at": (at.replace(microsecond=7000) - epoch) // micro,
    }
    pipeline = Pipeline("typed").source("rows", Typed, event_time="at", row_kind=DEBEZIUM)
    h = PipelineHarness(
        pipeline.normalize("latest", key=("id",)).upsert_materialize("m", primary_key=("id",)).sink("out"),
        job={"sources": {"rows": {"format": "json", "envelope": "debezium", "max_ahead": "none"}}},
    )
    h.feed_bytes(
        "rows", json.dumps({"schema": schema(TYPES), "payload": event("c", after=row)}).encode(), file="1.json"
    )
    h.run()
    (got,) = h.sink("out")
    assert got == Typed(
        1,
        day,
        at.replace(tzinfo=dt.UTC),
        Decimal(cents).scaleb(-2),
        opens,
        wait,
        Decimal(mills).scaleb(-3),
        (at.replace(microsecond=7000) - epoch) // dt.timedelta(milliseconds=1),
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("io.debezium.time.Date", 10**9),
        ("io.debezium.time.Date", "x"),
        ("org.apache.kafka.connect.data.Decimal", "not base64"),
        ("io.debezium.time.MicroTime", 86_400_000_000),
        ("io.debezium.time.MicroTimestamp", 10**30),
        ("io.debezium.data.VariableScaleDecimal", {"scale": 2}),
    ],
)
def test_value_against_its_schema_is_refused(kind, value):
    h = harness()
    whole = {"schema": schema({"email": kind}), "payload": event("c", after={"id": 1, "email": value})}
    assert feed(h, whole, event("c", after={"id": 2, "email": "bob"})) == {2: "bob"}
    assert "in email, which does not fit the type that the event's schema gives" in errors(h)[0]


@pytest.mark.parametrize(
    "strange", [7, [], {"fields": 7}, {"fields": [7]}, {"fields": [{"field": "after", "fields": 1}]}]
)
def test_strange_schema_is_a_bad_row(strange):
    h = harness()
    feed(h, {"schema": strange, "payload": event("c", after=ann())})
    assert errors(h)[0].startswith("line 1 has a schema that is none of Kafka Connect")


# -------------------------------------------------------------------------------------------------------------- Maxwell


class Person(Struct, frozen=True):
    id: int
    email: str
    at: Timestamp = field(name="__ts_ms")


def maxwell(kind, data, ts=1, **more):
    return {
        "database": "shop",
        "table": "people",
        "type": kind,
        "ts": ts,
        "xid": 23_396,
        "commit": True,
        "data": data,
        **more,
    }


def test_events_of_maxwell_change_rows():
    h = PipelineHarness(
        customers(MAXWELL, Person),
        job=job("maxwell") | {"sinks": {"out": {"rename": {"at": "at"}}}},
    )
    start = [maxwell("bootstrap-insert", ann("a")), maxwell("insert", {"id": 2, "email": "b"}, 2)]
    assert feed(h, *start, name="1.json") == {1: "a", 2: "b"}
    update = maxwell("update", ann("c"), 3, old={"email": "a"})
    assert feed(h, update, maxwell("delete", {"id": 2, "email": "b"}, 4), name="2.json") == {1: "c"}
    assert [row.at for row in h.sink("out")] == [3_000]
    orders = maxwell("insert", ann()) | {"table": "orders"}
    wrong = [{"data": ann()}, maxwell("insert", None), maxwell("x", ann()), maxwell("update", ann(), old={"id": 7})]
    feed(h, orders, maxwell("table-alter", None), maxwell("bootstrap-start", {}), *wrong, name="3.json")
    assert errors(h) == [
        "line 4 is no event of Maxwell: it has no type",
        "line 5 is an event of Maxwell without a row: type is insert, and data is no row",
        "__type is 'x', not one of insert, bootstrap-insert, update, delete",
        (
            "line 7 changes id from 7 to 1, by which the pipeline tells rows apart: an update of a key has to come as a deletion of the old row "
            "and an insert of the new one"
        ),
    ]


def test_file_of_events_without_rows_is_empty():
    h = PipelineHarness(customers(), job=job() | {"sources": {"rows": {"format": "json", "envelope": "debezium"}}})
    transaction = {"status": "BEGIN", "id": "571", "ts_ms": 1}
    assert feed(h, {"ts_ms": 1}, {"schema": None, "payload": None}, event("m"), transaction, {"ddl": "alter"}) == {}
    assert errors(h) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"op": "c", "after": {"id": 1}, "source": {"ts_ms": 1e999}}',
        '{"op": 1e999}',
        '{"op": "c", "after": {"id": 1e999}, "source": {"ts_ms": 1, "lsn": 1}}',
    ],
)
def test_number_beyond_all_floats_is_a_bad_row(text):
    h, topic = in_topic()
    topic.append([text.encode(), event("c", after={"id": 2, "email": "bob"})])
    h.run()
    assert [(row.id, row.email) for row in h.sink("out")] == [(2, "bob")]
    assert len(errors(h)) == 1


def test_columns_that_no_field_has_refuse_nothing():
    h = harness()
    big = {"big": "__debezium_unavailable_value", "seen": 9_223_372_036_825_200_000}
    types = schema({"seen": "io.debezium.time.MicroTimestamp"})
    assert feed(h, {"schema": types, "payload": event("u", None, ann() | big)}) == {1: "ann@example.com"}
    assert errors(h) == []


def test_deletion_needs_only_the_types_of_its_key():
    class Shop(Struct, frozen=True):
        id: int
        opens: dt.time
        at: Timestamp = field(name="__ts_ms")

    h = PipelineHarness(customers(record=Shop), job=job() | {"sinks": {"out": {"rename": {"at": "at"}}}})
    types = schema({"opens": "io.debezium.time.MicroTime"})
    for number, change in enumerate(
        [event("c", after={"id": 1, "opens": 5}), event("d", {"id": 1, "opens": 90_000_000_000})]
    ):
        h.feed_bytes("rows", json.dumps({"schema": types, "payload": change}).encode(), file=f"{number}.json")
        h.run()
        assert (len(h.sink("out")), errors(h)) == (1 - number, [])


@pytest.mark.slow
def test_other_tables_of_a_topic_are_passed_over():
    for name in ("customers", "public.customers", "inventory.public.customers", "inventory.customers"):
        h, topic = in_topic(envelope_table=name)
        other = event("d", {"id": 1, "email": ""}, lsn=2)
        other["source"] = {**SOURCE, "table": "orders"}
        topic.append([event("c", after=ann()), other])
        h.run()
        assert [row.id for row in h.sink("out")] == [1]
        assert errors(h) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"envelope": "maxwell"}, "a feed of Maxwell has the events of all tables"),
        ({"envelope_table": "x"}, "give both, or neither"),
    ],
)
def test_table_goes_with_a_feed(source, why):
    h = PipelineHarness(customers(MAXWELL, Person), job={"sources": {"rows": {"format": "json", **source}}})
    with pytest.raises(ConfigError, match=why):
        assert h.config


class Lists(Struct, frozen=True):
    id: int
    days: list[dt.date | None]
    part: dict[str, Timestamp]
    at: Timestamp = field(name="__ts_ms")


def test_types_within_lists_and_structs_are_converted():
    inner = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "x"}
    fields = [
        {"field": "days", "type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}},
        {"field": "part", "type": "struct", "fields": [inner]},
    ]
    whole = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    h = PipelineHarness(customers(record=Lists), job=job() | {"sinks": {"out": {"rename": {"at": "at"}}}})
    row = {"id": 1, "days": [0, None, 20_513], "part": {"x": 200_000_000_000_000}}
    h.feed_bytes("rows", json.dumps({"schema": whole, "payload": event("c", after=row)}).encode(), file="1.json")
    h.run()
    days = [dt.date(1970, 1, 1), None, dt.date(2026, 3, 1)]
    assert h.sink("out") == [Lists(1, days, {"x": 200_000_000_000}, 9)]


def test_own_columns_stand_before_those_beside():
    class Own(Struct, frozen=True):
        id: int
        version: str = field(name="__version")
        at: Timestamp = field(name="__ts_ms")

    names = {"at": "at", "version": "version"}
    h = PipelineHarness(customers(record=Own), job=job() | {"sinks": {"out": {"rename": names}}})
    h.feed_bytes("rows", json.dumps(event("c", after={"id": 1, "__version": "mine"})).encode(), file="1.json")
    h.run()
    assert h.sink("out") == [Own(1, "mine", 9)]


def test_feed_needs_its_row_kinds():
    for kinds in (None, "op", "__op", MAXWELL):
        with pytest.raises(ConfigError, match="give the source row_kind=DEBEZIUM in the pipeline"):
            harness(customers(kinds)).run()


@pytest.mark.parametrize("kind", ["csv", "parquet", "avro", "delta"])
def test_other_formats_have_no_events(kind):
    h = PipelineHarness(
        customers(), job={"sources": {"rows": {"format": kind, "envelope": "debezium", "path": "lake/x"}}}
    )
    with pytest.raises(ConfigError, match="envelope"):
        assert h.config
