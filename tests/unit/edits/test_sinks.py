"""Publishing to sinks, and mismatched sinks and job folders (deltalake, no JVM).

A job commits its own micro-batches: rows for the sinks, and no state.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.commit.protocol import open_job
from headrace.commit.publish import Publisher
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import SinkMismatchError
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog, lease_until
from headrace.plan.loader import plan_of, sink_schemas
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.sink import OutputFile
from headrace.storage.storage import Storage
from headrace.storage.table import ROW_KIND
from headrace.tables.folder import JobFolder
from tests.jobs.home import Home
from tests.jobs.outcome import checkpoints, sink_rows
from tests.jobs.purchases import Line, Reminder
from tests.unit.support.crashes import Killed, dying_at

BOARD, REMINDERS = "lines_by_item", "reminders"
APPLES, BREAD, CHEESE = (Line(item, "ann", 1, 50, 1, False) for item in ("apples", "bread", "cheese"))


class Job:
    """A job whose micro-batches are written by hand, and published as a run does it."""

    def __init__(self, folder):
        self.home = Home(folder)
        self.names = itertools.count()

    @property
    def config(self):
        return self.home.config()

    @property
    def folder(self):
        return Path(self.config.job_folder)

    def sink(self, name=BOARD):
        return Path(self.config.sinks[name].path)

    def run(self, *batches):
        """Commit micro-batches in one opening; a micro-batch is (sink, row kind, row) or empty."""
        with open_job(self.config, "run", create=True) as job:
            for batch in batches:
                checkpoint = job.commit(Kind.BATCH, outputs=self.stage(*batch) if batch else {})
                self.clean_up(checkpoint)

    def stage(self, sink, kind, row):
        schema = sink_schemas(plan_of(self.config.code), self.config.appended)[sink][0]
        rows = pa.Table.from_pylist([msgspec.structs.asdict(row)], schema)
        appends = self.config.sinks[sink].mode == "append"
        if not appends:
            rows = rows.append_column(ROW_KIND, pa.array([kind]))
        name = f"{'' if appends else 'outputs/'}{next(self.names)}.parquet"
        file = Storage(str(self.sink(sink) if appends else self.folder)).stage(name, rows)
        return {sink: [OutputFile(file.path, file.rows, file.size)]}

    def clean_up(self, checkpoint):
        for files in checkpoint.outputs.values():
            for file in files:
                (self.folder / file.path).unlink(missing_ok=True)

    def items(self):
        return [row[-1] for row in sink_rows(self.config, BOARD)]

    def published(self, sink=BOARD):
        return DeltaTable(self.sink(sink)).transaction_version(f"purchases/{sink}")

    def replace(self, table, copy):
        shutil.rmtree(table)
        shutil.copytree(copy, table)

    def findings(self):
        return {finding.check: finding for finding in verify(self.config)}


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.fixture
def lost_records(monkeypatch):
    """A sink whose log does not have the publications of a MERGE without effect."""
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTableSink, "record", lambda *_: None)
        yield patched


def put(row):
    return (BOARD, "+I", row)


def delete(row):
    return (BOARD, "-D", row)


def remind(customer):
    return (REMINDERS, "+I", Reminder(customer, 0, 1, 50))


# ------------------------------------------------------------------------------- a publication without effect


def test_merge_without_effect_records_its_checkpoint(job):
    job.run(put(APPLES), delete(BREAD))
    assert job.published() == 2
    job.run(put(BREAD))
    assert (job.items(), job.published()) == (["apples", "bread"], 3)


def test_delete_of_a_row_removed_by_hand_counts(job):
    job.run(put(APPLES))
    DeltaTable(job.sink()).delete("item = 'apples'")
    job.run(delete(APPLES))
    assert (job.items(), job.published()) == ([], 2)


def test_compaction_and_savepoint_follow_a_merge_without_effect(job):
    job.run(delete(APPLES))
    savepoint(job.config, "before", "", "somebody")
    compact(job.config, "compact")
    job.run(put(APPLES))
    assert job.items() == ["apples"]


def test_every_publication_is_recorded_once(job):
    job.run(put(APPLES), remind("ann"), delete(BREAD))
    versions = [DeltaTable(job.sink(name)).version() for name in (BOARD, REMINDERS)]
    assert ([job.published(BOARD), job.published(REMINDERS)], versions) == ([3, 2], [2, 1])


def test_restore_to_the_present_content_is_recorded(job):
    job.run(put(APPLES), delete(BREAD))
    restore(job.config, 1, "", "restore")
    assert (job.published(), job.items()) == (3, ["apples"])


# ------------------------------------------------------- what is left without its record


def test_outputs_lost_before_publication_are_refused(job, lost_records):
    job.run(put(APPLES), delete(BREAD))
    with pytest.raises(SinkMismatchError, match=r"lacks checkpoint 2, .*outputs/1.parquet is gone.*headrace reconcile"):
        job.run(put(BREAD))
    assert not job.findings()[f"sink {BOARD} is published"].ok


def test_lost_files_of_an_append_sink_are_refused(job, monkeypatch):
    job.run(remind("ann"))
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", lambda *_: 0)
        job.run(remind("bob"))
    (job.sink(REMINDERS) / "1.parquet").unlink()
    with pytest.raises(SinkMismatchError, match="lacks checkpoint 2, which is not published"):
        job.run()
    assert len(sink_rows(job.config, REMINDERS)) == 1


def test_restore_repairs_a_checkpoint_never_published(job, lost_records):
    job.run(put(APPLES), delete(BREAD))
    lost_records.undo()
    restore(job.config, 1, "outputs are gone", "restore")
    job.run(put(BREAD))
    assert (job.items(), job.published()) == (["apples", "bread"], 4)


def test_restore_refuses_a_checkpoint_never_published(job, lost_records):
    job.run(put(APPLES), put(BREAD), delete(CHEESE), ())
    lost_records.undo()
    for _ in range(2):  # while the sink is behind, and afterwards
        with pytest.raises(SinkMismatchError, match="what checkpoint 3 wrote never reached"):
            restore(job.config, 4, "", "restore")
        restore(job.config, 2, "", "restore")
    assert job.items() == ["apples", "bread"]


def test_restore_to_merge_without_effect_before_others(job, lost_records):
    job.run(put(APPLES), delete(BREAD), put(BREAD))
    restore(job.config, 2, "", "restore")
    assert job.items() == ["apples"]


# ---------------------------------------------------------------------------- a log that is older than a sink


@pytest.fixture
def old_log(job, tmp_path):
    """The job after two checkpoints, with its folder as it was after the first."""
    job.run(put(APPLES))
    shutil.copytree(job.folder, tmp_path / "old")
    job.run(put(BREAD))
    shutil.copytree(job.folder, tmp_path / "new")
    job.replace(job.folder, tmp_path / "old")
    return job


WRITERS = {
    "run": lambda config: Job.run(Job(Path(config.file).parents[2]), put(APPLES)),
    "restore": lambda config: restore(config, 0, "", "x"),
    "savepoint": lambda config: savepoint(config, "x", "", "x"),
    "compact": lambda config: compact(config, "x"),
    "vacuum": lambda config: vacuum(config, "x", dry_run=False),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_sink_ahead_of_the_log_is_refused(old_log, write):
    with pytest.raises(SinkMismatchError, match=r"has what checkpoint 2 .* ends at checkpoint 1\.") as caught:
        write(old_log.config)
    assert caught.value.exit_code == 10
    assert [c.checkpoint_id for c in checkpoints(old_log.config)] == [0, 1]


def test_verify_reports_a_sink_ahead_of_the_log(old_log):
    finding = old_log.findings()[f"sink {BOARD} is published"]
    assert (finding.ok, "ends at checkpoint 1" in finding.detail) == (False, True)
    assert old_log.findings()[f"sink {REMINDERS} is published"].ok


def test_verify_allows_for_a_run_meanwhile(job, monkeypatch):
    def run_meanwhile(*_, **__):
        job.run(put(BREAD))
        return ()

    job.run(put(APPLES))
    monkeypatch.setattr("headrace.commit.verify._tables", run_meanwhile)
    finding = job.findings()[f"sink {BOARD} is published"]
    assert (finding.ok, finding.detail) == (True, "published up to checkpoint 2")


def test_newer_copy_of_the_folder_repairs_job(old_log, tmp_path):
    with pytest.raises(SinkMismatchError):
        old_log.run()
    old_log.replace(old_log.folder, tmp_path / "new")
    old_log.run(delete(APPLES))
    assert (old_log.items(), old_log.published()) == (["bread"], 3)


def test_restoring_the_sink_by_hand_does_not_help(old_log):
    DeltaTable(old_log.sink()).restore(1)
    with pytest.raises(SinkMismatchError, match="ends at checkpoint 1"):
        old_log.run()


def test_copies_of_one_moment_continue(job, tmp_path):
    job.run(put(APPLES))
    shutil.copytree(job.home.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    job.run(put(BREAD))
    for name in ("state", "lake"):
        job.replace(tmp_path / name, tmp_path / "copy" / name)
    job.run(put(BREAD))
    assert (job.items(), job.published()) == (["apples", "bread"], 2)


def test_written_sink_is_refused_without_checkpoints(job):
    job.run(put(APPLES))
    shutil.rmtree(job.folder)
    with pytest.raises(SinkMismatchError, match="checkpoint 1 .* has no checkpoints"):
        job.run()


def test_written_sink_is_refused_with_leases_only(job):
    job.run(put(APPLES))
    shutil.rmtree(job.folder)
    log = CheckpointLog(JobFolder(job.config.job_folder))
    log.create()
    log.claim(lease_until("died", "attempt", "host:1:0", 0))
    with pytest.raises(SinkMismatchError, match="checkpoint 1 .* has no checkpoints"):
        job.run()


def test_log_may_end_after_its_sinks(job):
    job.run(put(APPLES))
    savepoint(job.config, "after", "", "somebody")
    job.run((), remind("ann"))
    assert all(finding.ok for finding in job.findings().values())
    job.run(put(BREAD))
    assert job.items() == ["apples", "bread"]


# ---------------------------------------------------------------------------- a sink that is older than its log


@pytest.fixture
def old_sink(job, tmp_path):
    """The job after three checkpoints, with one sink as it was after the first."""
    job.run(put(APPLES))
    shutil.copytree(job.sink(), tmp_path / "old")
    job.run(put(BREAD), remind("ann"))
    job.replace(job.sink(), tmp_path / "old")
    return job


def test_sink_behind_the_log_is_refused(old_sink):
    with pytest.raises(SinkMismatchError, match=r"up to checkpoint 1, but checkpoint 2 .*headrace reconcile") as caught:
        old_sink.run()
    assert caught.value.exit_code == 10


def test_verify_reports_a_sink_behind_a_savepoint(job, tmp_path):
    job.run()
    shutil.copytree(job.sink(), tmp_path / "old")
    job.run(put(APPLES))
    savepoint(job.config, "after", "", "somebody")
    job.replace(job.sink(), tmp_path / "old")
    finding = job.findings()[f"sink {BOARD} is published"]
    assert (finding.ok, "before the first checkpoint, but checkpoint 1" in finding.detail) == (False, True)


def test_restore_takes_job_back_to_old_sink(old_sink):
    restore(old_sink.config, 1, "the sink is an old copy", "restore")
    old_sink.run(put(BREAD))
    assert (old_sink.items(), sink_rows(old_sink.config, REMINDERS)) == (["apples", "bread"], [])
    assert all(finding.ok for finding in old_sink.findings().values())


def test_killed_restore_to_old_sink_publishes_later(old_sink):
    with pytest.raises(Killed), dying_at("commit.after"):
        restore(old_sink.config, 1, "", "restore")
    old_sink.run(put(BREAD))
    assert (old_sink.items(), old_sink.published()) == (["apples", "bread"], 5)


@pytest.fixture
def stuck(job):
    """The job after a restore that was killed before the sinks followed; then a user vacuumed a sink."""
    job.run(put(APPLES))
    job.run(delete(APPLES))

    with pytest.raises(Killed), dying_at("commit.after"):
        restore(job.config, 1, "", "restore")
    DeltaTable(job.sink()).vacuum(0, enforce_retention_duration=False, dry_run=False)
    return job


def test_restore_that_a_sink_cannot_follow_is_refused(stuck):
    with pytest.raises(
        SinkMismatchError, match=r"checkpoint 3 takes the job back to checkpoint 1, .* --to 2"
    ) as caught:
        stuck.run()
    assert caught.value.exit_code == 10


def test_another_restore_frees_a_stuck_job(stuck):
    restore(stuck.config, 2, "the sink was vacuumed", "restore")
    stuck.run(put(BREAD))
    assert stuck.items() == ["bread"]
    assert all(finding.ok for finding in stuck.findings().values())


def test_run_refuses_a_missing_sink(job):
    job.run(put(APPLES))
    job.sink().rename(job.sink().with_name("elsewhere"))
    with pytest.raises(SinkMismatchError, match=rf"{BOARD}.* is gone") as caught:
        job.run()
    assert caught.value.exit_code == 10
    assert not job.sink().exists()


def test_restore_to_the_start_fills_another_path(job):
    job.run(put(APPLES))
    job.home.configure({"sinks": {BOARD: {"path": "lake/elsewhere"}}})
    restore(job.config, 0, "another path", "restore")
    job.run(put(APPLES))
    assert (job.items(), job.published()) == (["apples"], 3)
