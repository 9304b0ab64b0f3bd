"""Kept responses and due timers of the live lineage, for runs of a branch.

Due timers of processing time: without new input, no other check notices them.
"""

from __future__ import annotations

import msgspec

from headrace.api.functions import TimeDomain
from headrace.api.graph import Process
from headrace.commit.protocol import OpenJob
from headrace.config import JobConfig
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.state.timers import DOMAINS
from headrace.storage.predicate import BetweenTimes, Condition, OneOf
from headrace.tables.schemas import ANSWERS, TIMERS


class LiveAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Where a branch finds the kept answers of its job, and for which services it takes them."""

    job_folder: str
    version: int | None
    """Version of the table of answers; None if the job has none."""

    services: tuple[str, ...]
    """Services whose answers are taken."""

    never_called: tuple[str, ...] = ()
    """Those of them that must not be called for an element without answer."""


def live_answers(config: JobConfig, *, allow_effects: bool = False) -> LiveAnswers | None:
    """Return the answers for the runs of a branch, as of the job's last checkpoint; None on the job itself, or if none are taken."""
    services = tuple(name for name, service in config.services.items() if service.takes_answers)
    if config.branch is None or not services:
        return None
    folder = config.itself.job_folder
    last = CheckpointLog(folder, config.storage_options).last
    return LiveAnswers(
        job_folder=folder,
        version=None if last is None else last.versions.get(ANSWERS),
        services=services,
        never_called=() if allow_effects else tuple(name for name in services if config.services[name].effects),
    )


def any_timer_due(job: OpenJob, processing_time: int) -> bool:
    """Return whether a timer of processing time is registered for `processing_time` (ms) or before, as of the last checkpoint.

    Reads only files with such timers, and in them only timers after the moment up to which all have fired, as the checkpoint
    says. Skips timers of operators that the pipeline no longer has.
    """
    operators = [stage.operator.name for stage in plan_of(job.config.code).keyed if isinstance(stage.operator, Process)]
    if not job.versions[TIMERS] or not operators:
        return False  # no row was ever added to the table
    due: int = job.view(TIMERS).where(*conditions_of_due(job, operators, processing_time)).live().num_rows
    return due > 0


def conditions_of_due(job: OpenJob, operators: list[str], processing_time: int) -> list[Condition]:
    """Return conditions on rows of `timers` that select timers which may be due, without those known to have fired."""
    domains = tuple(domain.name for domain in DOMAINS.values() if domain.clock is TimeDomain.PROCESSING_TIME)
    fired = [job.last.timers_fired.get(name, {}).get(TimeDomain.PROCESSING_TIME) for name in operators]
    known = [until for until in fired if until is not None]
    after = min(known) if len(known) == len(fired) else None
    return [
        OneOf("domain", domains),
        OneOf("operator", tuple(operators)),
        BetweenTimes("timestamp", after, processing_time),
    ]
