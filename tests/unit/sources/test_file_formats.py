"""Files of JSON lines, CSV and Avro as tables of records: each row keeps its number, and bad rows get a reason."""

from __future__ import annotations

import gzip
import io
import itertools
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Literal

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field

from headrace import Pipeline, Struct, Timestamp
from headrace.config import CsvOptions, FileOptions
from headrace.records.columns import RecordReader
from headrace.sources.folder.format import UNREADABLE
from headrace.sources.folder.formats import format_of, read_file, stem_of
from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk, memory_disk
from tests.unit.support.fuzzing import examples

disks = (f"file-formats-{number}" for number in itertools.count())


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Part(Struct, frozen=True):
    n: int
    at: Timestamp | None = None


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    number: int = 7
    weight: float | None = None
    good: bool = True
    size: Size = Size.SMALL
    color: Literal["red", "blue"] | None = None
    raw: bytes = b""
    parts: list[Part] = field(default_factory=list)
    texts: dict[str, int] = field(default_factory=dict)


class Flat(Struct, frozen=True):
    id: str
    at: Timestamp
    number: int | None = None
    good: bool | None = None
    weight: float | None = None


def node_of(record, **options):
    return Pipeline("rows").source("rows", record, event_time="at", **options).sink("taken").operators[0]


def read(content, kind, record=Flat, *, suffix=None, columns=(), csv=None, **options):
    """Read bytes as a file; return the records by row number, and the errors."""
    disk, options_of_files = next(disks), FileOptions(format=kind, csv=csv or CsvOptions())
    uri = f"memory://{disk}/input/file.{suffix or kind}"
    Storage(uri).write("", b"")
    memory_disk(disk).files[f"input/file.{suffix or kind}"].content = content
    node = node_of(record, **options)
    try:
        rows = read_file(Storage(uri), node, options_of_files, columns=columns)
        assert format_of(options_of_files).count(Storage(uri), node) == rows.table.num_rows
    finally:
        forget_disk(disk)
    for number in range(rows.table.num_rows):
        rows.raw(number).encode()
    records, _, bad = RecordReader(record, options.get("row_kind")).read(rows.table, rows.problems)
    return records, {row.position: row.error for row in bad}, rows


def lines(*objects):
    return "\n".join(text if isinstance(text, str) else msgspec.json.encode(text).decode() for text in objects).encode()


def avro(schema, records, **options):
    file = io.BytesIO()
    fastavro.writer(file, schema, records, **options)
    return file.getvalue()


FLAT_AVRO = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "number", "type": ["null", "long"], "default": None},
    ],
}


# ------------------------------------------------------------------------------------------------------ JSON lines


def test_json_fields_have_record_types():
    content = lines(
        {
            "id": "a", "at": "2024-01-05T06:07:08.9Z", "number": 1.0, "weight": 2, "good": False, "size": "large",
            "color": "red", "raw": "AAE=", "parts": [{"n": 1, "at": 5}, {"n": 2}], "texts": {"x": 1}, "more": [1],
        },
        {"id": "b", "at": 5},
    )  # fmt: skip
    records, bad, _ = read(content, "json", Row)
    assert bad == {}
    assert records == [
        Row("a", 1704434828900, 1, 2.0, False, Size.LARGE, "red", b"\x00\x01", [Part(1, 5), Part(2)], {"x": 1}),
        Row("b", 5),
    ]


