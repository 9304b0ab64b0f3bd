"""Options of CSV: what they let a reader take, and what it refuses; the same text read by other readers with the same options."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import Digits, Struct, Timestamp
from headrace.config import CsvOptions, FileOptions
from headrace.sources.folder.format import UNREADABLE
from headrace.sources.folder.formats import facts_of, format_of, options_of
from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk, memory_disk
from tests.unit.sources.source_reading import read_bytes
from tests.unit.support.fuzzing import examples


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    amount: float | None = None
    paid: Annotated[Decimal, Digits(12, 2)] | None = None
    count: int | None = None
    good: bool | None = None
    day: date | None = None


class Texts(Struct, frozen=True):
    at: Timestamp
    first: str
    second: str


def read(text: str | bytes, record: Any = Row, **options: Any) -> Any:
    content = text if isinstance(text, bytes) else text.encode()
    return read_bytes("csv", content, record, csv=CsvOptions(**options))


def good(text: str, record: Any = Row, **options: Any) -> list[Any]:
    outcome = read(text, record, **options)
    assert (outcome.errors, outcome.refused) == ({}, None)
    return outcome.records


# --------------------------------------------------------------------------------------------------------------- quotes


def test_quotes_may_be_another_character():
    assert good("id;at\n'a;''b\n\"';1\n", delimiter=";", quote="'") == [Row("a;'b\n\"", 1)]


def test_without_quotes_each_character_is_text():
    outcome = read('id,at\n"a,1\n"b","2"\n', quote=None)
    assert (outcome.records[0], outcome.errors) == (Row('"a', 1), {1: "at is '\"2\"', which is not a timestamp"})
    assert read('id,at\n"a,b",1\n', quote=None).errors == {0: "line 2 has 3 fields, the header has 2"}


def test_escapes_go_with_other_quotes():
    assert good("id,at\n'a\\'b''c\\\\',1\n", quote="'", escape="\\") == [Row("a'b'c\\", 1)]


# -------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1,5", 1.5), ("-0,25", -0.25), (",5", 0.5), ("5,", 5.0), ("7", 7.0), ("1,5e3", 1500.0)],
)
def test_decimal_commas_are_read(text, amount):
    assert good(f"id;at;amount\na;1;{text}\n", delimiter=";", decimal=",")[0].amount == amount


@pytest.mark.parametrize(
    "text", ["1.5", "1.234,5", "1.234", "1,234,5", "1 234,5", "1'234,5", "+1,5", "1,5x", "0x1", ","]
)
@pytest.mark.parametrize("column", ["amount", "paid", "count"])
def test_thousands_separators_are_refused(column, text):
    outcome = read(f"id;at;{column}\na;1;{text}\nb;2;3\n", delimiter=";", decimal=",")
    assert ([*outcome.errors], outcome.records[1].id) == ([0], "b")
    assert outcome.errors[0].startswith(f"{column} is {text!r}")


def test_refused_numbers_name_the_option():
    outcome = read("id;at;paid;count\na;1;1.50;\nb;2;;1,5\nc;1.000;;\n", delimiter=";", decimal=",")
    assert outcome.errors == {
        0: "paid is '1.50' (decimal: \",\"), which is not a decimal of 12 digits, 2 of them behind the point",
        1: "count is 1.5, which is not int64",
        2: "at is '1.000' (decimal: \",\"), which is not a timestamp",
    }


def test_decimal_commas_leave_times_and_texts():
    text = 'id;at;paid;day\n"1.5,0";2026-01-31T10:00:00.5Z;"12,50";2026-01-31\n'
    assert good(text, delimiter=";", decimal=",") == [
        Row("1.5,0", 1769853600500, paid=Decimal("12.50"), day=date(2026, 1, 31))
    ]


def test_decimal_commas_in_quotes_go_with_comma_delimiters():
    assert good('id,at,amount\na,1,"1,5"\n', decimal=",") == [Row("a", 1, 1.5)]
    assert read("id,at,amount\na,1,1,5\n", decimal=",").errors == {0: "line 2 has 4 fields, the header has 3"}


GERMAN = {"delimiter": ";", "decimal": ",", "thousands": "."}


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1.028,20", 1028.2), ("-1.234.567,5", -1234567.5), ("1.028", 1028.0), ("1028,20", 1028.2), ("0,5", 0.5), (",5", 0.5), ("1.028,", 1028.0),
     ("12", 12.0), ("1,5e3", 1500.0)],
)  # fmt: skip
def test_thousands_are_read(text, amount):
    assert good(f"id;at;amount\na;1;{text}\n", **GERMAN)[0].amount == amount


def test_thousands_are_read_in_every_number():
    rows = good("id;at;paid;count\na;1.028;1.028,20;-1.000.000\n", **GERMAN)
    assert rows == [Row("a", 1028, paid=Decimal("1028.20"), count=-1_000_000)]


@pytest.mark.parametrize(
    ("text", "options"),
    [("1,028.20", {"delimiter": ";", "thousands": ","}), ("1'028.20", {"delimiter": ";", "thousands": "'"}),
     ("1 028,20", {"delimiter": ";", "decimal": ",", "thousands": " "}),
     ("1\u202f028,20", {"delimiter": ";", "decimal": ",", "thousands": "\u202f"}), ('"1,028.20"', {"delimiter": ",", "thousands": ","})],
)  # fmt: skip
def test_thousands_may_be_another_character(text, options):
    line = options["delimiter"].join
    assert good(f"{line(['id', 'at', 'paid'])}\n{line(['a', '1', text])}\n", **options)[0].paid == Decimal("1028.20")


@pytest.mark.parametrize(
    "text",
    ["1.02,20", "10.28", "1.0280", "1028.200", "1.028.20", ".028", "1..028", "1.028.", "0.123", "00.123", "1,028.20", "1.028,2.0", "1,028.000",
     "1.028e3", "+1.028", "1.0x8", "1 028", "1.٠٢٨", "-", "."],
)  # fmt: skip
@pytest.mark.parametrize("column", ["amount", "paid", "count", "at"])
def test_wrong_groups_of_digits_are_refused(column, text):
    names = ["id", "at", column] if column != "at" else ["id", "at"]
    values = ["a", "1", text] if column != "at" else ["a", text]
    outcome = read(f"{';'.join(names)}\n{';'.join(values)}\nb{';2' * (len(names) - 1)}\n", **GERMAN)
    assert ([*outcome.errors], outcome.records[1].id) == ([0], "b")
    assert outcome.errors[0].startswith(f"{column} is {text!r}")


def test_thousands_leave_days_and_texts():
    text = "id;at;paid;day\n1.02;2026-01-31T10:00:00.5Z;12,50;2026-01-31\n"
    assert good(text, **GERMAN) == [Row("1.02", 1769853600500, paid=Decimal("12.50"), day=date(2026, 1, 31))]


def test_refused_thousands_name_the_options():
    outcome = read("id;at;paid\na;1;1.02,20\n", **GERMAN)
    assert outcome.errors[0].startswith('paid is \'1.02,20\' (decimal: ",", thousands: "."), which is not a decimal')


@examples(60)
@given(number=st.decimals(-(10**9), 10**9, places=2), marks=st.sampled_from([",.", ".,", "' ", ".'", ", "]))
def test_thousands_equal_those_of_python(number, marks):
    decimal, thousands = (marks[0], marks[1]) if marks[0] in ".," else (".", "'")
    names = {",": "thousands", ".": "decimal"}
    text = "".join(
        {"thousands": thousands, "decimal": decimal}[names[char]] if char in names else char
        for char in f"{number:,.2f}"
    )
    (row,) = good(f"id;at;paid\na;1;{text}\n", delimiter=";", decimal=decimal, thousands=thousands)
    assert row.paid == number


# --------------------------------------------------------------------------------------------------------- truth and null


def test_truth_values_are_texts_of_the_file():
    options = {"true_values": ("Y", "1"), "false_values": ("n", "0")}
    rows = good("id,at,good\na,1,Y\nb,1,y\nc,1,N\nd,1,0\ne,1,\n", **options)
    assert [row.good for row in rows] == [True, True, False, False, None]
    outcome = read("id,at,good\na,1,true\nb,1,yes\n", **options)
    assert outcome.errors[0] == "good is 'true' (true_values: Y, 1; false_values: n, 0), which is not bool"
    assert [*outcome.errors] == [0, 1]


def test_truth_values_leave_other_columns():
    assert good("id,at,count\n1,1,0\n", true_values=("1",), false_values=("0",)) == [Row("1", 1, count=0)]


def test_null_texts_come_before_truth_values():
    rows = good('id,at,good\na,1,0\nb,1,"0"\n', null_values=("0",), true_values=("1",), false_values=("0",))
    assert [row.good for row in rows] == [None, False]


# ------------------------------------------------------------------------------------------------------ days and times


@pytest.mark.parametrize(
    ("pattern", "text", "iso"),
    [
        ("%d.%m.%Y %H:%M", "31.01.2026 10:05", "2026-01-31T10:05"),
        ("%d.%m.%Y %H:%M", "1.2.2026 9:05", "2026-02-01T09:05"),
        ("%d.%m.%Y", "29.02.2024", "2024-02-29"),
        ("%m/%d/%Y %I:%M:%S %p", "01/31/2026 12:00:01 am", "2026-01-31T00:00:01"),
        ("%m/%d/%y %I %p", "01/31/69 12 PM", "1969-01-31T12:00"),
        ("%Y%m%d%H%M%S", "20260131100507", "2026-01-31T10:05:07"),
        ("%d-%b-%Y %H:%M:%S,%f", "31-JAN-2026 10:05:07,25", "2026-01-31T10:05:07.250"),
        ("%a, %d %B %Y %H:%M %z", "Sat, 31 january 2026 10:05 +0130", "2026-01-31T08:35"),
        ("%Y-%m-%dT%H:%M:%S%z", "2026-01-31T10:05:07Z", "2026-01-31T10:05:07"),
        ("%Y.%j", "2026.031", "2026-01-31"),
        ("%G-W%V-%u", "2026-W05-6", "2026-01-31"),
        ("at %H o'clock on %d.%m.%Y", "at 10 o'clock on 31.01.2026", "2026-01-31T10:00"),
    ],
)
def test_times_are_read_by_pattern(pattern, text, iso):
    (row,) = good(f'id;at\na;"{text}"\n', delimiter=";", time_pattern=pattern)
    assert row.at == datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize(
    "text",
    ["2026-01-31", "31.01.2026", "31.01.26 10:05", "32.01.2026 10:05", "31.02.2026 10:05", "31.01.2026 24:00", "1767225600000", " 31.01.2026 10:05",
     "31.01.2026 10:05 ", "31.01.2026 10:05:00", "٣١.01.2026 10:05", "00.01.2026 10:05", "31.01.0000 10:05"],
)  # fmt: skip
def test_times_of_another_pattern_are_refused(text):
    outcome = read(f"id,at\na,{text}\nb,31.01.2026 10:05\n", time_pattern="%d.%m.%Y %H:%M")
    assert outcome.errors == {0: f"at is {text!r} (time_pattern: %d.%m.%Y %H:%M), which is not a timestamp"}


def test_contradicting_parts_are_no_time():
    assert [*read("id,at\na,Sun 31.01.2026\n", time_pattern="%a %d.%m.%Y").errors] == [0]
    assert [*read("id,at\na,31.01.2026 25\n", time_pattern="%d.%m.%Y %y").errors] == [0]
    assert [*read("id,at\na,31.01.2026 Feb\n", time_pattern="%d.%m.%Y %b").errors] == [0]
    assert [*read("id,at\na,31.01.2026 032\n", time_pattern="%d.%m.%Y %j").errors] == [0]
    assert [*read("id,at\na,31.01.2026 13 PM\n", time_pattern="%d.%m.%Y %I %p").errors] == [0]


def test_times_by_pattern_keep_their_rules():
    outcome = read("id,at\na,31.01.2026 10:05:07.1234\n", time_pattern="%d.%m.%Y %H:%M:%S.%f")
    assert "is finer than a millisecond" in (outcome.refused or "")
    outcome = read("id,at\na,31.01.2026 10:05:07.1234567\n", time_pattern="%d.%m.%Y %H:%M:%S.%f")
    assert "which is not a timestamp" in outcome.errors[0]
    assert [*read("id,at\na,01.01.0001 00:00 +0100\n", time_pattern="%d.%m.%Y %H:%M %z").errors] == [0]


def test_days_are_read_by_pattern():
    rows = good("id,at,day\na,2026-01-31,31.01.2026\nb,1,\n", day_pattern="%d.%m.%Y")
    assert [row.day for row in rows] == [date(2026, 1, 31), None]
    outcome = read("id,at,day\na,1,2026-01-31\nb,1,31.04.2026\n", day_pattern="%d.%m.%Y")
    assert outcome.errors[0] == "day is '2026-01-31' (day_pattern: %d.%m.%Y), which is not a day such as 2026-01-31"
    assert [*outcome.errors] == [0, 1]


@examples(30)
@given(
    times=st.lists(st.datetimes(min_value=datetime(1000, 1, 1)), min_size=1, max_size=5),  # noqa: DTZ001 - in UTC
    pattern=st.sampled_from(["%d.%m.%Y %H:%M:%S", "%Y%m%dT%H%M%S", "%m/%d/%Y %I:%M:%S %p", "%a %d %b %Y %H:%M:%S", "%Y %j %H %M %S"]),
)  # fmt: skip
def test_times_equal_those_of_strptime(times, pattern):
    texts = [time.strftime(pattern) for time in times]
    rows = good("id;at\n" + "".join(f"a;{text}\n" for text in texts), delimiter=";", time_pattern=pattern)
    by_python = [datetime.strptime(text, pattern).replace(tzinfo=UTC) for text in texts]
    assert [datetime.fromtimestamp(row.at / 1000, UTC) for row in rows] == by_python


# -------------------------------------------------------------------------------------------- columns, preambles, comments


def test_columns_name_files_without_a_header():
    options = {"header": False, "columns": ("at", "unused", "id")}
    assert good("1,x,a\n2,,b\n", **options) == [Row("a", 1), Row("b", 2)]
    assert read("1,x\n", **options).errors == {0: "line 1 has 2 fields, csv.columns has 3"}
    assert good("", **options) == []


def test_columns_that_lack_a_field_are_refused():
    outcome = read("1,a\n", header=False, columns=("at", "Id"))
    assert "id is missing, but there is 'Id'" in (outcome.refused or "")


def test_rows_agree_with_unnamed_columns():
    outcome = read("id,at,count,,\na,1,2,,\nb,2,3\nc,3,4,\nd,4,5,,,\ne,5,6,x,y\n")
    assert [record and record.id for record in outcome.records] == ["a", None, None, None, "e"]
    assert outcome.errors[1] == "line 3 has 3 fields, the header has 5"  # it may be cut off within the third field
    outcome = read("id,at\na,1,\n")
    assert outcome.errors == {0: "line 2 has 3 fields, the header has 2"}  # a text with a comma may be without quotes


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_before_the_header_are_passed_over(end):
    text = end.join(['Report, "of', "", "id,at", "a,x", ""])
    outcome = read(text, skip_lines=2)
    assert outcome.errors == {0: "at is 'x', which is not a timestamp"}
    assert read(text.replace("a,x", "a,1,2"), skip_lines=2).errors == {0: "line 4 has 3 fields, the header has 2"}


def test_files_within_their_preamble_are_refused():
    assert read("a\nb", skip_lines=3).refused == "it has 2 lines, and 3 should stand before its first row"
    assert read("a\nb\n", skip_lines=3).refused == "it has 2 lines, and 3 should stand before its first row"
    assert "it is empty behind its first 2 lines, and should have a header" in str(read("a\nb\n", skip_lines=2).refused)
    assert "it is empty, and should have a header" in str(read("", skip_lines=2).refused)
    assert good("a\nb\n", skip_lines=2, header=False) == good("", skip_lines=2, header=False) == []


def test_comments_are_passed_over():
    text = '# "by\nid,at\n#a,1\nb,2\n "#c",3\nd#,4\n"e\n#f",5\n'
    outcome = read(text, comment="#")
    assert [record and record.id for record in outcome.records] == ["b", ' "#c"', "d#", "e\n#f"]
    assert read(text).refused is not None
    assert "it is empty, and should have a header" in str(read("# id,at\n", comment="#").refused)


def test_missing_columns_come_with_the_header():
    assert read("ID,when\na,1\n", record=Texts).refused == "no column at, first, second (its header has: 'ID', 'when')"
    many = ",".join(f"c{number}" for number in range(99))
    assert (read(many + "\n" + many, record=Texts).refused or "").endswith("'c10', 'c11', ...)")


@pytest.mark.parametrize(
    ("header", "delimiter", "other"),
    [
        ("id;at", ",", "';'"),
        ("id,at", ";", "','"),
        ("id\tat", ",", r"'\t'"),
        ("id|at", ",", "'|'"),
    ],
)
def test_header_of_another_delimiter_is_said(header, delimiter, other):
    refused = read(f"{header}\na1\n", delimiter=delimiter).refused
    assert refused == (
        f"no column id, at (its header has: {header!r}; csv.delimiter is {delimiter!r}, and {other} may be the one to write there)"
    )


def test_missing_columns_come_with_configured_ones():
    refused = read("1,2\n", header=False, columns=("x", "at")).refused
    assert refused == "no column id (csv.columns has: x, at)"


# ------------------------------------------------------------------------------------------------------------ encodings

ENCODED = "id,at,count\né€,1,2\nß\U0001f600,2,3\n"


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("utf-8", ENCODED.encode()),
        ("utf-8", b"\xef\xbb\xbf" + ENCODED.encode()),
        ("utf-16", ENCODED.encode("utf-16")),
        ("utf-16", b"\xfe\xff" + ENCODED.encode("utf-16-be")),
        ("utf-16-le", ENCODED.encode("utf-16-le")),
        ("utf-16-le", b"\xff\xfe" + ENCODED.encode("utf-16-le")),
        ("utf-16-be", ENCODED.encode("utf-16-be")),
        ("utf-16-be", b"\xfe\xff" + ENCODED.encode("utf-16-be")),
    ],
)
def test_encodings_give_the_same_rows(encoding, content):
    outcome = read(content, encoding=encoding)
    assert (outcome.records, outcome.refused) == ([Row("é€", 1, count=2), Row("ß\U0001f600", 2, count=3)], None)


def test_encodings_of_one_byte_are_read():
    assert read("id,at\n€,1\n".encode("windows-1252"), encoding="windows-1252").records == [Row("€", 1)]
    assert read("id,at\n€,1\n".encode("iso-8859-15"), encoding="iso-8859-15").records == [Row("€", 1)]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_bytes_that_are_not_utf16_cost_one_row(codec):
    content = "id,at\na,1\nb\udc00,2\n\ud800,3\nc,4\n".encode(codec, "surrogatepass")
    outcome = read(content, encoding=codec)
    assert [record and record.id for record in outcome.records] == ["a", None, None, "c"]
    assert outcome.errors == {1: f"line 3 is not {codec}", 2: f"line 4 is not {codec}"}


def test_undefined_bytes_of_windows_cost_one_row():
    outcome = read(b"id,at\n\x81,1\nb,2\n", encoding="windows-1252")
    assert (outcome.records[1].id, outcome.errors) == ("b", {0: "line 2 is not windows-1252"})


@pytest.mark.parametrize(
    ("encoding", "content", "why"),
    [
        ("utf-16-le", ENCODED.encode("utf-16-le")[:-1], "it is not utf-16-le: truncated data"),
        ("utf-16", ENCODED.encode("utf-16-le"), "it has no byte order mark"),
        ("utf-16-le", b"\xfe\xff" + ENCODED.encode("utf-16-be"), "begins with the mark of utf-16-be"),
        ("utf-8", ENCODED.encode("utf-16"), "begins with the mark of utf-16-le"),
        ("utf-8", "id,at".encode("utf-16-le"), "begins with a zero byte"),
        ("utf-8", "id,at".encode("utf-16-be"), "begins with a zero byte"),
        ("iso-8859-1", ENCODED.encode("utf-16"), "begins with the mark of utf-16-le"),
        ("windows-1252", b"\xef\xbb\xbf" + ENCODED.encode(), "begins with the mark of utf-8"),
        ("utf-16", ENCODED.encode("utf-32"), "begins with the mark of utf-32-le"),
        ("utf-16-le", b"\xff\xfe\xff\xfe" + ENCODED.encode("utf-16-be"), ""),
    ],
)
def test_files_of_another_encoding_are_refused(encoding, content, why):
    outcome = read(content, encoding=encoding)
    assert why in (outcome.refused or "")
    assert outcome.refused is not None


@examples(30)
@given(content=st.binary(max_size=30), encoding=st.sampled_from(["utf-16", "utf-16-le", "utf-16-be"]))
def test_any_utf16_bytes_are_rows_or_refused(content, encoding):
    mark = b"\xff\xfe" if encoding == "utf-16" else b""
    header = "id,at\n".encode("utf-16-be" if encoding == "utf-16-be" else "utf-16-le")
    outcome = read(mark + header + content, encoding=encoding)
    assert {number for number, record in enumerate(outcome.records) if record is None} == set(outcome.errors)


# --------------------------------------------------------------------------------------------------------------- checks


def schema_of(content: bytes, **options: Any) -> Any:
    disk = memory_disk("csv-options")
    Storage("memory://csv-options/a.csv").write("", b"")
    disk.files["a.csv"].content = content
    try:
        return format_of(FileOptions(format="csv", csv=CsvOptions(**options))).schema(
            Storage("memory://csv-options/a.csv")
        )
    finally:
        forget_disk("csv-options")


LONG = "".join(f"{number},text é\n" for number in range(9_000))


def test_check_reads_columns_by_options():
    assert schema_of(b"x\n#y\nid;at\n", skip_lines=1, comment="#", delimiter=";").names == ["id", "at"]
    assert schema_of(b"a,1\n", header=False, columns=("id", "at")).names == ["id", "at"]
    assert schema_of(b"a,1\n", header=False) is None
    with pytest.raises(UNREADABLE, match="its first row has 1 field, csv.columns has 2"):
        schema_of(b"a;1\n", header=False, columns=("id", "at"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
def test_check_reads_the_head_of_long_files(encoding):
    content = ("id,é\n" + LONG).encode(encoding)
    assert schema_of(content, encoding=encoding).names == ["id", "é"]
    assert schema_of(content, encoding=encoding, skip_lines=99_999) is None


def test_facts_of_a_file_have_its_options():
    options = FileOptions(format="csv", csv=CsvOptions(decimal=",", columns=("a",), header=False))
    assert options_of("csv", facts_of(options)) == options
    plain = FileOptions(format="avro")
    assert (bytes(facts_of(plain)), options_of("avro", facts_of(plain))) == (b"null", plain)


# --------------------------------------------------------------------------------------------------------- other readers

DIALECTS = st.fixed_dictionaries(
    {"delimiter": st.sampled_from(",;|\t"), "quote": st.sampled_from("\"'"), "end": st.sampled_from(["\n", "\r\n"])}
)
CELLS = st.lists(st.lists(st.text("a1\"',;|\t\n é", max_size=5), min_size=2, max_size=2), min_size=1, max_size=4)


def written(rows: list[list[Any]], form: dict[str, str]) -> str:
    file = io.StringIO()
    csv.writer(
        file,
        delimiter=form["delimiter"],
        quotechar=form["quote"],
        lineterminator=form["end"],
        quoting=csv.QUOTE_NONNUMERIC,
    ).writerows(rows)
    return file.getvalue()


@examples(40)
@given(cells=CELLS, form=DIALECTS, skipped=st.integers(0, 2))
@example(cells=[["'", '"']], form={"delimiter": ";", "quote": "'", "end": "\n"}, skipped=1)
def test_dialects_equal_python_and_duckdb(cells, form, skipped, tmp_path_factory):
    rows = [["at", "first", "second"], *([number, *row] for number, row in enumerate(cells))]
    text = "preamble\n" * skipped + written(rows, form)
    records = good(text, Texts, delimiter=form["delimiter"], quote=form["quote"], skip_lines=skipped)
    by_python = [
        *csv.reader(io.StringIO(written(rows, form), newline=""), delimiter=form["delimiter"], quotechar=form["quote"])
    ]
    assert [[record.first, record.second] for record in records] == [row[1:] for row in by_python[1:]] == cells
    path = tmp_path_factory.mktemp("d") / "a.csv"
    path.write_bytes(written(rows, form).encode())
    by_duckdb = duckdb.connect().read_csv(
        str(path), header=True, delimiter=form["delimiter"], quotechar=form["quote"], escapechar=form["quote"],
        columns={"at": "BIGINT", "first": "VARCHAR", "second": "VARCHAR"}, na_values="(none)",
    )  # fmt: skip
    assert [[*row[1:]] for row in by_duckdb.fetchall()] == cells


@examples(40)
@given(
    rows=st.lists(
        st.tuples(st.none() | st.decimals(-(10**9), 10**9, places=2), st.none() | st.booleans()), min_size=1, max_size=6
    )
)
def test_numbers_and_truth_equal_pyarrow(rows):
    def text(amount: Decimal | None) -> str:
        return "NA" if amount is None else str(amount).replace(".", ",")

    lines = [
        f"{at};{text(amount)};{ {None: 'NA', True: 'ja', False: 'nein'}[good] }"
        for at, (amount, good) in enumerate(rows)
    ]
    content = "\n".join(["at;paid;good", *lines]).encode()

    class Paid(Struct, frozen=True):
        at: Timestamp
        paid: Annotated[Decimal, Digits(12, 2)] | None
        good: bool | None

    options = CsvOptions(delimiter=";", decimal=",", true_values=("ja",), false_values=("nein",), null_values=("NA",))
    outcome = read_bytes("csv", content, Paid, csv=options)
    assert (outcome.errors, outcome.refused) == ({}, None)
    table = pc.read_csv(
        io.BytesIO(content),
        parse_options=pc.ParseOptions(delimiter=";"),
        convert_options=pc.ConvertOptions(
            column_types={"paid": pa.decimal128(12, 2), "good": pa.bool_()}, decimal_point=",", null_values=["NA"],
            true_values=["ja"], false_values=["nein"],
        ),
    )  # fmt: skip
    assert (
        [(row.paid, row.good) for row in outcome.records]
        == [(row["paid"], row["good"]) for row in table.to_pylist()]
        == rows
    )
