"""Restores, savepoints, compaction and vacuum between runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import clock
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

QUICK: dict[str, Any] = {"parallelism": 1, "backend": "rocksdb"}


@pytest.fixture
def three_days(home, run) -> Home:
    """A job that has taken in three days, one a checkpoint: 0 (initial), 1, 2, 3."""
    write_days(home.input, range(3))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    run(home, **QUICK)
    return home


@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_restored_job_continues_from_restored_checkpoint(three_days, run, target):
    config = three_days.config()
    before = outcome(config)
    restored = restore(config, target, "to see the past", "somebody")
    assert (restored.kind, restored.checkpoint_id, restored.note) == (Kind.RESTORE, 4, "to see the past")
    assert_as_by_hand(config, by_hand(purchases_of(day) for day in range(target)))
    run(three_days, **QUICK)
    assert outcome(config) == before
    assert_well_formed(config)
    assert all(finding.ok for finding in verify(config))


def test_restore_can_be_undone_by_another(three_days):
    config = three_days.config()
    before = outcome(config)
    restore(config, 1, "by mistake", "somebody")
    restore(config, 3, "back again", "somebody")
    assert outcome(config) == before


def test_restore_leaves_unchanged_sink_alone(home, run):
    # Nobody waits for a reminder in the second file, so only one of the two sinks is written.
    write_days(home.input, [0])
    run(home, **QUICK)
    (home.input / "2024-03-01.parquet").rename(home.input / "2024-03-02.parquet")
    config = home.config()
    for _ in range(2):
        restore(config, checkpoints(config)[-1].checkpoint_id, "to where it is", "somebody")
    assert_as_by_hand(config, by_hand([purchases_of(0)]))


def test_savepoint_is_restored_by_its_name(three_days, run):
    config = three_days.config()
    restore(config, 2, "to name it", "somebody")
    saved = savepoint(config, "before_the_third", "a day to come back to", "somebody")
    run(three_days, **QUICK)
    restore(config, "before_the_third", "as promised", "somebody")
    assert checkpoints(config)[-1].restored_from == saved.checkpoint_id
    assert_as_by_hand(config, by_hand(purchases_of(day) for day in range(2)))


@pytest.mark.parametrize("target", [17, "never_made"])
def test_restore_to_unknown_checkpoint_is_refused(three_days, target):
    with pytest.raises(ConfigError, match=str(target)):
        restore(three_days.config(), target, "", "somebody")
    assert checkpoints(three_days.config())[-1].checkpoint_id == 3


def test_compaction_changes_no_live_rows(three_days):
    config = three_days.config()
    before = outcome(config, with_expired=False)
    compacted = compact(config, "nightly")
    assert compacted is not None
    assert compacted.metrics["rows_after"] < compacted.metrics["rows_before"]
    assert outcome(config, with_expired=False) == before
    assert_well_formed(config)


@pytest.mark.parametrize("local", ["kept", "lost"])
def test_run_after_compaction_has_same_result(home, run, local):
    write_days(home.input, range(4))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 2}}})
    config = home.config()
    run(home, max_batches=1, **QUICK)
    compact(config, "nightly")
    # Without its local copies the second micro-batch reads the compacted tables.
    run(home, parallelism=1 if local == "kept" else 2)
    assert_as_by_hand(config, by_hand(purchases_of(day) for day in range(4)))


def test_table_may_be_empty_after_compaction(home, run):
    # All of these purchases are taken back, and the last watermark is behind every timer.
    rows = [{**row, "kind": "-D", "customer": "the only one"} for row in purchases_of(0)]
    from tests.jobs.purchase_files import day_name, write_rows

    write_rows(home.input, day_name(0), rows)
    run(home, **QUICK)
    compact(home.config(), "nightly")
    assert_as_by_hand(home.config(), by_hand([rows]))


def test_restore_may_precede_a_compaction(three_days, run):
    config = three_days.config()
    before = outcome(config)
    compact(config, "nightly")
    restore(config, 1, "before the compaction", "somebody")
    assert_as_by_hand(config, by_hand([purchases_of(0)]))
    run(three_days, **QUICK)
    assert outcome(config) == before


def test_compaction_waits_until_enough_runs_were_made(three_days):
    config = three_days.config()
    assert compact(config, "nightly", every=2) is None
    assert compact(config, "nightly", every=1) is not None
    assert compact(config, "nightly", every=1) is None


def test_vacuum_finds_nothing_within_the_retention(three_days):
    compact(three_days.config(), "nightly")
    assert vacuum(three_days.config(), "weekly") == []


def test_vacuum_removes_unneeded_files_unless_dry(three_days, run):
    """A real vacuum removes what nobody needs."""
    config = three_days.config()
    compact(config, "nightly")
    before = outcome(config)
    _age(config.job_folder, hours=config.retention.hours + 1)
    # Checkpoints younger than the retention keep their files; the clock is put forward beyond that.
    later = clock.VirtualClock(clock.now() + (config.retention.hours + 2) * 3_600_000)
    with clock.installed(later):
        result = vacuum(config, "weekly")
        assert result
        assert all(Path(path).exists() for path in result)
        removed = vacuum(config, "weekly", dry_run=False)
    assert {*result} <= {*removed}
    own = {path for path in removed if "/checkpoints/" in path or "/_delta_log/" in path} - {*result}
    assert {*removed} - {*result} == own  # it has claimed the job and undone what nobody committed
    assert not any(Path(path).exists() for path in removed)
    assert outcome(config) == before


def test_vacuum_spares_savepoints(three_days):
    config = three_days.config()
    savepoint(config, "for_ever", "", "somebody")
    compact(config, "nightly")
    with clock.installed(clock.VirtualClock(clock.now() + (config.retention.hours + 2) * 3_600_000)):
        vacuum(config, "weekly", dry_run=False)
    restore(config, "for_ever", "it must be there", "somebody")
    assert_as_by_hand(config, by_hand(purchases_of(day) for day in range(3)))


def _age(folder: str, *, hours: int) -> None:
    for path in Path(folder).rglob("*.parquet"):
        timestamp = path.stat().st_mtime - hours * 3600
        os.utime(path, (timestamp, timestamp))


def test_max_batches_ends_a_run_between_micro_batches(home, run):
    write_days(home.input, range(3), rows=20)
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    report = run(home, max_batches=2, **QUICK)
    assert (report.stopped_because, report.checkpoints) == ("max_batches", [1, 2])
    assert run(home, **QUICK).checkpoints == [3]
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=20) for day in range(3)))


def test_used_up_budget_starts_no_micro_batch(home, run):
    write_days(home.input, [0], rows=20)
    report = run(home, budget=0.0, **QUICK)
    assert (report.stopped_because, report.checkpoints) == ("budget", [])


def test_max_rows_per_batch_counts_whole_files(home, run):
    write_days(home.input, range(4), rows=20)
    home.configure({"sources": {"purchases": {"max_rows_per_batch": 45}}})
    report = run(home, **QUICK)
    assert len(report.checkpoints) == 2
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=20) for day in range(4)))


def test_files_needed_only_by_run_are_removed(three_days):
    folder = Path(three_days.config().job_folder)
    assert not list((folder / "transit").glob("*"))
    assert not list((folder / "outputs").rglob("*.parquet"))
    committed = {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}
    named = {uri.rpartition("/")[2] for table in folder.iterdir() for uri in _files(table)}
    assert committed == named


def _files(table: Path) -> list[str]:
    return DeltaTable(str(table)).file_uris() if (table / "_delta_log").exists() else []
