"""Due timers of processing time: without new input, no other check notices them."""

from __future__ import annotations

from headrace.api.functions import TimeDomain
from headrace.api.graph import Process
from headrace.commit.protocol import OpenJob
from headrace.plan.loader import plan_of
from headrace.state.timers import DOMAINS
from headrace.storage.predicate import BetweenTimes, Condition, OneOf
from headrace.tables.schemas import TIMERS


def any_timer_due(job: OpenJob, processing_time: int) -> bool:
    """Return whether a timer of processing time is registered for `processing_time` (ms) or before, as of the last checkpoint.

    Reads only files with such timers, and in them only timers after the timestamp up to which all have fired, as the checkpoint
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
    fired = [job.last.fired_until(name).get(TimeDomain.PROCESSING_TIME) for name in operators]
    known = [until for until in fired if until is not None]
    after = min(known) if len(known) == len(fired) else None
    return [
        OneOf("domain", domains),
        OneOf("operator", tuple(operators)),
        BetweenTimes("timestamp", after, processing_time),
    ]
