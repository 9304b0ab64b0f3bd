"""`headrace new JOB --from FILE|TABLE`: the record, the source and the first run of a job over data that is there."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.api.graph import SourceNode
from headrace.cli import app
from headrace.cli.data_columns import data_of
from headrace.cli.record_code import imports_of, record_code
from headrace.config import FileOptions
from headrace.records.column_types import columns_of
from headrace.sources.folder.formats import read_file
from headrace.storage.storage import Storage
from tests.jobs.home import PROJECT
from tests.unit.sources.drawn_tables import arrow_table, tables
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.fuzzing import examples

AT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
EVERY = {
    "id": pa.array([1, 2], pa.int32()),
    "tiny": pa.array([1, 2], pa.int8()),
    "unsigned": pa.array([1, 2**64 - 1], pa.uint64()),
    "price": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
    "ratio": pa.array([0.5, 0.25], pa.float32()),
    "day": pa.array([date(2026, 3, 1), None], pa.date32()),
    "local": pa.array([AT.replace(tzinfo=None)] * 2, pa.timestamp("us")),
    "at": pa.array([AT, AT], pa.timestamp("us", "UTC")),
    "clock": pa.array([AT.time(), AT.time()], pa.time64("us")),
    "took": pa.array([1_000, 2_000], pa.duration("us")),
    "uuid": pa.array([bytes(16), bytes(range(16))], pa.uuid()),
    "tags": pa.array([["a"], []], pa.list_(pa.string())),
    "by": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "who": pa.array([{"first name": "A", "at": {"x": 1}}] * 2),
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    return tmp_path


def new(source, name: str = "copied"):
    return CliRunner().invoke(app, ["new", name, "--from", str(source)])


def fields_of(source) -> dict[str, str]:
    """Return the annotations, and the names of columns, by field."""
    code = record_code(data_of(str(source)).columns).classes
    lines = [line.strip() for line in code.rpartition("class Row")[2].splitlines() if ": " in line]
    return dict(line.split(": ", 1) for line in lines if not line.startswith(("#", "class")))


def loaded(code: str) -> ModuleType:
    """Run code as a module."""
    module = ModuleType("suggested")
    sys.modules["suggested"] = module
    exec(compile(code, "suggested", "exec"), module.__dict__)  # noqa: S102 - the code under test
    return module


def headrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "engine")}
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def copied(here: Path, source) -> pa.Table:
    """Make the project, check and run it, and return the table that it writes."""
    done = new(source)
    assert done.exit_code == 0, done.output
    run = headrace(here / "copied", "run", "copied", "--runner", "local")
    assert run.returncode == 0, run.stdout + run.stderr
    return DeltaTable(str(here / "copied/var/lake/copy")).to_pyarrow_table()


def every(here: Path) -> Path:
    pq.write_table(pa.table(EVERY), here / "every.parquet")
    return here / "every.parquet"


# -------------------------------------------------------------------------------------------------------------- formats


def test_parquet_gives_types_nulls_and_names(here):
    assert fields_of(every(here)) == {
        "id": "Int32 | None",
        "tiny": "Int8 | None",
        "unsigned": "Annotated[Decimal, Digits(20, 0)] | None",
        "price": "Annotated[Decimal, Digits(12, 2)] | None",
        "ratio": "Float32 | None",
        "day": "dt.date | None",
        "local": "TimestampMicros",
        "at": "dt.datetime | None",
        "clock": "dt.time | None",
        "took": "dt.timedelta | None",
        "uuid": "UUID | None",
        "tags": "list[str | None] | None",
        "by": "dict[str, int | None] | None",
        "who": "Who | None",
    }


@pytest.mark.slow
def test_every_type_of_parquet_runs(here):
    rows = copied(here, every(here))
    assert rows.num_rows == 2
    assert rows["price"].to_pylist() == [Decimal("1.50"), None]
    assert rows["unsigned"].to_pylist() == [Decimal(1), Decimal(2**64 - 1)]
    assert rows["who"].to_pylist() == [{"first name": "A", "at": {"x": 1}}] * 2


CSV = "id;at;price;zip;open;US Gross;day\n1;2026-03-01T10:00:00Z;1.5;007;true;7.1234567;2026-03-01\n2;2026-03-02T10:00:00Z;2;123;FALSE;;2026-03-02\n"


def test_csv_gives_the_narrowest_types(here):
    (here / "a.csv").write_text(CSV)
    assert fields_of(here / "a.csv") == {
        "id": "int",
        "at": "dt.datetime",
        "price": "Annotated[Decimal, Digits(18, 1)]",
        "zip": "str",
        "open": "bool",
        "us_gross": 'float | None = field(name="US Gross")',
        "day": "dt.date",
    }


@pytest.mark.slow
@pytest.mark.parametrize("pack", [None, gzip.compress, bz2.compress])
def test_csv_runs_plain_and_packed(here, pack):
    ending = {None: "", gzip.compress: ".gz", bz2.compress: ".bz2"}[pack]
    file = here / f"a[1].csv{ending}"
    file.write_bytes(CSV.encode() if pack is None else pack(CSV.encode()))
    rows = copied(here, file)
    assert rows["zip"].to_pylist() == ["007", "123"]
    assert rows["US Gross"].to_pylist() == [7.1234567, None]
    source = yaml.safe_load((here / "copied/conf/jobs/copied.yaml").read_text())["sources"]["rows"]
    assert source == {"format": "csv", "csv": {"delimiter": ";"}, "path": "input/rows", "files": f"a[[]1].csv{ending}"}


def test_doubtful_delimiter_is_said(here):
    (here / "a.csv").write_text("a,b;c\n1,2026-03-01T10:00:00Z;3\n")
    assert "the delimiter may also be ';'" in new(here / "a.csv").stderr


@pytest.mark.slow
def test_json_gives_structs_and_free_json(here):
    rows = [
        {"at": "2026-03-01T10:00:00Z", "n": 1, "any": 1, "who": {"x": 1}, "l": [1.5, 2], "$type": "a", "none": None},
        {"at": "2026-03-01T10:00:00Z", "n": None, "any": "a", "who": {"y": "b"}, "l": [], "1": True},
    ]
    (here / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert fields_of(here / "a.jsonl") == {
        "at": "dt.datetime",
        "n": "int | None",
        "any": "Json",
        "who": "Who",
        "l": "list[float]",
        "type": 'str | None = field(name="$type")',
        "none": "Json",
        "field_1": 'bool | None = field(name="1")',
    }
    assert copied(here, here / "a.jsonl")["any"].to_pylist() == ["1", '"a"']


@pytest.mark.slow
def test_number_that_a_float_shows_is_float(here):
    rows = [{"at": "2026-03-01T10:00:00Z", "x": 1}]
    (here / "a.json").write_text(json.dumps(rows).replace('"x": 1', '"x": 60.465161050148062'))
    assert fields_of(here / "a.json")["x"] == "float"
    assert copied(here, here / "a.json")["x"].to_pylist() == [60.465161050148062]


@pytest.mark.slow
def test_row_numbers_without_a_name_are_left_out(here):
    (here / "a.csv").write_text(",at,x\n0,2026-03-01T10:00:00Z,7\n1,2026-03-01T10:00:01Z,8\n")
    assert copied(here, here / "a.csv")["x"].to_pylist() == [7, 8]
    assert "no field can have the columns ''" in new(here / "a.csv", "again").stderr


@pytest.mark.slow
def test_avro_gives_logical_types(here):
    kinds = {
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "price": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        "kind": {"type": "enum", "name": "Kind", "symbols": ["A"]},
        "inner": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]},
        "either": ["int", "string"],
        "took": {"type": "fixed", "name": "Took", "size": 12, "logicalType": "duration"},
    }
    schema = {
        "type": "record",
        "name": "Root",
        "fields": [{"name": name, "type": kind} for name, kind in kinds.items()],
    }
    file = io.BytesIO()
    row = {
        "at": AT,
        "price": Decimal("1.25"),
        "kind": "A",
        "inner": {"x": 1},
        "either": "b",
        "took": bytes(8) + b"\1" + bytes(3),
    }
    fastavro.writer(file, schema, [row, {**row, "price": None, "either": 7}])
    (here / "a.avro").write_bytes(file.getvalue())
    assert fields_of(here / "a.avro") == {
        "at": "dt.datetime",
        "price": "Annotated[Decimal, Digits(9, 2)] | None",
        "kind": "str",
        "inner": "Inner",
        "either": "Json",
        "took": "dt.timedelta",
    }
    rows = copied(here, here / "a.avro")
    assert rows["price"].to_pylist() == [Decimal("1.25"), None]
    assert rows["took"].to_pylist() == [1_000, 1_000]


@pytest.mark.slow
def test_delta_table_is_copied_whole(here):
    table = pa.table({name: EVERY[name] for name in ("id", "price", "at", "who")})
    write_deltalake(str(here / "table"), table)
    write_deltalake(str(here / "table"), table, mode="overwrite")
    assert copied(here, here / "table").num_rows == 2


def test_variants_of_a_table_are_free_json(here):
    many = {"type": "array", "elementType": "variant", "containsNull": True}
    by_name = {"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True}
    part = {"type": "struct", "fields": [column("j", "variant"), column("n", "long")]}
    kinds = {"id": "string", "j": "variant", "many": many, "by_name": by_name, "part": part}
    table = HandTable(here / "table", [column(*named) for named in kinds.items()], features=["variantType"])
    table.commit()
    code = record_code(data_of(str(here / "table")).columns)
    record = loaded(f"{imports_of(code.classes)}\n\n\n{code.classes}")
    hints = get_type_hints(record.Row)
    assert hints == {
        "id": str | None,
        "j": Any,
        "many": list[Any] | None,
        "by_name": dict[str, Any] | None,
        "part": record.Part | None,
    }
    assert get_type_hints(record.Part) == {"j": Any, "n": int | None}


# ------------------------------------------------------------------------------------------------------ names and types


@pytest.mark.slow
def test_names_that_are_no_identifiers(here):
    names = ["US Gross", "us_gross", "1", "class", "$type", "int", "dt", "__x", "a.b", "日"]
    pq.write_table(pa.table({"at": EVERY["at"], **{name: [1, 2] for name in names}}), here / "a.parquet")
    code = record_code(data_of(str(here / "a.parquet")).columns)
    record = loaded(f"{imports_of(code.classes)}\n\n\n{code.classes}").Row
    assert [column.stored for column in columns_of(record, (*code.renamed.items(),))] == ["at", *names]
    assert copied(here, here / "a.parquet").num_rows == 2


@pytest.mark.slow
def test_name_that_code_cannot_have_is_renamed(here):
    pq.write_table(pa.table({"at": EVERY["at"], 'a"b\\': [1, 2]}), here / "a.parquet")
    assert copied(here, here / "a.parquet")["a_b"].to_pylist() == [1, 2]


@pytest.mark.slow
def test_file_elsewhere_is_read_in_its_folder(here):
    (here / "lake").mkdir()
    (here / "lake" / "a.csv").write_text(CSV)
    (here / "lake" / "b.csv").write_text("other")
    assert copied(here, here / "lake" / "a.csv").num_rows == 2
    source = yaml.safe_load((here / "copied/conf/jobs/copied.yaml").read_text())["sources"]["rows"]
    assert (source["path"], source["files"]) == (str(here / "lake"), "a.csv")


def test_column_without_a_field_is_named(here):
    table = pa.table({"at": EVERY["at"], "wide": pa.array([Decimal(1)] * 2, pa.decimal256(60, 2))})
    pq.write_table(table, here / "a.parquet")
    assert "no field can have the columns wide" in new(here / "a.parquet").stderr
    assert (
        '# no field can have the column "wide": decimal256(60, 2)' in (here / "copied/pipelines/copied.py").read_text()
    )


def test_data_without_any_field_is_refused(here):
    file = io.BytesIO()
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 76, "scale": 10}
    schema = {"type": "record", "name": "Root", "fields": [{"name": "wide", "type": kind}]}
    fastavro.writer(file, schema, [{"wide": Decimal(1)}])
    (here / "a.avro").write_bytes(file.getvalue())
    done = new(here / "a.avro")
    assert done.exit_code == 2, done.output
    assert "no field can have any of the columns: wide (decimal256(76, 10))" in done.stderr.replace("\n", " ")
    assert not (here / "copied").exists()


@examples(15)
@given(tables())
def test_record_reads_every_drawn_row(tmp_path, drawn):
    table = arrow_table(drawn)
    pq.write_table(table, tmp_path / "a.parquet")
    code = record_code(data_of(str(tmp_path / "a.parquet")).columns)
    record = loaded(f"from __future__ import annotations\n{imports_of(code.classes)}\n\n\n{code.classes}").Row
    node = SourceNode(
        "rows", record, record.__struct_fields__[0], (), None, timedelta(0), rename=(*code.renamed.items(),)
    )
    rows = read_file(Storage(str(tmp_path / "a.parquet")), node, FileOptions())
    assert not rows.problems
    assert rows.table.num_rows == len(drawn.rows)
    types = {column.stored: column.sink_type for column in columns_of(record, node.names)}
    assert types == dict(zip(table.schema.names, table.schema.types, strict=True))


# --------------------------------------------------------------------------------------------------- event time, errors


@pytest.mark.slow
def test_missing_event_time_is_to_be_filled_in(here):
    (here / "a.csv").write_text("a,b\n1,x\n")
    assert "fill in the event time in pipelines/copied.py" in new(here / "a.csv").stderr
    assert "# FILL IN the event time" in (here / "copied/pipelines/copied.py").read_text()
    assert headrace(here / "copied", "check", "copied").returncode != 0


@pytest.mark.slow
def test_check_is_ok_on_a_file(here):
    (here / "a.csv").write_text(CSV)
    assert new(here / "a.csv").exit_code == 0
    profile = here / "copied/conf/clusters/local.yaml"
    profile.write_text(f"{profile.read_text()}runner: local\n")
    done = headrace(here / "copied", "check", "copied")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.csv", None, "there is no file"),
        ("a.xlsx", b"x", "has no ending of a format: expected one of .parquet, .csv"),
        ("a.csv", b"", "is empty, so nothing tells its columns"),
        ("a.csv", b"a,b\n", "it has no rows"),
        ("a.json", b"[]", "it has no rows"),
        ("a.parquet", b"no parquet", "cannot read"),
        ("a.avro", b"no avro", "it is no Avro file"),
        ("a.csv.gz", b"no gzip", "cannot be unpacked by gzip"),
        ("${HOME}.csv", b"a\n1\n", "a reference to the environment"),
    ],
)
def test_useless_data_is_refused(here, name, content, reason):
    if content is not None:
        (here / name).write_bytes(content)
    done = new(here / name)
    assert done.exit_code == 2, done.output
    assert reason in done.stderr.replace("\n", " ")
    assert not (here / "copied").exists()


def test_folder_without_a_table_is_refused(here):
    done = new(here)
    assert done.exit_code == 2
    assert "is a folder, and no Delta table" in done.stderr


def test_log_without_commits_is_refused(here):
    (here / "_delta_log").mkdir()
    (here / "_delta_log" / f"{0:020d}.crc").write_text("{}")
    done = new(here)
    assert done.exit_code == 2, done.output
    assert "its log has no commits" in done.stderr.replace("\n", " ")


def test_name_that_exists_is_refused(here):
    (here / "copied").mkdir()
    (here / "copied" / "mine").touch()
    (here / "a.csv").write_text(CSV)
    assert "exists and is not empty" in new(here / "a.csv").stderr


# --------------------------------------------------------------------------------------------------- notation of CSV


def csv_options(here: Path) -> dict[str, Any]:
    """Return the options of CSV that `new` writes for a.csv."""
    done = new(here / "a.csv")
    assert done.exit_code == 0, done.output
    source = yaml.safe_load((here / "copied/conf/jobs/copied.yaml").read_text())["sources"]["rows"]
    return dict(source.get("csv", {}))


def job_text(here: Path) -> str:
    """Return the text of the job's file without the breaks of its comments."""
    return (here / "copied/conf/jobs/copied.yaml").read_text().replace("\n    # ", " ")


