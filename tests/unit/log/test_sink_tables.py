"""Commands that load no user code: the necessary facts about the sinks are stored with the checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.config._types import PipelineCode
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.log.declared import to_schemas, to_stored
from headrace.plan.loader import plan_of, sink_schemas
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.waiting import list_quarantine
from tests.jobs.home import PROJECT
from tests.unit.edits.test_sinks import APPLES, BOARD, BREAD, Job, put, remind
from tests.unit.support.crashes import Killed, dying_at


class GoneJob(Job):
    """A job whose code may be gone."""

    is_gone = False

    @property
    def config(self):
        config = self.home.config()
        return msgspec.structs.replace(config, pipeline="gone.away:pipeline") if self.is_gone else config


@pytest.fixture
def job(tmp_path):
    return GoneJob(tmp_path)


@pytest.mark.parametrize("pipeline", ["tests.jobs.purchases:pipeline", "tests.jobs.clicks:pipeline"])
def test_stored_tables_equal_those_of_the_plan(pipeline):
    schemas = sink_schemas(plan_of(PipelineCode(pipeline, str(PROJECT))))
    assert to_schemas(to_stored(schemas)) == schemas


def test_maintenance_commands_need_no_user_code(job):
    job.run(put(APPLES), put(BREAD))
    job.is_gone = True
    savepoint(job.config, "kept", "why", "run")
    restore(job.config, 1, "why", "run")
    assert vacuum(job.config, "run", dry_run=False) == []
    assert {finding.check: finding.ok for finding in verify(job.config)}[f"sink {BOARD} has one row a key"]
    assert job.items() == ["apples"]


def test_reading_the_quarantine_needs_no_user_code(job):
    job.run(put(APPLES))
    job.is_gone = True
    assert list_quarantine(JobAtCheckpoint(job.config), 10).rows == []


@pytest.mark.parametrize("batch", [put(APPLES), remind("ann")], ids=["merge", "append"])
def test_publishing_needs_no_user_code(job, batch):
    with pytest.raises(Killed), dying_at("commit.after"), open_job(job.config, "run", create=True) as opened:
        opened.commit(Kind.BATCH, outputs=job.stage(*batch))
    job.is_gone = True
    savepoint(job.config, "kept", "why", "run")
    assert job.published(batch[0]) == 1


def test_compaction_without_user_code_is_refused(job):
    job.run(put(APPLES))
    job.is_gone = True
    with pytest.raises(ConfigError, match="gone"):
        compact(job.config, "run")


def test_restore_skips_sink_unknown_to_runs(job):
    job.run(put(APPLES), put(BREAD))
    job.home.configure({"sinks": {"later": {"path": "lake/later", "mode": "append"}}})
    restore(job.config, 1, "before the new sink", "run")
    assert job.items() == ["apples"]
