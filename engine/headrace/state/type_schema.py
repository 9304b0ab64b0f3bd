"""Types as data, so that the type stored by an older version of the code can be compared with the current declaration.

A schema describes everything that decodes JSON: fields by their stored names, numbers, texts, alternatives,
constraints. Class names are for people only; renaming a class changes no stored data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import msgspec
from msgspec import inspect

from headrace.state.codec import encode

REFERENCE = "struct"
"""`type` of a shape that refers to one of the schema's structs."""


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """One type.

    `items` are the element's type of a list or set, key and value of a dict, places of a tuple, alternatives of a
    union. `values` are those of a literal or enum. `name` is a struct's name in the schema, or an enum's class.
    """

    type: str
    name: str = ""
    items: tuple[Shape, ...] = ()
    values: tuple[int | str, ...] = ()
    constraints: dict[str, Any] = {}

    def __str__(self) -> str:
        """Return the type as an annotation."""
        inner = [str(item) for item in self.items]
        if self.type == REFERENCE:
            return self.name
        if self.type in {"literal", "enum"}:
            return f"{self.name or 'Literal'}[{', '.join(map(repr, self.values))}]"
        if self.type == "union":
            return " | ".join(inner)
        if self.type == "tuple" and self.name == "any length":
            return f"tuple[{inner[0]}, ...]"
        shown = f"{self.type}[{', '.join(inner)}]" if inner else self.type
        limits = ", ".join(f"{name}={value!r}" for name, value in self.constraints.items())
        return f"{shown} ({limits})" if limits else shown


class StructField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field under its stored name.

    `default` is JSON text, `UNSET`, or empty without a known default. `may_lack` says that stored values may lack
    the field, because it is left out when it has its default.
    """

    UNSET: ClassVar[str] = "UNSET"

    name: str
    shape: Shape
    required: bool = False
    may_lack: bool = False
    default: str = ""

    def __str__(self) -> str:
        """Return the field as it is written in a class."""
        return f"{self.name}: {self.shape}" + ("" if self.required else f" = {self.default or '...'}")


class StructSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class with fields. `kind` is struct, dataclass, typed_dict or named_tuple."""

    kind: str
    fields: tuple[StructField, ...]
    array_like: bool = False
    forbids_unknown: bool = False
    tag_field: str = ""
    tag: int | str | None = None


class TypeSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type, and its structs by name, so that a struct may contain itself."""

    root: Shape
    structs: dict[str, StructSchema] = {}

    def __str__(self) -> str:
        """Return the type; a struct with its fields."""
        if self.root.type != REFERENCE:
            return str(self.root)
        fields = self.structs[self.root.name].fields
        return f"{self.root.name}({', '.join(map(str, fields))})"

    def stored(self) -> TypeSchema:
        """Return the part of it that matters for stored values: defaults only where fields may lack."""
        structs = {
            name: msgspec.structs.replace(
                struct,
                fields=tuple(
                    field if field.may_lack else msgspec.structs.replace(field, default="") for field in struct.fields
                ),
            )
            for name, struct in self.structs.items()
        }
        return TypeSchema(self.root, structs)


def type_schema_of(type: Any) -> TypeSchema:  # noqa: A002 - it is one
    """Return the schema of a type that msgspec can encode."""
    description = _Description()
    return TypeSchema(description.shape(inspect.type_info(type)), description.structs)


class _Description:
    def __init__(self) -> None:
        self.structs: dict[str, StructSchema] = {}
        self._names: dict[Any, str] = {}

    def shape(self, info: inspect.Type) -> Shape:
        if isinstance(info, inspect.Metadata):
            return self.shape(info.type)
        if isinstance(info, inspect.UnionType):
            return _union(self.shape(member) for member in info.types)
        if isinstance(info, inspect.LiteralType):
            return _values("literal", info.values)
        if isinstance(info, inspect.EnumType):
            return _values("enum", (member.value for member in info.cls), info.cls.__qualname__)
        if type(info) in _STRUCTS:
            return Shape(REFERENCE, self._struct(info))
        if isinstance(info, inspect.CustomType):
            return Shape("custom", info.cls.__qualname__)
        return self._plain(info)

    def _plain(self, info: Any) -> Shape:
        name = _PLAIN[type(info)]
        constraints = {
            limit: value for limit in _LIMITS if (value := getattr(info, limit, None)) is not None
        }  # of the same name in msgspec.Meta
        if isinstance(info, inspect.DictType):
            return Shape(name, items=(self.shape(info.key_type), self.shape(info.value_type)), constraints=constraints)
        if isinstance(info, inspect.TupleType):
            return Shape(name, items=tuple(map(self.shape, info.item_types)))
        if isinstance(info, inspect.CollectionType):
            what = "any length" if isinstance(info, inspect.VarTupleType) else ""
            return Shape(name, what, items=(self.shape(info.item_type),), constraints=constraints)
        return Shape(name, constraints=constraints)

    def _struct(self, info: Any) -> str:
        """Return the name under which a struct is described. It may contain itself, so the name is assigned first."""
        cls = info.cls
        known = self._names.get(cls)
        if known is not None:
            return known
        name: str
        name = plain = cls.__qualname__.rpartition(".<locals>.")[2] or cls.__qualname__
        while name in self._names.values():
            name = f"{plain}_{len(self._names)}"
        self._names[cls] = name
        config = getattr(cls, "__struct_config__", None)
        omits = config is not None and config.omit_defaults
        tag = getattr(info, "tag", None)
        self.structs[name] = StructSchema(
            _STRUCTS[type(info)],
            tuple(self._field(field, omits=omits) for field in info.fields),
            array_like=getattr(info, "array_like", False) or isinstance(info, inspect.NamedTupleType),
            forbids_unknown=getattr(info, "forbid_unknown_fields", False),
            tag_field=(getattr(info, "tag_field", None) or "") if tag is not None else "",
            tag=tag,
        )
        return name

    def _field(self, field: inspect.Field, *, omits: bool) -> StructField:
        default, omitted = _default(field)
        may_lack = not field.required and (default == StructField.UNSET or (omits and omitted))
        return StructField(field.encode_name, self.shape(field.type), field.required, may_lack, default)


def _default(field: inspect.Field) -> tuple[str, bool]:
    """Return a field's default as JSON text, and whether `omit_defaults` leaves it out."""
    if field.required:
        return "", False
    if field.default is msgspec.UNSET:
        return StructField.UNSET, True
    if field.default is not msgspec.NODEFAULT:
        return _as_json(field.default), True
    if field.default_factory in _EMPTY:
        return _as_json(field.default_factory()), True
    # msgspec reports `UNSET` as no default at all.
    return (StructField.UNSET, True) if field.default_factory is msgspec.NODEFAULT else ("", False)


def _as_json(value: Any) -> str:
    try:
        return encode(value).decode()
    except (TypeError, ValueError):
        return ""


def _values(kind: str, values: Iterable[Any], name: str = "") -> Shape:
    """Return a shape that separates texts and numbers, as JSON does."""
    listed = list(values)
    texts = tuple(sorted(value for value in listed if isinstance(value, str)))
    numbers = tuple(sorted(value for value in listed if isinstance(value, int)))
    parts = [Shape(kind, name, values=part) for part in (texts, numbers) if part]
    if None in listed:
        parts.append(Shape("None"))
    return _union(parts)


def _union(shapes: Iterable[Shape]) -> Shape:
    """Return the union of alternatives, in an order that does not depend on how they are written."""
    parts = sorted(set(map(_hashable, _alternatives(shapes))))
    members = [msgspec.json.decode(part, type=Shape) for part in parts]
    return members[0] if len(members) == 1 else Shape("union", items=tuple(members))


def _alternatives(shapes: Iterable[Shape]) -> Iterator[Shape]:
    for shape in shapes:
        if shape.type == "union":
            yield from shape.items
        else:
            yield shape


def _hashable(shape: Shape) -> str:
    return json.dumps(msgspec.to_builtins(shape), sort_keys=True)


_STRUCTS: Any = {
    inspect.StructType: "struct",
    inspect.DataclassType: "dataclass",
    inspect.TypedDictType: "typed_dict",
    inspect.NamedTupleType: "named_tuple",
}
_PLAIN: dict[Any, str] = {
    inspect.AnyType: "Any",
    inspect.RawType: "Raw",
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytearray",
    inspect.MemoryViewType: "memoryview",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "UUID",
    inspect.DecimalType: "Decimal",
    inspect.ListType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "frozenset",
    inspect.VarTupleType: "tuple",
    inspect.TupleType: "tuple",
    inspect.DictType: "dict",
}
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_EMPTY: tuple[Any, ...] = (list, dict, set, frozenset, tuple, bytearray)
