"""Columns of a record: Arrow types from the annotations of its fields, and names that are almost theirs.

A stored column may have almost the name of a field. A null or a default in place of its values would hide the mistake,
so readers refuse the name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import inspect
from msgspec.structs import FieldInfo, fields

from headrace.errors import ConfigError
from headrace.records.column_kinds.kind import ColumnKind, ScalarKind
from headrace.records.column_kinds.nested import List, Map, Struct
from headrace.records.column_kinds.numbers import UndeclaredDecimal
from headrace.records.column_kinds.scalars import SCALARS, marked_kind, scalar_kind
from headrace.records.column_kinds.texts import Choice, Json, NumberChoice
from headrace.records.foreign_values import field_types, item_type

Names = tuple[tuple[str, str], ...]
"""Fields, and the names of their columns in one source or sink."""

_Within = tuple[type[msgspec.Struct], ...]
"""Structs that contain a field, from the outermost on."""

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a record as a column, or one part of it: the items of a list, the keys or the values of a map."""

    name: str
    kind: ColumnKind
    nullable: bool = False
    required: bool = True
    default: Any = msgspec.NODEFAULT
    """Value of a field that a row lacks; NODEFAULT also where a factory makes it."""

    limits: Any = None
    """Annotation with the `Meta` that limits the values: decoders of msgspec check it, constructors do not."""

    parts: tuple[Column, ...] = ()
    """Items of a list, keys and values of a map, or fields of a struct."""

    record: type[msgspec.Struct] | None = None
    """Class of a struct."""

    annotation: Any = None
    """Annotation of a field; parts of a list or map have none."""

    alias: str | None = None
    """Name in files and tables, where it is not that of the field."""

    @property
    def stored(self) -> str:
        """Return the name in files and tables: text of any kind, while `name` is an attribute of records."""
        return self.name if self.alias is None else self.alias

    @property
    def path(self) -> tuple[str, ...]:
        """Return the names that lead to the value within structs, where the stored name has points; empty without them."""
        parts = tuple(self.stored.split("."))
        return parts if len(parts) > 1 and all(parts) else ()

    @property
    def type(self) -> pa.DataType:
        """Return the type between stages: a time is an int64 of milliseconds, an enum is its text."""
        return self.kind.type

    @property
    def sink_type(self) -> pa.DataType:
        """Return the type in the table of a sink: a time is a timestamp."""
        return self.kind.sink_type

    @property
    def is_time(self) -> bool:
        """Return whether the values are instants, which an event time may be."""
        return isinstance(self.kind, ScalarKind) and self.kind.per_second is not None

    @property
    def is_milliseconds(self) -> bool:
        """Return whether the values are numbers of milliseconds since 1970."""
        return isinstance(self.kind, ScalarKind) and self.kind.per_second == 1_000  # noqa: PLR2004 - in a second

    @property
    def allowed(self) -> Mapping[Any, Any]:
        """Return the values of a literal or enum by those of the column; empty where every value is allowed."""
        return self.kind.allowed if isinstance(self.kind, ScalarKind) else {}

    @property
    def is_constrained(self) -> bool:
        """Return whether a `Meta` limits the values, or those of a part."""
        return self.limits is not None or any(part.is_constrained for part in self.parts)


def stored_name(columns: Iterable[Column], name: str) -> str:
    """Return the name under which a field is stored; the name itself where no field has it."""
    return next((column.stored for column in columns if column.name == name), name)


@cache
def columns_of(record: type[msgspec.Struct], names: Names = ()) -> tuple[Column, ...]:
    """Return the columns of a record type, stored under these `names`; other fields have those that the record gives them.

    Raises `ConfigError` for a type that has no column, a struct without fields, a struct that contains itself, a name of a
    field that the record lacks, and for two fields of one name.
    """
    if not names:
        return _columns(record, ())
    aliases = dict(names)
    columns = columns_of(record)
    if unknown := sorted(aliases.keys() - {column.name for column in columns}):
        msg = f"{record.__name__} has no field {', '.join(unknown)}, which is renamed"
        raise ConfigError(msg)
    columns = tuple(replace(column, alias=aliases.get(column.name, column.alias)) for column in columns)
    stored = [column.stored for column in columns]
    if twice := sorted({name for name in stored if stored.count(name) > 1}):
        msg = f"two fields of {record.__name__} have the name {', '.join(map(repr, twice))}"
        raise ConfigError(msg)
    return columns


