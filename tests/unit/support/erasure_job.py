"""A job whose state tables get rows of chosen keys, and a search for a key in all bytes of its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.clock import unique_id
from headrace.commit.protocol import OpenJob
from headrace.config import JobConfig
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.sinks.sink import OutputFile
from headrace.storage.files import StagedFile
from headrace.storage.table import ROW_KIND
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import (
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    TIMERS,
)
from headrace.testing._memory_disk import SCHEME, disk_and_path
from headrace.testing._written_folder import state_rows
from tests.unit.support.memory_job import BOARD, sink_rows_of

Row = dict[str, Any]


def state(key: Any, value: str | None = "1", **more: Any) -> Row:
    """Return a row of keyed state; a missing value is a deletion."""
    return {**_entry(key, "customers"), "state": "spent", "value": value, "deleted": value is None, **more}


def timer(key: Any, at: int = 7_000, **more: Any) -> Row:
    return {**_entry(key, "customers"), "domain": "event_time", "timestamp": at, **more}


def history(key: Any, row: str, sequence: int = 0) -> Row:
    return {**_entry(key, "lines"), "sequence_number": sequence, "row": row, "row_kind": "+I", "inserted_at": 1}


def waiting(key: Any, element: str, sequence: int = 0, **more: Any) -> Row:
    own = {"sequence": sequence, "status": "pending", "attempts": 1, "cost_ms": 0, "element": element}
    return {**_entry(key, "ask"), **own, **more}


def held(key: Any, record: str, sequence: int = 0) -> Row:
    return {**_entry(key, "customers"), "sequence": sequence, "block_id": "", "record": record}


def quarantined(raw: str, position: str = "a.parquet:0", key: Any = None, error: str = "bad") -> Row:
    own = {"source": "purchases", "position": position, "raw": raw, "error": error, "origin": "row"}
    return {**_entry(key, "purchases"), **own}


def rows_of_all_tables(key: Any, text: str) -> dict[str, list[Row]]:
    """Return rows of one key in each state table; `text` is the key's spelling in records."""
    record = msgspec.json.encode({"customer": text}).decode()
    return {
        KEYED_STATE: [state(key, record), state(key, record, state="items", user_key='"a"')],
        TIMERS: [timer(key), timer(key, domain="processing_time")],
        MATERIALIZER_HISTORY: [history(key, record)],
        ASYNC_REQUESTS: [waiting(key, record)],
        BUFFERED_REQUESTS: [held(key, record)],
        QUARANTINE: [quarantined(record, key=key)],
    }


def commit_rows(job: OpenJob, rows: Mapping[str, Sequence[Row]], **fields: Any) -> Checkpoint:
    """Commit a micro-batch with rows of state tables."""
    files = {table: [stage_rows(job, table, changes)] for table, changes in rows.items() if changes}
    return job.commit(fields.pop("kind", Kind.BATCH), files=files, **fields)


def stage_rows(job: OpenJob, table: str, rows: Sequence[Row]) -> StagedFile:
    """Stage rows of a state table under a neutral name."""
    return job.stage(table, unique_id()[-8:], state_rows(table, rows, job.next_id, job.last.max_parallelism))


def bought(job: OpenJob, customer: str) -> dict[str, list[OutputFile]]:
    """Stage a row of a customer for the merged sink, under a neutral name."""
    line = {"item": "apples", "customer": customer, "bought": 1, "cents": 1, "in_basket": 1, "idle": False}
    rows = sink_rows_of(job, BOARD, [line]).append_column(ROW_KIND, pa.array(["+U"]))
    file = job.folder.stage(f"outputs/{BOARD}/{unique_id()[-8:]}.parquet", rows)
    return {BOARD: [OutputFile(file.path, file.rows, file.size)]}


def changes_of(config: JobConfig, at: Checkpoint | None = None) -> dict[str, list[Row]]:
    """Return all rows of all state tables at a checkpoint, in a fixed order."""
    last = at or CheckpointLog(JobFolder.of(config)).last
    assert last is not None
    views = {name: JobFolder.of(config).view(name, version) for name, version in last.versions.items()}
    return {name: sorted(view.changes().to_pylist(), key=repr) for name, view in views.items()}


def places_with(config: JobConfig, text: str) -> set[str]:
    """Return the files below the job's folder that contain a text: in bytes, or in the cells of a Parquet file or an Arrow stream.

    For tables in memory, also search the entries of their logs.
    """
    result = {path for path, content in _contents(config) if text in content}
    return result | {place for place, content in _log_entries_in_memory(config) if text in content}


def _contents(config: JobConfig) -> Iterator[tuple[str, str]]:
    folder = JobFolder.of(config)
    for path in sorted(folder.files()):
        content = folder.read(path)
        yield path, content.decode(errors="replace")
        if path.endswith((".parquet", ".arrows")):
            is_stream, file = path.endswith(".arrows"), pa.BufferReader(content)
            rows = pa.ipc.open_stream(file).read_all() if is_stream else pq.ParquetFile(file).read()
            yield path, "\n".join(map(_flat, rows.to_pylist()))


def _flat(row: Any) -> str:
    """Return all cells of a row unchanged."""
    cells = row.values() if isinstance(row, dict) else row
    return " ".join(map(_flat, cells)) if isinstance(row, dict | list | tuple) else str(row)


def _log_entries_in_memory(config: JobConfig) -> Iterator[tuple[str, str]]:
    if not config.job_folder.startswith(f"{SCHEME}://"):
        return
    disk, folder = disk_and_path(config.job_folder)
    for table, versions in disk.tables.items():
        if table.startswith(f"{folder}/"):
            for number, version in enumerate(versions):
                files = [] if version is None else version.files.values()
                yield f"{table}@{number}", " ".join(f"{file.minimum} {file.maximum}" for file in files)


def _entry(key: Any, operator: str) -> Row:
    return {"operator": operator, "key": msgspec.json.encode(key).decode()}
