"""What is stored, by the statistics of the logs, against what the files hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.config import load_job
from headrace.errors import StorageError
from headrace.log.checkpoint import Kind
from headrace.readers.job_at import WITH_STATE, JobAtCheckpoint
from headrace.readers.stored_sizes import SEVERAL, stored_sizes
from headrace.tables.schemas import TIMERS
from tests.unit.support.demo_job import entry

pytestmark = pytest.mark.delta


def in_files(job):
    """Count rows and bytes of the files of the state tables by reading them."""
    rows, sizes = Counter(), Counter()
    for name in (*WITH_STATE, TIMERS):
        if (version := job.checkpoint.versions.get(name)) is None:
            continue
        folder = f"{job.config.job_folder}/{name}"
        for file in (Path(folder, file) for file in job.snapshot(folder, version).files()):
            operators = pq.read_table(file)["operator"].to_pylist()
            owner = operators[0] if len({*operators}) == 1 else SEVERAL
            rows[owner] += len(operators)
            sizes[owner] += file.stat().st_size
    return {owner: (rows[owner], sizes[owner]) for owner in rows}


def test_logs_and_files_tell_the_same(state):
    state.add("keyed_state", [{**entry("N9", '"JFK"', 5), "operator": "other"}, entry("N8", '"JFK"', 5)])
    state.commit(Kind.BATCH)
    state.add("keyed_state", [{**entry("N9", None, 6, deleted=True), "operator": "other"}])
    state.commit(Kind.BATCH)
    jobs = [JobAtCheckpoint(load_job("demo"), at) for at in range(1, 7)]
    assert [stored_sizes(job) for job in jobs] == [in_files(job) for job in jobs]
    assert {*stored_sizes(jobs[-1])} == {"legs", "latest", "other", SEVERAL}


def test_files_without_statistics_tell_nothing(state, monkeypatch):
    job = JobAtCheckpoint(load_job("demo"))
    snapshot = type(job.snapshot(f"{job.config.job_folder}/keyed_state", None))
    actions = snapshot.add_actions
    monkeypatch.setattr(snapshot, "add_actions", lambda self: _without_numbers(actions(self)))
    assert stored_sizes(job) is None


def _without_numbers(actions):
    place = actions.schema.get_field_index("num_records")
    return actions.set_column(place, "num_records", pa.nulls(actions.num_rows, pa.int64()))


def test_log_that_is_gone_is_an_error(state):
    job = JobAtCheckpoint(load_job("demo"))
    for file in (state.folder / "keyed_state/_delta_log").iterdir():
        file.unlink()
    with pytest.raises(StorageError):
        stored_sizes(job)