def test_bad_json_lines_move_no_other_row():
    content = b"\xef\xbb\xbf" + b'{"id": "a", "at": 1}\r\n\n{"id": \n  \t\n[1]\n{"id":"\xff","at":1}\n{"id":"b","at":2}'
    records, bad, rows = read(content, "json")
    assert [record and record.id for record in records] == ["a", None, None, None, "b"]
    assert bad == {
        1: "line 3 is not JSON (Input data was truncated)",
        2: "line 5 is not a JSON object (Expected `object`, got `array`)",
        3: "line 6 is not UTF-8 (invalid start byte at byte 7)",
    }
    assert [rows.raw(number) for number in (1, 2, 3)] == ['{"id": ', "[1]", '{"id":"\\xff","at":1}']


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"id": 1}, "id is 1, which is not string"),
        ({"id": None}, "id is null"),
        ({"at": "soon"}, "at is 'soon', which is not a timestamp"),
        ({"at": True}, "at is True, which is not a timestamp"),
        ({"at": 2**62}, "at is 4611686018427387904 ms since 1970, which is outside the years 1 to 9999"),
        ({"number": "1"}, "number is '1', which is not int64"),
        ({"number": 1.5}, "number is 1.5, which is not int64"),
        ({"number": 2**63}, "number is 9223372036854775808, which is not int64"),
        ({"number": True}, "number is True, which is not int64"),
        ({"weight": 2**53 + 1}, "weight is 9007199254740993, of which a float loses digits"),
        ({"weight": "NaN"}, "weight is 'NaN', which is not double"),
        ({"good": 1}, "good is 1, which is not bool"),
        ({"size": "huge"}, "size is 'huge', not one of small, large"),
        ({"raw": "?"}, "raw is '?', which is not base64"),
        ({"parts": {}}, "parts is {}, which is not list<element: struct<n: int64, at: int64>>"),
        ({"parts": [{"n": 1}, {}]}, "parts[1].n is missing"),
        ({"parts": [{"n": 1, "at": "x"}]}, "parts[0].at is 'x', which is not a timestamp"),
        ({"texts": {"a": "b"}}, "texts['a'] is 'b', which is not int64"),
        ({"texts": {"a": None}}, "texts['a'] is null"),
    ],
)
def test_json_value_of_another_type_is_named(fields, error):
    good = {"id": "a", "at": 1}
    records, bad, _ = read(lines(good, good | fields, good), "json", Row)
    assert bad == {1: error}
    assert [record is None for record in records] == [False, True, False]


def test_json_line_without_a_field_is_bad():
    _, bad, _ = read(lines({"at": 1}, {"id": "a"}), "json")
    assert bad == {0: "id is missing", 1: "at is missing"}


def test_lines_nested_too_deep_are_bad_rows():
    _, bad, _ = read(b'{"id":' + b"[" * 100_000 + b'\n{"id":"a","at":1}', "json")
    assert bad == {0: "line 1 is not read: its lists and objects are nested too deep"}


def test_huge_json_line_is_a_row():
    text = "x" * 5_000_000
    records, bad, _ = read(lines({"id": text, "at": 1}, text), "json")
    assert (records[0].id, list(bad)) == (text, [1])


OBJECTS = [{"id": "a", "at": 1}, {"id": "b", "at": 2, "number": 5}, {"id": "c", "at": 3}]


@pytest.mark.parametrize("around", ["[{}]", "[\n{}\n]", " [\r\n  {} ]\n", "[{}\n]"])
@pytest.mark.parametrize("between", [",", ",\n", "\n,\n", ",\r\n\r\n"])
def test_json_array_is_read(around, between):
    content = around.format(between.join(msgspec.json.encode(row).decode() for row in OBJECTS))
    records, bad, _ = read(content.encode(), "json")
    assert (records, bad) == ([Flat("a", 1), Flat("b", 2, 5), Flat("c", 3)], {})


def test_json_array_has_bad_elements():
    records, bad, rows = read(b'[{"id":"a","at":1},\n7,\n{"id":"b"}]', "json")
    assert records == [Flat("a", 1), None, None]
    assert bad == {1: "element 2 is not a JSON object (Expected `object`, got `int`)", 2: "at is missing"}
    assert rows.raw(1) == "7"
    assert read(b"[]", "json")[0] == []


@pytest.mark.parametrize("content", [b'[\n{"id":"a","at":1},\n{"id":"b","at":2}\n', b"[", b"[{},"])
def test_damaged_json_array_is_refused(content):
    with pytest.raises(UNREADABLE, match="begins with a JSON array that cannot be read"):
        read(content, "json")


def test_object_over_several_lines_is_read():
    content = b'{\n "id": "a",\n "at": 1,\n "more": [\n{"id": "x", "at": 2}\n]}\n'
    assert read(content, "json")[:2] == ([Flat("a", 1)], {})


