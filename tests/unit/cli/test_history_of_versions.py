"""`headrace history`: the events behind versions of a key."""

from __future__ import annotations

import json

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

    return harness


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


def test_truncate_has_its_input_row(headrace, job_of):
    job_of(Change("x", 1, 0, "u", "a"), Change("y", 4, 1, "t"))
    assert ["4", "truncates", "1", "000001.parquet:1"] in words(headrace("history shop x"))


def test_keys_with_most_events_come_first(headrace, job_of):
    job_of(*(Change(key, lsn, lsn, "u", "a" * lsn) for key, lsn in [("x", 1), ("y", 2), ("y", 3), ("z", 99)]))
    advised = headrace("history shop unknown").stdout
    assert "headrace history shop --largest" in advised
    document = json.loads(headrace("history shop --largest --json").stdout)
    assert [(row["operator"], row["key"], row["events"]) for row in document["versions"]] == [
        ("customers", "y", 2),
        ("customers", "x", 1),
        ("customers", "z", 1),
    ]
    shown = headrace("history shop --largest -n 1").stdout
    assert ("no histories" in shown, '"y"' in shown or " y " in shown, " x " in shown) == (False, True, False)


def test_job_without_histories_points_to_entries(headrace, job_of):
    job_of(Change("x", 1, 0, "u", "a"), history=History.SCD1)
    output = headrace("history shop x").stdout
    assert ("--largest" in output, "headrace state scan shop" in output) == (False, True)
    assert "no histories" in headrace("history shop --largest").stdout
