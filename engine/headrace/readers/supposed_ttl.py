"""`headrace state expired --ttl`: the effect that another TTL would have on a state. Nothing is changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec

from headrace.api import StateTtl
from headrace.errors import ConfigError
from headrace.readers.expired import stored_entries_sql
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import ask_once
from headrace.tables.predicate import entries_of
from headrace.tables.row_expiry import dead_sql
from headrace.tables.schemas import KEYED_STATE


class SupposedTtl(msgspec.Struct, frozen=True):
    """Immediate effect of another TTL on a state.

    `keys_that_go` would have no entry left. `entries_that_come_back` have expired now, but are still stored.
    """

    entries: int
    keys: int
    entries_that_go: int
    keys_that_go: int
    entries_that_come_back: int
    was_off: bool
    """True: the state has no TTL now."""


def suppose_ttl(job: JobAtCheckpoint, name: str, ttl: timedelta | None) -> SupposedTtl:
    """Return the effect of declaring another `ttl` for the state `operator.state` (None: no TTL), with all else unchanged."""
    declared = job.ttl.declared()[name]
    operator, _, state = name.partition(".")
    now, after = (dead_sql(job.ttl.expiries_of({name: applied})) for applied in (declared, _with_ttl(declared, ttl)))
    query = f"""
        SELECT count(*) FILTER (NOT now) AS entries, count(DISTINCT key) FILTER (NOT now) AS keys,
               count(*) FILTER (NOT now AND after) AS entries_that_go,
               count(DISTINCT key) FILTER (NOT now) - count(DISTINCT key) FILTER (NOT now AND NOT after) AS keys_that_go,
               count(*) FILTER (now AND NOT after) AS entries_that_come_back
        FROM (SELECT key, {now} AS now, {after} AS after FROM ({stored_entries_sql()}))"""  # noqa: S608 - our own SQL
    (counts,) = ask_once(job.changes(KEYED_STATE, entries_of(operator, states=state)), query).dicts()
    return SupposedTtl(**counts, was_off=declared is None)


def declared_name(job: JobAtCheckpoint, operator: str | None, state: str | None) -> str:
    """Return the name `operator.state` of the declared state with this operator and state (None: any).

    Raises `ConfigError` unless exactly one declared state fits.
    """
    declared = sorted(job.ttl.declared())
    names = [
        name
        for name in declared
        if (operator is None or name.startswith(f"{operator}.")) and (state is None or name.endswith(f".{state}"))
    ]
    if len(names) != 1:
        known = ", ".join(declared) or "none"
        msg = f"name one state, with --state and if necessary --operator (the job declares: {known})"
        raise ConfigError(msg)
    return names[0]


def _with_ttl(declared: StateTtl | None, ttl: timedelta | None) -> StateTtl | None:
    if ttl is None:
        return None
    return StateTtl(ttl) if declared is None else replace(declared, ttl=ttl)