GERMAN = """\
Nr;Buchung;Betrag;Wert;Menge;PLZ
1;31.12.2025 23:15;1.028,20;30.12.2025;1.000;01067
2;01.02.2026 08:00;-12,50;01.02.2026;;80331
"""


@pytest.mark.slow
def test_german_csv_runs_as_it_is(here):
    (here / "a.csv").write_text(GERMAN)
    rows = copied(here, here / "a.csv").to_pylist()
    assert [(row["Betrag"], row["Wert"], row["Menge"], row["PLZ"]) for row in rows] == [
        (Decimal("1028.20"), date(2025, 12, 30), 1000, "01067"),
        (Decimal("-12.50"), date(2026, 2, 1), None, "80331"),
    ]
    assert rows[0]["Buchung"].replace(tzinfo=None) == datetime(2025, 12, 31, 23, 15)  # noqa: DTZ001 - the zone is another's


def test_german_notation_is_guessed(here):
    (here / "a.csv").write_text(GERMAN)
    assert csv_options(here) == {
        "delimiter": ";",
        "decimal": ",",
        "thousands": ".",
        "day_pattern": "%d.%m.%Y",
        "time_pattern": "%d.%m.%Y %H:%M",
    }
    assert fields_of(here / "a.csv") == {
        "Nr": "int",
        "Buchung": "TimestampMicros",
        "Betrag": "Annotated[Decimal, Digits(18, 2)]",
        "Wert": "dt.date",
        "Menge": "int | None",
        "PLZ": "str",
    }


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["1.5", "2"], {}),
        (["1,5", "2"], {"decimal": ","}),
        (["1,234.5", "2"], {"thousands": ","}),
        (["1'234.5"], {"thousands": "'"}),
        (["1 234,5", "1,5"], {"decimal": ",", "thousands": " "}),
        (["1.028", "12.5"], {}),
        (["1.028", "1,5"], {"decimal": ",", "thousands": "."}),
        (["31.12.2025"], {"day_pattern": "%d.%m.%Y", "time_pattern": "%d.%m.%Y"}),
        (["12/31/2025", "1/2/2025"], {"day_pattern": "%m/%d/%Y", "time_pattern": "%m/%d/%Y"}),
        (["2025/02/01"], {"day_pattern": "%Y/%m/%d", "time_pattern": "%Y/%m/%d"}),
        (["31-12-99"], {"day_pattern": "%d-%m-%y", "time_pattern": "%d-%m-%y"}),
        (["2025-12-31"], {}),
        (["12/31/2025 1:05 pm", "01/02/2025 11:05 AM"], {"time_pattern": "%m/%d/%Y %I:%M %p"}),
        (["31.12.2025, 13:05:10,250"], {"time_pattern": "%d.%m.%Y, %H:%M:%S,%f"}),
        (["31.12.2025 13:05:10 +01:00"], {"time_pattern": "%d.%m.%Y %H:%M:%S %z"}),
        (["2025-12-31 13:05"], {}),
        (["31.12.2025", "soon"], {}),
        (["10.20.30", "1.2.3"], {}),
        (["01067", "1.5.a"], {}),
    ],
)
def test_notation_is_guessed_where_one_fits(here, values, options):
    (here / "a.csv").write_text("id;x\n" + "".join(f"1;{value}\n" for value in values))
    assert csv_options(here) == {"delimiter": ";", **options}
    assert "may mean" not in job_text(here)


