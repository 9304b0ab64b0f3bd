"""Messages in Protobuf: written by Google's library, read by the compiled schemas of a registry."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import sys
from decimal import Decimal
from typing import Annotated

import msgspec
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, json_format, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headrace import Digits, Pipeline, Struct, Timestamp, TimestampMicros, field
from headrace.errors import ConfigError
from headrace.sources.kafka import protobuf
from headrace.sources.kafka.protobuf import protobuf_reader
from headrace.sources.kafka.schemas import RegisteredSchema
from headrace.testing import MemoryTopic, PipelineHarness
from tests.jobs.schema_registry import Registry, avro, framed, running

KINDS = {"int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "double": 1, "uint64": 4}
FILES = {
    "google/protobuf/timestamp.proto": timestamp_pb2,
    "google/protobuf/duration.proto": duration_pb2,
    "google/protobuf/wrappers.proto": wrappers_pb2,
    "google/protobuf/struct.proto": struct_pb2,
}


def schema(name, messages, enums=(), imports=(), syntax="proto3"):
    """Return a compiled file: fields of messages are texts such as `repeated string`, `optional int64` or `.shop.Kind`."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax=syntax, dependency=[*imports])
    for of_enum, values in dict(enums).items():
        kind = file.enum_type.add(name=of_enum)
        for number, value in enumerate(values):
            kind.value.add(name=value, number=number)
    for of_message, fields in messages.items():
        path, message = of_message.split("."), None
        for part in path:
            types = file.message_type if message is None else message.nested_type
            message = next((known for known in types if known.name == part), None) or types.add(name=part)
        for number, (of_field, text) in enumerate(fields.items(), 1):
            add_field(message, of_field, number, text)
    return file


def add_field(message, name, number, text):
    *labels, kind = text.split()
    own = message.field.add(name=name, number=number, label=3 if "repeated" in labels else 1)
    if "map" in labels:
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        add_field(entry, "key", 1, "string")
        add_field(entry, "value", 2, kind)
        own.label, own.type, own.type_name = 3, 11, f".shop.{message.name}.{name.title()}Entry"
    elif kind in KINDS:
        own.type = KINDS[kind]
    else:
        own.type, own.type_name = (14 if kind.startswith(".shop.Kind") else 11), kind
    if "oneof" in labels or "optional" in labels:
        own.oneof_index = len(message.oneof_decl)
        own.proto3_optional = "optional" in labels
        message.oneof_decl.add(name=f"_{name}")


def classes(*files):
    """Return a function to the classes of messages, for writers."""
    pool, added = DescriptorPool(), set()
    for file in files:
        for name in file.dependency:
            if name in FILES and name not in added:
                added.add(name)
                pool.AddSerializedFile(FILES[name].DESCRIPTOR.serialized_pb)
        pool.AddSerializedFile(file.SerializeToString())
    return lambda name: GetMessageClass(pool.FindMessageTypeByName(name))


def written(number, message, path=b"\0"):
    return framed(number, path + message.SerializeToString())


@pytest.fixture
def registry():
    with running(Registry()) as running_one:
        yield running_one


def register(registry, file, number=None, **more):
    return registry.add("syntax = ...", number, kind="PROTOBUF", serialized=file.SerializeToString(), **more)


class Orders:
    def __init__(self, registry, record, /, **source):
        pipeline = Pipeline("orders").source("rows", record, event_time="at").sink("out")
        self.topic = MemoryTopic("shop.orders")
        settings = {"values": "protobuf", "registry": {"url": registry.url}, **source}
        rename = {name: name for name in record.__struct_fields__}
        self.harness = PipelineHarness(
            pipeline,
            topics={"rows": self.topic},
            job={"sources": {"rows": settings}, "sinks": {"out": {"rename": rename}}},
        )

    def took(self):
        self.harness.run()
        return sorted(self.harness.sink("out"), key=lambda row: row.at)

    def quarantine(self):
        return [row["error"].partition(": ")[2] for row in self.harness.live("quarantine")]


class Order(Struct, frozen=True):
    id: int
    customer: str
    at: Timestamp
    amount: int | None = None
    size: int = 7


