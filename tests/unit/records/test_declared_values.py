"""What functions return gets the type that they declare to return, as a field of that type holds it."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple, NewType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Float32, NaiveDatetime, Struct
from headrace.api.graph import KeyBy
from headrace.records.column_types import columns_of
from headrace.records.keys import key_reader, typed_key
from headrace.records.record_columns import UnfitRecord, to_struct_array
from headrace.state.codec import encode
from headrace.state.key_columns import key_json_column


class Number(int):
    """A whole number of a class of its own."""


class Name(str):
    """A text of a class of its own."""

    __slots__ = ()


class Size(enum.IntEnum):
    """Numbers by name."""

    SMALL = 1


class Colour(enum.StrEnum):
    """Texts by name."""

    RED = "red"


class Place(NamedTuple):
    """A tuple with names."""

    shop: str
    height: float


NUMBERS = st.integers(-3, 3) | st.booleans() | st.sampled_from([Size.SMALL, Number(2)])
FLOATS = NUMBERS | st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 0.1, float(2**60)])
TEXTS = st.sampled_from(["", "a", "red", Name("a"), Colour.RED])
LOCAL = datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)
DAYS = st.sampled_from([date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), LOCAL])
INSTANTS = st.sampled_from(
    [
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        LOCAL,
    ]
)
PRICES = st.sampled_from([Decimal(text) for text in ("1.5", "1.50", "15E-1", "0", "-0", "2", "2E1", "1.555")])

VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, NUMBERS),
    "float": (float, FLOATS),
    "Float32": (Float32, FLOATS),
    "bool": (bool, st.booleans()),
    "str": (str, TEXTS),
    "date": (date, DAYS),
    "datetime": (datetime, INSTANTS),
    "NaiveDatetime": (NaiveDatetime, INSTANTS),
    "Decimal": (Annotated[Decimal, Digits(10, 2)], PRICES),
}
"""Types, each with values that pass for it by the rules of type checkers."""
KINDS = st.sampled_from(sorted(VALUES))
REFUSED = b"refused"


def returning(annotation, value):
    """Return a function that declares a type, and returns a value."""

    def function(record):
        return value

    function.__annotations__["return"] = annotation
    return function


def key_of_function(annotation, value):
    """Return the stored key of what a function returns."""
    try:
        return encode(key_reader(KeyBy(function=returning(annotation, value)))(None))
    except (TypeError, ValueError):
        return REFUSED


names = count()


def key_of_fields(values):
    """Return the stored key of fields of some types that hold values."""
    fields = [(f"f{place}", annotation) for place, (annotation, _) in enumerate(values)]
    record = msgspec.defstruct(f"Record{next(names)}", fields, bases=(Struct,), module=__name__)
    try:
        columns = to_struct_array([record(*(value for _, value in values))], record)
    except UnfitRecord:
        return REFUSED
    kinds = {column.name: column.kind for column in columns_of(record)}
    (key,) = key_json_column(*(kinds[name].as_key(columns.field(name)) for name, _ in fields)).to_pylist()
    return key


@given(KINDS, st.data())
def test_key_of_function_is_that_of_field(kind, data):
    annotation, values = VALUES[kind]
    value = data.draw(values)
    assert key_of_function(annotation, value) == key_of_fields([(annotation, value)])
    assert key_of_function(annotation | None, value) == key_of_function(annotation, value)
    assert key_of_function(NewType("Own", annotation), value) == key_of_function(annotation, value)


@given(st.lists(KINDS, min_size=2, max_size=3), st.data())
def test_key_of_tuple_is_that_of_fields(kinds, data):
    values = [(VALUES[kind][0], data.draw(VALUES[kind][1])) for kind in kinds]
    annotation = tuple[tuple(own for own, _ in values)]
    assert key_of_function(annotation, tuple(value for _, value in values)) == key_of_fields(values)


@given(KINDS, st.data())
def test_stored_keys_read_as_they_are_made(kind, data):
    annotation, values = VALUES[kind]
    key = KeyBy(function=returning(annotation, None))
    if (text := key_of_function(annotation, data.draw(values))) != REFUSED:
        assert encode(typed_key(msgspec.json.decode(text), (annotation,), key)) == text


@pytest.mark.parametrize(
    ("annotation", "value", "key"),
    [
        (Place, Place("a", 0), b'["a",0.0]'),
        (Place, ("a", -0.0), b'["a",0.0]'),
        (tuple[float, ...], (1, 2.5), b"[1.0,2.5]"),
        (tuple[str, float | None], ("a", None), b"null"),
        (tuple[str, tuple[float]], ("a", (1,)), b'["a",[1.0]]'),
        (float, None, b"null"),
        (int | str, True, REFUSED),
        (int | str, Number(3), b"3"),
        (int | float, 3, b"3"),
        (float | str, 3, b"3.0"),
        (float | bool, True, b"true"),
        (Decimal, Decimal("1.50"), b'"1.5"'),
        (Annotated[Decimal | None, Digits(9, 2)], Decimal("1.5"), b'"1.50"'),
        (Annotated[float | None, msgspec.Meta(ge=0)], 1, b"1.0"),
        (Colour, Colour.RED, b'"red"'),
        (Literal["a", "b"], "a", b'"a"'),
        (Any, 0, b"0"),
        (float, float("nan"), REFUSED),
        (float, 2**53 + 1, REFUSED),
        (int, 1.5, REFUSED),
        (int, "1", REFUSED),
        (tuple[str, float], ("a",), REFUSED),
        (tuple[str, float], "ab", REFUSED),
        (str, ("a", "b"), REFUSED),
    ],
)
def test_results_get_the_declared_type(annotation, value, key):
    assert key_of_function(annotation, value) == key


def test_refusal_shows_result_and_type():
    with pytest.raises(TypeError, match=r"it returned 'a' \(str\), and declares to return int: let it return"):
        key_reader(KeyBy(function=returning(int, "a")))(None)