@pytest.mark.parametrize(
    ("value", "kind", "meanings"),
    [
        ("1.028", "Annotated[Decimal, Digits(18, 3)]", '1.028 (decimal: ".") or 1028 (decimal: ",", thousands: ".")'),
        ("1,028", "str", '1.028 (decimal: ",") or 1028 (decimal: ".", thousands: ",")'),
        ("01.02.2025", "str", '2025-02-01 (day_pattern: "%d.%m.%Y") or 2025-01-02 (day_pattern: "%m.%d.%Y")'),
        ("01/02/2025 10:00", "str", 'T10:00:00 (time_pattern: "%d/%m/%Y %H:%M") or 2025-01-02T10:00:00'),
    ],
)
def test_ambiguous_notation_is_not_guessed(here, value, kind, meanings):
    (here / "a.csv").write_text(f"id;x\n1;{value}\n")
    assert csv_options(here) == {"delimiter": ";"}
    assert f"x: '{value}' may mean" in job_text(here)
    assert meanings in job_text(here)
    assert fields_of(here / "a.csv")["x"] == kind


def test_ambiguous_notation_is_warned_of(here):
    (here / "a.csv").write_text("id;x\n1;01.02.2025\n")
    assert "may mean 2025-02-01" in new(here / "a.csv").stderr.replace("\n", " ")


