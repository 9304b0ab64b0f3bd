"""Pending corrections: intervals whose input has changed since a job took it in, and the jobs downstream that read its sinks."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.commit.input_changes import input_changes, listed_input
from headrace.config import JobConfig, list_jobs, load_job
from headrace.edits.fork import log_of
from headrace.errors import ConfigError
from headrace.log.intervals import position_of
from headrace.plan.stages import Plan
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.tables.folder import JobFolder


def changed_interval(config: JobConfig, plan: Plan) -> Interval | None:
    """Return the interval from the first to the last one whose input has changed since the job took it in; None without one.

    Looks at the input as it is now, whether a run has met the change or not. Raises the errors of the sources' listings.
    """
    lineage = log_of(config).lineage.checkpoints
    reached = position_of(lineage)
    if reached is None:
        return None
    changes = input_changes(lineage, listed_input(Intake(plan, config), lineage), JobFolder.of(config))
    changed = [own.interval for own in changes if own.interval is not None and own.interval.start < reached]
    if not changed:
        return None
    return Interval(min(own.start for own in changed), min(reached, max(own.end for own in changed)))


def jobs_downstream(config: JobConfig) -> list[str]:
    """Return the jobs of a job's home that read its sinks, and those that read theirs, each behind all jobs that it reads."""
    jobs = {job.job: job for job in _jobs_of(config)}
    readers = {
        name: [other for other, job in jobs.items() if other != name and _reads(job, jobs[name])] for name in jobs
    }
    order: list[str] = []

    def visit(name: str, above: Sequence[str]) -> None:
        if name in order or name in above:
            return
        for reader in reversed(readers[name]):
            visit(reader, [*above, name])
        order.insert(0, name)

    visit(config.job, ())
    return order[1:]


def _jobs_of(config: JobConfig) -> list[JobConfig]:
    """Return all jobs of a home. Those whose files have problems are left out: nothing can be computed with them."""
    jobs = [config]
    for name in list_jobs(config.home):
        if name == config.job:
            continue
        try:
            jobs.append(load_job(name, config.home))
        except ConfigError:
            continue
    return jobs


def _reads(job: JobConfig, other: JobConfig) -> bool:
    """Return whether a job reads the table of a sink of another one."""
    written = {sink.table_path for sink in other.sinks.values()}
    return any(source.path in written for source in job.sources.values())
