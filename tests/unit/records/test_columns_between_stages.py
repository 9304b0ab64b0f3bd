"""Records as columns between stages: decoded columns equal decoded JSON."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.errors import ConfigError
from headrace.records.record_columns import from_struct_array, struct_type, to_struct_array
from headrace.records.value_arrays import UnfitRecord


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


class Inner(Struct, frozen=True):
    n: int
    at: Timestamp | None = None


class Row(Struct, frozen=True):
    n: int
    share: float
    text: str
    at: Timestamp
    colour: Colour
    kind: Literal["a", "b"] | None = None
    inner: Inner | None = None
    inners: list[Inner] = msgspec.field(default_factory=list)
    prices: dict[str, float] = msgspec.field(default_factory=dict)
    data: bytes = b""


ROW = Row(1, 0.5, "x", 5, Colour.RED)

TEXTS = st.text() | st.sampled_from(["", "\x00", '"\\', "\u2028", "\U0010ffff"])
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 5e-324, 1.7e308])
SCALARS = st.sampled_from(
    [
        (int, INTEGERS),
        (float, FLOATS | st.integers(-(2**60), 2**60)),
        (str, TEXTS),
        (bool, st.booleans()),
        (bytes, st.binary()),
        (Timestamp, INTEGERS),
        (Literal["a", "é"], st.sampled_from(["a", "é"])),
        (Colour, st.sampled_from(Colour)),
        (Level, st.sampled_from(Level)),
        (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 2**63 - 1)),
    ]
)


def optional(pair):
    annotation, values = pair
    return annotation | None, st.none() | values


def containers(pairs):
    return (
        pairs.map(lambda pair: (list[pair[0]], st.lists(pair[1], max_size=3)))
        | pairs.map(lambda pair: (tuple[pair[0], ...], st.lists(pair[1], max_size=3).map(tuple)))
        | pairs.map(lambda pair: (dict[str, pair[0]], st.dictionaries(TEXTS, pair[1], max_size=3)))
        | st.builds(struct_of, st.lists(pairs, min_size=1, max_size=3), st.booleans(), st.booleans())
        | pairs.map(optional)
    )


def struct_of(pairs, kw_only, omits):
    names = [f"f{number}" for number in range(len(pairs))]
    listed = list(zip(names, (annotation for annotation, _ in pairs), strict=True))
    record = msgspec.defstruct("Made", listed, kw_only=kw_only, omit_defaults=omits)
    return record, st.builds(record, **{name: values for name, (_, values) in zip(names, pairs, strict=True)})


ANY = st.recursive(SCALARS | SCALARS.map(optional), containers, max_leaves=6)
RECORDS = st.builds(struct_of, st.lists(ANY, min_size=1, max_size=4), st.booleans(), st.booleans())


def through_json(records):
    return [
        None if record is None else msgspec.json.decode(msgspec.json.encode(record), type=type(record))
        for record in records
    ]


@given(data=st.data(), pair=RECORDS)
def test_columns_decode_like_json(data, pair):
    record, values = pair
    records = data.draw(st.lists(values | st.none(), max_size=5))
    array = to_struct_array(records, record)
    array.validate(full=True)
    assert array.type == struct_type(record)
    assert repr(from_struct_array(array, record)) == repr(through_json(records))
    assert from_struct_array(array, record) == through_json(records)
    chunks = pa.chunked_array([array.slice(1), array.slice(0, 1)], array.type)
    assert from_struct_array(chunks, record) == through_json([*records[1:], *records[:1]])


@pytest.mark.parametrize(
    ("changes", "field", "why"),
    [
        ({"share": float("nan")}, "share", "is nan, which JSON cannot hold"),
        ({"share": float("-inf")}, "share", "is -inf, which JSON cannot hold"),
        ({"share": "1"}, "share", "is '1', which is not float"),
        ({"share": True}, "share", "is True, which is not float"),
        ({"share": 10**400}, "share", "is too large for a float"),
        ({"n": 2**63}, "n", f"is {2**63}, which 64 bits cannot hold"),
        ({"n": True}, "n", "is True, which is not int"),
        ({"n": "1"}, "n", "is '1', which is not int"),
        ({"n": 1.0}, "n", "is 1.0, which is not int"),
        ({"n": None}, "n", "is null"),
        ({"at": 1.5}, "at", "is 1.5, which is not int"),
        ({"text": "\ud800"}, "text", "is '\\ud800', which is not UTF-8"),
        ({"text": b"x"}, "text", "is b'x', which is not str"),
        ({"colour": "green"}, "colour", "is 'green', not one of red, blue"),
        ({"colour": Level.LOW}, "colour", "is 'low', not one of red, blue"),
        ({"colour": None}, "colour", "is null"),
        ({"kind": "c"}, "kind", "is 'c', not one of a, b"),
        ({"kind": ["a"]}, "kind", "is ['a'], which is not str"),
        ({"inner": Inner("x")}, "inner.n", "is 'x', which is not int"),
        ({"inner": {"n": 1}}, "inner", "is {'n': 1}, which is not Inner"),
        ({"inners": [Inner(1), Inner(None)]}, "inners[1].n", "is null"),
        ({"inners": [Inner(1), None]}, "inners[1]", "is null"),
        ({"inners": {Inner(1)}}, "inners", "is {Inner(n=1, at=None)}, which is not list"),
        ({"prices": {"a": 1.0, "b": float("inf")}}, "prices['b']", "is inf, which JSON cannot hold"),
        ({"prices": {1: 1.0}}, "prices[1]", "is 1, which is not str"),
        ({"data": "abcd"}, "data", "is 'abcd', which is not bytes"),
        ({"data": None}, "data", "is null"),
        ({"prices": [1.0]}, "prices", "is [1.0], which is not dict"),
    ],
)
def test_unfit_value_names_record_and_field(changes, field, why):
    records = [None, ROW, msgspec.structs.replace(ROW, **changes), ROW]
    with pytest.raises(UnfitRecord) as caught:
        to_struct_array(records, Row)
    assert (caught.value.index, caught.value.field, caught.value.why) == (2, field, why)
    assert str(caught.value) == f"record 2: {field} {why}"


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Annotated[int, msgspec.Meta(ge=0)], 1, -1),
        (Annotated[str, msgspec.Meta(pattern="^a")], "a", "b"),
        (Annotated[str, msgspec.Meta(max_length=1)] | None, None, "bb"),
        (Annotated[list[Inner], msgspec.Meta(min_length=1)], [Inner(1)], []),
        (Annotated[dict[str, Inner], msgspec.Meta(min_length=1)], {"a": Inner(1)}, {}),
        (list[Annotated[float, msgspec.Meta(gt=0)]], [1.0], [0.0]),
    ],
)
def test_broken_constraint_is_unfit(annotation, good, bad):
    record = msgspec.defstruct("One", [("x", annotation)])
    assert from_struct_array(to_struct_array([record(good)], record), record) == [record(good)]
    with pytest.raises(UnfitRecord, match=r"record 1: x.* is .*: Expected") as caught:
        to_struct_array([record(good), record(bad)], record)
    assert caught.value.index == 1


@pytest.mark.parametrize("name", ["é", "\ufb01"])
def test_fields_may_have_odd_names(name):
    record = msgspec.defstruct("Odd", [(name, int)])
    assert from_struct_array(to_struct_array([record(1)], record), record) == [record(1)]


def test_long_lists_keep_their_order_and_index():
    records = [msgspec.structs.replace(ROW, n=n) for n in range(10_000)]
    assert from_struct_array(to_struct_array(records, Row), Row) == records
    with pytest.raises(UnfitRecord, match="record 10000: n is null"):
        to_struct_array([*records, msgspec.structs.replace(ROW, n=None)], Row)


def test_record_of_another_class_is_unfit():
    with pytest.raises(UnfitRecord, match=r"record 0 is Inner\(n=1, at=None\), which is not Row"):
        to_struct_array([Inner(1)], Row)


def test_integers_in_float_fields_become_floats():
    record = msgspec.defstruct("One", [("x", float)])
    records = [record(2**53 + 1), record(0.5), record(2**64)]
    assert repr(from_struct_array(to_struct_array(records, record), record)) == repr(through_json(records))


def test_enum_text_is_taken_as_the_member():
    (result,) = from_struct_array(to_struct_array([msgspec.structs.replace(ROW, colour="blue")], Row), Row)
    assert result.colour is Colour.BLUE


def test_record_without_fields_is_refused():
    with pytest.raises(ConfigError, match="Empty has no fields"):
        struct_type(msgspec.defstruct("Empty", []))


def test_columns_survive_parquet(tmp_path):
    import pyarrow.parquet as pq

    records = [ROW, None, Row(2, -0.0, "é", 6, Colour.BLUE, "a", Inner(3), [Inner(4)], {"p": 1.0})]
    pq.write_table(pa.table({"in0": to_struct_array(records, Row)}), tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.schema.field("in0").type == struct_type(Row)
    assert from_struct_array(table["in0"], Row) == records
