"""Resolving a checkpoint, and reading its tables at their versions."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import ConfigError, StorageError
from headrace.log.checkpoint import Kind
from headrace.readers import state as keyed_state
from headrace.readers.waiting import list_timers
from tests.unit.readers.opened_jobs import opened, values
from tests.unit.support.demo_job import HOUR, START


def test_older_checkpoint_sees_its_own_version(state):
    assert values(keyed_state.get(opened("1"), "N1", "legs")) == ['"JFK-LAX"']


def test_savepoint_is_found_by_name(state):
    assert opened("before").checkpoint.checkpoint_id == 3


@pytest.mark.parametrize(
    ("time", "checkpoint"),
    [
        ("2013-01-31", 0),
        ("2013-01-31T01:00", 1),
        ("2013-01-31T01:59:59.999Z", 1),
        ("2013-01-31T03:00:00+01:00", 2),
        ("2099-12-31", 4),
    ],
)
def test_time_names_the_last_checkpoint_then(state, time, checkpoint):
    assert opened(time).checkpoint.checkpoint_id == checkpoint


def test_time_before_the_job_is_refused(state):
    with pytest.raises(ConfigError, match="no checkpoint at 2013-01-30 .*headrace checkpoints"):
        opened("2013-01-30")


@pytest.fixture
def moved_on(state):
    """Three more micro-batches, with watermarks of their own, and a restore that leaves the last of them behind."""
    for hour in (6, 12, 18):
        state.commit(Kind.BATCH, watermark=START + hour * HOUR)
    state.commit(Kind.RESTORE, restored_from=6, watermark=START + 12 * HOUR)
    return state


@pytest.mark.parametrize(
    ("time", "checkpoint"),
    [("2013-01-31T05:59", 4), ("2013-01-31T06:00", 5), ("2013-01-31T13:00+01:00", 8), ("2099-12-31", 8)],
)
def test_as_of_names_the_last_watermark(moved_on, time, checkpoint):
    assert opened(as_of=time).checkpoint.checkpoint_id == checkpoint


@pytest.mark.parametrize(
    ("at", "as_of", "words"),
    [
        (None, "2013-01-30", "they go from 2013-01-31 to 2013-01-31T12:00Z"),
        (None, "before", "'before' is not a timestamp"),
        ("2", "2013-01-31", "not both"),
    ],
)
def test_as_of_without_checkpoint_is_refused(moved_on, at, as_of, words):
    with pytest.raises(ConfigError, match=words):
        opened(at, as_of=as_of)


def test_undone_checkpoint_is_read_at_its_time(state):
    state.commit(Kind.RESTORE, restored_from=1)
    assert opened("2013-01-31T02:00").checkpoint.checkpoint_id == 2


def test_uncommitted_rows_are_not_read(state):
    uncommitted = dict(state.versions)
    row = keyed_state.scan(opened(2), limit=1).dicts()[0]
    state.add("keyed_state", [{**row, "value": '"never"', "checkpoint_id": 9, "deleted": False}])
    assert state.versions != uncommitted
    assert values(keyed_state.get(opened(), "N1", state="last_leg")) == ['"LAX-SFO"']


def test_vacuumed_checkpoint_error_names_the_vacuum(state):
    for file in (state.folder / "keyed_state").glob("*.parquet"):
        file.unlink()
    with pytest.raises(StorageError, match="vacuumed"):
        keyed_state.get(opened(1), "N1")


def test_unknown_checkpoint_names_the_known_ones(state):
    with pytest.raises(ConfigError, match=r"no checkpoint 99 \(known: 0 to 4\)"):
        opened(99)
    with pytest.raises(ConfigError, match="no savepoint 'after'"):
        opened("after")


def test_job_never_run_says_how_to_start(home):
    with pytest.raises(ConfigError, match="headrace run demo"):
        opened()


def test_table_unknown_to_the_checkpoint_is_empty(state):
    at = opened()
    versions = {name: version for name, version in at.checkpoint.versions.items() if name != "timers"}
    at.checkpoint = msgspec.structs.replace(at.checkpoint, versions=versions)
    assert list_timers(at).rows == []
