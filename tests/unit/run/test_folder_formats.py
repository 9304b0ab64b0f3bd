"""The same rows in files of each format: equal records in equal order, and equal rows in the quarantine (no JVM)."""

from __future__ import annotations

import bz2
import gzip
import io
import re
from datetime import UTC, datetime

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError
from headrace.tables.schemas import QUARANTINE
from headrace.testing import PipelineHarness, World
from tests.unit.support.fuzzing import examples
from tests.unit.support.refused_rows import Mended, RefusedJob, pipeline

START = 1_577_836_800_000
FORMATS = ("parquet", "json", "csv", "avro")
COLUMNS = ("shop", "at", "name", "size")


def parquet(rows):
    file = io.BytesIO()
    types = {"shop": pa.string(), "at": pa.int64(), "name": pa.string(), "size": pa.int64()}
    pq.write_table(pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}), file)
    return file.getvalue()


def json(rows):
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def csv_text(rows):
    lines = [",".join("" if row[name] is None else f'"{row[name]}"' for name in COLUMNS) for row in rows]
    return "\r\n".join([",".join(COLUMNS), *lines]).encode()


def avro(rows):
    types = {"shop": "string", "at": "long", "name": "string", "size": "long"}
    fields = [{"name": name, "type": ["null", kind]} for name, kind in types.items()]
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "Row", "fields": fields}, rows, sync_interval=20)
    return file.getvalue()


WRITERS = {"parquet": parquet, "json": json, "csv": csv_text, "avro": avro}


def run(kind, files, **options):
    source = {"format": kind, "max_files_per_batch": options.pop("files_per_batch", 16)}
    job = RefusedJob(record=Mended, source=source | options.pop("source", {}), world=World(), **options)
    for number, rows in enumerate(files):
        job.harness.feed_bytes("rows", WRITERS[kind](rows), file=f"2020-01-0{number + 1}.{kind}")
    job.run()
    return job


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "shop": st.sampled_from(["a", "b", "é", None]),
            "at": st.sampled_from([START, START + 1000, START + 5000, 2**60, None]),
            "name": st.sampled_from(["p", "q", "r,s", None]),
            "size": st.sampled_from([0, 1, -(2**63), None]),
        }
    ),
    max_size=5,
)


@pytest.mark.slow
@examples(10)
@given(
    files=st.lists(ROWS, min_size=1, max_size=3),
    per_batch=st.sampled_from([1, 16]),
    ordered=st.booleans(),
    complete=st.booleans(),
)
def test_each_format_gives_the_same_outcome(files, per_batch, ordered, complete):
    def outcome(job):
        """Return the rows of the sink, and of the quarantine without the extensions of files."""
        rows = sorted((row["shop"] or "", row["number"], row["name"], row["watermark"]) for row in job.rows())
        aside = [(re.sub(r"\.\w+", "", position), error) for position, error in job.quarantine()]
        return rows, sorted(aside)

    source = {"interval": "%Y-%m-%d", "complete_intervals": True} if complete else {}
    options = {"order_by": ("name",)} if ordered else {}
    first, *others = (
        outcome(run(kind, files, files_per_batch=per_batch, source=source, options=options, bucket=2))
        for kind in FORMATS
    )
    for other in others:
        assert other == first


LINES = (
    '{"shop":"a","at":1000,"name":"p","size":1}\n'
    '{"shop":"a","at":2000,"name":"q?","size":null}\n'
    '{"shop":"a","at":3000,"na\n'
    '{"shop":"a","at":4000,"name":"r","size":1}\n'
)
FIELDS = 'shop,at,name,size\na,1000,p,1\na,2000,q?,\n"a,3000,x,1\na,4000,r,1\n'


@pytest.mark.parametrize(
    ("kind", "name", "content", "broken"),
    [
        ("json", "1.json", LINES.encode(), '{"shop":"a","at":3000,"na'),
        ("json", "x=1/ü %2F:b/a~1.JSON", LINES.encode(), '{"shop":"a","at":3000,"na'),
        ("json", "1.JSONL.Gz", gzip.compress(LINES.encode(), mtime=0), '{"shop":"a","at":3000,"na'),
        ("csv", "1.csv", FIELDS.encode(), '"a,3000,x,1'),
    ],
)
def test_rows_of_text_files_leave_the_quarantine(kind, name, content, broken):
    job = RefusedJob(source={"format": kind})
    job.harness.feed_bytes("rows", content, file=name)
    assert job.run().rows_in == 4
    assert job.arrived() == ["p", "r"]
    (null, other) = job.quarantine()
    assert null == (f"{name}:1", "size is null")
    assert other[0] == f"{name}:2"
    assert other[1].startswith("line ")
    assert broken in raw_texts(job)
    assert job.mend().requeue().metrics["requeued_rows"] == 2
    job.run()
    assert job.arrived() == ["p", "r", "q?"]
    assert job.quarantine() == [other]


def raw_texts(job):
    return [row["raw"] for row in job.harness.live(QUARANTINE)]


