"""A job whose state types change: refused before any task runs, or migrated, on every backend."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import StateSchemaError
from headrace.log.checkpoint import Kind
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints, sink_rows
from tests.jobs.purchase_files import day_name, day_start
from tests.jobs.releases import JOB

SCHEMA = pa.schema(
    [("at", pa.timestamp("ms", tz="UTC")), ("shop", pa.string()), ("item", pa.string()), ("number", pa.int64())]
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, JOB)


def write(home: Home, day: int, *sales: tuple[str, str, int]) -> None:
    rows = [{"at": day_start(day) + n, "shop": s, "item": i, "number": k} for n, (s, i, k) in enumerate(sales)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), home.input / day_name(day))


def release(home: Home, name: str) -> None:
    home.configure({"pipeline": f"tests.jobs.releases:{name}"})


def tables_of(home: Home) -> list[tuple[object, ...]]:
    rows = sink_rows(home.config(), "told")  # columns by name
    return sorted((shop, total, of_item, fired) for fired, of_item, shop, total in rows)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_release_with_other_types_reads_stored_state(home, run, backend):
    write(home, 0, ("north", "tea", 2), ("south", "tea", 5), ("north", "jam", 1))
    run(home, parallelism=2, backend=backend)
    write(home, 1, ("north", "tea", 3))
    release(home, "careless")
    before = checkpoints(home.config())
    with pytest.raises(StateSchemaError, match="state 'by_item': it is stored as int, and declared as str"):
        run(home, parallelism=2, backend=backend)
    assert "batch" not in [event.kind for event in run.events]
    assert checkpoints(home.config()) == before

    release(home, "second")
    run(home, parallelism=1, backend=backend)
    kinds = [checkpoint.kind for checkpoint in checkpoints(home.config())]
    assert kinds == [Kind.INITIAL, Kind.BATCH, Kind.MIGRATION, Kind.BATCH]
    write(home, 2, ("south", "jam", 1), ("south", "tea", 1))
    run(home, parallelism=2, backend=backend)
    assert tables_of(home) == [
        ("north", 0.0, 0.0, "jam"),
        ("north", 0.0, 0.0, "tea"),
        ("north", 0.0, 0.0, "tea"),
        ("north", 2.0, 2.0, ""),
        ("north", 3.0, 1.0, ""),
        ("north", 6.0, 5.0, ""),
        ("south", 0.0, 0.0, "tea"),
        ("south", 5.0, 5.0, ""),
        ("south", 6.0, 1.0, ""),
        ("south", 7.0, 6.0, ""),
    ]
    assert_well_formed(home.config())