def test_other_columns_settle_the_order(here):
    (here / "a.csv").write_text("day;at\n01.02.2025;31.12.2025 10:00\n")
    assert csv_options(here) == {"delimiter": ";", "day_pattern": "%d.%m.%Y", "time_pattern": "%d.%m.%Y %H:%M"}


@pytest.mark.slow
def test_day_may_be_declared_as_event_time(here):
    (here / "a.csv").write_text("id;day\n1;31.12.2025\n")
    assert "fill in the event time" in new(here / "a.csv").stderr
    code = here / "copied/pipelines/copied.py"
    text = code.read_text().replace("day: dt.date", "day: Timestamp").replace('"FILL IN"', '"day"')
    code.write_text(text.replace("import Pipeline, Struct", "import Pipeline, Struct, Timestamp"))
    run = headrace(here / "copied", "run", "copied", "--runner", "local")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        ("1.028,20;52.5", {"a": "str", "b": "Annotated[Decimal, Digits(18, 1)]"}),
        ("31.12.2025;2025-12-31", {"a": "str", "b": "dt.date"}),
    ],
)
def test_contradicting_columns_are_not_guessed(here, rows, kinds):
    (here / "a.csv").write_text(f"a;b\n{rows}\n")
    assert csv_options(here) == {"delimiter": ";"}
    assert "columns are written in several ways" in job_text(here)
    assert fields_of(here / "a.csv") == kinds


