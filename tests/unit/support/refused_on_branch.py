"""Branches of the job that refuses rows: run, compare and promote them in this process."""

from __future__ import annotations

from headrace.commit.branch_code import on_branch
from headrace.edits.fork import fork, log_of
from headrace.edits.promote import promoting
from headrace.local.tasks import LocalTasks
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from tests.unit.support.clocks import used_clock
from tests.unit.support.refused_rows import RefusedJob


class BranchedRefusals:
    """Branch `other` of a `RefusedJob`."""

    def __init__(self, job: RefusedJob) -> None:
        self.job = job
        self._runs = 0

    @property
    def config(self):
        return on_branch(self.job.harness.config, "other")

    def fork(self, at=None, **options):
        with used_clock(self.job.harness.clock):
            return fork(self.job.harness.config, "other", at, "somebody", **options)

    def run(self, **options):
        self._runs += 1
        wishes = RunOptions(run_id=f"branch-{self._runs}", backend=self.job.harness.backend, parallelism=2, **options)
        with used_clock(self.job.harness.clock):
            return run_on(LocalTasks(), self.config, wishes, self.job.harness.events.append)

    def promote(self):
        with used_clock(self.job.harness.clock), promoting(self.job.harness.config, "other", "promotion") as promotion:
            return promotion.promote(allow_other_code=True)

    @property
    def last(self):
        return log_of(self.config).last

    def rows(self):
        taken = Storage(self.config.sinks["arrived"].table_path).table().latest()
        return taken.read(taken.schema).to_pylist()

    def arrived(self):
        return [row["name"] for row in sorted(self.rows(), key=lambda row: row["number"])]

    def quarantine(self):
        view = JobFolder(self.config.job_folder).view(QUARANTINE, self.last.versions[QUARANTINE])
        return sorted(row["position"] for row in view.live_rows())