ORDER = schema(
    "order.proto",
    {"Order": {"id": "int64", "customer": "string", "at": ".google.protobuf.Timestamp"}},
    imports=["google/protobuf/timestamp.proto"],
)
WITH_AMOUNT = schema(
    "order.proto",
    {
        "Order": {
            "id": "int64",
            "customer": "string",
            "at": ".google.protobuf.Timestamp",
            "amount": "optional int64",
            "size": "optional int64",
            "coupon": "string",
        }
    },
    imports=["google/protobuf/timestamp.proto"],
)


def order(file, number, **more):
    message = classes(file)("shop.Order")(id=number, customer="ann", **more)
    message.at.seconds = number
    return message


def test_schema_changes_in_the_middle(registry):
    job, first, second = Orders(registry, Order), register(registry, ORDER), register(registry, WITH_AMOUNT)
    job.topic.append(
        [
            written(first, order(ORDER, 1)),
            written(second, order(WITH_AMOUNT, 2, amount=0, coupon="x")),
            written(second, order(WITH_AMOUNT, 3, size=1)),
            written(first, order(ORDER, 4)),
        ]
    )
    assert job.took() == [
        Order(1, "ann", 1_000),
        Order(2, "ann", 2_000, 0),
        Order(3, "ann", 3_000, None, 1),
        Order(4, "ann", 4_000),
    ]
    assert job.quarantine() == []
    assert len(registry.asked) == 4  # each schema as text, and compiled


class Part(Struct, frozen=True):
    name: str
    counts: dict[str, int]


class Typed(Struct, frozen=True):
    at: TimestampMicros
    wait: dt.timedelta | None
    wrapped: int | None
    free: dict[str, float] | None
    kind: str
    raw: bytes
    names: list[str]
    parts: list[Part]
    chosen: str | None
    other: int | None
    ratio: float
    is_new: bool
    price: Annotated[Decimal, Digits(12, 2)] | None
    day: dt.date | None
    opens: dt.time | None
    inner: str = field(name="part.name")


OTHERS = ("google/type/timeofday.proto", "parts/part.proto")
TYPED = schema(
    "typed.proto",
    {
        "Other": {"x": "int32"},
        "Outer": {},
        "Outer.Typed": {
            "at": ".google.protobuf.Timestamp",
            "wait": ".google.protobuf.Duration",
            "wrapped": ".google.protobuf.Int64Value",
            "free": ".google.protobuf.Struct",
            "kind": ".shop.Kind",
            "raw": "bytes",
            "names": "repeated string",
            "parts": "repeated .shop.Part",
            "chosen": "oneof string",
            "other": "oneof int32",
            "ratio": "double",
            "is_new": "bool",
            "price": ".confluent.type.Decimal",
            "day": ".google.type.Date",
            "opens": ".google.type.TimeOfDay",
            "part": ".shop.Part",
        },
    },
    {"Kind": ["NONE", "SOME"]},
    [*FILES, "confluent/meta.proto", "confluent/type/decimal.proto", "google/type/date.proto", *OTHERS],
)
PART = schema("parts/part.proto", {"Part": {"name": "string", "counts": "map int64"}})


def small(name, package, kind, **fields):
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    message = file.message_type.add(name=kind)
    for number, (of_field, text) in enumerate(fields.items(), 1):
        message.field.add(name=of_field, number=number, type=KINDS[text], label=1)
    return file


SMALL = (
    descriptor_pb2.FileDescriptorProto(name="confluent/meta.proto"),
    small("confluent/type/decimal.proto", "confluent.type", "Decimal", value="bytes", precision="int32", scale="int32"),
    small("google/type/date.proto", "google.type", "Date", year="int32", month="int32", day="int32"),
    small("google/type/timeofday.proto", "google.type", "TimeOfDay", hours="int32", minutes="int32", seconds="int32"),
)