def test_text_of_windows_is_read(here):
    (here / "a.csv").write_bytes("id;Straße\n1;Müller\n".encode("windows-1252"))
    assert csv_options(here) == {"delimiter": ";", "encoding": "windows-1252"}
    assert "it is not utf-8: its byte 7 is 'ß' in windows-1252" in job_text(here)


def test_delimiter_of_most_rows_is_said(here):
    (here / "a.csv").write_text("id;x\n1;a\n2;b\nend of file\n")
    assert csv_options(here) == {"delimiter": ";"}
    assert "no delimiter divides all rows alike: with ';', 1 of 4 rows differ from the header" in job_text(here)


@pytest.mark.slow
def test_title_before_the_header_is_passed_over(here):
    (here / "a.csv").write_text(
        "Sales, January\nas of: now\n\nnr;at;paid\n1;31.01.2026 10:00;1,5\n2;31.01.2026 11:00;2,5\n"
    )
    assert copied(here, here / "a.csv")["paid"].to_pylist() == [Decimal("1.5"), Decimal("2.5")]
    source = yaml.safe_load((here / "copied/conf/jobs/copied.yaml").read_text())["sources"]["rows"]
    assert source["csv"]["skip_lines"] == 3
    assert "its first 3 lines have no columns, so they are taken for a title" in job_text(here)


