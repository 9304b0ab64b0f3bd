"""Values in the names of folders: as Spark writes them, and as pyarrow and DuckDB read them."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Pipeline, Struct, Timestamp
from headrace.config import SourceConfig
from headrace.errors import SourceError
from headrace.plan.loader import plan_of
from headrace.sources.folder.format import DamagedFileError
from headrace.sources.folder.partitions import folder_values
from headrace.sources.folder.source import FolderSource
from headrace.sources.position import NO_FACTS
from headrace.sources.registry import source_of
from headrace.sources.source import Want
from headrace.storage.storage import Storage
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples
from tests.unit.support.s3 import BUCKET

NULL = "__HIVE_DEFAULT_PARTITION__"
AT = 1_575_200_000_000


class Sale(Struct, frozen=True):
    id: int
    at: Timestamp
    day: date
    country: str | None = None
    tenths: Annotated[Decimal, Digits(6, 1)] | None = None
    is_test: bool | None = None
    hour: int = 7


def job(kind="parquet", **source):
    pipeline = Pipeline("sales").source("sales", Sale, event_time="at").sink("out")
    return PipelineHarness(pipeline, parallelism=1, bucket=1, job={"sources": {"sales": {"format": kind, **source}}})


def content(kind, *rows, header=True):
    if kind == "parquet":
        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows)), out)
        return out.getvalue().to_pybytes()
    if kind == "json":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "csv":
        lines = [[*rows[0]], *([*row.values()] for row in rows)]
        return "".join(",".join(map(str, line)) + "\n" for line in lines[0 if header else 1 :]).encode()
    names = {"int": "long", "str": "string"}
    fields = [{"name": name, "type": names[type(value).__name__]} for name, value in rows[0].items()]
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, rows)
    return file.getvalue()


def sales(h):
    return {row["id"]: {**row, "day": row["day"]} for row in h.sink_table("out").to_pylist()}


def refused(h):
    return [row["error"] for row in h.table("quarantine").to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_values_of_folders_are_columns(kind):
    h = job(kind)
    row = {"id": 1, "at": AT}
    name = f"day=2026-01-02/country=a%2Fb%3D%25 é/tenths=1.5/is_test=true/hour=03/other=9/part-0.{kind}"
    h.feed_bytes("sales", content(kind, row), file=name)
    h.feed_bytes("sales", content(kind, {**row, "id": 2}), file=f"day=2026-01-02/country={NULL}/hour={NULL}/a.{kind}")
    h.run()
    first, second = sales(h)[1], sales(h)[2]
    assert (first["day"], first["country"], first["hour"]) == (date(2026, 1, 2), "a/b=% é", 3)
    assert (first["tenths"], first["is_test"]) == (Decimal("1.5"), True)
    assert (second["country"], second["hour"], second["tenths"]) == (None, 7, None)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_bad_value_refuses_rows_of_its_folder(kind):
    h = job(kind)
    for number, day in enumerate(["2026-01-02", "oops", NULL, "2026-01-03"]):
        h.feed_bytes("sales", content(kind, {"id": number, "at": AT}), file=f"day={day}/a.{kind}")
    h.run()
    assert [*sales(h)] == [0, 3]
    oops, null = sorted(refused(h))
    assert null == f"day is null (the name of its folder: 'day={NULL}')"
    assert "'oops'" in oops
    assert oops.endswith("(the name of its folder: 'day=oops')")
    outcomes = [*source_of(plan_of(h.config.code).sources[0], h.config).remarks()]
    assert [(remark.outcome, remark.text.partition("(the name")[2]) for remark in outcomes] == [
        ("warn", f" of its folder: 'day={NULL}')"),
        ("warn", " of its folder: 'day=oops')"),
    ]


def test_bad_rows_of_folders_obey_their_limits():
    h = job(on_bad_row="fail")
    h.feed_bytes("sales", content("parquet", {"id": 1, "at": AT}), file="day=oops/a.parquet")
    with pytest.raises(SourceError, match="day=oops"):
        h.run()
    h.change(job={"sources": {"sales": {"max_quarantined": 0}}})
    with pytest.raises(SourceError, match="more than"):
        h.run()


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "avro"])
def test_row_with_another_value_is_refused(kind):
    h = job(kind)
    rows = [{"id": 1, "at": AT, "day": "2026-01-02"}, {"id": 2, "at": AT, "day": "2026-01-03"}]
    h.feed_bytes("sales", content(kind, *rows), file=f"day=2026-01-02/a.{kind}")
    h.run()
    assert [*sales(h)] == [1]
    (error,) = refused(h)
    assert error.startswith("day is ")
    assert "2026" in error
    assert error.endswith(", and the name of its folder is 'day=2026-01-02'")


def test_null_takes_the_value_of_its_folder():
    """As in Spark, pyarrow and DuckDB."""
    h = job()
    rows = [{"id": 1, "at": AT, "country": None}, {"id": 2, "at": AT, "country": "DE"}]
    h.feed_bytes("sales", content("parquet", *rows), file="day=2026-01-02/country=DE/a.parquet")
    h.feed_bytes("sales", content("parquet", {**rows[0], "id": 3}), file=f"day=2026-01-02/country={NULL}/a.parquet")
    h.run()
    assert [row["country"] for _, row in sorted(sales(h).items())] == ["DE", "DE", None]


def test_objects_may_lack_the_value_of_their_folder():
    h = job("json")
    lines = [{"id": 1, "at": AT}, {"id": 2, "at": AT, "day": "2026-01-02"}]
    h.feed_bytes("sales", content("json", *lines) + b"{no\n", file="day=2026-01-02/a.json")
    h.run()
    assert [*sales(h)] == [1, 2]
    assert "is not JSON" in refused(h)[0]


def test_csv_without_header_lacks_the_folders_column():
    h = job("csv", csv={"header": False})
    row = {"id": 1, "at": AT, "country": "DE", "tenths": "1.5", "is_test": "true", "hour": 4}
    h.feed_bytes("sales", content("csv", row, header=False), file="day=2026-01-02/a.csv")
    h.run()
    assert (sales(h)[1]["day"], sales(h)[1]["hour"]) == (date(2026, 1, 2), 4)


class Key(Struct, frozen=True):
    at: Timestamp


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_all_values_may_be_those_of_folders(kind):
    pipeline = Pipeline("keys").source("keys", Key, event_time="at").sink("out")
    h = PipelineHarness(pipeline, bucket=1, job={"sources": {"keys": {"format": kind}}})
    h.feed_bytes("keys", content(kind, {"x": 1}, {"x": 2}), file=f"at=2019-12-01 03%3A04%3A05/a.{kind}")
    h.run()
    at = int(datetime(2019, 12, 1, 3, 4, 5, tzinfo=UTC).timestamp() * 1000)
    assert [int(row["at"].timestamp() * 1000) for row in h.sink_table("out").to_pylist()] == [at, at]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("day=2026-01-02/day=2026-01-02/a", "both have a value of day"),
        ("Day=2026-01-02/a", "'Day'"),
        ("day=%FF/a", "not UTF-8"),
    ],
)
def test_folders_that_cannot_be_read_are_bad_files(name, why):
    h = job()
    h.feed_bytes("sales", content("parquet", {"id": 1, "at": AT}), file=f"{name}.parquet")
    with pytest.raises(SourceError, match=why):
        h.run()
    assert any(
        why in remark.text and remark.outcome == "fail"
        for remark in source_of(plan_of(h.config.code).sources[0], h.config).remarks()
    )
    h.change(job={"sources": {"sales": {"on_bad_file": "quarantine"}}})
    h.run()
    assert [row["file"] for row in h.table("quarantine").to_pylist()] == [f"{name}.parquet"]


def test_check_counts_columns_of_folders():
    h = job()
    h.feed_bytes("sales", content("parquet", {"id": 1, "at": AT}), file="day=2026-01-02/a.parquet")
    (remark,) = source_of(plan_of(h.config.code).sources[0], h.config).remarks()
    assert remark.outcome == "ok"


def test_missing_column_is_named_with_folders():
    h = job()
    h.feed_bytes("sales", content("parquet", {"id": 1, "at": AT}), file="country=DE/a.parquet")
    with pytest.raises(SourceError, match="no column day"):
        h.run()


def test_rows_of_a_folder_come_back_from_quarantine():
    h = job()
    h.feed_bytes(
        "sales", content("parquet", {"id": 1, "at": AT}, {"id": 2, "at": 1 << 62}), file="day=2026-01-02/a b.parquet"
    )
    h.run()
    assert h.table("quarantine").to_pylist()[0]["file"] == "day=2026-01-02/a b.parquet"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a=1/b=2/f", {"a": "1", "b": "2"}),
        ("a=b=c/f", {"a": "b=c"}),
        ("=x/a=/x/f=1", {"a": ""}),
        (f"a={NULL}/f", {"a": None}),
        ("a%3D=%zz+%4/f", {"a=": "%zz+%4"}),
        ("a=%C3%A9é/f", {"a": "éé"}),
    ],
)
def test_folder_names_are_unescaped(name, values):
    assert {key: value.text for key, value in folder_values(name).items()} == values


def test_escaped_bytes_must_be_utf8():
    with pytest.raises(DamagedFileError, match="not UTF-8"):
        folder_values("a=%E9/f")


def test_folders_on_an_object_store_have_values(storage, tmp_path):
    place = f"s3://{BUCKET}/{tmp_path.name}/a b%20"
    name = "day=2026-01-02/country=%25 é#?/part 0~1.PARQUET"
    Storage(f"{place}/{name}", storage).write("", content("parquet", {"id": 1, "at": AT}))
    h = job()
    node = plan_of(h.config.code).sources[0]
    source = FolderSource(node, SourceConfig(path=place), Storage("", storage))
    (file,) = source.plan(NO_FACTS, Want()).files
    assert file.name == name
    row = FolderSource.read(file, node, Storage("", storage)).table.to_pylist()[0]
    assert (row["day"], row["country"]) == (date(2026, 1, 2), "% é#?")
    assert [remark.outcome for remark in source.remarks()] == ["ok"]


# ------------------------------------------------------------------------------------------------ independent readers

# What Spark escapes in `ExternalCatalogUtils.escapePathName`.
SPARK_ESCAPES = "\x01\x02\x03\x04\x05\x06\x07\b\t\n\x0b\x0c\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\"#%'*/:=?\\\x7f{[]^"


def spark_path(value):
    return "".join(f"%{ord(letter):02X}" if letter in SPARK_ESCAPES else letter for letter in value)


TEXTS = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda text: text != NULL and "\0" not in text
)


@st.composite
def trees(draw):
    """Return folders with their values: (path, day, country, hour)."""
    tree: dict[str, tuple[Any, ...]] = {}
    for _ in range(draw(st.integers(1, 4))):
        day, country = draw(st.dates(date(1970, 1, 1), date(2100, 1, 1))), draw(st.none() | TEXTS)
        hour = draw(st.integers(-(1 << 31), 1 << 31))
        folder = NULL if country is None else spark_path(country)
        tree[f"day={day}/country={folder}/hour={hour}"] = (day, country, hour)
    return tree


class Part(Struct, frozen=True):
    id: int
    at: Timestamp
    day: date
    country: str | None
    hour: int


@pytest.mark.slow
@examples(25)
@given(tree=trees())
def test_rows_equal_pyarrow_and_duckdb(tree):
    pipeline = Pipeline("parts").source("parts", Part, event_time="at").sink("out")
    h = PipelineHarness(pipeline, parallelism=1, bucket=1)
    written = {}
    for number, (folder, values) in enumerate(tree.items()):
        h.feed_bytes("parts", content("parquet", {"id": number, "at": AT}), file=f"{folder}/part-0.parquet")
        written[number] = values
    h.run()
    read = {row["id"]: (row["day"], row["country"], row["hour"]) for row in h.sink_table("out").to_pylist()}
    assert read == written
    root = h.folder / "input" / "parts"
    schema = pa.schema([("day", pa.date32()), ("country", pa.string()), ("hour", pa.int64())])
    table = ds.dataset(root, format="parquet", partitioning=ds.partitioning(schema, flavor="hive")).to_table()
    assert {row["id"]: (row["day"], row["country"], row["hour"]) for row in table.to_pylist()} == written
    types = {"day": "DATE", "country": "VARCHAR", "hour": "BIGINT"}
    query = duckdb.connect().execute(
        f"SELECT id, day, country, hour FROM read_parquet(?, hive_partitioning=true, hive_types={types})",
        [f"{glob_text(root)}/**/*.parquet"],
    )
    assert {number: (*values,) for number, *values in query.fetchall()} == written


def glob_text(path: Path) -> str:
    return str(path).replace("[", "[[]")
