"""A job folder that release 0.1 made: read, run and restored by this one.

`tests/fixtures/purchases-0.1.tar.gz` has the job `purchases` after three of its four days: three micro-batches, the
savepoint `two_days` and a compaction. `outcome.json` in the archive is the outcome of release 0.1.
"""

from __future__ import annotations

import json
import tarfile

import pytest

from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import IntervalError
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.waiting import list_quarantine
from tests.jobs.home import PROJECT, Home
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome
from tests.jobs.purchase_files import day_start, purchases_of
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

FIXTURE = PROJECT / "tests" / "fixtures" / "purchases-0.1.tar.gz"
DAY = 24 * 3_600_000


@pytest.fixture
def old(tmp_path) -> Home:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    home = Home(tmp_path)
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    return home


def as_json(value):
    """Return an outcome as JSON decodes it: lists for tuples."""
    return json.loads(json.dumps(value, default=str))


def test_state_of_the_release_is_readable(old):
    kept = json.loads((old.folder / "outcome.json").read_text())
    now = outcome(old.config())
    assert as_json({"sinks": now.sinks, "state": now.state, "watermark": now.watermark}) == kept
    assert list_quarantine(JobAtCheckpoint(old.config()), 100).rows
    assert all(finding.ok for finding in verify(old.config()))


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_job_continues_where_the_release_stopped(old, run, backend):
    run(old, backend=backend)
    assert_as_by_hand(old.config(), by_hand(purchases_of(day) for day in range(4)))
    assert_well_formed(old.config())


def test_checkpoints_of_the_release_are_restored(old, run):
    restore(old.config(), "two_days", "to see the past", "somebody")
    assert_as_by_hand(old.config(), by_hand(purchases_of(day) for day in range(2)))
    run(old)
    assert_as_by_hand(old.config(), by_hand(purchases_of(day) for day in range(4)))
    assert all(finding.ok for finding in verify(old.config()))


def test_interval_of_the_release_is_known(old, run):
    second = {"mode": "interval", "interval_start": day_start(1), "interval_end": day_start(1) + DAY}
    with pytest.raises(IntervalError, match="has been taken in already"):
        run(old, **second)


def test_tables_of_the_release_are_maintained(old, run):
    before = outcome(old.config())
    savepoint(old.config(), "now", "before maintenance", "somebody")
    assert compact(old.config(), "somebody") is not None
    vacuum(old.config(), "somebody", dry_run=False)
    assert outcome(old.config()) == before
    assert checkpoints(old.config())[0].sink_tables is None
    run(old)
    assert checkpoints(old.config())[-1].sink_tables is not None