def test_doubt_says_how_values_are_read(here):
    (here / "a.csv").write_text("id;x;day\n1;1.028;01.02.2025\n")
    csv_options(here)
    assert "nothing was chosen, so it is 1.028 until" in job_text(here)
    assert "nothing was chosen, so it is a text until" in job_text(here)


MOMENTS = {
    "csv": ["2026-03-01T10:00:00Z", "2026-03-01", "31.12.2025", "12/31/2025 1:05 pm"],
    "json": ["2026-03-01T10:00:00Z", "2026-03-01"],
}


@examples(40)
@given(
    form=st.sampled_from(["csv", "json"]),
    moment=st.integers(0, 3),
    odd=st.sampled_from(["oops", "2026-13-01", "soon", "-"]),
    row=st.integers(1, 5),
    has_other=st.booleans(),
)
def test_value_that_is_no_time_is_named(tmp_path_factory, form, moment, odd, row, has_other):
    good = MOMENTS[form][moment % len(MOMENTS[form])]
    values = [odd if has_other and number == row else good for number in range(1, 6)]
    file = tmp_path_factory.mktemp("data") / f"a.{form}"
    lines = [f"{number};{value}" for number, value in enumerate(values)]
    rows = [json.dumps({"n": number, "at": value}) for number, value in enumerate(values)]
    bad = "7" if form == "csv" else "{"  # it counts as a row
    file.write_text("\n".join(["n;at", bad, *lines] if form == "csv" else [bad, *rows]) + "\n")
    doubts = [doubt for doubt in data_of(str(file)).doubts if "at is a text" in doubt]
    wanted = f"at is a text, since row {row + 1} has {odd!r}: 4 of 5 values are days or times"
    assert doubts == ([wanted] if has_other else [])


