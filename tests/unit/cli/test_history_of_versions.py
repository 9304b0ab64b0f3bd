"""`headrace history`: the events behind versions of a key."""

from __future__ import annotations

import pytest

from headrace import History
from headrace.testing import PipelineHarness
from tests.unit.operators.changed_jobs import Change, stream_of


@pytest.fixture
def job_of(monkeypatch):
    jobs = []

    def harness(*events, history=History.SCD2):
        key = ("id", "valid_from") if history is History.SCD2 else ("id",)
        job = PipelineHarness(stream_of(history, truncates=("op", "t")).sink("rows", key=key), now=0)
        job.feed("changes", [*events])
        job.run()
        monkeypatch.setenv("HEADRACE_HOME", str(job.folder))
        jobs.append(job)  # its folder lasts as long as the harness

    yield harness


def words(result):
    """Return the lines of a result, each with its words."""
    return [line.split() for line in result.stdout.splitlines()]


def test_equal_fields_are_shown_once(headrace, job_of):
    job_of(Change("x", 1, 0, "u", "a", "Rome"), Change("x", 2, 1, "u", "b", "Rome"), Change("x", 3, 2, "d"))
    output = headrace("history shop x")
    assert 'in all of them  id "x", city "Rome"' in output.stdout
    assert ["lsn", "what", "tier", "checkpoint", "input", "row"] in words(output)


def test_single_version_shows_its_values(headrace, job_of):
    job_of(Change("x", 1, 0, "u", "a", None))
    assert 'in all of them  id "x", tier "a", city null' in headrace("history shop x").stdout


def test_key_that_is_deleted_has_no_values(headrace, job_of):
    job_of(Change("x", 1, 0, "d"))
    output = headrace("history shop x").stdout
    assert ("deletes" in output, "in all of them" in output) == (True, False)


def test_truncate_is_told_with_its_row(headrace, job_of):
    job_of(Change("x", 1, 0, "u", "a"), Change("y", 4, 1, "t"))
    assert ["4", "truncates", "1", "000001.parquet:1"] in words(headrace("history shop x"))
