"""Whether timers of processing time are due: without new input, nothing else would notice."""

from __future__ import annotations

from engine.api import TimeDomain
from engine.checkpoint._compaction import live_entries
from engine.checkpoint._delta import open_table, read
from engine.checkpoint.open_job import OpenJob
from engine.checkpoint.tables import STATE_TABLES, TIMERS


def any_timer_due(job: OpenJob, processing_time: int) -> bool:
    """Whether a timer of processing time is registered for `processing_time` (ms) or before, as of the last checkpoint.

    Reads only files with such timers: none of a job that never had one.
    """
    version = job.versions[TIMERS]
    if not version:
        return False  # nothing was ever added to the table
    table = open_table(job.tables.uri(TIMERS), version=version, storage=job.config.storage_options)
    moment = f"arrow_cast({processing_time * 1000}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    predicate = f"domain = '{TimeDomain.PROCESSING_TIME.value}' AND \"timestamp\" <= {moment}"
    changes = read(table, STATE_TABLES[TIMERS].schema, predicate=predicate)
    # A timer that fired is removed by a row with the same time, so none of these is still to be overruled.
    return bool(changes.num_rows and live_entries(changes, TIMERS).num_rows)