def test_repaired_line_is_read_from_new_file():
    job = RefusedJob(source={"format": "json"})
    job.harness.feed_bytes("rows", LINES.encode(), file="1.json")
    job.run()
    repaired = LINES.replace('"na\n', '"name":"s","size":1}\n')
    (job.harness.folder / "input" / "rows" / "1.json").write_text(repaired)
    with pytest.raises(SourceError, match="row 2 of .*1.json is not the row that was refused"):
        job.requeue()


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_truncated_avro_file_is_a_bad_file(policy):
    rows = [{"shop": "a", "at": 1000, "name": "p", "size": 1}] * 9
    job = RefusedJob(source={"format": "avro", "on_bad_file": policy})
    job.harness.feed_bytes("rows", avro(rows)[:-20], file="1.avro")
    job.harness.feed_bytes("rows", avro(rows), file="2.avro")
    if policy == "fail":
        with pytest.raises(SourceError, match=r"cannot read .*1\.avro: it ends at byte .*on_bad_file: quarantine"):
            job.run()
        return
    job.run()
    assert len(job.arrived()) == 9
    ((position, error),) = job.quarantine()
    assert position == "1.avro"
    assert "it ends at byte" in error
    assert "on_bad_file" not in error  # it is set aside already
    assert "Nothing was taken in" not in error


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_csv_without_a_header_is_a_bad_file(policy):
    job = RefusedJob(source={"format": "csv", "on_bad_file": policy})
    job.harness.feed_bytes("rows", b"", file="1.csv")
    job.harness.feed_bytes("rows", b"shop,at,name,size\na,1000,p,1\n", file="2.csv")
    if policy == "fail":
        with pytest.raises(SourceError, match=r"cannot read .*1\.csv: it is empty, and should have a header"):
            job.run()
        return
    job.run()
    assert len(job.arrived()) == 1
    ((position, error),) = job.quarantine()
    assert (position, "it is empty" in error) == ("1.csv", True)


def test_bad_line_fails_run_if_configured():
    job = RefusedJob(source={"format": "json", "on_bad_row": "fail"})
    job.harness.feed_bytes("rows", LINES.encode(), file="1.json")
    with pytest.raises(SourceError, match=r"row 1 of .*1\.json: size is null"):
        job.run()


def test_missing_csv_column_refuses_the_file():
    job = RefusedJob(source={"format": "csv"})
    job.harness.feed_bytes("rows", b"shop,at,size\na,1,1\n", file="1.csv")
    with pytest.raises(SourceError, match="no column name"):
        job.run()


def test_other_files_in_the_folder_are_left_alone():
    job = RefusedJob(source={"format": "json"})
    for name in ("1.parquet", "2.csv", "_3.json", ".4.json", "5.json.tmp"):
        job.harness.feed_bytes("rows", b"?", file=name)
    job.harness.feed_bytes("rows", LINES.encode(), file="6.ndjson")
    assert job.run().rows_in == 4


def test_harness_feeds_records_only_to_parquet_folders():
    harness = PipelineHarness(pipeline(Mended), job={"sources": {"rows": {"format": "json"}}})
    with pytest.raises(ValueError, match="reads json files: write them with feed_bytes"):
        harness.feed("rows", [Mended("a", 1, "p")])


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ({"format": "json", "csv": {"header": False}}, "the format json does not have it: write format: csv"),
        ({"format": "csv", "csv": {"delimiter": ",,"}}, "',,' cannot stand between fields"),
        ({"format": "csv", "csv": {"delimiter": '"'}}, "cannot stand between fields"),
        ({"format": "csv", "csv": {"escape": '"'}}, "cannot escape quotes"),
        ({"format": "csv", "csv": {"escape": ","}}, "cannot escape quotes"),
        ({"format": "csv", "csv": {"encoding": "utf-7"}}, "encoding"),
        ({"format": "orc"}, "format"),
    ],
)
def test_options_of_another_format_are_refused(source, error):
    with pytest.raises(ConfigError, match=error):
        PipelineHarness(pipeline(Mended), job={"sources": {"rows": source}}).run()


AS_PEOPLE_WRITE = {
    "csv": (
        "2020-01-01.csv.bz2",
        bz2.compress("Report\n01.01.2020 00:00:05|a|'p|q'|7\n# end\n01.01.2020|a|r|8".encode("utf-16")),
        {
            "delimiter": "|", "quote": "'", "header": False, "columns": ["at", "shop", "name", "size"], "skip_lines": 1, "comment": "#",
            "encoding": "utf-16", "time_pattern": "%d.%m.%Y %H:%M:%S",
        },
    ),
    "json": (
        "2020-01-01.json.gz",
        gzip.compress(
            b'{\n"data": {"rows": [{"at": 1577836805000, "shop": "a", "name": "p|q", "size": 7},\n{"shop": "a", "at": "01.01.2020", "name": "r", "size": 1}]}}', mtime=0
        ),
        {"rows": "data.rows"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", AS_PEOPLE_WRITE)
def test_tasks_read_by_options_of_the_job(kind):
    name, content, options = AS_PEOPLE_WRITE[kind]
    job = RefusedJob(record=Mended, source={"format": kind, kind: options})
    job.harness.feed_bytes("rows", content, file=name)
    job.run()
    assert [(row["shop"], row["name"]) for row in job.rows()] == [("a", "p|q")]
    ((position, error),) = job.quarantine()
    assert position.startswith(name)
    assert "01.01.2020" in error


def test_times_as_text_and_numbers_are_equal():
    text = datetime.fromtimestamp(START / 1000, UTC).isoformat()
    rows = [{"shop": "a", "at": at, "name": "p", "size": None} for at in (START, text)]
    job = run("json", [rows])
    assert (job.arrived(), job.quarantine()) == (["p", "p"], [])
