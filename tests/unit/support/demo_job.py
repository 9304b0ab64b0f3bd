"""A small job with real Delta tables, as two micro-batches, a savepoint and a restore would leave them.

checkpoint   0        1          2           3            4            5
kind         initial  batch      batch       savepoint    compaction   restore to 1
N1 last_leg           JFK-LAX    LAX-SFO     "before"
N2 last_leg           JFK-BOS    (removed)
N3 last_leg           expired by the watermark of 1
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, write_deltalake
from typer.testing import CliRunner, Result

from headrace import clock
from headrace.cli import app
from headrace.log.checkpoint import Checkpoint, Kind, Lease
from headrace.storage import pandas as late_pandas
from headrace.tables.folder import JobFolder
from headrace.testing._written_folder import WrittenFolder

START = 1_359_590_400_000  # 2013-01-31T00:00:00Z
HOUR = 3_600_000

NO_EVENTS = pa.table({"tail": pa.array([], pa.string()), "at": pa.array([], pa.int64())})
JOB = """\
job: demo
pipeline: demo_cli_pipeline:pipeline
description: A demonstration.
sources: {events: {path: events}}
sinks: {board: {path: lake/board, mode: merge}}
"""
PIPELINE = """\
from datetime import timedelta
import msgspec
from headrace import KeyedProcessFunction, Pipeline, StateTtl, Timestamp, ValueState

class Event(msgspec.Struct, frozen=True):
    tail: str
    at: Timestamp

class Legs(KeyedProcessFunction[Event, Event]):
    last_leg = ValueState("last_leg", str, ttl=StateTtl(timedelta(hours=12)))

    async def process(self, record, ctx, /):
        ...

pipeline = (
    Pipeline("demo").source("events", Event, event_time="at").key_by("tail").process("legs", Legs())
    .upsert_materialize("latest", primary_key=("tail",)).sink("board")
)
"""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    files = {
        "conf/jobs/demo.yaml": JOB,
        "conf/clusters/local.yaml": "master: local[2]\nparallelism: 2\nconnectors: []\n",
        "demo_cli_pipeline.py": PIPELINE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "events").mkdir()
    pq.write_table(NO_EVENTS, tmp_path / "events" / "2013-01-31.parquet")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("demo_cli_pipeline", None)


@pytest.fixture
def at_nine():
    """A clock that shows 9 o'clock of the next day."""
    fixed = clock.VirtualClock(START + 33 * HOUR)
    with clock.installed(fixed):
        yield fixed


@pytest.fixture
def headrace(home, monkeypatch) -> Callable[..., Result]:
    """Run the command; a single argument is split at blanks."""
    # The hook for pandas would stay for the whole process, which other tests share.
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    # Output is as in a pipe, wherever the tests run: no line is wrapped.
    monkeypatch.delenv("COLUMNS", raising=False)
    runner = CliRunner()

    def run(*words: str) -> Result:
        return runner.invoke(app, words[0].split() if len(words) == 1 else list(words))

    return run


class Writer(WrittenFolder):
    """Folder of the job, with a checkpoint each hour, and its sink."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "var" / "state" / "demo"
        self.sink = home / "lake" / "board"
        super().__init__(JobFolder(str(self.folder)))

    def add(self, table: str, rows: list[dict[str, Any]], *, whole: bool = False) -> None:
        self.write({table: rows}, whole=whole)

    def publish(self, checkpoint_id: int, rows: list[dict[str, Any]]) -> None:
        metadata = CommitProperties(custom_metadata={"headrace.checkpoint": str(checkpoint_id)})
        write_deltalake(str(self.sink), pa.Table.from_pylist(rows), mode="overwrite", commit_properties=metadata)

    def commit(self, kind: Kind | str = "batch", **facts: Any) -> Checkpoint:
        number = self.log.last.checkpoint_id + 1 if self.log.last else 0
        return super().commit(kind, **{"attempt_id": "a", "committed_at": START + number * HOUR, **facts})

    def hold(self, until: int) -> None:
        self.log.claim(Lease("run-9", "a", "elsewhere:1:2", until, START))


def timestamp(at: int) -> datetime:
    return datetime.fromtimestamp((START + at) / 1000, UTC)


def entry(key: str, value: str | None, checkpoint: int, *, expires: int | None = None, deleted: bool = False):
    return {
        "operator": "legs",
        "key": f'"{key}"',
        "state": "last_leg",
        "value": value,
        "last_access": None if deleted else timestamp((12 * HOUR if expires is None else expires) - 12 * HOUR),
        "expires_at": None if expires is None else timestamp(expires),
        "checkpoint_id": checkpoint,
        "deleted": deleted,
    }


def timer(key: str, at: int, checkpoint: int, *, deleted: bool = False, domain: str = "event_time"):
    return {
        "operator": "legs",
        "key": f'"{key}"',
        "domain": domain,
        "timestamp": timestamp(at),
        "checkpoint_id": checkpoint,
        "deleted": deleted,
    }


@pytest.fixture
def state(home) -> Writer:
    writer = Writer(home)
    first = [
        entry("N1", '"JFK-LAX"', 1, expires=12 * HOUR),
        entry("N2", '"JFK-BOS"', 1),
        entry("N3", '"X"', 1, expires=0),
    ]
    writer.add("keyed_state", first)
    writer.add("timers", [timer("N1", 3 * HOUR, 1), timer("N2", HOUR, 1)])
    writer.publish(1, [{"tail": "N1", "leg": "JFK-LAX"}])
    writer.commit(Kind.BATCH, watermark=START, metrics={"rows_in": 3})
    second = [entry("N1", '"LAX-SFO"', 2, expires=12 * HOUR), entry("N2", None, 2, deleted=True)]
    writer.add("keyed_state", second)
    writer.add("timers", [timer("N2", HOUR, 2, deleted=True)])
    bad = {
        "operator": "events",
        "key_group": 0,
        "key": "null",
        "source": "events",
        "position": "f:7",
        "origin": "row",
        "file": "f",
        "first_row": 7,
        "rows": 1,
        "checkpoint_id": 2,
    }
    writer.add("quarantine", [{**bad, "raw": "[bold]", "error": "no tail", "deleted": False}])
    history = {"operator": "latest", "key": '"N1"', "sequence_number": 4, "row": '{"tail":"N1"}'}
    writer.add("materializer_history", [{**history, "row_kind": "+I", "inserted_at": timestamp(HOUR)}])
    writer.publish(2, [{"tail": "N1", "leg": "LAX-SFO"}])
    writer.commit(Kind.BATCH, metrics={"rows_in": 2, "quarantined": 1})
    writer.commit(Kind.SAVEPOINT, name="before", note="just in case")
    writer.add("keyed_state", second[:1], whole=True)
    writer.commit(Kind.COMPACTION)
    return writer
