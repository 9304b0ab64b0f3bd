"""A job of the first release: the first run of the present release migrates it, one checkpoint per format step."""

from __future__ import annotations

import pyarrow as pa

from headrace import clock
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.log import CheckpointLog
from headrace.tables.schemas import BUFFERED_REQUESTS, KEYED_STATE, STATE_TABLES
from headrace.tables.stores import table_store
from tests.unit.support.memory_job import MemoryJob

_LATER = {KEYED_STATE: {"ttl_ms"}, BUFFERED_REQUESTS: {"input"}}
"""Columns that later formats have added."""


def make_old_job(job: MemoryJob) -> None:
    """Make the tables of a job in format 1, and its first checkpoint."""
    folder = job.config.job_folder
    for name, table in STATE_TABLES.items():
        fields = [field for field in table.schema if field.name not in _LATER.get(name, ())]
        table_store(f"{folder}/{name}").create(pa.schema(fields))
    log = CheckpointLog(folder)
    log.create()
    log.append(
        Checkpoint(
            checkpoint_id=0,
            kind=Kind.INITIAL,
            run_id="the first release",
            attempt_id=clock.unique_id(),
            max_parallelism=job.config.max_parallelism,
            versions=dict.fromkeys(STATE_TABLES, 0),
            committed_at=clock.now(),
            format_version=1,
        ),
        None,
    )
    job.disk.sync()
