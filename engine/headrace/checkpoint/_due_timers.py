"""Whether timers of processing time are due: without new input, nothing else would notice."""

from __future__ import annotations

from headrace.api import Process, TimeDomain
from headrace.checkpoint._compaction import live_entries
from headrace.checkpoint._delta import open_table, read
from headrace.checkpoint.open_job import OpenJob
from headrace.checkpoint.tables import STATE_TABLES, TIMERS
from headrace.plan.pipelines import plan_of
from headrace.state.timer_service import DOMAINS


def any_timer_due(job: OpenJob, processing_time: int) -> bool:
    """Whether a timer of processing time is registered for `processing_time` (ms) or before, as of the last checkpoint.

    Reads only files with such timers (none of a job that never had one), and in them only timers after the moment up to which
    the checkpoint says that all have fired. Timers of operators that the pipeline does not have any more are left alone.
    """
    version = job.versions[TIMERS]
    operators = [each.operator.name for each in plan_of(job.config.code).keyed if isinstance(each.operator, Process)]
    if not version or not operators:
        return False  # nothing was ever added to the table
    table = open_table(job.tables.uri(TIMERS), version=version, storage=job.config.storage_options)
    predicate = " AND ".join(_conditions(job, operators, processing_time))
    changes = read(table, STATE_TABLES[TIMERS].schema, predicate=predicate)
    # A timer that fired is removed by a row with the same time, so none of these is still to be overruled.
    return bool(changes.num_rows and live_entries(changes, TIMERS).num_rows)


def _conditions(job: OpenJob, operators: list[str], processing_time: int) -> list[str]:
    domains = [domain.name for domain in DOMAINS.values() if domain.clock is TimeDomain.PROCESSING_TIME]
    found = [f"domain IN ({_texts(domains)})", f"operator IN ({_texts(operators)})"]
    found.append(f'"timestamp" <= {_moment(processing_time)}')
    fired = [job.last.timers_fired.get(name, {}).get(TimeDomain.PROCESSING_TIME) for name in operators]
    known = [until for until in fired if until is not None]
    if len(known) == len(fired):
        found.append(f'"timestamp" > {_moment(min(known))}')
    return found


def _texts(names: list[str]) -> str:
    return ", ".join(f"'{name!s}'" for name in names)


def _moment(milliseconds: int) -> str:
    return f"arrow_cast({milliseconds * 1000}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