def test_carriage_returns_end_lines_of_json():
    content = b"\r".join(map(msgspec.json.encode, OBJECTS))
    assert [record.id for record in read(content, "json")[0]] == ["a", "b", "c"]


def test_compressed_files_are_decompressed():
    records, _, _ = read(gzip.compress(lines({"id": "a", "at": 1}), mtime=0), "json", suffix="json.gz")
    assert records == [Flat("a", 1)]
    records, _, _ = read(gzip.compress(b"id,at\na,1", mtime=0), "csv", suffix="csv.gz")
    assert records == [Flat("a", 1)]
    with pytest.raises(UNREADABLE, match="cannot be unpacked by gzip"):
        read(gzip.compress(lines({"id": "a", "at": 1}), mtime=0)[:-9], "json", suffix="json.gz")


def test_row_kinds_are_read_with_the_rows():
    for content, kind in (
        (lines({"id": "a", "at": 1, "op": "-D"}, {"id": "b", "at": 1}), "json"),
        (b"id,at,op\na,1,-D\nb,1,\n", "csv"),
    ):
        _, bad, rows = read(content, kind, row_kind="op")
        assert bad == {1: "op is None, not one of +I, -U, +U, -D"}
        assert rows.table["op"].to_pylist() == ["-D", None]


# ------------------------------------------------------------------------------------------------------------- CSV


def test_csv_fields_have_record_types():
    content = (
        "at,id,number,weight,good,size,color,raw,parts,texts,more\r\n"
        '2024-01-05 06:07+01:00,"a ""b"",\r\nc",-1,1e3,TRUE,large,,AAE=,"[{""n"":1}]","{""x"":1}",?\r\n'
    )
    records, bad, _ = read(content.encode(), "csv", Row)
    assert bad == {}
    assert records == [
        Row('a "b",\r\nc', 1704431220000, -1, 1000.0, True, Size.LARGE, None, b"\x00\x01", [Part(1)], {"x": 1})
    ]


def test_bad_csv_rows_move_no_other_row():
    content = b'\xef\xbb\xbfid,at,number\na,1,1\n\nb,2\nc,3,3,3\n"d,4,4\ne,5,5\n"f"x,6,6\n\xff,7,7\nh,8,x\n"i\ni",9,'
    records, bad, rows = read(content, "csv")
    assert [record and record.id for record in records] == ["a", None, None, None, "e", None, None, None, "i\ni"]
    assert bad == {
        1: "line 4 has 2 fields, the header has 3",
        2: "line 5 has 4 fields, the header has 3",
        3: "line 6 has text after a closing quote",
        5: "line 8 has text after a closing quote",
        6: "line 9 is not utf-8",
        7: "number is 'x', which is not int64",
    }
    assert [rows.raw(number) for number in (1, 3, 6, 8)] == ["b,2", '"d,4,4', "\\xff,7,7", '"i\ni",9,']


def test_quote_never_closed_costs_one_row():
    records, bad, _ = read(b'id,at\n"a,1\nb,2\nc,3', "csv")
    assert bad == {0: "line 2 has a quote that is not closed"}
    assert [record and record.id for record in records] == [None, "b", "c"]


def test_quoted_fields_are_never_null():
    records, bad, _ = read(b'id,at,number\n"",1,\n,2,\nNA,3,NA\n', "csv")
    assert (records[0], bad) == (Flat("", 1), {1: "id is null", 2: "number is 'NA', which is not int64"})
    records, bad, _ = read(b'id,at,number\n"NA",1,NA\n,2,\n', "csv", csv=CsvOptions(null_values=("NA",)))
    assert (records[0], bad) == (Flat("NA", 1), {1: "number is '', which is not int64"})


def test_csv_options_say_how_files_are_written():
    csv = CsvOptions(delimiter="\t", header=False, encoding="iso-8859-1")
    records, bad, _ = read("é\t1\t2\t\t1.5\n".encode("iso-8859-1"), "csv", csv=csv)
    assert (records, bad) == ([Flat("é", 1, 2, None, 1.5)], {})
    _, bad, _ = read(b"a\t1\n", "csv", csv=csv)
    assert bad == {0: "line 1 has 2 fields, the record has 5"}


