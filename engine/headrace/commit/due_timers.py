"""Whether timers of processing time are due: without new input, nothing else would notice."""

from __future__ import annotations

from headrace.api import Process, TimeDomain
from headrace.commit.protocol import OpenJob
from headrace.plan.pipelines import plan_of
from headrace.state.timer_service import DOMAINS
from headrace.tables.predicate import BetweenTimes, Condition, OneOf
from headrace.tables.schemas import TIMERS


def any_timer_due(job: OpenJob, processing_time: int) -> bool:
    """Whether a timer of processing time is registered for `processing_time` (ms) or before, as of the last checkpoint.

    Reads only files with such timers (none of a job that never had one), and in them only timers after the moment up to which
    the checkpoint says that all have fired. Timers of operators that the pipeline does not have any more are left alone.
    """
    operators = [each.operator.name for each in plan_of(job.config.code).keyed if isinstance(each.operator, Process)]
    if not job.versions[TIMERS] or not operators:
        return False  # nothing was ever added to the table
    # A timer that fired is removed by a row with the same time, so none of these is still to be overruled.
    due: int = job.view(TIMERS).where(*conditions_of_due(job, operators, processing_time)).live().num_rows
    return due > 0


def conditions_of_due(job: OpenJob, operators: list[str], processing_time: int) -> list[Condition]:
    """Return the conditions on rows of `timers` that may be due: what is known to have fired is left out."""
    domains = tuple(domain.name for domain in DOMAINS.values() if domain.clock is TimeDomain.PROCESSING_TIME)
    fired = [job.last.timers_fired.get(name, {}).get(TimeDomain.PROCESSING_TIME) for name in operators]
    known = [until for until in fired if until is not None]
    after = min(known) if len(known) == len(fired) else None
    return [
        OneOf("domain", domains),
        OneOf("operator", tuple(operators)),
        BetweenTimes("timestamp", after, processing_time),
    ]