def test_few_times_among_texts_raise_no_doubt(here):
    (here / "a.csv").write_text("n;at\n1;2026-03-01\n2;later\n3;soon\n")
    assert not data_of("a.csv").doubts


# ---------------------------------------------------------------------------------------------------- within a project


@pytest.fixture
def project(here: Path) -> Path:
    """Return the folder of a project with the job copied, over a.csv beside it."""
    (here / "a.csv").write_text(CSV)
    assert new(here / "a.csv").exit_code == 0
    return here / "copied"


@pytest.mark.slow
def test_job_is_added_to_the_project(project, monkeypatch):
    (project / "tests").mkdir()
    monkeypatch.chdir(project / "tests")
    done = new(project.parent / "a.csv", "second")
    assert done.exit_code == 0, done.output
    assert "second is a new job of this project" in done.output
    assert not (project / "tests" / "second").exists()
    assert sorted(file.name for file in (project / "conf/jobs").iterdir()) == ["copied.yaml", "second.yaml"]
    for job in ("copied", "second"):
        run = headrace(project, "run", job, "--runner", "local")
        assert run.returncode == 0, run.stdout + run.stderr
    assert DeltaTable(str(project / "var/lake/second")).to_pyarrow_table().num_rows == 2


def test_added_job_writes_only_its_files(project, monkeypatch):
    monkeypatch.chdir(project)
    files = {path for path in project.rglob("*") if path.is_file()}
    (project / "README.md").write_text("mine")
    (project / "conf/clusters/local.yaml").unlink()
    assert new(project.parent / "a.csv", "second").exit_code == 0
    names = {"conf/jobs/second.yaml", "pipelines/second.py", "input/second/a.csv"}
    assert {path for path in project.rglob("*") if path.is_file()} == files | {project / name for name in names}
    assert (project / "README.md").read_text() == "mine"


def test_job_that_exists_is_not_added(project, monkeypatch):
    monkeypatch.chdir(project)
    done = new(project.parent / "a.csv", "copied")
    assert done.exit_code == 2
    assert "has pipelines/copied.py and conf/jobs/copied.yaml already" in done.stderr.replace("\n", " ")


