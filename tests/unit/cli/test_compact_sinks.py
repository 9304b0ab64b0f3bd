"""`headrace maintain --sinks`, and new columns of sinks in `headrace check`, run as commands."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake


@pytest.fixture
def board(home):
    """The table of the sink in three small files, without the column `at` of its record."""
    path = str(home / "lake" / "board")
    for number in range(3):
        write_deltalake(path, pa.table({"tail": [f"N{number}"]}), mode="append")
    return path


def test_dry_run_shows_small_files_alone(headrace, board):
    result = headrace("maintain --sinks --dry-run --json")
    (row,) = json.loads(result.stdout)["sinks"]
    assert (row["sink"], row["files"], row["small_files"], row["version"]) == ("board", 3, 3, None)
    shown = headrace("maintain --sinks --dry-run").stdout
    assert "small files" in shown
    assert "Nothing was changed" in shown
    assert DeltaTable(board).version() == 2


def test_new_version_of_a_sink_is_shown(headrace, board, monkeypatch):
    calls = []

    def compact(config, run_id, target_size):
        calls.append((config.job, target_size))
        return {"board": 3}

    monkeypatch.setattr("headrace.edits.compact.compact_sinks", compact)
    (row,) = json.loads(headrace("maintain --sinks --file-size 2 --json").stdout)["sinks"]
    assert (row["version"], calls) == (3, [("demo", 2 * 2**20)])
    assert "compacted as version" in headrace("maintain --sinks").stdout


def test_dry_run_option_needs_sinks_option(headrace, home):
    result = headrace("maintain --state --dry-run")
    assert result.exit_code == 2
    assert "--dry-run lists files to remove, or with --sinks to rewrite" in result.output


def test_new_job_has_nothing_to_compact(headrace, board):
    assert headrace("maintain --sinks").exit_code == 2
    assert DeltaTable(board).version() == 2


def test_check_shows_columns_that_a_run_adds(headrace, board):
    findings = json.loads(headrace("check --json").stdout)["findings"]
    (result,) = (finding for finding in findings if "adds to sink" in finding["detail"])
    assert result["outcome"] == "warn"
    assert "'board' at" in result["detail"]
    assert "at (timestamp[us, tz=UTC]). Existing rows get null" in result["detail"]
    assert DeltaTable(board).version() == 2