def test_wrong_escapes_cost_one_row():
    csv = CsvOptions(escape="\\")
    records, bad, _ = read(b'id,at\n"a\\",1\nb\\,2\n"c\\"",3\n"\\', "csv", csv=csv)
    assert records == [None, Flat("b\\", 2), Flat('c"', 3), None]
    assert bad == {0: "line 2 has text after a closing quote", 3: "line 5 has a quote that is not closed"}
    _, bad, _ = read(b'id,at\n"he said \\"hi\\"",1\n', "csv")
    assert bad == {0: "line 2 has text after a closing quote"}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"id,at,at\n", "its header has more than one column at"),
        (b"id,,at\n", "its header has a column without a name"),
        (b",,id,at\n", "its header has a column without a name"),
        (b"id,\xff\n", "its header is not utf-8"),
        (b'id,"at\n', "its header has a quote that is not closed"),
        (b"", "it is empty, and should have a header even without rows"),
        (b"\xef\xbb\xbf", "it is empty, and should have a header"),
        (b"\n\r\n", "it is empty, and should have a header"),
    ],
)
def test_csv_file_without_a_header_is_refused(content, error):
    with pytest.raises(UNREADABLE, match=error):
        read(content, "csv")


@pytest.mark.parametrize("content", [b"id,at\n", b"id,at"])
def test_csv_file_without_rows_is_empty(content):
    records, bad, _ = read(content, "csv")
    assert (records, bad) == ([], {})


@pytest.mark.parametrize("name", [b"", b'""'])
def test_row_numbers_without_a_name_are_ignored(name):
    records, bad, _ = read(name + b",id,at,number,\n1,a,1,2,\n2,b,2,3\n", "csv")
    assert records == [Flat("a", 1, 2), None]
    assert bad == {1: "line 3 has 4 fields, the header has 5"}


def test_empty_names_at_header_end_are_ignored():
    records, bad, _ = read(b"id,at,number,,\na,1,2,x,\nb,2,3,,\nc,3,4\n", "csv")
    assert records == [Flat("a", 1, 2), Flat("b", 2, 3), None]
    assert bad == {2: "line 4 has 3 fields, the header has 5"}


def test_carriage_returns_end_lines_of_csv():
    assert read(b'id,at\ra,1\r"b\rc",2\r\rd,3', "csv")[0] == [Flat("a", 1), Flat("b\rc", 2), Flat("d", 3)]
    assert read(b"id,at\r\r\na,1\r\r\n", "csv")[0] == [Flat("a", 1)]
    records, bad, _ = read(b'id,at\na\rb,1\nc,2\n"d\re",3\n"f",4\rg,5', "csv")
    assert records == [None, Flat("c", 2), Flat("d\re", 3), None]
    assert "line 2 has a carriage return outside quotes" in bad[0]
    assert "line 5 has a carriage return outside quotes" in bad[3]


FIELDS = st.text(st.sampled_from('a1",\r\n é'), max_size=5)


@given(rows=st.lists(st.lists(FIELDS, min_size=2, max_size=3), max_size=5), end=st.sampled_from(["\n", "\r\n"]))
def test_quoted_csv_is_read_back(rows, end):
    def quoted(field):
        return '"' + field.replace('"', '""') + '"'

    class Texts(Struct, frozen=True):
        a: str
        at: Timestamp

    content = end.join(["a,at", *(",".join(map(quoted, row)) for row in rows)])
    records, bad, table = read(content.encode(), "csv", Texts)
    assert len(records) == len(rows)
    for number, row in enumerate(rows):
        assert table.raw(number) == ",".join(map(quoted, row))
        assert ("fields" in bad.get(number, "")) == (len(row) != 2)


# ------------------------------------------------------------------------------------------------------------ Avro


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_avro_records_are_rows(codec):
    rows = [{"id": "a", "at": 1, "number": 2}, {"id": None, "at": 2, "number": None}]
    records, bad, table = read(avro(FLAT_AVRO, rows, codec=codec, sync_interval=1), "avro")
    assert (records, bad) == ([Flat("a", 1, 2), None], {1: "id is null"})
    assert table.raw(1) == '{"id":null,"at":2,"number":null}'