def test_project_within_a_project_is_refused(project, monkeypatch):
    monkeypatch.chdir(project)
    done = CliRunner().invoke(app, ["new", "shop"])
    assert done.exit_code == 2
    assert "a project within a project" in done.stderr.replace("\n", " ")
    assert "headrace new shop --from FILE adds a job" in done.stderr.replace("\n", " ")
    assert not (project / "shop").exists()


# ------------------------------------------------------------------------------------------------------- change feeds


def change(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    source = {"connector": "postgresql", "schema": "public", "table": "customers", "ts_ms": 1_772_362_800_000} | source
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_772_362_800_123}


CHANGES = [
    change("r", after={"id": 1, "email": "a@x", "age": 7, "spent": 1.5}),
    change("u", {"id": 1, "email": "a@x", "age": 7}, {"id": 1, "email": None, "age": 8, "spent": 2}),
    change("d", before={"id": 1}),
]


def write_lines(here: Path, rows: list[Any]) -> Path:
    (here / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return here / "a.jsonl"


def feed_settings(here: Path) -> dict[str, Any]:
    settings = yaml.safe_load((here / "copied/conf/jobs/copied.yaml").read_text())["sources"]["rows"]
    return {key: value for key, value in settings.items() if key not in {"path", "files"}}


@pytest.mark.slow
@pytest.mark.parametrize("last", [[], [change("c", after={"id": 2, "email": "b@x", "age": 1})]])
def test_debezium_events_make_their_table(here, last):
    rows = copied(here, write_lines(here, [*CHANGES, *last])).to_pylist()
    assert feed_settings(here) == {"format": "json", "envelope": "debezium"}
    assert [(row["id"], row["email"], row["age"]) for row in rows] == ([(2, "b@x", 1)] if last else [])


def test_debezium_record_has_the_columns_of_rows(here):
    assert fields_of(write_lines(here, CHANGES)) == {
        "source_ts_ms": 'Timestamp = field(name="__source_ts_ms")',
        "id": "int",
        "email": "str | None",
        "age": "int | None",
        "spent": "float | None",
    }


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([{"nr": 1, "id": 2}], "id"),
        ([{"a": None, "order no": 1, "b": 2}, {"a": 1, "order no": 2, "b": None}], "order_no"),
        ([{"a": None}], "a"),
    ],
)
def test_key_of_a_feed_is_guessed(here, rows, key):
    new(write_lines(here, [change("c", after=row) for row in rows]))
    code = (here / "copied/pipelines/copied.py").read_text()
    assert f'.normalize("latest", key=("{key}",))' in code
    assert "row_kind=DEBEZIUM," in code


def test_debezium_schemas_tell_the_types(here):
    parts = [{"field": "id"}, {"field": "day", "name": "io.debezium.time.Date"}]
    schema = {"fields": [{"field": "before", "fields": parts}, {"field": "after", "fields": parts}]}
    events = [{"schema": schema, "payload": change("c", after={"id": 1, "day": 20_000})}, {"ts_ms": 5}]
    assert fields_of(write_lines(here, events))["day"] == "dt.date"
    assert "have no schemas" not in new(here / "a.jsonl").stderr.replace("\n", " ")


def test_feed_of_several_tables_names_one(here):
    other = change("c", after={"other": 1}, table="orders")
    assert "other" not in fields_of(write_lines(here, [*CHANGES, other]))
    done = new(here / "a.jsonl").stderr.replace("\n", " ")
    assert "events of the tables customers, orders: this source reads those of customers" in done
    assert feed_settings(here)["envelope_table"] == "customers"


@pytest.mark.parametrize(
    "rows",
    [
        [*CHANGES, {"id": 1}],
        [{"op": "c", "after": {"id": 1}}],
        [{"op": "x", "after": {"id": 1}, "source": {}}],
        [{"op": "c", "after": {"id": 1}, "source": "web"}],
    ],
)
def test_other_objects_are_no_feed(here, rows):
    write_lines(here, rows)
    assert new(here / "a.jsonl").exit_code == 0
    assert feed_settings(here) == {"format": "json"}
