"""Delta tables as other programs leave them: logs with checkpoints of all kinds, times within commits, and further features."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace import Digits, NaiveDatetime, Pipeline, Struct, Timestamp
from headrace.errors import SourceError
from headrace.sources.delta.rows import PartitionValue, partition_scalar
from headrace.testing import PipelineHarness
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.table_job import TableJob, table

COLUMNS = [column("shop", "string"), column("at", "timestamp"), column("name", "string"), column("size", "long")]
FORMS = ["one", "parts", "sidecars", "json"]
DAY = 1_767_225_600_000


def written_with(folder, form):
    """A table whose log is cut off behind a checkpoint of version 4; commits 5 and 6 come after it."""
    features = ["deletionVectors", "v2Checkpoint"] if form in {"sidecars", "json"} else ["deletionVectors"]
    written = HandTable(folder / "table", COLUMNS, features=features)
    first = written.add(table(*"pqr"), written.vector([1]))
    written.commit(first)
    written.commit(written.add(table("s")))
    written.commit(written.add(table("t"), written.vector([0], "i")), written.add(table("u")))
    written.commit(written.remove(first), written.again("part-001.parquet", written.vector([0, 1])), operation="DELETE")
    written.log_checkpoint(form)
    written.commit(written.add(table("v")), inCommitTimestamp=DAY)
    written.commit(written.add(table("w")), inCommitTimestamp=DAY + 1000)
    return written


@pytest.mark.parametrize("form", FORMS)
def test_snapshot_is_read_behind_any_checkpoint(tmp_path, form):
    written = written_with(tmp_path, form)
    written.forget(4)
    job = TableJob(written, start="snapshot")
    assert job.took() == [*"rsuvw"]
    written.commit(written.add(table("x")))
    assert job.took() == ["x"]
    stored = pa.RecordBatchReader.from_stream(DeltaTable(str(written.path)).scan(columns=["name"])).read_all()
    assert sorted(stored["name"].to_pylist()) == [*"rsuvwx"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("start", "names"), [("version 5", "vw"), ("2026-01-01", "vw"), ("2026-01-01T00:00:00.500Z", "w"), ("latest", "")]
)
def test_later_starts_need_no_earlier_log(tmp_path, form, start, names):
    written = written_with(tmp_path, form)
    written.forget(4)
    assert TableJob(written, start=start).took() == [*names]


@pytest.mark.parametrize("start", ["earliest", "version 3", "1970-01-01"])
def test_start_before_the_log_is_refused(tmp_path, start):
    written = written_with(tmp_path, "sidecars")
    written.forget(4)
    with pytest.raises(SourceError, match=r"does not have version (0-)?3 any more"):
        TableJob(written, start=start).run()


def test_incomplete_checkpoint_is_passed_over(tmp_path):
    written = written_with(tmp_path, "parts")
    (written.path / "_delta_log" / f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet").unlink()
    assert TableJob(written, start="snapshot").took() == [*"rsuvw"]
    written.forget(4)
    with pytest.raises(SourceError, match=r"the log of .* does not give version 6: cannot read .*0003\.json"):
        TableJob(written, start="snapshot").run()


@pytest.mark.parametrize("form", ["one", "json"])
def test_damaged_checkpoint_is_named(tmp_path, form):
    written = written_with(tmp_path, form)
    next((written.path / "_delta_log").glob("*.checkpoint.*")).write_bytes(b"{damaged")
    with pytest.raises(SourceError, match=r"cannot read the log checkpoint of version 4 of .*repair it"):
        TableJob(written, start="snapshot").run()


def test_missing_sidecar_is_named(tmp_path):
    written = written_with(tmp_path, "sidecars")
    (written.path / "_delta_log/_sidecars/1.parquet").unlink()
    with pytest.raises(SourceError, match=r"cannot read the log checkpoint of version 4 of .*_sidecars/1\.parquet"):
        TableJob(written, start="snapshot").run()


def test_features_of_writers_are_no_matter(tmp_path):
    features = {"delta.generationExpression": "size * 2", "delta.identity.start": 1, "CURRENT_DEFAULT": "5"}
    columns = [*COLUMNS[:3], column("size", "long", **features)]
    written = HandTable(
        tmp_path / "table",
        columns,
        configuration={"delta.constraints.positive": "size > 0", "delta.enableRowTracking": "true"},
    )
    needed = ["rowTracking", "domainMetadata", "identityColumns", "generatedColumns", "checkConstraints", "clustering"]
    written.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": needed}})
    rows = table("p", "q").append_column("_row-id-col-1", pa.array([7, 8]))
    action = written.add(rows)
    action["add"] |= {"baseRowId": 0, "defaultRowCommitVersion": 2, "clusteringProvider": "liquid"}
    written.commit({"domainMetadata": {"domain": "delta.rowTracking", "configuration": "{}", "removed": False}}, action)
    assert TableJob(written).took() == ["p", "q"]
    assert TableJob(written, start="snapshot").took() == ["p", "q"]


class Wide(Struct, frozen=True):
    id: str
    at: Timestamp
    i: int | None = None
    f: float | None = None
    g: float | None = None
    d: Annotated[Decimal, Digits(12, 2)] | None = None
    many: list[float] | None = None
    ntz: NaiveDatetime | None = None


def test_widened_types_are_read_in_all_files(tmp_path):
    def columns(i, f, g, d, element, ntz):
        many = {"type": "array", "elementType": element, "containsNull": True}
        kinds = {"id": "string", "at": "timestamp", "i": i, "f": f, "g": g, "d": d, "many": many, "ntz": ntz}
        return [column(name, kind) for name, kind in kinds.items()]

    def rows(name, i, f, g, d, element, ntz, values):
        kinds = [pa.string(), pa.timestamp("us", "UTC"), i, f, g, d, pa.list_(element), ntz]
        schema = pa.schema(list(zip(("id", "at", "i", "f", "g", "d", "many", "ntz"), kinds, strict=True)))
        return pa.Table.from_pylist([dict(zip(schema.names, (name, DAY * 1000, *values), strict=True))], schema)

    before = columns("byte", "float", "integer", "integer", "integer", "date")
    after = columns("long", "double", "double", "decimal(12,2)", "double", "timestamp_ntz")
    written = HandTable(tmp_path / "table", before, features=["typeWidening", "timestampNtz"])
    narrow = (pa.int8(), pa.float32(), pa.int32(), pa.int32(), pa.int32(), pa.date32())
    written.commit(written.add(rows("a", *narrow, (1, 1.5, 2, 3, [4], date(2026, 1, 2)))))
    written.commit(written.metadata(after, {}))
    wide = (pa.int64(), pa.float64(), pa.float64(), pa.decimal128(12, 2), pa.float64(), pa.timestamp("us"))
    written.commit(
        written.add(
            rows("b", *wide, (2**40, 0.1, 0.2, Decimal("3.25"), [0.5], datetime.fromisoformat("2026-01-02T03:00:00")))
        )
    )
    expected = [
        Wide("a", DAY, 1, 1.5, 2.0, Decimal("3.00"), [4.0], datetime.fromisoformat("2026-01-02T00:00:00")),
        Wide("b", DAY, 2**40, 0.1, 0.2, Decimal("3.25"), [0.5], datetime.fromisoformat("2026-01-02T03:00:00")),
    ]
    for start in ("earliest", "snapshot"):
        bound = {"format": "delta", "path": str(written.path), "start": start}
        pipeline = Pipeline("job").source("rows", Wide, event_time="at").sink("out")
        harness = PipelineHarness(pipeline, job={"sources": {"rows": bound}}, now=DAY)
        harness.run()
        assert sorted(harness.sink("out"), key=lambda row: row.id) == expected


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "a b/c%20=é\n", "a b/c%20=é\n"),
        ("string", "", None),
        ("long", "-9223372036854775808", -(2**63)),
        ("byte", "-128", -128),
        ("double", "1.7976931348623157E308", 1.7976931348623157e308),
        ("double", "-Infinity", float("-inf")),
        ("float", "0.1", pa.scalar(0.1, pa.float32()).as_py()),
        ("boolean", "true", True),
        ("decimal(10,2)", "-0.50", Decimal("-0.50")),
        ("date", "0001-01-01", date(1, 1, 1)),
        ("timestamp", "2026-01-02 03:04:05.123456", datetime.fromisoformat("2026-01-02T03:04:05.123456")),
        ("timestamp", "2026-01-02T03:04:05.123456Z", datetime.fromisoformat("2026-01-02T03:04:05.123456")),
        ("timestamp_ntz", "2026-01-02 03:04:05", datetime.fromisoformat("2026-01-02T03:04:05")),
        ("binary", "ab\x01", b"ab\x01"),
        ("binary", "\U0001f608", "\U0001f608".encode()),
        ("integer", None, None),
    ],
)
def test_partition_values_of_all_types(kind, text, value):
    read = partition_scalar(PartitionValue("p", kind, text)).as_py()
    assert (read.replace(tzinfo=None) if isinstance(read, datetime) else read) == value


def test_log_may_end_with_a_checkpoint(tmp_path):
    written = written_with(tmp_path, "one")
    written.log_checkpoint()
    written.forget(7)
    job = TableJob(written, start="snapshot")
    assert job.took() == [*"rsuvw"]
    written.commit(written.add(table("x")))
    assert job.took() == ["x"]