def test_types_of_protobuf_are_types_of_fields(registry):
    register(registry, PART, subject="part")
    number = register(registry, TYPED, references=[("parts/part.proto", "part", 1)])
    of = classes(*SMALL, PART, TYPED)
    typed = of("shop.Outer.Typed")(
        kind=1,
        raw=b"\0\xff",
        names=["a", "☃"],
        parts=[of("shop.Part")(name="p", counts={"x": 1})],
        chosen="c",
        ratio=0.5,
        is_new=True,
        price=of("confluent.type.Decimal")(value=(-1234).to_bytes(2, "big", signed=True), scale=2),
        day=of("google.type.Date")(year=2026, month=2, day=28),
        opens=of("google.type.TimeOfDay")(hours=23, minutes=59),
        part=of("shop.Part")(name="q"),
    )
    typed.at.seconds, typed.at.nanos, typed.wait.seconds, typed.wait.nanos = -1, 999_999_000, -1, -500_000_000
    typed.wrapped.value = 0
    typed.wrapped.SetInParent()
    typed.free.update({"y": 2.5})
    bare = of("shop.Outer.Typed")(part=of("shop.Part")())
    bare.at.seconds = 5
    job, path = Orders(registry, Typed), bytes([4, 2, 0])  # two places, in zigzag: the second type, and the first in it
    job.topic.append([written(number, typed, path), written(number, bare, path)])
    assert job.took() == [
        Typed(
            -1,
            dt.timedelta(seconds=-1.5),
            0,
            {"y": 2.5},
            "SOME",
            b"\0\xff",
            ["a", "☃"],
            [Part("p", {"x": 1})],
            "c",
            None,
            0.5,
            True,
            Decimal("-12.34"),
            dt.date(2026, 2, 28),
            dt.time(23, 59),
            "q",
        ),
        Typed(5_000_000, None, None, None, "NONE", b"", [], [], None, None, 0.0, False, None, None, None, ""),
    ]
    assert job.quarantine() == []


FREE = schema(
    "free.proto",
    {
        "Free": {
            "id": "int64",
            "counts": "map int64",
            "free": ".google.protobuf.Struct",
            "any": ".google.protobuf.Value",
            "list": ".google.protobuf.ListValue",
        }
    },
    imports=["google/protobuf/struct.proto"],
)


class Free(Struct, frozen=True):
    id: int
    at: Timestamp = field(name="__timestamp")


def read(file, message):
    compiled = RegisteredSchema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    return protobuf_reader(compiled)(b"\0" + message.SerializeToString())


def test_maps_are_in_the_order_of_keys():
    names = sorted(f"key {number}" for number in range(50))
    message = classes(FREE)("shop.Free")(counts={name: len(name) for name in reversed(names)})
    message.free.update(dict.fromkeys(reversed(names), 1))
    message.free["inner"] = dict.fromkeys(reversed(names), "x")
    value = read(FREE, message)
    assert ([*value["counts"]], [*value["free"]], [*value["free"]["inner"]]) == (names, ["inner", *names], names)


def test_free_values_equal_those_of_google():
    message = classes(FREE)("shop.Free")()
    message.free.update({"n": 1.5, "whole": 3, "t": "x", "b": False, "z": None, "l": [1, [], {"a": None}], "o": {}})
    message.any.list_value.values.add().bool_value = True
    message.any.list_value.values.add()
    message.list.extend(["a", 2, None, {"b": [3]}])
    expected = json_format.MessageToDict(message)
    value = read(FREE, message)
    assert {name: value[name] for name in ("free", "any", "list")} == expected


def test_free_numbers_may_be_nan(registry):
    job, number = Orders(registry, Free), register(registry, FREE)
    messages = [classes(FREE)("shop.Free")(id=at) for at in range(3)]
    for message, value in zip(messages, (1.0, math.nan, math.inf), strict=True):
        message.free.fields["x"].number_value = value
    job.topic.append([written(number, message) for message in messages], timestamp=5)
    assert [row.id for row in job.took()] == [0, 1, 2]
    assert job.quarantine() == []


