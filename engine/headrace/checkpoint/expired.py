"""What has expired and is still stored, when its bytes are gone, and what another TTL would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from headrace.api import StateTtl
from headrace.checkpoint._query import Rows, ask_once, moment
from headrace.checkpoint.checkpoint import Checkpoint, Kind
from headrace.checkpoint.expiry import is_dead
from headrace.checkpoint.reader import StateReader, equal
from headrace.checkpoint.tables import KEYED_STATE
from headrace.errors import ConfigError

_HOUR = 3_600_000
_SHOWN = "operator, state, key, namespace, user_key, last_access, expires_at, ttl_ms, checkpoint_id"


class Removal(msgspec.Struct, frozen=True):
    """A compaction that dropped expired entries, and from when on a vacuum removes the files that had them."""

    checkpoint_id: int
    at: datetime | None
    entries: int
    files_until: datetime | None


class Supposed(msgspec.Struct, frozen=True):
    """What another TTL would do to a state, at once. Keys that go have no entry left; what comes back is dead now, but stored."""

    entries: int
    keys: int
    entries_that_go: int
    keys_that_go: int
    entries_that_come_back: int
    was_off: bool
    """Whether the state has no TTL so far."""


class ExpiredReader(StateReader):
    """A `StateReader` of what other readers hide."""

    def __init__(self, config: Any, at: int | str | None = None) -> None:
        """See `StateReader`."""
        super().__init__(config, at, with_expired=True)

    def states(self) -> Rows:
        """By operator and state: expired entries that are stored, their keys and bytes, and the oldest stamp among them."""
        query = f"""
            SELECT operator, state, count(*) AS entries, count(DISTINCT key) AS keys,
                   sum(strlen(value))::BIGINT AS bytes, min(last_access) AS oldest
            FROM ({self._live(KEYED_STATE, "raw")}) WHERE {self._is_dead()} GROUP BY ALL ORDER BY ALL"""  # noqa: S608 - our own SQL
        return ask_once(self._changes(KEYED_STATE), query)

    def entries(self, operator: str | None = None, state: str | None = None, limit: int = 50) -> Rows:
        """Expired entries that are stored, the oldest stamps first. Their values are left out."""
        order = f"WHERE {self._is_dead()} ORDER BY last_access, operator, state, key, namespace, user_key LIMIT ?"
        return self._with_deaths(
            self._live_rows(KEYED_STATE, equal(operator=operator, state=state), order, [limit], columns=_SHOWN)
        )

    def removals(self) -> list[Removal]:
        """The compactions that dropped expired entries, newest first."""
        return list(self._removals())

    def savepoints(self) -> list[str]:
        """The savepoints that keep the files they name, whatever a compaction has dropped since."""
        return [at.name or str(at.checkpoint_id) for at in self._log.checkpoints if at.kind is Kind.SAVEPOINT]

    @property
    def retention_hours(self) -> int:
        """For how long the files of a checkpoint stay."""
        return self._config.retention.hours

    def name_of(self, operator: str | None, state: str | None) -> str:
        """`operator.state` of the declared state that is meant.

        Raises `ConfigError` unless it is exactly one.
        """
        declared = sorted(self._declared())
        found = [
            name
            for name in declared
            if (operator is None or name.startswith(f"{operator}.")) and (state is None or name.endswith(f".{state}"))
        ]
        if len(found) != 1:
            known = ", ".join(declared) or "none"
            msg = f"say which state is meant, with --state and if need be --operator (the job declares: {known})"
            raise ConfigError(msg)
        return found[0]

    def suppose(self, name: str, ttl: timedelta | None) -> Supposed:
        """What it would do to the state `operator.state` to declare another `ttl` (None: none at all), all else being equal."""
        declared = self._declared()
        operator, _, state = name.partition(".")
        now, then = (is_dead(self._expiring_by({name: each})) for each in (declared[name], _other(declared[name], ttl)))
        live = self._live(KEYED_STATE, "raw")
        query = f"""
            SELECT count(*) FILTER (NOT now) AS entries, count(DISTINCT key) FILTER (NOT now) AS keys,
                   count(*) FILTER (NOT now AND after) AS entries_that_go,
                   count(DISTINCT key) FILTER (NOT now) - count(DISTINCT key) FILTER (NOT now AND NOT after) AS keys_that_go,
                   count(*) FILTER (now AND NOT after) AS entries_that_come_back
            FROM (SELECT key, {now} AS now, {then} AS after FROM ({live}))"""  # noqa: S608 - our own SQL
        filters = equal(operator=operator, state=state)
        (counts,) = ask_once(self._changes(KEYED_STATE, filters), query).dicts()
        return Supposed(**counts, was_off=declared[name] is None)

    def _removals(self) -> Iterator[Removal]:
        retention = self._config.retention.hours * _HOUR
        known: Mapping[int, Checkpoint] = {each.checkpoint_id: each for each in self._log.checkpoints}
        for at in reversed(self._log.checkpoints):
            entries = at.metrics.get("expired", 0)
            if at.kind is not Kind.COMPACTION or not entries:
                continue
            # The checkpoint before it is the last one that names the files.
            before = known.get(at.parent_id if at.parent_id is not None else -1, at)
            yield Removal(at.checkpoint_id, moment(at.committed_at), entries, moment(before.committed_at + retention))


def _other(declared: StateTtl | None, ttl: timedelta | None) -> StateTtl | None:
    if ttl is None:
        return None
    return StateTtl(ttl) if declared is None else replace(declared, ttl=ttl)
