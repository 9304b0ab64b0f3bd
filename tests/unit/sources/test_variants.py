"""Values of the type VARIANT are read as JSON, also where parts of them have columns of their own."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Json, Pipeline, Struct, Timestamp
from headrace.errors import SourceError
from headrace.sources.delta.variants import json_texts
from headrace.sources.folder.format import DamagedFileError
from headrace.testing import PipelineHarness
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.fuzzing import examples

DAY = 1_767_225_600_000


def sized(number, size):
    return number.to_bytes(size, "little")


def metadata_of(names, size=2):
    texts = [name.encode() for name in names]
    ends = [sum(map(len, texts[:place])) for place in range(len(texts) + 1)]
    return (
        bytes([1 | (size - 1) << 6])
        + sized(len(names), size)
        + b"".join(sized(end, size) for end in ends)
        + b"".join(texts)
    )


def encoded(value, names):
    """Return a plain value as the bytes of a variant; `names` are those of the metadata."""
    if value is None or isinstance(value, bool):
        return bytes([{None: 0, True: 1, False: 2}[value] << 2])
    if isinstance(value, int):
        kind, form = next(
            (kind, form)
            for kind, form, bits in ((3, "<b", 7), (4, "<h", 15), (5, "<i", 31), (6, "<q", 63))
            if -(2**bits) <= value < 2**bits
        )
        return bytes([kind << 2]) + struct.pack(form, value)
    if isinstance(value, float):
        return bytes([7 << 2]) + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return bytes([len(text) << 2 | 1]) + text if len(text) < 64 else bytes([16 << 2]) + sized(len(text), 4) + text
    parts = [encoded(part, names) for part in (value.values() if isinstance(value, dict) else value)]
    ends = [sum(map(len, parts[:place])) for place in range(len(parts) + 1)]
    is_large, size = len(parts) > 255, 3
    count = sized(len(parts), 4 if is_large else 1)
    offsets = b"".join(sized(end, size) for end in ends)
    if isinstance(value, list):
        return bytes([(size - 1 | is_large << 2) << 2 | 3]) + count + offsets + b"".join(parts)
    fields = b"".join(sized(names.index(name), 2) for name in value)
    return bytes([(size - 1 | 1 << 2 | is_large << 4) << 2 | 2]) + count + fields + offsets + b"".join(parts)


def names_in(value):
    if isinstance(value, dict):
        return {*value}.union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


def variant(value):
    names = sorted(names_in(value))
    return {"metadata": metadata_of(names), "value": encoded(value, names)}


TYPE = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=80)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@examples(150)
@given(values=st.lists(VALUES, max_size=3))
def test_variants_become_the_json_they_hold(values):
    texts = json_texts(pa.array([*map(variant, values), None], TYPE))
    assert [json.loads(text) for text in texts.to_pylist()[:-1]] == values
    assert texts[-1].as_py() is None


def test_long_lists_and_objects_are_read():
    value = {f"k{number}": [number] * 300 for number in range(300)}
    (text,) = json_texts(pa.array([variant(value)], TYPE)).to_pylist()
    assert json.loads(text) == value


def stored(kind, content):
    return {"metadata": metadata_of([]), "value": bytes([kind << 2]) + content}


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        (7, struct.pack("<d", float("nan")), '"NaN"'),
        (14, struct.pack("<f", float("-inf")), '"-Infinity"'),
        (14, struct.pack("<f", 1.5), "1.5"),
        (8, b"\2" + struct.pack("<i", 1250), "12.5"),
        (9, b"\0" + struct.pack("<q", -7), "-7"),
        (10, b"\x02" + (10**37 + 1).to_bytes(16, "little"), f"1{'0' * 34}0.01"),
        (11, struct.pack("<i", 20455), '"2026-01-02"'),
        (12, struct.pack("<q", 1767323045_123_450), '"2026-01-02T03:04:05.12345Z"'),
        (13, struct.pack("<q", -1), '"1969-12-31T23:59:59.999999"'),
        (13, struct.pack("<q", 1767323040_000_000), '"2026-01-02T03:04:00"'),
        (18, struct.pack("<q", 1767323045_000_000_001), '"2026-01-02T03:04:05.000000001Z"'),
        (17, struct.pack("<q", 3_600_000_000), '"01:00:00"'),
        (15, struct.pack("<I", 2) + b"\0\xff", '"AP8="'),
        (20, bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
    ],
)
def test_values_that_json_lacks_are_texts(kind, content, text):
    assert json_texts(pa.array([stored(kind, content)], TYPE)).to_pylist() == [text]


def test_shredded_parts_are_put_together():
    leaf = pa.struct([("value", pa.binary()), ("typed_value", pa.int64())])
    days = pa.struct(
        [
            ("value", pa.binary()),
            ("typed_value", pa.list_(pa.struct([("value", pa.binary()), ("typed_value", pa.date32())]))),
        ]
    )
    typed = pa.struct([("a", leaf), ("days", days)])
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", typed)])
    names = ["a", "b", "days"]
    rows = [
        {
            "value": encoded({"b": True}, names),
            "typed_value": {
                "a": {"typed_value": 1},
                "days": {"typed_value": [{"typed_value": date(2026, 1, 2)}, {"value": encoded("x", names)}]},
            },
        },
        {"value": None, "typed_value": {"a": {"value": encoded("one", names)}, "days": {}}},
        {"value": encoded([1, 2], names), "typed_value": None},
        {"value": None, "typed_value": None},
    ]
    array = pa.array([{"metadata": metadata_of(names), **row} for row in rows], kind)
    assert [json.loads(text) for text in json_texts(array).to_pylist()] == [
        {"a": 1, "b": True, "days": ["2026-01-02", "x"]},
        {"a": "one"},
        [1, 2],
        None,
    ]


@pytest.mark.parametrize(
    ("typed", "kind", "text"),
    [
        (Decimal("1.50"), pa.decimal128(5, 2), "1.5"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), pa.timestamp("us", "UTC"), '"2026-01-02T03:00:00Z"'),
        (b"\0\xff", pa.binary(), '"AP8="'),
        (float("inf"), pa.float64(), '"Infinity"'),
    ],
)
def test_typed_values_are_written_alike(typed, kind, text):
    array = pa.array(
        [{"metadata": metadata_of([]), "typed_value": typed}],
        pa.struct([("metadata", pa.binary()), ("typed_value", kind)]),
    )
    assert json_texts(array).to_pylist() == [text]


@given(metadata=st.binary(max_size=12), value=st.binary(max_size=30))
def test_any_bytes_give_json_or_an_error(metadata, value):
    array = pa.array([{"metadata": b"\1" + metadata, "value": value}], TYPE)
    with suppress(DamagedFileError):
        (text,) = json_texts(array).to_pylist()
        json.loads(text)


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    j: Json = None
    parts: list[Json] | None = None


def job_over(written):
    bound = {"format": "delta", "path": str(written.path)}
    return PipelineHarness(
        Pipeline("job").source("rows", Row, event_time="at").sink("out"), job={"sources": {"rows": bound}}, now=DAY
    )


def table_of(folder, variants):
    many = {"type": "array", "elementType": "variant", "containsNull": True}
    columns = [column("id", "string"), column("at", "timestamp"), column("j", "variant"), column("parts", many)]
    written = HandTable(folder / "table", columns, features=["variantType"])
    count = len(variants)
    rows = {
        "id": [str(number) for number in range(count)],
        "at": pa.array([DAY * 1000] * count, pa.timestamp("us", "UTC")),
        "j": pa.array(variants, TYPE),
        "parts": pa.array([[value, None] for value in variants], pa.list_(TYPE)),
    }
    written.commit(written.add(pa.table(rows)))
    return written


def test_record_has_the_content_of_a_variant(tmp_path):
    harness = job_over(table_of(tmp_path, [variant({"a": [1, "x"]}), variant(None), None]))
    harness.run()
    rows = sorted(harness.sink("out"), key=lambda row: row.id)
    assert [row.j for row in rows] == [{"a": [1, "x"]}, None, None]
    assert [row.parts for row in rows] == [[{"a": [1, "x"]}, None], [None, None], [None, None]]
    assert msgspec.json.encode(rows[0].j) == b'{"a":[1,"x"]}'


def test_damaged_variant_makes_a_bad_file(tmp_path):
    written = table_of(tmp_path, [{"metadata": b"\2", "value": b"\0"}])
    with pytest.raises(
        SourceError, match=r"part-001\.parquet: a value of the type VARIANT is damaged: its version is 2"
    ):
        job_over(written).run()