@cache
def root_column(record: type[msgspec.Struct]) -> Column:
    """Return the column whose values are whole records between stages, where columns have the names of fields."""
    columns = columns_of(record)
    return Column(
        "", Struct({column.name: column.kind for column in columns}), nullable=True, parts=columns, record=record
    )


def _columns(record: type[msgspec.Struct], within: _Within) -> tuple[Column, ...]:
    if record in within:
        path = " > ".join(outer.__name__ for outer in (*within, record))
        msg = f"{record.__name__} contains itself ({path}), which columns cannot: give the depth a limit, or keep it as text"
        raise ConfigError(msg)
    infos = fields(record)
    if not infos:
        msg = f"{record.__name__} has no fields, so it has no columns: give it one"
        raise ConfigError(msg)
    return tuple(_field(record, info, (*within, record)) for info in infos)


def _field(record: type[msgspec.Struct], info: FieldInfo, within: _Within) -> Column:
    try:
        column = _column(info.name, inspect.type_info(info.type), within)
    except (TypeError, NotImplementedError):  # msgspec does not support the type
        column = None
    if column is not None and _lacks_digits(column):
        msg = (
            f"field '{info.name}' of {record.__name__} is a Decimal without its digits: write Annotated[Decimal, Digits(18, 2)] "
            "(from headrace import Digits), with the number of all digits and of those behind the point"
        )
        raise ConfigError(msg)
    if column is None:
        msg = (
            f"field '{info.name}' of {record.__name__} is {info.type}, which has no column: use "
            f"{', '.join(kind.python.__name__ for kind in SCALARS.values())}, Timestamp, Json, "
            "a Literal or Enum of strings or of whole numbers, a Struct with fields, or list[...], "
            "tuple[..., ...] and dict[..., ...] of these, each optionally | None"
        )
        raise ConfigError(msg)
    alias = None if info.encode_name == info.name else info.encode_name
    return replace(column, required=info.required, default=info.default, annotation=info.type, alias=alias)


def _lacks_digits(column: Column) -> bool:
    return isinstance(column.kind, UndeclaredDecimal) or any(map(_lacks_digits, column.parts))


def _column(name: str, info: inspect.Type, within: _Within) -> Column | None:
    """Return the column of a type; None for a type without one."""
    kind = scalar_kind(info)
    if kind is not None:
        return Column(name, kind, limits=_limits(info, kind.python))
    make = _MAKERS.get(type(info))
    return make(name, info, within) if make is not None else None


def _metadata(name: str, info: inspect.Metadata, within: _Within) -> Column | None:
    kind = marked_kind(info.extra or {})
    if isinstance(kind, Json):
        return Column(name, kind, nullable=True)
    column = _column(name, info.type, within)
    if column is None or kind is None or not isinstance(column.kind, ScalarKind):
        return column
    return replace(column, kind=kind)


def _union(name: str, info: inspect.UnionType, within: _Within) -> Column | None:
    others = [part for part in info.types if not isinstance(part, inspect.NoneType)]
    column = _column(name, others[0], within) if len(others) == 1 else None
    return column and replace(column, nullable=True)


def _literal(name: str, info: inspect.LiteralType, _: _Within) -> Column | None:
    allowed = {value: value for value in info.values if value is not None}
    return _choice(name, allowed, nullable=None in info.values)


def _enum(name: str, info: inspect.EnumType, _: _Within) -> Column | None:
    return _choice(name, {member.value: member for member in info.cls})


def _choice(name: str, allowed: dict[Any, Any], *, nullable: bool = False) -> Column | None:
    make = _CHOICES.get(frozenset(map(type, allowed)))
    return Column(name, make(allowed), nullable) if make is not None else None


