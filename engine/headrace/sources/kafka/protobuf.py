"""Keys and values of messages in Protobuf, read by the schemas that they were written with, which the registry gives compiled.

Between the number of the schema and the message stand the places of its type in the schema: their count, and the place of each type within
the one before. All are numbers of variable length (zigzag: the lowest bit is the sign); a count of 0 is the first type.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.records.value_rules import Instant, OtherType
from headrace.sources.kafka.payload import PayloadError
from headrace.sources.kafka.schemas import RegisteredSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message

_ROOT: Final = "root.proto"
_OWN: Final = "google/protobuf/"
_NO_FILE: Final = "confluent/meta.proto"
"""Options that mean nothing to readers."""
_NANOSECONDS: Final = 1_000_000_000
_PER_MICROSECOND: Final = 1_000
_LONG_BYTES: Final = 10
_ALL_DIGITS: Final = Context(prec=1_000)


def protobuf_reader(schema: RegisteredSchema) -> Callable[[bytes], Any]:
    """Return a reader of payloads in Protobuf. Raises `PayloadError` where the schema cannot be read, and `ConfigError` without Google's library."""
    try:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass
    except ImportError as error:
        raise ConfigError(
            "messages are in Protobuf, and Google's library for it is not installed. Run: pip install 'headrace[protobuf]'"
        ) from error
    root = _file(_ROOT, schema.text)
    pool = _pool(schema, root)

    @lru_cache(None)
    def class_at(path: tuple[int, ...]) -> Any:
        return GetMessageClass(pool.FindMessageTypeByName(_name_at(root, path)))

    def read(payload: bytes) -> Any:
        path, begin = _path(payload)
        try:
            message = class_at(path).FromString(payload[begin:])
        except DecodeError as error:
            msg = f"is not written by its schema ({error})"
            raise PayloadError(msg) from error
        try:
            return _object(message)
        except Exception as error:  # a value or a type that nobody has thought of is the message's fault, not the run's
            msg = f"cannot be read ({type(error).__name__}: {error!s:.200})"
            raise PayloadError(msg) from error

    return read


def _file(name: str, compiled: str) -> FileDescriptorProto:
    """Return a compiled file of a schema under a name."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(compiled, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        msg = f"which the registry does not give compiled (format=serialized), but as {compiled!r:.60}"
        raise PayloadError(msg) from error
    file.name = name
    return file


def _pool(schema: RegisteredSchema, root: FileDescriptorProto) -> DescriptorPool:
    """Return the types of a schema, and of the files that it imports."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool, added = DescriptorPool(), set[str]()
    files = {reference.name: _file(reference.name, reference.text) for reference in schema.references}

    def add(file: FileDescriptorProto) -> None:
        added.add(file.name)
        for name in file.dependency:
            if name not in added:
                add(files.get(name) or _known_file(name))
        pool.AddSerializedFile(file.SerializeToString())

    try:
        add(root)
    except (TypeError, KeyError) as error:  # what the library raises for files that do not fit together
        msg = f"which cannot be read: {error}"
        raise PayloadError(msg) from error
    return pool


def _known_file(name: str) -> FileDescriptorProto:
    """Return a file that each compiler and each registry knows. Raises `KeyError` for any other."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    if name.startswith(_OWN):
        module = name.removeprefix(_OWN).removesuffix(".proto").replace("/", ".")
        try:
            own = importlib.import_module(f"google.protobuf.{module}_pb2")
        except ImportError:
            raise KeyError(name) from None
        return FileDescriptorProto.FromString(own.DESCRIPTOR.serialized_pb)
    if name == _NO_FILE:
        return FileDescriptorProto(name=name, package="confluent", syntax="proto3")
    message, fields = _FILES[name]
    package, _, short = message.rpartition(".")
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    kind = file.message_type.add(name=short)
    for number, (field, type_of) in enumerate(fields.items(), 1):
        of_field: Any = getattr(FieldDescriptorProto, f"TYPE_{type_of}")
        kind.field.add(name=field, number=number, type=of_field, label=FieldDescriptorProto.LABEL_OPTIONAL)
    return file


_INT: Final = "INT32"
_FILES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "confluent/type/decimal.proto": (
        "confluent.type.Decimal",
        {"value": "BYTES", "precision": "UINT32", "scale": _INT},
    ),
    "google/type/date.proto": ("google.type.Date", {"year": _INT, "month": _INT, "day": _INT}),
    "google/type/timeofday.proto": (
        "google.type.TimeOfDay",
        {"hours": _INT, "minutes": _INT, "seconds": _INT, "nanos": _INT},
    ),
}
"""Files of one type each, by their names: the type, and its fields in the order of their numbers."""


def _path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the places of a message's type, and where the message begins."""
    count, at = _number(payload, 0)
    if count < 0:
        msg = f"says that the place of its type has {count} numbers"
        raise PayloadError(msg)
    path = []
    for _ in range(count):
        place, at = _number(payload, at)
        path.append(place)
    return tuple(path) or (0,), at