def schema_of(**types):
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "Any", "fields": fields}


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def test_avro_times_are_in_any_unit():
    for unit, factor in (("millis", 1), ("micros", 1_000)):
        schema = schema_of(id="string", at=logical("long", f"timestamp-{unit}"), number="int")
        assert read(avro(schema, [{"id": "a", "at": -1 * factor, "number": 1}]), "avro")[0] == [Flat("a", -1, 1)]


def test_avro_time_outside_all_years_is_bad():
    at = {"type": "long", "logicalType": "local-timestamp-millis"}  # fastavro's writer takes numbers as they are
    records, bad, _ = read(
        avro(schema_of(id="string", at=at), [{"id": "a", "at": 2**60}, {"id": "b", "at": 1}]), "avro"
    )
    assert (records[1], list(bad)) == (Flat("b", 1), [0])
    assert "outside the years 1 to 9999" in bad[0]


def test_avro_values_of_other_types_are_bad_rows():
    schema = schema_of(id="bytes", at="long", number=["null", logical("int", "date")])
    _, bad, _ = read(avro(schema, [{"id": b"a", "at": 1, "number": None}]), "avro")
    assert bad == {0: "id is b'a', which is not string"}
    schema = schema_of(id="string", at="long", number=["null", logical("int", "date")])
    _, bad, _ = read(avro(schema, [{"id": "a", "at": 1, "number": 5}]), "avro")
    assert bad == {0: "number is 1970-01-06, which is not int64"}


def test_avro_decimals_are_numbers():
    money = logical("bytes", "decimal", precision=19, scale=2)
    amounts = [{"id": "a", "at": 1, "weight": Decimal(text)} for text in ("0.35", "12345678901234567.89")]
    records, bad, rows = read(avro(schema_of(id="string", at="long", weight=money), amounts), "avro")
    assert records[0] == Flat("a", 1, weight=0.35)
    assert bad == {1: "weight is 12345678901234567.89, of which a float loses digits"}
    assert rows.raw(1) == """{"id":"a","at":1,"weight":"12345678901234567.89"}"""


DATE = logical("int", "date")
TIMESTAMP = logical("long", "timestamp-millis")


def test_avro_named_types_keep_their_meaning():
    day = {
        "type": "record",
        "name": "Day",
        "fields": [{"name": "n", "type": DATE}, {"name": "at", "type": ["null", TIMESTAMP]}],
    }
    money = {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 2}
    schema = schema_of(
        id="string", at="long", first=day, parts={"type": "array", "items": "Day"}, paid=money, weight=["null", "Money"]
    )
    value = {"n": 5, "at": 7}
    row = {"id": "a", "at": 1, "first": value, "parts": [value], "paid": Decimal("1.25"), "weight": Decimal("2.50")}
    records, bad, _ = read(avro(schema, [row]), "avro", Row)
    assert bad == {0: "parts[0].n is 1970-01-06, which is not int64"}
    records, bad, _ = read(avro(schema, [row | {"parts": []}]), "avro", Row)
    assert (records[0].weight, bad) == (2.5, {})


@pytest.mark.parametrize("branches", itertools.permutations([DATE, "string", "long", "null"]))
def test_avro_union_branches_keep_their_types(branches):
    schema = schema_of(id="string", at=["null", TIMESTAMP, "string"], number=[*branches])
    rows = [
        {"id": "a", "at": 7, "number": ("long", 3)},
        {"id": "b", "at": ("string", "1970-01-02"), "number": date(1970, 1, 6)},
        {"id": "c", "at": None, "number": None},
    ]
    records, bad, table = read(avro(schema, rows), "avro")
    assert records == [Flat("a", 7, 3), None, None]
    assert bad == {1: "number is 1970-01-06, which is not int64", 2: "at is null"}
    assert table.raw(1) == '{"id":"b","at":"1970-01-02","number":"1970-01-06"}'


