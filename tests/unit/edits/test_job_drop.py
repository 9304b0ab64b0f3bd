"""A job is deleted completely, by one call or by several; no run starts on a half-deleted job."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from msgspec.structs import replace

from headrace.commit.protocol import open_job
from headrace.commit.run_check import stored_problems
from headrace.edits.drop_job import drop_job, droppable_job
from headrace.errors import ConfigError, FencedError, SinkMismatchError
from headrace.log.lease import JobLease
from headrace.log.log import CheckpointLog
from headrace.log.marks import MARKER
from headrace.plan.loader import plan_of
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS, STATE_TABLES
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.purchase_job import SINK, commit_purchase


@pytest.fixture
def job(new_job):
    """A job with a micro-batch, on each kind of storage."""
    with open_job(new_job, "run", create=True) as opened:
        commit_purchase(opened, "ann")
    return new_job


def stored(config, folder=None):
    return JobFolder.of(config).at(folder or config.job_folder).files()


def opened_and_closed(config, **options):
    with open_job(config, "run", **options):
        pass


@pytest.mark.slow
def test_dry_run_lists_folder_and_sinks(job):
    before = stored(job)
    result = droppable_job(job)
    assert {*STATE_TABLES, CHECKPOINTS} <= {*result.parts}
    assert sum(usage.files for usage in result.parts.values()) == len(before)
    assert [(sink.name, sink.published, sink.refusal) for sink in result.sinks] == [
        (SINK, 1, None),
        ("reminders", -1, None),
    ]
    assert stored(job) == before


@pytest.mark.slow
def test_drop_deletes_the_folder_and_spares_sinks(job):
    job.local_folder.mkdir(parents=True)
    sink = stored(job, job.sinks[SINK].path)
    drop_job(job, "not needed", "somebody")
    assert stored(job) == set()
    assert not job.local_folder.exists()
    assert stored(job, job.sinks[SINK].path) == sink
    with pytest.raises(ConfigError, match="never run, or is dropped already"):
        droppable_job(job)


@pytest.mark.slow
def test_run_after_a_drop_finds_the_old_sinks(job):
    drop_job(job, "not needed", "somebody")
    with (
        pytest.raises(SinkMismatchError, match="has what checkpoint 1 of this job published"),
        open_job(job, "run", create=True),
    ):
        pass


@pytest.mark.slow
def test_drop_with_sinks_allows_a_new_job(job):
    drop_job(job, "not needed", "somebody", sinks=True)
    assert stored(job, job.sinks[SINK].path) == set()
    with open_job(job, "run", create=True) as opened:
        assert commit_purchase(opened, "bob").checkpoint_id == 1


@pytest.mark.slow
def test_held_job_is_left_alone(job):
    before = stored(job)
    with open_job(job, "run"):
        with pytest.raises(FencedError):
            drop_job(job, "not needed", "somebody")
        assert before <= stored(job)
    assert droppable_job(job).marker is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "visit", "sinks"),
    [
        ("drop.marked", 1, True),
        ("drop.half", 1, False),
        ("drop.half", 4, True),
        ("drop.half", 8, False),
        ("drop.deleted", 1, True),
    ],
)
def test_second_drop_finishes_a_crashed_drop(job, place, visit, sinks):
    with pytest.raises(Killed), dying_at(place, visit):
        drop_job(job, "not needed", "somebody", sinks=sinks)
    for create in (True, False):
        with pytest.raises(ConfigError, match="is being dropped .not needed.*headrace drop purchases --apply"):
            opened_and_closed(job, create=create)
    problems = [*stored_problems(job, CheckpointLog(JobFolder.of(job)), plan_of(job.code))]
    assert ["is being dropped" in problem for _, problem in problems] == [True]
    assert droppable_job(job).marker.why == "not needed"
    drop_job(job, "again", "somebody")
    assert stored(job) == set()
    assert (stored(job, job.sinks[SINK].path) == set()) is sinks


@pytest.mark.slow
def test_run_that_opened_before_the_mark_is_refused(job, monkeypatch):
    """The run has read the checkpoints, and claims the job after the drop has marked and released it."""
    claimed = JobLease.claimed

    def after_the_drop(self, **options):
        monkeypatch.undo()
        with pytest.raises(Killed), dying_at("drop.marked"):
            drop_job(job, "not needed", "somebody")
        self._log.refresh()
        return claimed(self, **options)

    monkeypatch.setattr(JobLease, "claimed", after_the_drop)
    with pytest.raises(ConfigError, match="is being dropped"):
        opened_and_closed(job)
    drop_job(job, "not needed", "somebody")
    assert stored(job) == set()


@pytest.mark.slow
def test_sink_of_somebody_else_is_not_deleted(job):
    path = job.sinks["reminders"].path
    rows = pa.table({"customer": ["zed"], "due": [1], "purchases": [1], "cents": [1]})
    write_deltalake(path, rows, mode="append", schema_mode="merge", storage_options=job.credentials)
    before = stored(job)
    with pytest.raises(SinkMismatchError, match="'reminders' at .* was never written by job 'purchases'"):
        drop_job(job, "not needed", "somebody", sinks=True)
    assert stored(job) == before
    drop_job(job, "not needed", "somebody")


@pytest.mark.slow
def test_table_within_a_sink_is_not_deleted(job):
    JobFolder.of(job).at(job.sinks[SINK].path).stage("inner/_delta_log/0.parquet", pa.table({"a": [1]}))
    with pytest.raises(SinkMismatchError, match="has another table in its folder .inner"):
        drop_job(job, "not needed", "somebody", sinks=True)


@pytest.mark.slow
def test_sink_of_another_incarnation_is_not_deleted(job):
    drop_job(job, "not needed", "somebody")
    moved = replace(job, sinks={name: replace(sink, path=f"{sink.path}_new") for name, sink in job.sinks.items()})
    with open_job(moved, "run", create=True) as opened:
        commit_purchase(opened, "bob")
    with pytest.raises(SinkMismatchError, match="is the table of sink '.*' of another incarnation of job 'purchases'"):
        drop_job(job, "not needed", "somebody", sinks=True)


@pytest.mark.slow
def test_folder_without_checkpoints_can_be_dropped(job):
    JobFolder.of(job).remove_folder(CHECKPOINTS)
    drop_job(job, "left over", "somebody")
    assert stored(job) == set()


@pytest.mark.slow
def test_drop_marker_is_deleted_last(job):
    with pytest.raises(Killed), dying_at("drop.deleted"):
        drop_job(job, "not needed", "somebody")
    assert stored(job) == {MARKER}
