"""Output of `headrace state expired`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.names import counted

if TYPE_CHECKING:
    from headrace.readers.job_at_checkpoint import JobAtCheckpoint
    from headrace.readers.query import Rows

_OFF = "off"


def print_expired(job: JobAtCheckpoint, entries: Rows, *, as_json: bool) -> None:
    """Print expired entries, by state and one by one, and when their bytes are gone."""
    from headrace.cli._output import decoded, print_json, records, show, table
    from headrace.readers.expired import expired_states, expiry_compactions, savepoints

    states, compactions, kept_by = expired_states(job), list(expiry_compactions(job)), savepoints(job)
    checkpoint = job.checkpoint.checkpoint_id
    if as_json:
        answer = {"checkpoint": checkpoint, "states": decoded(states), "entries": decoded(entries)}
        print_json({**answer, "removals": compactions, "savepoints": kept_by})
        return
    if states.rows:
        show(records(states), records(entries, drop=("ttl_ms",)))
        show("They are hidden from user code and readers. The next 'headrace compact' drops them from the tables;")
        show(
            f"files that had them stay for {counted(job.config.retention.hours, 'hour')} more, and then until 'headrace vacuum'."
        )
    else:
        show(f"nothing that has expired is stored, at checkpoint {checkpoint}")
    if compactions:
        rows = [
            (compaction.checkpoint_id, compaction.at, compaction.entries, compaction.files_until)
            for compaction in compactions
        ]
        show(table(("compaction", "at", "expired entries", "vacuum removes their files from"), rows))
    if kept_by and (states.rows or compactions):
        show(f"Savepoints keep all that was stored then, for ever: {', '.join(kept_by)}.")


def print_supposed(job: JobAtCheckpoint, operator: str | None, state: str | None, ttl: str, *, as_json: bool) -> None:
    """Print the effect of another TTL."""
    import msgspec

    from headrace.cli._output import print_json, show
    from headrace.readers.supposed_ttl import declared_name, suppose_ttl

    name = declared_name(job, operator, state)
    supposed = suppose_ttl(job, name, _parsed(ttl))
    if as_json:
        answer = {"checkpoint": job.checkpoint.checkpoint_id, "state": name, "ttl": ttl}
        print_json({**answer, **msgspec.to_builtins(supposed)})
        return
    show(
        f"{name} with a TTL of {ttl}, at checkpoint {job.checkpoint.checkpoint_id} (nothing was changed):",
        f"  {supposed.entries_that_go:,} of {counted(supposed.entries, 'entry', 'entries')} would be dead at once,",
        f"  {supposed.keys_that_go:,} of {counted(supposed.keys, 'key')} would have nothing left,",
        f"  {counted(supposed.entries_that_come_back, 'dead entry', 'dead entries')}, still stored, would live again.",
    )
    if supposed.was_off and ttl != _OFF:
        show("It has no TTL so far: lifetimes of stored entries begin with the first micro-batch that has one.")
    if supposed.entries_that_come_back:
        show("Compact first ('headrace compact') if they must not.")


def _parsed(text: str) -> timedelta | None:
    from headrace.config import parse_duration
    from headrace.errors import ConfigError

    if text == _OFF:
        return None
    try:
        ttl = parse_duration(text)
    except ValueError as error:
        msg = f"--ttl: {error}, or '{_OFF}'"
        raise ConfigError(msg) from error
    if not ttl:
        msg = f"--ttl: a TTL must be at least 1 ms, or '{_OFF}'"
        raise ConfigError(msg)
    return ttl
