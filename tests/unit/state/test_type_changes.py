"""Which types can read the stored values of another type: accepted values decode to the same meaning, refusals name the field."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.state.codec import Codec
from headrace.state.type_schema import TypeSchema, differences, type_schema_of


def differences_of(old, new):
    """Return the differences between stored forms: JSON."""
    stored = msgspec.json.decode(msgspec.json.encode(type_schema_of(old).stored()), type=TypeSchema)
    return [str(difference) for difference in differences(stored, type_schema_of(new))]


def struct(*fields, **options):
    return msgspec.defstruct("Leg", fields, **options)


class Gate(enum.Enum):
    A = "a"
    B = "b"


class MoreGates(enum.Enum):
    A = "a"
    B = "b"
    C = "c"


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class WiderTree(msgspec.Struct):
    value: float
    children: list[WiderTree] = []
    name: str = ""


class TextTree(msgspec.Struct):
    value: str
    children: list[TextTree] = []


class Circle(msgspec.Struct, tag="circle"):
    radius: int


class WideCircle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: int


class Point(NamedTuple):
    x: int
    y: int


class PointWithZ(NamedTuple):
    x: int
    y: int
    z: int = 0


@dataclass
class Data:
    x: int


class Typed(TypedDict):
    x: int


ACCEPTED = [
    (int, int),
    (int, float),
    (int, Decimal),
    (int, int | None),
    (int, float | None),
    (int | None, float | None),
    (int, float | str),
    (int | float, float),
    (Literal["a"], Literal["a", "b"]),
    (Literal["a"], str),
    (Literal[1, 2], int),
    (Gate, MoreGates),
    (list[int], list[float]),
    (dict[str, int], dict[str, int | None]),
    (tuple[int, str], tuple[float, str]),
    (Annotated[int, msgspec.Meta(ge=1)], int),
    (struct(("a", int)), struct(("a", int), ("b", str, "x"))),
    (struct(("a", int), ("b", str)), struct(("a", int))),
    (struct(("a", int), ("b", str)), struct(("b", str), ("a", float))),
    (struct(("a", int, 1), omit_defaults=True), struct(("a", float, 1.0))),
    (struct(("a", int), array_like=True), struct(("a", float), ("b", int, 0), array_like=True)),
    (struct(("a", int), ("b", int), array_like=True), struct(("a", int), array_like=True)),
    (Tree, WiderTree),
    (Circle | Square, WideCircle | Square | None),
    (Point, PointWithZ),
    (struct(("a", struct(("b", int)))), struct(("a", struct(("b", int), ("c", int, 0)) | None))),
]
REFUSED = [
    (float, int, "it is stored as float, and declared as int"),
    (int, str, "it is stored as int, and declared as str"),
    (bool, int, "stored as bool"),
    (str, datetime, "declared as datetime"),
    (int | None, int, "where it is None"),
    (int | str, int, "where it is str"),
    (list[int], set[int], "stored as list[int], and declared as set[int]"),
    (tuple[int, int], tuple[int, int, int], "stored as tuple"),
    (dict[int, int], dict[str, int], "stored as dict[int, int]"),
    (Literal["a", "b"], Literal["a"], "may be 'b' as stored"),
    (MoreGates, Gate, "may be 'c' as stored"),
    (Gate, str, "stored as Gate"),
    (str, Gate, "declared as Gate"),
    (int, Annotated[int, msgspec.Meta(ge=1)], "declared as int (ge=1)"),
    (int, Any, "declared as Any"),
    (int, Literal[1] | float, "declared as"),
    (struct(("a", int)), struct(("a", str)), "field 'a' is stored as int, and declared as str"),
    (struct(("a", int)), struct(("a", int), ("b", int)), "field 'b' is new (int) and has no default"),
    (struct(("a", int), ("b", int)), struct(("a", int), forbid_unknown_fields=True), "field 'b' is stored"),
    (struct(("a", int, 1), omit_defaults=True), struct(("a", int, 2)), "field 'a' is not stored where"),
    (struct(("a", int, 1), omit_defaults=True), struct(("a", int)), "field 'a' is not stored where"),
    (struct(("a", int | msgspec.UnsetType, msgspec.UNSET)), struct(("a", int, 0)), "field 'a' is not stored where"),
    (struct(("a", int), array_like=True), struct(("b", int), array_like=True), "has the place where 'a' is stored"),
    (struct(("a", int), array_like=True), struct(("a", int)), "stored as a list"),
    (struct(("a", list[int])), struct(("a", list[str])), "field 'a[]' is stored as int"),
    (struct(("a", dict[str, int])), struct(("a", dict[str, str])), "field 'a{}' is stored as int"),
    (
        struct(("a", struct(("b", int)) | None)),
        struct(("a", struct(("b", str)) | None)),
        "field 'a.b' is stored as int",
    ),
    (Tree, TextTree, "field 'value' is stored as int, and declared as str"),
    (Circle, Square, "tagged type='circle'"),
    (Circle | Square, Circle, "stored as Square"),
    (Point, Data, "a named tuple"),
    (Data, Typed, "a dataclass"),
]


@pytest.mark.parametrize(("old", "new"), ACCEPTED, ids=str)
def test_compatible_type_change_is_accepted(old, new):
    assert differences_of(old, new) == []


@pytest.mark.parametrize(("old", "new", "why"), REFUSED, ids=str)
def test_refusal_names_field_and_both_types(old, new, why):
    result = differences_of(old, new)
    assert len(result) == 1
    assert why in result[0]


def test_all_differences_are_reported_at_once():
    old = struct(("a", int), ("b", int), ("c", int))
    assert len(differences_of(old, struct(("a", str), ("b", bool), ("d", int)))) == 3


def test_class_names_do_not_matter_but_identity_does():
    """Two classes of one name are different."""
    one, other = struct(("a", int)), struct(("a", str))
    both = struct(("one", one), ("other", other))
    assert differences_of(both, both) == []
    assert differences_of(msgspec.defstruct("Renamed", [("a", int)]), one) == []


def test_schema_is_shown_like_source_code():
    leg = struct(
        ("at", int), ("gate", str | None, None), ("stops", list[Literal["a", "b"]], msgspec.field(default_factory=list))
    )
    assert str(type_schema_of(leg)) == "Leg(at: int, gate: None | str = null, stops: list[Literal['a', 'b']] = [])"
    assert (
        str(type_schema_of(leg).stored())
        == "Leg(at: int, gate: None | str = ..., stops: list[Literal['a', 'b']] = ...)"
    )
    assert str(type_schema_of(tuple[int, ...])) == "tuple[int, ...]"


# ------------------------------------------------------------------------------------------------------ any pair of types

scalars = st.sampled_from(
    [int, float, str, bool, Decimal, Literal["a", "b"], Literal["a"], Literal[1, 2], Gate, MoreGates]
)
limited = st.sampled_from([Annotated[int, msgspec.Meta(ge=0)], Annotated[str, msgspec.Meta(max_length=2)]])


def containers(inner):
    return (
        inner.map(lambda kind: list[kind])
        | inner.map(lambda kind: dict[str, kind])
        | inner.map(lambda kind: kind | None)
        | st.tuples(inner, inner).map(lambda pair: tuple[pair])
    )


types = st.recursive(scalars | limited, containers, max_leaves=3)
DEFAULTS = {int: 7, float: 1.5, str: "d", bool: True}


@st.composite
def struct_types(draw, kinds=types):
    fields = []
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        kind = draw(kinds)
        defaulted = kind in DEFAULTS and draw(st.booleans())
        fields.append((name, kind, DEFAULTS[kind]) if defaulted else (name, kind))
    fields.sort(key=len)  # required ones first
    options = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "omit_defaults": st.booleans(),
                "array_like": st.booleans(),
                "forbid_unknown_fields": st.booleans(),
            },
        )
    )
    return msgspec.defstruct("Drawn", fields, **options)


@st.composite
def changed_pairs(draw):
    """Draw a struct type and a variant with a few changes, most of them harmless."""
    old = draw(struct_types())
    fields = []
    for info in msgspec.structs.fields(old):
        change = draw(st.sampled_from(["keep", "keep", "keep", "drop", "widen", "optional", "other", "default"]))
        kind = {
            "widen": float if info.type is int else info.type,
            "optional": info.type | None,
            "other": draw(types),
        }.get(change, info.type)
        default = () if info.default is msgspec.NODEFAULT else (info.default,)
        if change == "default":
            default = (draw(st.sampled_from([7, 8, 1.5, "d"])),)
        if change != "drop":
            fields.append((info.name, kind, *default))
    for name in draw(st.lists(st.sampled_from("efg"), unique=True, max_size=2)):
        kind = draw(st.sampled_from(list(DEFAULTS)))
        fields.append((name, kind, DEFAULTS[kind]) if draw(st.integers(0, 3)) else (name, kind))
    config = old.__struct_config__
    options = {"array_like": config.array_like, "omit_defaults": config.omit_defaults}
    return old, msgspec.defstruct("Changed", sorted(fields, key=len), **options)


def _values(kind):
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.IntType):
        return st.integers(0, 2**53)
    if isinstance(info, msgspec.inspect.StrType):
        return st.text(max_size=2)
    if isinstance(info, msgspec.inspect.FloatType):
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.from_type(kind) if not hasattr(kind, "__args__") else _of_container(kind)


def _of_container(kind):
    origin = getattr(kind, "__origin__", None)
    inner = (
        [
            _values(argument) if argument is not type(None) else st.none()
            for argument in kind.__args__
            if argument is not Ellipsis
        ]
        if origin is not Literal
        else []
    )
    if origin is Literal:
        return st.sampled_from(kind.__args__)
    if origin is list:
        return st.lists(inner[0], max_size=2)
    if origin is dict:
        return st.dictionaries(st.text(max_size=2), inner[1], max_size=2)
    return st.tuples(*inner) if origin is tuple else st.one_of(inner)


def same(old, new):
    """Return whether a value of the new type means the same as the old value, in the fields of both."""
    if isinstance(old, msgspec.Struct):
        return all(
            same(getattr(old, name), getattr(new, name))
            for name in old.__struct_fields__
            if name in new.__struct_fields__
        )
    if isinstance(old, enum.Enum):
        return isinstance(new, enum.Enum) and old.value == new.value
    if isinstance(old, list | tuple):
        return type(old) is type(new) and len(old) == len(new) and all(map(same, old, new))
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return old.compare_total(new) == 0  # NaN, too
    return (
        old == new and isinstance(old, bool) is isinstance(new, bool) and isinstance(old, str) is isinstance(new, str)
    )


@given(pair=changed_pairs() | st.tuples(struct_types(), struct_types()) | st.tuples(types, types), data=st.data())
def test_accepted_types_decode_to_equal_values(pair, data):
    def instances(kind):
        """Draw values of a type."""
        return (
            st.builds(kind, **{info.name: _values(info.type) for info in msgspec.structs.fields(kind)})
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            else _values(kind)
        )

    old, new = pair
    try:
        codecs = Codec(old, "old"), Codec(new, "new")
    except TypeError:
        assume(False)  # msgspec knows no such union
    result = differences_of(old, new)
    value = data.draw(instances(old))
    if result:
        return
    raw = codecs[0].encode(value)
    assert same(value, codecs[1].decode(raw)), raw


@given(pair=changed_pairs())
def test_refusal_names_a_field_of_either_type(pair):
    names = {info.name for kind in pair for info in msgspec.structs.fields(kind)}
    for change in differences_of(*pair):
        assert any(f"'{name}" in change for name in names) or "Drawn" in change


@given(kind=types | struct_types())
def test_type_reads_its_own_stored_values(kind):
    assert differences_of(kind, kind) == []


def test_field_of_stored_name_is_the_same_field():
    old = msgspec.defstruct("Leg", [("gross", int)])
    new = msgspec.defstruct("Leg", [("net", int, msgspec.field(name="gross"))])
    assert differences_of(old, new) == []
    assert Codec(new, "new").decode(Codec(old, "old").encode(old(7))) == new(7)
    assert differences_of(old, msgspec.defstruct("Leg", [("gross", int, msgspec.field(name="net"))])) != []