def _number(payload: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(payload[at : at + _LONG_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit
            return (value >> 1) ^ -(value & 1), at + shift + 1
    msg = "ends before its message begins"
    raise PayloadError(msg)


def _name_at(root: FileDescriptorProto, path: tuple[int, ...]) -> str:
    names, types = [root.package] if root.package else [], root.message_type
    for place in path:
        if not 0 <= place < len(types):
            msg = f"is of the type {'.'.join(map(str, path))}, which its schema does not have"
            raise PayloadError(msg)
        kind: DescriptorProto = types[place]
        names.append(kind.name)
        types = kind.nested_type
    return ".".join(names)


def _object(message: Message) -> dict[str, Any]:
    """Return the fields of a message by name; those that are not set are left out, where they may be."""
    return dict(_fields(message))


def _fields(message: Message) -> Iterator[tuple[str, Any]]:
    own: Any = type(message)  # fields may have the names of the message's own members
    for field in own.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            yield field.name, _many(field, value)
        elif not field.has_presence or own.HasField(message, field.name) or field.has_default_value:
            yield field.name, _value(field, value)


def _many(field: FieldDescriptor, values: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_value = kind.fields_by_name["value"]
        return {key: _value(of_value, values[key]) for key in sorted(values)}  # else in another order in each process
    return [_value(field, value) for value in values]


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return names[value].name if value in names else value
    if field.message_type is None:
        return value
    read: Callable[[Any], Any] = _KNOWN_TYPES.get(field.message_type.full_name, _object)
    return read(value)


def _timestamp(value: Any) -> Any:
    return Instant(value.seconds * _NANOSECONDS + value.nanos, _NANOSECONDS)


def _duration(value: Any) -> Any:
    microseconds, finer = divmod(value.seconds * _NANOSECONDS + value.nanos, _PER_MICROSECOND)
    try:
        return _other(value) if finer else timedelta(microseconds=microseconds)
    except OverflowError:
        return _other(value)


def _decimal(value: Any) -> Any:
    unscaled = Decimal(int.from_bytes(value.value, "big", signed=True))
    return unscaled.scaleb(-value.scale, _ALL_DIGITS) if abs(value.scale) <= _ALL_DIGITS.prec else _other(value)


def _day(value: Any) -> Any:
    try:
        return date(value.year, value.month, value.day)
    except (ValueError, OverflowError):
        return _other(value)


def _time_of_day(value: Any) -> Any:
    return f"{value.hours:02d}:{value.minutes:02d}:{value.seconds:02d}.{value.nanos:09d}"


def _other(value: Any) -> OtherType:
    return OtherType(f"{' '.join(str(value).split())} ({type(value).DESCRIPTOR.full_name})")


def _struct(value: Any) -> dict[str, Any]:
    return {key: _any(value.fields[key]) for key in sorted(value.fields)}


def _list(value: Any) -> list[Any]:
    return [_any(item) for item in value.values]


def _any(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind in {None, "null_value"}:
        return None
    member = getattr(value, kind)
    return _OBJECTS[kind](member) if kind in _OBJECTS else member


_OBJECTS: Final[Mapping[str, Callable[[Any], Any]]] = {"struct_value": _struct, "list_value": _list}


def _wrapped(value: Any) -> Any:
    return value.value


_KNOWN_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _duration,
    "google.protobuf.Struct": _struct,
    "google.protobuf.Value": _any,
    "google.protobuf.ListValue": _list,
    **dict.fromkeys(
        (
            f"google.protobuf.{name}Value"
            for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
        ),
        _wrapped,
    ),
    "confluent.type.Decimal": _decimal,
    "google.type.Date": _day,
    "google.type.TimeOfDay": _time_of_day,
}
"""Readers of messages that are single values, by the names of their types."""
