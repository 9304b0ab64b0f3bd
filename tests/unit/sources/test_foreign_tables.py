"""Delta tables of other writers, made by hand: read right, from the start and from a snapshot, or refused with a clear sentence."""

from __future__ import annotations

import json
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.errors import ConfigError, SourceError
from headrace.testing import PipelineHarness


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    n: int | None = None
    p: bytes | None = None


class Twins(Struct, frozen=True):
    id: str
    at: Timestamp
    n: int | None = None
    N: int | None = None


class Nested(Struct, frozen=True):
    id: str
    at: Timestamp
    parts: list[Twins]


class Place(Struct, frozen=True):
    lat: float
    lon: float
    alt: int | None = None


class Placed(Struct, frozen=True):
    id: str
    at: Timestamp
    place: Place | None = None
    places: list[Place | None] | None = None


DAY = 1_767_225_600_000
"""1 January 2026 (ms)."""

IDS = pa.array(["a", "b"])
TIMES = pa.array([DAY * 1000, DAY * 1000], pa.timestamp("us", "UTC"))
ROWS = pa.table({"id": IDS, "at": TIMES, "n": pa.array([1, 2], pa.int64())})


def column(name, kind, **metadata):
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def features(*names):
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}


COLUMNS = (column("id", "string"), column("at", "timestamp"), column("n", "long"))
WIDENED = column("at", "timestamp_ntz", **{"delta.typeChanges": [{"toType": "timestamp_ntz", "fromType": "date"}]})
VECTOR = {"storageType": "p", "pathOrInlineDv": "/gone.bin", "offset": 1, "sizeInBytes": 36, "cardinality": 1}


def table(folder, files, *, columns=COLUMNS, protocol=None, partition=(), vector=None):
    """Write a table whose first version adds `files`: rows, and the value of the partition column."""
    metadata = {
        "id": "by-hand",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": partition,
        "configuration": {},
    }
    actions = [{"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    for number, (rows, value) in enumerate(files):
        path = f"{number}.parquet"
        pq.write_table(rows, folder / path)
        values = dict.fromkeys(partition, value)
        add = {"path": path, "partitionValues": values, "size": (folder / path).stat().st_size, "modificationTime": 1}
        more = {} if vector is None else {"deletionVector": vector}
        actions.append({"add": {**add, "dataChange": True, **more}})
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture(params=["snapshot", "earliest"])
def harness(request):
    source = {"format": "delta", "path": "input/rows", "start": request.param}
    return PipelineHarness(
        Pipeline("job").source("rows", Row, event_time="at").sink("out"), job={"sources": {"rows": source}}, now=DAY
    )


def read(harness, files, **more):
    return sorted(read_all(harness, files, **more), key=lambda row: (row.n or 0, row.id))


def read_all(harness, files, **more):
    (harness.folder / "input/rows").mkdir(parents=True, exist_ok=True)
    table(harness.folder / "input/rows", files, **more)
    harness.run()
    return harness.sink("out")


def test_column_name_in_other_case_is_read(harness):
    rows = read(harness, [(ROWS.rename_columns(["ID", "At", "N"]), None)])
    assert rows == [Row("a", DAY, 1), Row("b", DAY, 2)]


def test_field_name_in_other_case_is_read():
    """A file has the fields of a struct in another case and order, one of them not, and one that the table does not have."""
    place = {"type": "struct", "fields": [column("lat", "double"), column("lon", "double"), column("alt", "long")]}
    many = {"type": "array", "elementType": place, "containsNull": True}
    stored = pa.struct([("Lon", pa.float64()), ("LAT", pa.float64()), ("more", pa.string())])
    values = [{"Lon": 2.0, "LAT": 1.0, "more": "x"}, None]
    rows = ROWS.append_column("place", pa.array(values, stored)).append_column("places", pa.array([values, None]))
    pipeline = Pipeline("job").source("rows", Placed, event_time="at").sink("out")
    harness = PipelineHarness(pipeline, job={"sources": {"rows": {"format": "delta", "path": "input/rows"}}}, now=DAY)
    columns = (*COLUMNS, column("place", place), column("places", many))
    assert read_all(harness, [(rows, None)], columns=columns) == [
        Placed("a", DAY, Place(1.0, 2.0), [Place(1.0, 2.0), None]),
        Placed("b", DAY, None, None),
    ]


def test_date_widened_to_a_time_is_midnight(harness):
    dates = ROWS.set_column(1, "at", pa.array([date(2026, 1, 1)] * 2, pa.date32()))
    times = ROWS.set_column(1, "at", TIMES.cast(pa.timestamp("us")))
    protocol = features("typeWidening", "timestampNtz")
    rows = read(harness, [(dates, None), (times, None)], columns=(COLUMNS[0], WIDENED, COLUMNS[2]), protocol=protocol)
    assert [row.at for row in rows] == [DAY] * 4


def test_feature_without_its_columns_is_no_matter(harness):
    assert len(read(harness, [(ROWS, None)], protocol=features("geospatial"))) == 2


def test_binary_partition_in_ascii_is_read(harness):
    rows = read(
        harness, [(ROWS, "ab\u0001"), (ROWS, None)], columns=(*COLUMNS, column("p", "binary")), partition=("p",)
    )
    assert {row.p for row in rows} == {b"ab\1", None}


@pytest.mark.parametrize(
    ("files", "more", "match"),
    [
        (
            (ROWS, "\u00ff"),
            {"columns": (*COLUMNS, column("p", "binary")), "partition": ("p",)},
            r"p is binary, and writers encode",
        ),
        (
            (ROWS, None),
            {"protocol": features("newest")},
            "uses the table feature newest, which Headrace cannot read",
        ),
        (
            (ROWS, None),
            {"columns": (*COLUMNS, column("g", "geometry(4326)"))},
            r"columns of other types: g \(geometry\(4326\)\), which",
        ),
        (
            (ROWS, None),
            {"columns": (*COLUMNS, column("v", "geometry(1)")), "protocol": features("geospatial", "catalogManaged")},
            "the table feature catalogManaged, which",
        ),
        (
            (ROWS, None),
            {"protocol": features("deletionVectors"), "vector": VECTOR},
            r"/gone.bin is gone: it says which rows of .*0\.parquet are deleted.*Bring the file of deletion vectors back",
        ),
        (
            (ROWS, "7"),
            {"columns": (*COLUMNS, column("p", "binary")), "partition": ("P",)},
            r"partition columns that are none of its columns \(P\), which",
        ),
        (
            (ROWS, None),
            {"columns": (*COLUMNS, column("N", "long"))},
            r"columns whose names differ only in case \(N, n\)",
        ),
    ],
)
def test_unreadable_table_names_its_feature(harness, files, more, match):
    table(harness.folder / "input/rows", [files], **more)
    with pytest.raises(SourceError, match=match):
        harness.run()


@pytest.mark.parametrize("record", [Twins, Nested])
def test_sink_columns_differ_in_more_than_case(record):
    harness = PipelineHarness(Pipeline("job").source("rows", record, event_time="at").sink("out"))
    with pytest.raises(ConfigError, match="sink 'out': the columns n and N of .* differ only in case.*rename one"):
        harness.run()
