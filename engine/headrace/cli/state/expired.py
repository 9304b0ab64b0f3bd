"""Command `headrace state expired`: entries that have expired and are still stored."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Optional

import msgspec
import typer

from headrace.cli.arguments import (
    AsOf,
    At,
    Branch,
    Job,
    Limit,
    OperatorOption,
    StateOption,
    as_of_text,
    load,
    warn,
)
from headrace.names import counted
from headrace.report import Report, Table, facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.readers.job_at import JobAtCheckpoint
    from headrace.readers.query import Rows


def expired(
    job: Job = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    ttl: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="SPAN", help="Show what this TTL (such as 12h, or off) would remove from --state. Changes nothing."
        ),
    ] = None,
    limit: Limit = 20,
    branch: Branch = None,
) -> Report:
    """Show expired entries that are still stored, without values, and when their bytes will be gone.

    With --ttl, show the immediate effect of another TTL on a state: a dry run, before you change the pipeline.

    Example:  headrace state expired flights

    Example:  headrace state expired flights --state legs --ttl 6h

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state, or a wrong duration; 8 when files are gone.
    """
    from headrace.readers.expired import expired_entries
    from headrace.readers.job_at import JobAtCheckpoint

    opened = JobAtCheckpoint(load(job, branch=branch), at, as_of=as_of)
    if as_of is not None:
        warn(as_of_text(opened.log.lineage, opened.checkpoint))
    if ttl is not None:
        return of_supposed(opened, operator, state, ttl)
    warn(opened.ttl.not_declared)
    return of_expired(opened, expired_entries(opened, operator, state, limit))


_OFF = "off"


def of_expired(job: JobAtCheckpoint, entries: Rows) -> Report:
    """Return the report on expired entries, by state and one by one, and when their bytes are gone."""
    from headrace.cli.output import rows_table, typed_rows
    from headrace.readers.expired import expired_states, expiry_compactions, savepoints

    states, compactions, kept_by = expired_states(job), list(expiry_compactions(job)), savepoints(job)
    checkpoint = job.checkpoint.checkpoint_id
    return Report(
        *facts(checkpoint=checkpoint, states=typed_rows(states), entries=typed_rows(entries)),
        *facts(removals=compactions, savepoints=kept_by),
        rows_table(states),
        rows_table(entries, drop=("ttl_ms",)) if states.rows else None,
        _until_gone(job) if states.rows else f"nothing that has expired is stored, at checkpoint {checkpoint}",
        Table.shown(
            ("compaction", "at", "expired entries", "vacuum removes their files from"),
            [(done.checkpoint_id, done.at, done.entries, done.files_until) for done in compactions],
        ),
        _kept(kept_by) if kept_by and (states.rows or compactions) else None,
    )


def _until_gone(job: JobAtCheckpoint) -> str:
    hours = counted(job.config.retention.hours, "hour")
    return (
        f"They are hidden from user code and readers. The next 'headrace maintain {job.config.job}' drops them from the tables;\n"
        f"files that had them stay for {hours} more, and then until 'headrace maintain {job.config.job}' removes them."
    )


def _kept(savepoints: Sequence[str]) -> str:
    return f"Savepoints keep all that was stored then, for ever: {', '.join(savepoints)}."


def of_supposed(job: JobAtCheckpoint, operator: str | None, state: str | None, ttl: str) -> Report:
    """Return the report on the effect of another TTL."""
    from headrace.readers.expired import declared_name, suppose_ttl

    name = declared_name(job, operator, state)
    supposed = suppose_ttl(job, name, _parsed(ttl))
    checkpoint = job.checkpoint.checkpoint_id
    begins = "It has no TTL so far: lifetimes of stored entries begin with the first micro-batch that has one."
    return Report(
        *facts(checkpoint=checkpoint, state=name, ttl=ttl, **msgspec.to_builtins(supposed)),
        f"{name} with a TTL of {ttl}, at checkpoint {checkpoint} (nothing was changed):",
        f"  {supposed.entries_that_go:,} of {counted(supposed.entries, 'entry', 'entries')} would be dead at once,",
        f"  {supposed.keys_that_go:,} of {counted(supposed.keys, 'key')} would have nothing left,",
        f"  {counted(supposed.entries_that_come_back, 'dead entry', 'dead entries')}, still stored, would live again.",
        begins if supposed.was_off and ttl != _OFF else None,
        f"Compact first ('headrace maintain {job.config.job} --state') if they must not."
        if supposed.entries_that_come_back
        else None,
    )


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
