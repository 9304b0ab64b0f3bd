"""JSON as people have it: rows within a document, objects over several lines, encodings, and what is not JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.config import FileOptions, JsonOptions
from headrace.sources.folder.format import UNREADABLE
from headrace.sources.folder.formats import facts_of, format_of, options_of
from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk, memory_disk
from tests.unit.sources.source_reading import read_bytes
from tests.unit.support.fuzzing import examples


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    more: dict[str, str] | None = None


OBJECTS = [{"id": "a", "at": 1}, {"id": "b\n{}", "at": 2, "more": {"x": '"}'}}, {"id": "ü", "at": 3}]
ROWS = [Row("a", 1), Row("b\n{}", 2, {"x": '"}'}), Row("ü", 3)]


def read(content: str | bytes, rows: str | None = None) -> Any:
    return read_bytes("json", content if isinstance(content, bytes) else content.encode(), Row, rows=rows)


# ------------------------------------------------------------------------------------------------------ arrays in objects


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("path", ["features", "data.items", "a.b.c"])
def test_rows_are_elements_of_an_array(path, indent):
    document: Any = OBJECTS
    for name in reversed(path.split(".")):
        document = {"type": "Collection", name: document, "count": [1]}
    outcome = read(json.dumps(document, indent=indent), path)
    assert (outcome.records, outcome.errors, outcome.refused) == (ROWS, {}, None)


def test_rows_of_several_documents_are_read():
    documents = [json.dumps({"data": OBJECTS[:1]}), json.dumps({"data": []}), json.dumps({"data": OBJECTS[1:]})]
    for content in ("\n".join(documents), "".join(documents), f"[{','.join(documents)}]"):
        assert read(content, "data").records == ROWS
    pretty = "\n".join(json.dumps(json.loads(text), indent=1) for text in documents)
    assert read(pretty, "data").records == ROWS


def test_bad_elements_are_bad_rows():
    outcome = read('{"data": [{"id":"a","at":1}, 7, {"id":"b"}]}', "data")
    assert outcome.records == [Row("a", 1), None, None]
    assert outcome.errors == {
        1: "line 1, element 2 of data is not a JSON object (Expected `object`, got `int`)",
        2: "at is missing",
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"date": []}', "line 1 has no 'data', and json.rows is data"),
        ('{"data": {"id":"a"}}', "line 1 has no array data"),
        ('{"data": null}', "line 1 has no array data"),
        ('{"data": [{"id":"a","at":1}]}\n{"data": [', "line 2 has no array data, which json.rows names (Input data was truncated)"),
        ('{"data": [{"id":"a","at":1}', "line 1 has no array data"),
        ("[[]]", "element 1 has no array data"),
        ('{\n"data": 1}', "the object has no array data"),
    ],
)  # fmt: skip
def test_documents_without_the_array_are_refused(content, why):
    assert why in (read(content, "data").refused or "")


# -------------------------------------------------------------------------------------------------------- concatenated


@pytest.mark.parametrize("between", ["\n", "\n\n", "", " ", "\r\n"])
@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_objects_one_after_the_other_are_rows(indent, between):
    outcome = read(between.join(json.dumps(row, indent=indent) for row in OBJECTS))
    assert (outcome.records, outcome.errors, outcome.refused) == (ROWS, {}, None)


def test_places_of_concatenated_objects_are_named():
    outcome = read('{\n"id":"a",\n"at":1}\n\n{"id":\n"b"} {"id": NaN}')
    assert outcome.errors == {
        1: "at is missing",
        2: "object 3 at line 6 is not JSON (JSON is malformed: invalid character (byte 7))",
    }


def test_damage_behind_objects_over_lines_is_refused():
    first = json.dumps(OBJECTS[0], indent=1)
    for rest in ('{\n"id":"b"', '{"id":"b"}}', ",\n" + first, "x", "5", "[]"):
        refused = read(f"{first}\n{rest}").refused or ""
        assert refused.startswith("it has objects over several lines, and what follows object ")


@pytest.mark.parametrize(
    "line", ['{"id":"a","at":1} 5', '{"id":"a","at":1}#', '{"id":"a","at":1},', '{"id":"a","at":1}}']
)
def test_garbage_behind_an_object_is_refused(line):
    outcome = read(f'{line}\n{{"id":"b","at":2}}')
    assert ([*outcome.errors], outcome.records[1:]) == ([0], [Row("b", 2)])


def test_damaged_first_line_moves_no_other_row():
    outcome = read('{"id": "x", "at"\n{"id":"a","at":1}\n{"id":"b"}{"id":\n{"id":"c","at":3}')
    assert [record and record.id for record in outcome.records] == [None, "a", None, "c"]


@examples(40)
@given(
    rows=st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=4) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=4),
    indent=st.none() | st.integers(0, 2),
    between=st.sampled_from(["\n", " ", ""]),
)  # fmt: skip
def test_concatenated_objects_equal_python(rows, indent, between):
    rows = [
        {"id": "a", "at": number} | {f"_{name}": value for name, value in row.items()}
        for number, row in enumerate(rows)
    ]
    outcome = read(between.join(json.dumps(row, indent=indent, ensure_ascii=False) for row in rows))
    assert (outcome.records, outcome.errors) == ([Row("a", number) for number in range(len(rows))], {})


# ----------------------------------------------------------------------------------------------------------- encodings


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("indent", [None, 1])
def test_bytes_of_json_show_its_encoding(codec, indent):
    lines = "\n".join(json.dumps(row, indent=indent, ensure_ascii=False) for row in OBJECTS)
    assert read(lines.encode(codec)).records == ROWS
    assert read(json.dumps(OBJECTS, ensure_ascii=False).encode(codec)).records == ROWS


def test_halves_of_utf16_cost_one_row():
    content = '{"id":"a","at":1}\n{"id":"\udc00","at":2}\n{"id":"b","at":3}'
    outcome = read(content.encode("utf-16-le", "surrogatepass"))
    assert [record and record.id for record in outcome.records] == ["a", None, "b"]
    assert "line 2 is not UTF-8" in outcome.errors[1]


def test_truncated_utf16_is_refused():
    assert (
        read('{"id":"a","at":1}'.encode("utf-16-le")[:-1]).refused == "it is not utf-16-le: truncated data at byte 32"
    )


# ------------------------------------------------------------------------------------------------------------ no JSON


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "nan", "undefined", "01", "+1", ".5", "0x1", "'x'"]
)
def test_literals_that_json_lacks_are_refused(literal):
    outcome = read(f'{{"id":"a","at":1}}\n{{"id":"b","at":2,"x":{literal}}}\n{{"id":"c","at":3}}')
    assert [record and record.id for record in outcome.records] == ["a", None, "c"]
    assert outcome.errors[1].startswith("line 2 is not JSON (")
    assert "cannot be read" in (read(f'[{{"id":"a","at":{literal}}}]').refused or "")


def test_last_of_equal_keys_counts():
    assert read('{"id":"a","at":1,"id":"b"}').records == [Row("b", 1)]


# --------------------------------------------------------------------------------------------------------------- checks


def names(content: bytes, rows: str | None = None) -> Any:
    disk = memory_disk("json-documents")
    Storage("memory://json-documents/a.json").write("", b"")
    disk.files["a.json"].content = content
    try:
        schema = format_of(FileOptions(format="json", json=JsonOptions(rows=rows))).schema(
            Storage("memory://json-documents/a.json")
        )
        return None if schema is None else schema.names
    finally:
        forget_disk("json-documents")


def test_check_reads_names_within_documents():
    assert names(json.dumps({"data": OBJECTS}, indent=1).encode(), "data") == ["id", "at", "more"]
    assert names(b"".join(json.dumps(row, indent=1).encode() for row in OBJECTS)) == ["id", "at", "more"]
    assert names("\n".join(json.dumps(row) for row in OBJECTS * 2_000).encode("utf-16")) == ["id", "at", "more"]
    assert names(json.dumps({"data": OBJECTS * 2_000}).encode(), "data") is None
    with pytest.raises(UNREADABLE, match="has no 'rows', and json.rows is rows"):
        names(json.dumps({"data": OBJECTS}).encode(), "rows")


def test_facts_of_a_file_have_the_path():
    options = FileOptions(format="json", json=JsonOptions(rows="a.b"))
    assert options_of("json", facts_of(options)) == options
