"""Sinks whose columns are lists, maps and structs: merged, appended, checked and read (deltalake, no JVM)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.cli.output import plain, print_json, shown, typed_rows
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.sql import ask_sql
from headrace.records.columns import RecordReader, sink_schema, to_columns
from headrace.sinks.sink import OutputFile
from headrace.storage.storage import Storage
from headrace.storage.table import ROW_KIND
from tests.jobs.home import Home
from tests.jobs.orders import ORDERS, Basket, Line, Parcel

NOON = 1_357_034_400_000
PEN, INK = Line("pen", 1.5, NOON), Line("ink", 3.0, NOON + 1)
ONE = Basket("ann", (PEN,), PEN, {"pen": 1.5}, [NOON])
TWO = Basket("ann", (PEN, INK), INK, {"pen": 1.5, "ink": 3.0}, [NOON, NOON + 1])
NONE = Basket("bob", (), None, {}, [])
PARCEL = Parcel(1, [PEN, INK], {"gift": None})


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, ORDERS)


def commit(home, *, baskets=(), parcels=()):
    """Commit rows for the sinks as a micro-batch, and publish them."""
    config, outputs = home.config(), {}
    number = len(list(Path(config.job_folder).rglob("*.parquet")))
    if baskets:
        rows = to_columns(baskets, sink_schema(Basket, ("customer",)))
        rows = rows.append_column(ROW_KIND, pa.array(["+U"] * len(baskets)))
        file = Storage(config.job_folder).stage(f"outputs/{number}.parquet", rows)
        outputs["baskets"] = [OutputFile(file.path, file.rows, file.size)]
    if parcels:
        file = Storage(config.sinks["parcels"].path).stage(
            f"{number}.parquet", to_columns(parcels, sink_schema(Parcel))
        )
        outputs["parcels"] = [OutputFile(file.path, file.rows, file.size)]
    with open_job(config, "run", create=True) as job:
        job.commit(Kind.BATCH, outputs=outputs)


def rows_of(home, sink, record):
    table = pa.RecordBatchReader.from_stream(DeltaTable(home.config().sinks[sink].path).scan()).read_all()
    records, _, bad = RecordReader(record, None).read(table)
    assert bad == []
    return sorted(records, key=repr)


@pytest.mark.slow
def test_nested_rows_are_merged_and_appended(home):
    commit(home, baskets=[ONE, NONE], parcels=[PARCEL])
    commit(home, baskets=[TWO], parcels=[PARCEL])
    assert rows_of(home, "baskets", Basket) == sorted([TWO, NONE], key=repr)
    assert rows_of(home, "parcels", Parcel) == [PARCEL, PARCEL]
    assert all(finding.ok for finding in verify(home.config()))


def test_sink_with_other_nested_fields_is_refused(home):
    schema = sink_schema(Parcel)
    other = pa.list_(pa.field("element", pa.struct([("item", pa.string()), ("cents", pa.int64())])))
    Storage(home.config().sinks["parcels"].path).table().create(schema.set(1, pa.field("lines", other, nullable=False)))
    with pytest.raises(ConfigError, match=r"column 'lines' of sink 'parcels' at .* is list<.*cents: int64"):
        commit(home, parcels=[PARCEL])


def test_nested_rows_can_be_queried(home, capsys):
    commit(home, baskets=[TWO, NONE])
    rows = ask_sql(JobAtCheckpoint(home.config()), "select last, spent, times, lines from baskets order by customer")
    timestamps = [datetime.fromtimestamp(at / 1000, UTC) for at in (NOON, NOON + 1)]
    last, spent, times, lines = rows.rows[0]
    assert last == {"item": "ink", "price": 3.0, "at": timestamps[1]}
    assert spent == {"pen": 1.5, "ink": 3.0}
    assert times == timestamps
    assert lines[0] == {"item": "pen", "price": 1.5, "at": timestamps[0]}
    assert shown(spent) == '{"pen": 1.5, "ink": 3.0}'
    assert shown(times) == '["2013-01-01T10:00:00Z", "2013-01-01T10:00:00.001Z"]'
    print_json(plain(typed_rows(rows)))
    assert '"at": "2013-01-01T10:00:00Z"' in capsys.readouterr().out
