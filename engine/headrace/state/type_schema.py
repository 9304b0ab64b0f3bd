"""Types as data, and the changes of a type that stored values allow.

A schema describes everything that decodes JSON: fields by their stored names, numbers, texts, alternatives,
constraints. Class names are for people only; renaming a class changes no stored data.

Comparison of types: can values stored as one type be read as another, with the same meaning?

They can where fields were added with defaults, fields were removed, numbers were widened (`int` to `float` or
`Decimal`), and alternatives were added (`int` to `int | None`, `Literal["a"]` to `Literal["a", "b"]` or `str`).
Everything else is a difference, even if JSON would accept it, such as a list that becomes a set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import inspect

from headrace.api.records import MARK, MICROSECONDS
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
        shown = f"{self.type}[{', '.join(inner)}]" if inner else " of ".join(filter(None, (self.type, self.name)))
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
            shape = self.shape(info.type)
            is_fine = (info.extra or {}).get(MARK) == MICROSECONDS  # other instants are in milliseconds
            return msgspec.structs.replace(shape, name=MICROSECONDS) if is_fine else shape
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


class Difference(NamedTuple):
    """Place where stored values do not fit: its path (empty for the whole), and the reason."""

    path: str
    why: str

    def __str__(self) -> str:
        """Return the difference as part of a sentence about the state."""
        return f"field '{self.path}' {self.why}" if self.path else f"it {self.why}"


def differences(stored: TypeSchema, declared: TypeSchema) -> list[Difference]:
    """Return why values of type `stored` cannot be read as `declared`; an empty list if they can."""
    comparison = _Comparison(stored.structs, declared.structs)
    comparison.shapes(stored.root, declared.root, "")
    return comparison.differences


_Structs = Mapping[str, StructSchema]


class _Comparison:
    def __init__(self, old: _Structs, new: _Structs, assumed: Iterable[tuple[str, str]] = ()) -> None:
        self.differences: list[Difference] = []
        self._old = old
        self._new = new
        self._assumed = {*assumed}
        """Structs that contain themselves fit if everything else does."""

    def shapes(self, old: Shape, new: Shape, path: str) -> None:
        if "union" in {old.type, new.type}:
            self._alternatives(old, new, path)
        elif old.type == new.type == REFERENCE:
            self._structs(old.name, new.name, path)
        elif old.type in {"literal", "enum"}:
            self._values(old, new, path)
        elif old.type == new.type and old.name == new.name and len(old.items) == len(new.items):
            self._items(old, new, path)
        elif (old.type, new.type) not in _WIDENED or not _only_loosened(old, new):
            self._differ(path, old, new)

    def _items(self, old: Shape, new: Shape, path: str) -> None:
        if not _only_loosened(old, new):
            self._differ(path, old, new)
        elif old.type == "dict":
            # Only the text of a key is stored: it does not say which number or date it was.
            if old.items[0] != new.items[0]:
                self._differ(path, old, new)
            self.shapes(old.items[1], new.items[1], f"{path}{{}}")
        else:
            for one, other in zip(old.items, new.items, strict=True):
                self.shapes(one, other, f"{path}[]")

    def _values(self, old: Shape, new: Shape, path: str) -> None:
        if new.type == old.type:
            missing = [value for value in old.values if value not in new.values]
            if missing:
                self._add(path, f"may be {', '.join(map(repr, missing))} as stored, which {new} does not have")
        elif old.type != "literal" or new.type not in _plain_of(old) or new.constraints:
            self._differ(path, old, new)

    def _alternatives(self, old: Shape, new: Shape, path: str) -> None:
        """Check that each alternative of the old type has one in the new type that JSON would choose for it."""
        choices = new.items if new.type == "union" else (new,)
        for alternative in old.items if old.type == "union" else (old,):
            alike = [choice for choice in choices if choice.type == alternative.type]
            if len(alike) == 1 and (alternative.items or alternative.type == REFERENCE):
                self.shapes(alternative, alike[0], path)  # names the exact field
            elif not any(self._fits(alternative, choice) for choice in _of_same_class(alternative, choices)):
                self._differ(path, old, new, alternative)

    def _fits(self, old: Shape, new: Shape) -> bool:
        attempt = _Comparison(self._old, self._new, self._assumed)
        attempt.shapes(old, new, "")
        return not attempt.differences

    def _structs(self, old_name: str, new_name: str, path: str) -> None:
        if (old_name, new_name) in self._assumed:
            return
        self._assumed.add((old_name, new_name))
        old, new = self._old[old_name], self._new[new_name]
        if _form(old) != _form(new):
            self._add(path, f"is stored as {old_name}, {_form(old)}, and declared as {new_name}, {_form(new)}")
        elif old.array_like:
            self._places(old, new, path)
        else:
            self._fields(old, new, path)

    def _fields(self, old: StructSchema, new: StructSchema, path: str) -> None:
        before = {field.name: field for field in old.fields}
        for field in new.fields:
            self._field(before.pop(field.name, None), field, _within(path, field.name))
        for name in before if new.forbids_unknown else ():
            self._add(_within(path, name), "is stored, and not declared any more, and the type forbids unknown fields")

    def _places(self, old: StructSchema, new: StructSchema, path: str) -> None:
        """Compare fields that are identified by position: the new type may have more or fewer only at the end."""
        for place, field in enumerate(new.fields):
            before = old.fields[place] if place < len(old.fields) else None
            if before is not None and before.name != field.name:
                self._add(_within(path, field.name), f"has the place where '{before.name}' is stored")
                return
            self._field(before, field, _within(path, field.name))
        if len(old.fields) > len(new.fields) and new.forbids_unknown:
            name = old.fields[len(new.fields)].name
            self._add(_within(path, name), "is stored, and not declared any more, and the type forbids unknown fields")

    def _field(self, old: StructField | None, new: StructField, path: str) -> None:
        if old is None:
            if new.required:
                self._add(path, f"is new ({new.shape}) and has no default")
            return
        if old.may_lack and not _same_default(old.default, new.default):
            now = new.default or "none"
            self._add(path, f"is not stored where it has its default {old.default}, and has another one now: {now}")
        self.shapes(old.shape, new.shape, path)

    def _differ(self, path: str, old: Shape, new: Shape, part: Shape | None = None) -> None:
        among = "" if part is None or part == old else f" (where it is {part})"
        self._add(path, f"is stored as {old}{among}, and declared as {new}")

    def _add(self, path: str, why: str) -> None:
        self.differences.append(Difference(path, why))


_WIDENED = {("int", "float"), ("int", "Decimal")}
_LIKE_INTEGERS = {"int", "literal of numbers", "enum of numbers"}


def _only_loosened(old: Shape, new: Shape) -> bool:
    """Return whether every limit of the new type was one of the old type."""
    return new.constraints.items() <= old.constraints.items()


def _class(shape: Shape) -> str:
    if shape.type in {"literal", "enum"}:
        return f"{shape.type} of {'texts' if isinstance(shape.values[0], str) else 'numbers'}"
    return shape.type


def _plain_of(literal: Shape) -> set[str]:
    return {"str"} if isinstance(literal.values[0], str) else {"int", "float", "Decimal"}


def _of_same_class(old: Shape, choices: tuple[Shape, ...]) -> list[Shape]:
    """Return the alternatives among which a value of the old type is searched: an integer is no float where integers are one."""
    if _class(old) in _LIKE_INTEGERS:
        integers = [choice for choice in choices if _class(choice) in _LIKE_INTEGERS]
        return integers or list(choices)
    return list(choices)


def _same_default(old: str, new: str) -> bool:
    """Return whether defaults in JSON mean the same, as 1 and 1.0 do."""
    if old == new or StructField.UNSET in {old, new} or not (old and new):
        return old == new
    return bool(msgspec.json.decode(old) == msgspec.json.decode(new))


def _form(struct: StructSchema) -> str:
    """Return the parts of a struct that must not change, for a message."""
    tag = f", tagged {struct.tag_field}={struct.tag!r}" if struct.tag is not None else ""
    return f"a {struct.kind.replace('_', ' ')}{' stored as a list' if struct.array_like else ''}{tag}"


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
