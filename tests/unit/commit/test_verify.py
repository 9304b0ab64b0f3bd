"""Checks of a job's committed data (in memory). `test_sinks` has the checks of copied sinks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.commit.verify import verify
from headrace.edits.restore import restore
from headrace.errors import StorageError
from headrace.log.log import CheckpointLog
from headrace.storage.storage import Storage
from headrace.storage.table_files import LoggedFile, logged_files, unreadable_files
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS
from tests.unit.support.memory_job import BOARD, REMINDERS, commit_batch, killed_at


@pytest.fixture
def job(memory_job):
    memory_job.run("ann", "bob")
    return memory_job


def failed(job, **options):
    return {finding.check: finding.detail for finding in verify(job.config, **options) if not finding.ok}


def detail(job, check):
    return next(finding.detail for finding in verify(job.config) if finding.check == check)


def test_whole_job_has_no_failed_check(job):
    assert failed(job) == {}
    assert detail(job, "checkpoint ids grow") == "3 checkpoints, 0 to 2"
    assert detail(job, f"table {KEYED_STATE}") == "version 2, 2 files"
    assert detail(job, f"sink {BOARD} is published") == "published up to checkpoint 2"
    assert detail(job, f"sink {BOARD} has one row a key") == "1 row, 1 key"
    assert len(verify(job.config)) == 2 + len(STATE_TABLES) + 3


def test_job_never_run_fails(memory_job):
    assert failed(memory_job) == {
        "checkpoints": f"job 'purchases' has no checkpoints in {memory_job.config.job_folder}: it was never run, or its folder is gone"
    }


def test_uncommitted_versions_are_reported_as_harmless(job):
    with killed_at(job.disk, "commit.before"), job.open() as opened:
        commit_batch(opened, "cyd")
    assert failed(job) == {}
    assert "1 uncommitted version, which the next run undoes" in detail(job, f"table {TIMERS}")


def test_lost_files_are_found(job):
    store = Storage(job.config.job_folder).table(KEYED_STATE)
    lost = sorted(store.at(1).files())
    Storage(store.uri).delete(lost)
    (problem,) = failed(job).items()
    assert problem[0] == f"table {KEYED_STATE}"
    assert f"file {store.uri}/{lost[0]} is gone (1 of 2 files damaged). Bring the whole job folder back" in problem[1]


def test_all_lost_files_are_named(job):
    store = Storage(f"{job.config.job_folder}/{KEYED_STATE}").table()
    lost = sorted(store.at(2).files())
    Storage(store.uri).delete(lost)
    named = ", ".join(f"file {store.uri}/{name} is gone" for name in lost)
    assert failed(job)[f"table {KEYED_STATE}"].startswith(f"{named} (2 of 2 files damaged).")


def test_many_lost_files_are_counted(job):
    for _ in range(10):
        job.run("cyd")
    store = Storage(f"{job.config.job_folder}/{KEYED_STATE}").table()
    Storage(store.uri).delete(store.latest().files())
    assert " and 2 more (12 of 12 files damaged)" in failed(job)[f"table {KEYED_STATE}"]


def test_tables_are_checked_without_a_log(job, monkeypatch):
    def damaged(_):
        raise StorageError("the log is damaged")

    store = Storage(f"{job.config.job_folder}/{KEYED_STATE}").table()
    lost = sorted(store.at(1).files())
    Storage(store.uri).delete(lost)
    monkeypatch.setattr(CheckpointLog, "refresh", damaged)
    problems = failed(job)
    assert list(problems) == ["checkpoints", f"table {KEYED_STATE}"]
    assert problems["checkpoints"] == "the log is damaged"
    assert "is gone (1 of 2 files damaged)" in problems[f"table {KEYED_STATE}"]
    assert detail(job, f"sink {BOARD} has whole files").startswith("version")


def test_files_that_are_cut_off_are_found(job):
    store = Storage(job.config.job_folder).table(KEYED_STATE)
    name = min(store.at(1).files())
    size = logged_files(store.at(1))[name].size
    Storage(f"{store.uri}/{name}").write("", b"cut off")
    assert f"file {store.uri}/{name} has 7 of {size:,} bytes" in failed(job)[f"table {KEYED_STATE}"]
    with pytest.raises(StorageError, match=r"checkpoint 1 cannot be restored: file .* has 7 of .* bytes"):
        restore(job.config, 1, "a test", "somebody")


def overwrite(uri, begin, end):
    """Replace bytes of a file by others."""
    content = bytearray(Storage(uri).read())
    content[begin:end] = bytes(byte ^ 0x5A for byte in content[begin:end])
    Storage(uri).write("", bytes(content))


@pytest.mark.parametrize(("begin", "end"), [(0, None), (0, 40), (-40, None)])
def test_overwritten_files_of_same_size_are_found(job, begin, end):
    store = Storage(job.config.job_folder).table(KEYED_STATE)
    name = min(store.at(1).files())
    overwrite(f"{store.uri}/{name}", begin, end)
    assert f"file {store.uri}/{name} is damaged (" in failed(job)[f"table {KEYED_STATE}"]
    with pytest.raises(
        StorageError, match=rf"checkpoint 1 cannot be restored: file .*{name} is damaged .* of version 1 of state table"
    ):
        restore(job.config, 1, "a test", "somebody")


def test_file_of_other_rows_is_found(job):
    store = Storage(job.config.job_folder).table(KEYED_STATE)
    rows = Storage(store.uri).parquet(min(store.at(1).files()))
    other = Storage(store.uri).stage("other.parquet", pa.concat_tables([rows, rows]))
    assert not unreadable_files(Storage(store.uri), {f"{store.uri}/other.parquet": LoggedFile(other.size, other.rows)})
    (fault,) = unreadable_files(
        Storage(store.uri), {f"{store.uri}/other.parquet": LoggedFile(other.size, rows.num_rows)}
    )
    assert fault.uri.endswith("other.parquet")


@pytest.mark.parametrize("byte", range(4, 48, 8))
def test_full_look_finds_changed_bytes(job, byte):
    store = Storage(job.config.job_folder).table(KEYED_STATE)
    name = min(store.at(1).files())
    overwrite(f"{store.uri}/{name}", byte, byte + 1)
    assert failed(job) == {}
    assert f"file {store.uri}/{name} is damaged" in failed(job, reads_rows=True)[f"table {KEYED_STATE}"]


def test_sink_with_a_file_cut_off_is_found(job):
    store = Storage(job.config.sinks[REMINDERS].table_path).table()
    name = min(store.latest().files())
    Storage(f"{store.uri}/{name}").write("", b"cut off")
    assert f"file {store.uri}/{name} has 7 of" in failed(job)[f"sink {REMINDERS} has whole files"]


def test_lost_versions_are_found(job):
    job.disk.tables[f"state/purchases/{KEYED_STATE}"].pop()
    del job.disk.tables[f"state/purchases/{TIMERS}"]
    problems = failed(job)
    assert set(problems) == {f"table {KEYED_STATE}", f"table {TIMERS}"}
    assert "has versions 0 to 1, not 2" in problems[f"table {KEYED_STATE}"]


@pytest.fixture
def altered(job, monkeypatch):
    """Lets the log have a changed last checkpoint."""
    read = CheckpointLog.refresh

    def alter(**changes):
        def refresh(log):
            read(log)
            log.checkpoints[-1] = replace(log.checkpoints[-1], **changes)

        monkeypatch.setattr(CheckpointLog, "refresh", refresh)

    return alter


def test_gap_between_ids_is_found(job, altered):
    altered(checkpoint_id=4)
    assert failed(job)["checkpoint ids grow"] == "gap or repeat before [4]"


def test_repeated_id_is_found(job, altered):
    altered(checkpoint_id=1)
    assert failed(job)["checkpoint ids grow"] == "gap or repeat before [1]"


def test_versions_that_go_back_are_found(job, altered):
    altered(versions={**job.last.versions, KEYED_STATE: 0})
    assert failed(job)["table versions never go back"] == f"{KEYED_STATE} at checkpoint 2"


def test_unpublished_checkpoint_is_found(job):
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        commit_batch(opened, "cyd")
    problems = failed(job)
    assert set(problems) == {f"sink {BOARD} is published", f"sink {REMINDERS} is published"}
    assert problems[f"sink {BOARD} is published"].endswith("; the next run publishes checkpoint 3")


def test_verify_finds_a_missing_sink(job):
    del job.disk.tables[f"lake/{BOARD}"]
    assert "is gone, but checkpoint 1 was published to it" in failed(job)[f"sink {BOARD} is published"]


def test_new_sink_may_be_missing_rows(memory_job):
    memory_job.run()
    assert failed(memory_job) == {}
    assert detail(memory_job, f"sink {BOARD} is published") == "nothing published yet"
    del memory_job.disk.tables[f"lake/{BOARD}"]
    assert failed(memory_job) == {f"sink {BOARD} is published": "the table is gone; the next run makes an empty one"}


def test_verify_changes_nothing(job):
    before = (dict(job.disk.files), {path: len(versions) for path, versions in job.disk.tables.items()})
    with job.open("holds the job"):
        held = (dict(job.disk.files), {path: len(versions) for path, versions in job.disk.tables.items()})
        verify(job.config)
        after = (dict(job.disk.files), {path: len(versions) for path, versions in job.disk.tables.items()})
    assert after == held != before