def test_message_that_cannot_be_converted_is_bad(registry, monkeypatch):
    job, number = Orders(registry, Free), register(registry, FREE)
    monkeypatch.setitem(
        protobuf._KNOWN_TYPES, "google.protobuf.Struct", lambda value: value.fields["x"].number_value / 0
    )
    bad = classes(FREE)("shop.Free")(id=1)
    bad.free["x"] = 1
    job.topic.append([written(number, classes(FREE)("shop.Free")(id=2)), written(number, bad)], timestamp=5)
    assert [row.id for row in job.took()] == [2]
    (reason,) = job.quarantine()
    assert re.fullmatch(r"the value cannot be read \(ZeroDivisionError: (float )?division by zero\)", reason)


def test_fields_may_have_names_of_the_library(registry):
    names = ("HasField", "DESCRIPTOR", "FromString", "WhichOneof", "class", "fields", "__class__")
    file = schema("odd.proto", {"Odd": {"id": "int64"} | dict.fromkeys(names, "optional int64")})
    message = classes(file)("shop.Odd").FromString(b"\x08\7\x10\1\x18\2")
    assert read(file, message) == {"id": 7, "HasField": 1, "DESCRIPTOR": 2}


@pytest.mark.parametrize("kind", [TimestampMicros, dt.datetime, Timestamp])
@pytest.mark.parametrize("seconds", [10**13, -(2**63)])
def test_times_beyond_all_years_are_bad_rows(registry, kind, seconds):
    record = msgspec.defstruct("Far", [("at", kind)], bases=(Struct,), frozen=True)
    job, number = Orders(registry, record), register(registry, ORDER)
    job.topic.append([written(number, order(ORDER, at)) for at in (1, seconds)])
    assert len(job.took()) == 1
    assert job.quarantine() == [f"at is {seconds}000 ms since 1970, which is outside the years 1 to 9999"]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"{}", "the value begins with 7b 7d, not with the byte 0"),
        (framed(1, b""), "the value ends before its message begins"),
        (framed(1, b"\x80"), "the value ends before its message begins"),
        (framed(1, b"\2\x0a"), "the value is of the type 5, which its schema does not have"),
        (framed(1, b"\2\1"), "the value is of the type -1, which its schema does not have"),
        (framed(1, b"\1"), "the value says that the place of its type has -1 numbers"),
        (framed(1, b"\0\x0a"), "the value is not written by its schema ("),
        (framed(99, b"\0"), "the value has the schema 99, which the registry does not know"),
        (avro(2, "string", "x"), "the value has the schema 2, which is of the type AVRO, not PROTOBUF"),
        (framed(3, b"\0"), "the value has the schema 3, which the registry does not give compiled"),
        (framed(4, b"\0"), "the value has the schema 4, which cannot be read: 'gone.proto'"),
        (framed(1, b"\0"), "at is missing"),
    ],
)
def test_bad_message_affects_no_other(registry, value, error):
    register(registry, ORDER)
    registry.add("string")
    registry.add("syntax = 'proto3';", kind="PROTOBUF")
    register(registry, schema("x.proto", {"X": {"a": "int32"}}, imports=["gone.proto"]))
    job = Orders(registry, Order)
    job.topic.append([written(1, order(ORDER, 7)), value, written(1, order(ORDER, 8))])
    assert [row.id for row in job.took()] == [7, 8]
    (why,) = job.quarantine()
    assert why.startswith(error), why


def test_keys_may_be_in_protobuf(registry):
    class Keyed(Struct, frozen=True):
        at: Timestamp
        id: int = field(name="__key.id")

    key = schema("key.proto", {"Key": {"id": "int64"}})
    number, of_key = register(registry, ORDER), register(registry, key, subject="key")
    job = Orders(registry, Keyed, keys="protobuf")
    job.topic.append([written(number, order(ORDER, 1))], key=written(of_key, classes(key)("shop.Key")(id=9)))
    assert job.took() == [Keyed(1_000, 9)]


def test_missing_library_is_named(registry, monkeypatch):
    number, job = register(registry, ORDER), Orders(registry, Order)
    job.topic.append([written(number, order(ORDER, 1))])
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[protobuf\]'"):
        job.took()


def test_protobuf_without_a_registry_is_refused(registry):
    with pytest.raises(ConfigError, match="protobuf needs the 'registry' that has its schemas"):
        Orders(registry, Order, registry=None, schema="order.desc").took()