def test_avro_decimal_of_negative_scale_is_bad():
    money = logical("bytes", "decimal", precision=4, scale=2)
    content = avro(schema_of(id="string", at="long", weight=money), [{"id": "a", "at": 1, "weight": Decimal("1.50")}])
    assert content.count(b'"scale": 2') == 1
    _, bad, _ = read(content.replace(b'"scale": 2', b'"scale":-2'), "avro")
    assert "(decimal of scale -2), which is not double" in bad[0]


def test_avro_text_not_in_utf8_is_bad():
    content = avro(FLAT_AVRO, [{"id": "abc", "at": 1, "number": None}, {"id": "b", "at": 2, "number": 1}])
    records, bad, rows = read(content.replace(b"abc", b"a\xffc"), "avro")
    assert (records[1].id, list(bad)) == ("b", [0])
    assert "which is not UTF-8" in bad[0]
    assert rows.raw(0).startswith('{"id":"a\\\\xffc"')


def test_nested_avro_values_are_read():
    part = {
        "type": "record",
        "name": "Part",
        "fields": [{"name": "n", "type": "int"}, {"name": "at", "type": ["null", logical("long", "timestamp-millis")]}],
    }
    schema = schema_of(
        id="string",
        at="long",
        parts={"type": "array", "items": part},
        texts={"type": "map", "values": "int"},
        raw="bytes",
        color={"type": "enum", "name": "C", "symbols": ["red", "blue"]},
    )
    rows = [
        {
            "id": "a",
            "at": 1,
            "parts": [{"n": 1, "at": 5}, {"n": 2, "at": None}],
            "texts": {"x": 1},
            "raw": b"\xff",
            "color": "blue",
        }
    ]
    records, bad, _ = read(avro(schema, rows), "avro", Row)
    assert (records, bad) == ([Row("a", 1, color="blue", raw=b"\xff", parts=[Part(1, 5), Part(2)], texts={"x": 1})], {})


@given(cut=st.integers(1, 200))
def test_truncated_avro_file_is_refused(cut):
    content = avro(
        FLAT_AVRO, [{"id": "a" * 70, "at": number, "number": None} for number in range(99)], sync_interval=300
    )
    with pytest.raises(UNREADABLE):
        read(content[:-cut], "avro")


def test_unknown_codec_is_named():
    content = avro(FLAT_AVRO, [{"id": "a", "at": 1, "number": 1}]).replace(b"\x08null", b"\x08lzma")
    with pytest.raises(UNREADABLE, match="cannot be unpacked by 'lzma': this codec is not known"):
        read(content, "avro")


# ------------------------------------------------------------------------------------------------------------- all

GOOD = {
    "json": lines(
        {"id": "a", "at": 1, "number": 2}, {"id": "b", "at": "2024-01-01", "good": True}, {"id": "c", "at": 3}
    ),
    "csv": b'id,at,number,good\na,1,2,true\n"b, ""b""",2024-01-01,,\nc,3,4,\n',
    "avro": avro(FLAT_AVRO, [{"id": "a", "at": 1, "number": 2}, {"id": "b", "at": 2, "number": None}], sync_interval=1),
}


@pytest.mark.parametrize("kind", GOOD)
@examples(150)
@given(data=st.data())
def test_damaged_bytes_raise_documented_errors_alone(kind, data):
    content = bytearray(GOOD[kind])
    places = st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=4)
    for place, value in data.draw(places):
        content[place] = value
    damaged = bytes(content[data.draw(st.integers(0, 3)) : data.draw(st.integers(0, len(content)))])
    try:
        records, bad, rows = read(damaged, kind)
    except UNREADABLE:
        return
    assert rows.table.num_rows == len(records)
    assert {number for number, record in enumerate(records) if record is None} == set(bad)


@pytest.mark.parametrize("kind", ["json", "csv"])
@given(content=st.binary(max_size=40))
def test_any_bytes_are_rows_or_refused(kind, content):
    prefix = b"id,at\n" if kind == "csv" else b""
    try:
        records, bad, _ = read(prefix + content, kind)
    except UNREADABLE:
        return
    assert {number for number, record in enumerate(records) if record is None} == set(bad)


def test_name_without_its_extension_is_the_stem():
    assert [stem_of(name) for name in ("a.b.json.gz", "a.csv", "a.parquet", "a")] == ["a.b", "a", "a", "a"]
