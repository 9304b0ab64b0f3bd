"""Rows that somebody discards leave the quarantine for good, as one checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.edits.compact import compact
from headrace.edits.discard import DiscardRows
from headrace.edits.edit import apply, preview
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.refused_rows import RefusedJob, table


@pytest.fixture
def job():
    """Two rows of the first file are refused, the second file as a whole, and a record whose key is null."""
    result = RefusedJob(source={"on_bad_file": "quarantine"})
    result.feed("p", "q?", "r?")
    result.harness.feed_table("rows", table("s", at=9000).drop(["size"]))
    result.run()
    return result


def positions(job):
    return [position for position, _ in job.quarantine()]


def discard(job, edit):
    with job.harness.on_its_clock():
        return apply(job.harness.config, replace(edit, why="no use"), "somebody")


def test_discarded_rows_do_not_come_back(job):
    checkpoint = discard(job, DiscardRows())
    assert (checkpoint.kind, checkpoint.metrics) == (Kind.EDIT, {"discarded": 3})
    assert checkpoint.note == "quarantined rows of rows discarded: no use"
    assert positions(job) == []
    job.mend()
    assert job.requeue() is None
    job.feed("t")
    job.run()
    assert (job.arrived(), positions(job)) == (["p", "t"], [])


@pytest.mark.parametrize(
    ("edit", "stay"),
    [
        (DiscardRows(files=("000002.parquet",)), ["000001.parquet:1", "000001.parquet:2"]),
        (DiscardRows("rows", ("000001.parquet",)), ["000002.parquet"]),
        (DiscardRows("rows"), []),
    ],
)
def test_only_named_rows_are_discarded(job, edit, stay):
    discard(job, edit)
    assert positions(job) == stay


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (DiscardRows("columns"), "has no row of 'columns': headrace quarantine shops lists"),
        (DiscardRows(files=("000001.parquet", "x.parquet")), "has no row of file x.parquet"),
    ],
)
def test_rows_that_are_not_there_are_refused(job, edit, says):
    with pytest.raises(ConfigError, match=says):
        discard(job, edit)
    assert job.last.checkpoint_id == 1


def test_preview_of_a_discard_changes_nothing(job):
    rows = preview(job.harness.config, DiscardRows())
    assert [row["position"] for row in rows] == ["000001.parquet:1", "000001.parquet:2", "000002.parquet"]
    assert (job.last.checkpoint_id, len(positions(job))) == (1, 3)


def test_restore_brings_discarded_rows_back(job):
    discard(job, DiscardRows())
    job.restore(1)
    assert len(positions(job)) == 3


def test_compaction_forgets_discarded_rows(job):
    discard(job, DiscardRows())
    with job.harness.on_its_clock():
        compact(job.harness.config, "somebody")
    assert positions(job) == []


def test_crash_discards_all_rows_or_none(job):
    with pytest.raises(Killed), dying_at("edit.staged"):
        discard(job, DiscardRows())
    assert len(positions(job)) == 3
    discard(job, DiscardRows())
    assert positions(job) == []
