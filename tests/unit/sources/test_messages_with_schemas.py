"""Messages in Avro by the schemas of a registry: written by fastavro, read once, and the same again when the registry is gone."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Digits, NaiveDatetime, Pipeline, Struct, Timestamp, TimestampMicros, field
from headrace.edits.requeue import requeue
from headrace.edits.restore import restore
from headrace.errors import ConfigError, ServiceError, SourceError
from headrace.log.log import CheckpointLog
from headrace.sources.kafka.schemas import SchemaStore
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.testing import MemoryTopic, PipelineHarness
from tests.jobs.certificates import certificates
from tests.jobs.schema_registry import Registry, avro, framed, running
from tests.unit.sources.source_reading import avro_bytes, read_bytes

pytestmark = pytest.mark.delta


class Order(Struct, frozen=True):
    id: int
    customer: str
    at: Timestamp
    amount: int | None = None


ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
WITH_AMOUNT = ORDER | {
    "fields": [
        {"name": "amount", "type": ["null", "long"], "default": None},
        *ORDER["fields"],
        {"name": "coupon", "type": "string", "default": ""},
    ]
}


@pytest.fixture
def registry():
    with running(Registry()) as running_one:
        yield running_one


def time(seconds):
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def row(number, **more):
    return {"id": number, "customer": "ann", "at": time(number), **more}


class Orders:
    """A job that reads orders of a topic into a sink."""

    def __init__(self, registry, record=Order, /, sink=None, **source):
        pipeline = Pipeline("orders").source("rows", record, event_time="at").sink("out")
        self.topic = MemoryTopic("shop.orders")
        options = {} if registry is None else {"registry": {"url": registry.url}}
        self.harness = PipelineHarness(
            pipeline,
            topics={"rows": self.topic},
            job={"sources": {"rows": {"values": "avro", **options, **source}}, "sinks": {"out": sink or {}}},
        )

    def took(self):
        self.harness.run()
        return self.arrived()

    def arrived(self, harness=None):
        return sorted((harness or self.harness).sink("out"), key=lambda row: row.at)

    def quarantine(self):
        return [row["error"] for row in self.harness.live("quarantine")]

    @property
    def log(self):
        return CheckpointLog(JobFolder.of(self.harness.config))


def test_values_are_read_by_their_schemas(registry):
    job, number = Orders(registry), registry.add(ORDER)
    job.topic.append([avro(number, ORDER, row(1)), avro(number, ORDER, row(2))])
    assert job.took() == [Order(1, "ann", 1_000), Order(2, "ann", 2_000)]
    assert len(job.took()) == 2
    assert len(registry.asked) == 1


def test_schema_changes_in_the_middle(registry):
    job = Orders(registry)
    first, second = registry.add(ORDER), registry.add(WITH_AMOUNT)
    job.topic.append(
        [
            avro(first, ORDER, row(1)),
            avro(second, WITH_AMOUNT, row(2, amount=7, coupon="x")),
            avro(first, ORDER, row(3)),
        ]
    )
    assert job.took() == [Order(1, "ann", 1_000), Order(2, "ann", 2_000, 7), Order(3, "ann", 3_000)]
    third = registry.add(ORDER | {"fields": [*ORDER["fields"][:1], *ORDER["fields"][2:]]})
    fourth = registry.add(ORDER | {"fields": [*ORDER["fields"], {"name": "amount", "type": "string"}]})
    lacks = {name: value for name, value in row(4).items() if name != "customer"}
    job.topic.append(
        [
            avro(third, json.loads(registry.schemas[third]["schema"]), lacks),
            avro(fourth, json.loads(registry.schemas[fourth]["schema"]), row(5, amount="many")),
            avro(first, ORDER, row(6)),
        ]
    )
    assert job.took()[3:] == [Order(6, "ann", 6_000)]
    assert job.quarantine() == [
        "shop.orders-0@3: customer is missing",
        "shop.orders-0@4: amount is 'many', which is not int64",
    ]


class Shop(Struct, frozen=True):
    town: str
    tags: dict[str, int]


class Typed(Struct, frozen=True):
    price: Annotated[Decimal, Digits(12, 2)] | None
    day: dt.date | None
    opens: dt.time | None
    at: Timestamp
    micros: TimestampMicros | None
    local: NaiveDatetime | None
    code: UUID | None
    kind: str | None
    raw: bytes | None
    ratio: float | None
    shops: list[Shop] | None
    other: int | None = field(name="renamed.by.path", default=None)


TYPED = {
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "day": {"type": "int", "logicalType": "date"},
    "opens": {"type": "long", "logicalType": "time-micros"},
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "micros": {"type": "long", "logicalType": "timestamp-micros"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "code": {"type": "string", "logicalType": "uuid"},
    "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    "raw": {"type": "fixed", "name": "Raw", "size": 3},
    "ratio": "double",
    "shops": {
        "type": "array",
        "items": {
            "type": "record",
            "name": "Shop",
            "fields": [{"name": "town", "type": "string"}, {"name": "tags", "type": {"type": "map", "values": "int"}}],
        },
    },
    "renamed": {
        "type": "record",
        "name": "R",
        "fields": [
            {
                "name": "by",
                "type": {"type": "record", "name": "B2", "fields": [{"name": "path", "type": ["null", "int"]}]},
            }
        ],
    },
}
FULL = {
    "price": Decimal("-12.34"),
    "day": dt.date(1969, 12, 31),
    "opens": dt.time(23, 59, 59, 999_999),
    "at": time(5),
    "micros": time(-1),
    "local": dt.datetime(2026, 3, 1, 12, 0, 0, 1),  # noqa: DTZ001 - a local time
    "code": UUID("7b0c41d2-0000-4000-8000-1f3a9c2e7b0c"),
    "kind": "B",
    "raw": b"\0\xff\x01",
    "ratio": 0.1,
    "shops": [{"town": "Ulm ☃", "tags": {"x": 1}}],
    "renamed": {"by": {"path": 7}},
}
EMPTY = {**dict.fromkeys(FULL), "at": time(6), "renamed": {"by": {"path": None}}}


def test_messages_equal_rows_of_avro_files(registry):
    types = {name: kind if name in {"at", "renamed"} else ["null", kind] for name, kind in TYPED.items()}
    schema = {"type": "record", "name": "T", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}
    job, number = Orders(registry, Typed, sink={"rename": {"other": "other"}}), registry.add(schema)
    job.topic.append([avro(number, schema, FULL), avro(number, schema, EMPTY)])
    of_file = read_bytes("avro", avro_bytes(types, [FULL, EMPTY]), Typed)
    assert (of_file.refused, of_file.errors) == (None, {})
    assert job.took() == of_file.records
    assert of_file.records[0].price == Decimal("-12.34")
    assert of_file.records[0].other == 7


def test_schemas_refer_to_others(registry):
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    price = {"type": "record", "name": "shop.Price", "fields": [{"name": "net", "type": "shop.Money"}]}
    order = ORDER | {"fields": [*ORDER["fields"], {"name": "price", "type": "shop.Price"}]}
    registry.add(money, subject="money")
    registry.add(price, subject="price", references=[("shop.Money", "money", 1)])
    number = registry.add(order, references=[("shop.Price", "price", 1)])

    class Priced(Struct, frozen=True):
        id: int
        at: Timestamp
        cents: int = field(name="price.net.cents")

    job = Orders(registry, Priced, sink={"rename": {"cents": "cents"}})
    job.topic.append([avro(number, order, row(1, price={"net": {"cents": 250}}), money, price)])
    assert job.took() == [Priced(1, 1_000, 250)]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", "the value is empty, not with the byte 0 and the number of a schema"),
        (b'{"id": 1}', "the value begins with 7b 22 69 64 22 3a 20 31, not with the byte 0"),
        (b"\0\0\0", "the value begins with 00 00 00, not with the byte 0"),
        (framed(99, b"\2"), "the value has the schema 99, which the registry does not know"),
        (framed(2, b"{}"), "the value has the schema 2, which is of the type JSON, not AVRO"),
        (framed(3, b""), "the value has the schema 3, which is of no use here: its schema cannot be read"),
        (framed(4, b""), "the value has the schema 4, which is no JSON"),
        (framed(5, b"\2"), "the value is not an object (it is 1)"),
        (framed(1, b"\2"), "the value is not written by its schema (EOFError)"),
        (framed(1, b"\2\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "the value is not written by its schema"),
        (avro(1, ORDER, row(1)) + b"x", "the value is not written by its schema: it has more bytes than that needs"),
        (avro(1, ORDER, row(1))[:-1], "the value is not written by its schema"),
        (None, "the message has no value (a tombstone)"),
    ],
)
def test_bad_message_affects_no_other(registry, value, error):
    registry.add(ORDER)
    registry.add({"type": "object"}, kind="JSON")
    registry.add({"type": "record", "name": "X", "fields": [{"name": "x", "type": "unknown.Type"}]})
    registry.add("{")
    registry.add("int")
    job = Orders(registry)
    job.topic.append([avro(1, ORDER, row(7)), value, avro(1, ORDER, row(8))])
    assert [order.id for order in job.took()] == [7, 8]
    (why,) = job.quarantine()
    assert why.startswith(f"shop.orders-0@1: {error}"), why


def test_root_may_be_names_of_references(registry):
    class Either(Struct, frozen=True):
        id: int
        at: Timestamp = field(name="__timestamp")

    one = {"type": "record", "name": "shop.One", "fields": [{"name": "id", "type": "long"}]}
    parts = [{"name": "id", "type": "long"}, {"name": "ones", "type": {"type": "array", "items": "shop.One"}}]
    two = {"type": "record", "name": "shop.Two", "fields": parts}
    registry.add(one, subject="one")
    registry.add(two, subject="two", references=[("shop.One", "one", 1)])
    references = [("shop.One", "one", 1), ("shop.Two", "two", 1)]
    job = Orders(registry, Either, sink={"rename": {"id": "id", "at": "at"}})
    of_either = registry.add(["shop.One", "null", "shop.Two"], references=references)
    of_two = registry.add('"shop.Two"', references=references[1:])
    defined = [one, "null", two]
    values = [avro(of_either, defined, ("shop.One", {"id": 1}))]
    values += [avro(of_either, defined, ("shop.Two", {"id": 2, "ones": [{"id": 3}]}))]
    values += [avro(of_two, two, {"id": 4, "ones": []}, one)]
    job.topic.append(values, timestamp=5)
    assert (sorted(taken.id for taken in job.took()), job.quarantine()) == ([1, 2, 4], [])


@pytest.mark.parametrize("source", [{}, {"on_tombstone": "skip"}])
def test_null_at_the_root_is_bad(registry, source):
    class Optional(Struct, frozen=True):
        at: Timestamp = field(name="__timestamp")
        id: int | None = None

    both = ["null", ORDER]
    job, number, null = (
        Orders(registry, Optional, sink={"rename": {"at": "at"}}, **source),
        registry.add(both),
        registry.add('"null"'),
    )
    job.topic.append([avro(number, both, row(1)), avro(number, both, None), framed(null, b"")], timestamp=5)
    assert job.took() == [Optional(5, 1)]
    assert [why.partition(": ")[2] for why in job.quarantine()] == ["the value is not an object (it is None)"] * 2


def test_deep_messages_end_no_process(registry):
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": ["null", "Tree"]}]}
    schema = ORDER | {"fields": [*ORDER["fields"], {"name": "tree", "type": ["null", tree]}]}
    job, number = Orders(registry), registry.add(schema)
    below = None
    for _ in range(100):
        below = {"below": below}
    good, plain = avro(number, schema, row(1, tree=below)), avro(number, schema, row(2, tree=None))[:-1]
    deep = [plain + b"\2" * depth + b"\0" for depth in (480, 10_000, 1_000_000)]
    at_a_record = avro(number, schema, row(4, tree=None))
    job.topic.append([good, *deep, at_a_record])
    assert [order.id for order in job.took()] == [1, 2, 4]
    assert [why.partition(": ")[2] for why in job.quarantine()] == [
        "the value is not read: its records are nested too deep"
    ] * 2


BARE = {"type": "record", "name": "Bare", "fields": []}
HOLLOW = {"type": "record", "name": "Hollow", "fields": [{"name": "a", "type": BARE}, {"name": "b", "type": "Bare"}]}


@pytest.mark.parametrize("items", ["null", {"type": "null"}, BARE, HOLLOW, {"type": "fixed", "name": "F", "size": 0}])
def test_items_without_bytes_are_bounded(registry, items):
    schema = ORDER | {"fields": [*ORDER["fields"], {"name": "more", "type": {"type": "array", "items": items}}]}
    job, number = Orders(registry), registry.add(schema)
    plain = avro(number, schema, row(1, more=[]))[:-1]
    job.topic.append([plain + b"\6\0", plain + b"\x80\x80\x80\x80\x80\x40\0"])  # 3 items, and 2^40
    assert [order.id for order in job.took()] == [1]
    (why,) = job.quarantine()
    assert "its lists have more than 100,000 items that take no bytes" in why


def test_endless_records_end_no_process(registry):
    endless = {"type": "record", "name": "Endless", "fields": [{"name": "in", "type": "Endless"}]}
    schema = ORDER | {"fields": [*ORDER["fields"], {"name": "more", "type": ["null", endless]}]}
    job, number = Orders(registry), registry.add(schema)
    plain = avro(number, schema, row(1, more=None))
    job.topic.append([plain, plain[:-1] + b"\2"])
    assert [order.id for order in job.took()] == [1]
    assert [why.partition(": ")[2] for why in job.quarantine()] == [
        "the value is not read: its records are nested too deep"
    ]


def test_quarantine_shows_readable_values(registry):
    schema = ORDER | {"fields": [*ORDER["fields"][:2], {"name": "at", "type": "string"}]}
    job, number = Orders(registry), registry.add(schema)
    job.topic.append([avro(number, schema, row(1, at="never")), b"\xff{"], key=b"k\xff")
    assert job.took() == []
    first, second = (json.loads(row["raw"]) for row in job.harness.table("quarantine").to_pylist())
    assert (first["key"], first["value"]) == ("k\\xff", {"id": 1, "customer": "ann", "at": "never"})
    assert (second["offset"], second["value"]) == (1, "\\xff{")


def test_unknown_schema_is_asked_for_again(registry):
    job, number = Orders(registry), registry.add(ORDER)
    job.topic.append([avro(number, ORDER, row(1)), avro(7, WITH_AMOUNT, row(2, amount=3, coupon=""))])
    assert job.took() == [Order(1, "ann", 1_000)]
    assert job.quarantine() == ["shop.orders-0@1: the value has the schema 7, which the registry does not know"]
    registry.add(WITH_AMOUNT, 7)
    requeue(job.harness.config, "again")
    assert job.took() == [Order(1, "ann", 1_000), Order(2, "ann", 2_000, 3)]
    assert job.quarantine() == []


def test_number_beyond_all_schemas_is_unknown(registry):
    job, number = Orders(registry), registry.add(ORDER)
    numbers = (2**31 - 1, 2**31, 2**32 - 1)
    job.topic.append([avro(number, ORDER, row(1)), *(framed(other, b"x") for other in numbers)])
    assert job.took() == [Order(1, "ann", 1_000)]
    assert [why.partition(": ")[2] for why in job.quarantine()] == [
        f"the value has the schema {other}, which the registry does not know" for other in numbers
    ]
    assert {*registry.asked} == {f"/schemas/ids/{asked}" for asked in (number, numbers[0])}


@pytest.mark.slow
def test_message_is_requeued_once_its_schema_is_stored(registry):
    job, number = Orders(registry), registry.add(ORDER)
    job.topic.append([avro(number, ORDER, row(1)), avro(7, ORDER, row(2))], headers={"trace": b"\xff"})
    job.took()
    registry.add(ORDER, 7)
    job.topic.append([avro(7, ORDER, row(3))])
    assert job.took() == [Order(1, "ann", 1_000), Order(3, "ann", 3_000)]
    requeue(job.harness.config, "again")
    assert [order.id for order in job.took()] == [1, 2, 3]
    assert job.quarantine() == []


def test_requeue_refuses_another_message(registry):
    job = Orders(registry)
    job.topic.append([avro(7, ORDER, row(1))])
    job.took()
    (landed,) = JobFolder.of(job.harness.config).below("landed/rows").files()
    place = Path(JobFolder.of(job.harness.config).below("landed/rows").uri) / landed
    messages = pq.ParquetFile(place).read()
    pq.write_table(messages.set_column(messages.schema.get_field_index("offset"), "offset", pa.array([5])), place)
    with pytest.raises(SourceError, match="is not the row that was refused"):
        requeue(job.harness.config, "again")


@pytest.mark.parametrize(
    ("answer", "kind", "match"),
    [
        ((503, b"starting"), ServiceError, r"does not answer \(503: starting\). Nothing was taken in"),
        ((429, b""), ServiceError, "does not answer"),
        ((403, b"no"), SourceError, r"refuses this job \(403: no\): correct 'user' and 'password'"),
        ((404, b"<html>"), SourceError, r"answers 404 to /schemas/ids/1 \(<html>\), as no schema registry does"),
        ((200, b"<html>"), SourceError, "as no schema registry does"),
        ((200, b'{"schema": 7}'), SourceError, "as no schema registry does"),
    ],
)
def test_registry_that_fails_takes_nothing_in(registry, answer, kind, match):
    job, number = Orders(registry), registry.add(ORDER)
    job.topic.append([avro(number, ORDER, row(at)) for at in range(12)], timestamp=0)
    registry.fails = answer
    with pytest.raises(kind, match=match):
        job.took()
    registry.fails = None
    assert len(job.took()) == 12
    assert job.quarantine() == []


def test_registry_without_a_referred_schema_is_named(registry):
    number = registry.add(ORDER, references=[("shop.Money", "money", 3)])
    job = Orders(registry)
    job.topic.append([avro(number, ORDER, row(1))])
    with pytest.raises(SourceError, match="has a schema that refers to version 3 of money, and lacks that"):
        job.took()


def test_registry_may_have_an_authority_of_its_own(tmp_path):
    of_registry = certificates(tmp_path)
    with running(Registry(), of_registry.of_server()) as registry:
        job, number = Orders(registry), registry.add(ORDER)
        job.topic.append([avro(number, ORDER, row(1))])
        with pytest.raises(SourceError, match=r"shows a certificate that is not trusted \(.*: 'registry.ca' names"):
            job.took()
        trusting = Orders(None, registry={"url": registry.url, "ca": str(of_registry.authority)})
        trusting.topic.append([avro(number, ORDER, row(1))])
        assert trusting.took() == [Order(1, "ann", 1_000)]
        other = Orders(None, registry={"url": registry.url, "ca": str(of_registry.server.with_name("none.pem"))})
        other.topic.append([avro(number, ORDER, row(1))])
        with pytest.raises(SourceError, match="none.pem has no certificates"):
            other.took()


def test_registry_that_is_gone_is_named():
    with running(Registry()) as former:
        number = former.add(ORDER)
    job = Orders(former)
    job.topic.append([avro(number, ORDER, row(1))])
    with pytest.raises(ServiceError, match=rf"the schema registry {former.url} does not answer \(.*refused"):
        job.took()


def test_registry_asks_for_user_and_password(registry, monkeypatch):
    monkeypatch.setenv("REGISTRY_PASSWORD", "p:w")
    registry.login, number = ("me", "p:w"), registry.add(ORDER)
    options = {"url": registry.url, "user": "me", "password": "${REGISTRY_PASSWORD}"}
    job = Orders(registry, registry=options)
    job.topic.append([avro(number, ORDER, row(1))])
    assert job.took() == [Order(1, "ann", 1_000)]
    assert "p:w" not in repr(job.harness.config)
    assert "p:w" not in str(job.harness.config.sources["rows"].shown())
    registry.login = ("me", "other")
    other = registry.add(WITH_AMOUNT)
    job.topic.append([avro(other, WITH_AMOUNT, row(2, amount=1, coupon=""))])
    with pytest.raises(SourceError, match="refuses this job"):
        job.took()


def test_same_schema_again_without_the_registry():
    with running(Registry()) as registry:
        number = registry.add(ORDER)
        job = Orders(registry)
        job.topic.append([avro(number, ORDER, row(1))])
        job.took()
        job.topic.append([avro(number, ORDER, row(2))])
        orders = job.took()
        registry.add(WITH_AMOUNT, number)  # as if it was made anew
        job.topic.append([avro(number, ORDER, row(3))])
        orders = job.took()
    assert orders == [Order(at, "ann", 1000 * at) for at in (1, 2, 3)]
    restore(job.harness.config, job.log.checkpoints[0].checkpoint_id, "back", "restoring")
    assert job.took() == orders


@pytest.mark.parametrize("size", [0, 20])
def test_damaged_schema_is_asked_for_again(registry, size):
    job, number = Orders(registry), registry.add(ORDER)
    job.topic.append([avro(number, ORDER, row(1))])
    job.took()
    schemas = JobFolder.of(job.harness.config).below("schemas/rows")
    assert schemas.files() == {f"{number}.json"}
    schemas.write(f"{number}.json", schemas.read(f"{number}.json")[:size])
    job.topic.append([avro(number, ORDER, row(2))])
    assert job.took() == [Order(1, "ann", 1_000), Order(2, "ann", 2_000)]
    assert len(registry.asked) == 2


def test_schema_is_whole_after_a_crash(registry, monkeypatch):
    job, number = Orders(registry), registry.add(ORDER)
    job.topic.append([avro(number, ORDER, row(1))])
    with monkeypatch.context() as crash:
        crash.setattr(Storage, "rename", crashing)
        with pytest.raises(KeyboardInterrupt):
            job.took()
    assert SchemaStore(JobFolder.of(job.harness.config).below("schemas/rows")).find(number) is None
    assert job.took() == [Order(1, "ann", 1_000)]


def crashing(self, path, name):
    if "schemas" in self.uri:
        raise KeyboardInterrupt
    return RENAME(self, path, name)


RENAME = Storage.rename


@pytest.mark.slow
def test_branch_reads_the_schemas_of_its_job():
    with running(Registry()) as registry:
        first, second = registry.add(ORDER), registry.add(WITH_AMOUNT)
        job = Orders(registry)
        job.topic.append([avro(first, ORDER, row(1))])
        job.took()
        branch = job.harness.branch("again", at=0)
        job.topic.append([avro(second, WITH_AMOUNT, row(2, amount=5, coupon=""))])
        registry.fails = (500, b"")
        with pytest.raises(ServiceError, match="checkpoint 2 of this run stays"):
            branch.run()
        assert job.arrived(branch) == job.arrived()
        registry.fails = None
        branch.run()
        assert job.arrived(branch)[1:] == [Order(2, "ann", 2_000, 5)]
    branch.promote()
    assert job.took() == [Order(1, "ann", 1_000), Order(2, "ann", 2_000, 5)]
    job.topic.append([avro(second, WITH_AMOUNT, row(3, amount=6, coupon=""))])
    assert job.took()[2:] == [Order(3, "ann", 3_000, 6)]


def test_schema_may_stand_in_a_file(tmp_path):
    place = tmp_path / "order.avsc"
    place.write_text(json.dumps(ORDER))
    job, content = Orders(None, schema=str(place)), io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(ORDER), row(1))
    job.topic.append([content.getvalue(), b""])
    assert job.took() == [Order(1, "ann", 1_000)]
    assert job.quarantine() == ["shop.orders-0@1: the value is not written by its schema (EOFError)"]
    place.unlink()
    job.topic.append([content.getvalue()])
    with pytest.raises(ConfigError, match=r"the schema .*order.avsc cannot be read"):
        job.took()


def test_json_may_begin_with_a_number(registry):
    job = Orders(registry, values="json")
    job.topic.append(
        [framed(5, json.dumps({"id": 1, "customer": "ann", "at": 1000}).encode()), b"{}", framed(5, b"\xff")]
    )
    assert job.took() == [Order(1, "ann", 1_000)]
    assert registry.asked == []
    assert [why.partition(": ")[2][:40] for why in job.quarantine()] == [
        "the value begins with 7b 7d, not with th",
        "the value is not UTF-8 (invalid start by",
    ]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ({"values": "avro"}, "avro needs either the 'registry' that has its schemas, or a 'schema'"),
        ({"values": "avro", "schema": "a", "registry": {"url": "http://r"}}, "avro needs either"),
        ({"schema": "a.avsc"}, "JSON says itself what it holds"),
        ({"keys": "avro"}, "avro needs the 'registry' that has the schemas of keys"),
        ({"registry": {"url": "r:8081"}}, "this is no address: write it as https://HOST:PORT"),
        ({"registry": {"url": "https://r:abc"}}, "this is no address"),
        ({"registry": {"url": "https://r:99999"}}, "this is no address"),
        ({"registry": {"url": "https://r r"}}, "this is no address"),
        ({"registry": {"url": "https://r\n/x"}}, "this is no address"),
        ({"registry": {"url": "https://"}}, "this is no address"),
        ({"registry": {"url": "https://[r"}}, "this is no address"),
        ({"registry": {"url": "http://u:p@r"}}, "give user and password as 'user' and 'password'"),
        ({"registry": {"url": "http://r", "user": "u"}}, "give both 'user' and 'password', or neither"),
        ({"registry": {"url": "http://r", "user": "u", "password": "p"}}, "secrets are never written"),
        ({"format": "json", "path": "x", "servers": None, "topic": None, "values": "avro"}, "write format: kafka"),
    ],
)
def test_wrong_settings_are_named(source, error):
    with pytest.raises(ConfigError, match=error):
        Orders(None, **{"values": "json"} | source).took()


@pytest.mark.parametrize(
    "url", ["me:s3cr3t@host:8081", "htps://me:s3cr3t@host", "https://me:s3cr3t@host:x", "https://me:s3cr3t@"]
)
def test_wrong_address_shows_no_password(url):
    with pytest.raises(ConfigError) as refused:
        Orders(None, registry={"url": url}).took()
    assert "s3cr3t" not in str(refused.value)
