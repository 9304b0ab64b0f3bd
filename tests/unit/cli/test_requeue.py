"""`headrace quarantine --requeue` and `--discard`, and the output of other commands about requeued rows."""

from __future__ import annotations

import json
import os

import pytest

from tests.unit.support.refused_rows import RefusedJob, table


@pytest.fixture
def job(headrace, monkeypatch):
    """Two rows of the first file are refused, and the second file as a whole."""
    result = RefusedJob(source={"on_bad_file": "quarantine"})
    result.feed("p", "q?", "r?")
    result.harness.feed_table("rows", table("s", at=9000).drop(["size"]))
    result.run()
    monkeypatch.setenv("HEADRACE_HOME", os.fspath(result.harness.folder))
    return result.mend()


def words_of(result):
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.slow
def test_requeue_reports_the_waiting_rows(headrace, job):
    result = headrace("quarantine", "shops", "--requeue", "--source", "rows", "--why", "mended")
    assert words_of(result) == (
        "shops: 2 rows and 1 whole file left the quarantine, as of checkpoint 2; the next run takes them in first"
    )
    waits = "shops: 2 rows and 1 whole file of source 'rows' left the quarantine: the next run takes them in first"
    assert waits in words_of(headrace("status shops"))
    listed = words_of(headrace("checkpoints shops"))
    assert waits in listed
    assert "requeue" in listed
    assert "mended" in listed
    (status,) = json.loads(headrace("status shops --json").stdout)["jobs"]
    assert status["sources"]["rows"]["requeued"] == [
        {"file": "000001.parquet", "rows": 2},
        {"file": "000002.parquet", "rows": None},
    ]
    job.run()
    for command in ("status", "checkpoints"):
        assert "left the quarantine" not in words_of(headrace(f"{command} shops"))
    assert "nothing was changed" in words_of(headrace("quarantine shops --requeue"))


def test_requeue_answers_in_json(headrace, job):
    del job
    words = "quarantine shops --requeue --operator rows --file 000002.parquet --json"
    counts = {"requeued": 1, "requeued_rows": 0, "requeued_files": 1, "requeued_elements": 0}
    assert json.loads(headrace(words).stdout) == {"job": "shops", **counts, "checkpoint": 2}
    assert json.loads(headrace(words).stdout) == {"job": "shops", **dict.fromkeys(counts, 0), "checkpoint": None}


@pytest.mark.slow
def test_listing_takes_a_source_as_an_operator(headrace, job):
    del job
    for option in ("--source", "--operator"):
        assert "3 quarantined" in words_of(headrace(f"quarantine shops {option} rows"))
    assert headrace("quarantine shops --source columns").exit_code == 2


def test_unknown_names_and_missing_files_set_exit_codes(headrace, job):
    result = headrace("quarantine shops --requeue --source columns")
    assert result.exit_code == 2
    (job.harness.folder / "input" / "rows" / "000001.parquet").unlink()
    result = headrace("quarantine shops --requeue")
    assert result.exit_code == 7
    assert job.last.checkpoint_id == 1


def test_rows_of_a_file_are_listed_by_number(headrace, monkeypatch):
    job = RefusedJob(source={"max_quarantined": "none"})
    job.feed(*(f"{number}?" for number in range(12)))
    job.run()
    monkeypatch.setenv("HEADRACE_HOME", os.fspath(job.harness.folder))
    rows = json.loads(headrace("quarantine shops --json").stdout)["quarantined"]
    assert [row["position"] for row in rows] == [f"000001.parquet:{number}" for number in range(12)]


def test_discard_is_a_dry_run_first(headrace, job):
    shown = words_of(headrace("quarantine shops --discard --source rows"))
    assert "rows 000001.parquet:1" in shown
    assert "3 rows in all. Nothing was changed. --apply does it." in shown
    assert job.last.checkpoint_id == 1
    assert headrace("quarantine shops --discard --apply").exit_code == 2
    assert headrace("quarantine shops --discard --requeue").exit_code == 2
    assert job.last.checkpoint_id == 1


def test_discard_answers_in_json(headrace, job):
    words = ["quarantine", "shops", "--discard", "--file", "000002.parquet", "--apply", "--why", "no use", "--json"]
    answer = json.loads(headrace(*words).stdout)
    assert answer == {"job": "shops", "branch": None, "applied": True, "checkpoint": 2, "discarded": 1}
    assert job.last.note.startswith("quarantined rows of rows discarded: no use (by ")
    assert "discarded: no use" in words_of(headrace("checkpoints shops"))
    assert headrace(*words).exit_code == 2