_CHOICES: dict[frozenset[type], Callable[[dict[Any, Any]], ScalarKind]] = {
    frozenset({str}): Choice,
    frozenset({int}): NumberChoice,
}


def _struct(name: str, info: inspect.StructType, within: _Within) -> Column | None:
    if not info.fields or info.array_like:
        return None
    parts = _columns(info.cls, within)
    # Within structs values have their stored names everywhere, as msgspec converts them.
    return Column(name, Struct({part.stored: part.kind for part in parts}), parts=parts, record=info.cls)


def _list(name: str, info: inspect.ListType | inspect.VarTupleType, within: _Within) -> Column | None:
    items = _column("element", info.item_type, within)
    if items is None:
        return None
    return Column(name, List(items.kind), limits=_limits(info, list[Any]), parts=(items,))


def _map(name: str, info: inspect.DictType, within: _Within) -> Column | None:
    keys, values = (_column(*part, within) for part in (("key", info.key_type), ("value", info.value_type)))
    if keys is None or values is None or keys.nullable or not isinstance(keys.kind, ScalarKind):
        return None
    if not keys.kind.can_be_map_key:
        return None
    return Column(name, Map(keys.kind, values.kind), limits=_limits(info, dict[Any, Any]), parts=(keys, values))


_MAKERS: dict[type, Callable[[str, Any, _Within], Column | None]] = {
    inspect.Metadata: _metadata,
    inspect.UnionType: _union,
    inspect.LiteralType: _literal,
    inspect.EnumType: _enum,
    inspect.StructType: _struct,
    inspect.ListType: _list,
    inspect.VarTupleType: _list,
    inspect.DictType: _map,
}


def _limits(info: inspect.Type, base: Any) -> Any:
    limits = {name: value for name in _LIMITS if (value := getattr(info, name, None)) is not None}
    return Annotated[base, msgspec.Meta(**limits)] if limits else None


_IGNORED = str.maketrans("", "", " _-\t\u00a0\ufeff")


def near_misses(wanted: Iterable[str], stored: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each wanted name that is not stored, but for case, spaces, underscores or dashes, with the reason that follows it."""
    missing = [name for name in wanted if name not in stored]
    by_normal = {_normal(other): other for other in reversed([*stored])} if missing else {}
    for name in missing:
        other = by_normal.get(_normal(name))
        if other is not None:
            yield (
                name,
                f"is missing, but there is {other!r}, and names must be equal: rename the column, or give the field its name",
            )


def near_names(schema: pa.Schema, columns: Sequence[Column]) -> str | None:
    """Return the reason for the first column, or part of one, that a table lacks, and almost has. None without one."""
    return next(_near(dict(zip(schema.names, schema.types, strict=True)), columns, ""), None)


def _near(types: dict[str, pa.DataType], columns: Iterable[Column], path: str) -> Iterator[str]:
    for column in columns:
        if column.stored in types:
            yield from _near_parts(types[column.stored], column, f"{path}{column.stored}")
        else:
            yield from (f"{path}{name} {why}" for name, why in near_misses([column.stored], types))
            if column.path and not path:
                yield from _near_way(types, column.path, "")


def _near_way(types: dict[str, pa.DataType], names: tuple[str, ...], path: str) -> Iterator[str]:
    """Yield the reason for the first name on the way to a value that a table almost has."""
    name, *more = names
    yield from (f"{path}{name} {why}" for _, why in near_misses([name], types))
    if more and name in types:
        yield from _near_way(field_types(types[name]), tuple(more), f"{path}{name}.")


def _near_parts(kind: pa.DataType, column: Column, path: str) -> Iterator[str]:
    if column.record is not None and column.kind.takes(kind):
        yield from _near({field.name: field.type for field in kind}, column.parts, f"{path}.")
    elif column.record is None and column.parts and (item := item_type(kind)) is not None:
        yield from _near_parts(item, column.parts[-1], f"{path}[]")


@lru_cache(maxsize=4096)
def _normal(name: str) -> str:
    return name.translate(_IGNORED).casefold()
