"""TTL in processing time over runs: the job is paused, and the TTL is changed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import StateTtl, TtlTime, ValueState
from headrace.edits.compact import compact
from headrace.readers.expired import expired_entries
from headrace.readers.job_at import JobAtCheckpoint
from tests.jobs.home import Home
from tests.jobs.lodgers import JOB, Desk
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows, sink_rows
from tests.spark.test_processing_time import MINUTE, clock, write

__all__ = ["clock"]


@pytest.fixture
def inn(tmp_path: Path) -> Home:
    return Home(tmp_path, JOB)


def greetings(home: Home) -> list[tuple[str, bool, bool]]:
    """Return the greetings of the last day: who was remembered, by the lasting and by the strict state."""
    rows = [(at, guest, lasting, strict) for at, guest, lasting, strict in sink_rows(home.config(), "greetings")]
    return sorted(row[1:] for row in rows if row[0] == max(row[0] for row in rows))


def stored(home: Home, table: str = "keyed_state") -> int:
    return len(live_rows(home.config(), checkpoints(home.config())[-1], table))


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap", "delta"])
def test_paused_job_keeps_its_state(inn, run, clock, backend):
    quick: dict[str, Any] = {"parallelism": 2, "backend": backend}
    write(inn, 0, ("ann", 0, 0), ("bob", 0, 0))
    run(inn, **quick)
    assert (stored(inn), stored(inn, "timers")) == (4, 2)

    clock.ahead = 30 * MINUTE
    compact(inn.config(), "nightly")
    assert stored(inn) == 2  # entries that the pause may prolong, without those that are dead in any case
    write(inn, 1, ("ann", 0, 0))
    run(inn, **quick)
    assert greetings(inn) == [("ann", True, False)]
    (gap,) = checkpoints(inn.config())[-1].state_ttl.gaps
    assert 29 * MINUTE < gap[1] - gap[0] < 31 * MINUTE

    clock.ahead = 32 * MINUTE
    write(inn, 2, ("cid", 0, 0))
    run(inn, **quick)
    # Two minutes are no gap. The timers have removed the lasting state of ann and bob; nobody has removed ann's
    # strict state.
    assert (stored(inn), stored(inn, "timers")) == (3, 1)
    job = JobAtCheckpoint(inn.config())
    assert [row["key"] for row in expired_entries(job, state="strict").dicts()] == ['"ann"']
    assert len(checkpoints(inn.config())[-1].state_ttl.gaps) == 1
    assert_well_formed(inn.config())


def test_changed_ttl_rebuilds_local_copies_once(inn, run, clock, monkeypatch):
    quick: dict[str, Any] = {"parallelism": 1, "backend": "rocksdb"}
    write(inn, 0, ("ann", 0, 0))
    run(inn, **quick)
    longer = StateTtl(timedelta(hours=1), time=TtlTime.PROCESSING)
    monkeypatch.setattr(Desk, "strict", ValueState("strict", int, ttl=longer))
    rebuilt = []
    for day in (1, 2):
        write(inn, day, ("ann", 0, 0))
        run(inn, **quick)
        rebuilt.append(checkpoints(inn.config())[-1].metrics.get("local_copies_rebuilt", 0))
    assert rebuilt == [1, 0]
