"""TTLs that a job declares now, applied at a checkpoint: the rows of keyed state that have expired, and the expiry of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace import clock
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint
from headrace.log.log import CheckpointLog
from headrace.log.ttl import declared_ttls, row_expiries
from headrace.readers.query import Rows, milliseconds, timestamp
from headrace.state.ttl import DeclaredTtls, LiveTtl
from headrace.tables.expiry import DUCKDB_MILLISECONDS, NEVER_DEAD, RowExpiry, dead_sql

if TYPE_CHECKING:
    from headrace.api.ttl import StateTtl


AGE_COLUMNS = ("last_access", "expires_at", "ttl_ms")
"""Columns that decide whether an entry has expired."""


class JobTtl:
    """TTLs that a job declares now, and their clocks.

    The clock of event time is the checkpoint's watermark. The clock of processing time is the time of day, or the
    checkpoint's commit if the user named a checkpoint (`is_now` is false).
    """

    def __init__(self, config: JobConfig, log: CheckpointLog, checkpoint: Checkpoint, *, is_now: bool) -> None:
        """Load the pipeline's TTLs. If it cannot be loaded, set `not_declared`, since the state should be readable nevertheless."""
        self._config = config
        self._checkpoint = checkpoint
        self._now = clock.now() if is_now else checkpoint.lineage_time
        self._paused_since = log.lineage.last_micro_batch() if is_now else None
        self._expiries: list[RowExpiry] | None = None
        self.not_declared: str | None = None
        """Reason why the TTLs are unknown, else None. If they are, the expiry that was stored with an entry counts."""
        try:
            self._expiries = self.expiries_of(self.declared())
        except (ConfigError, TypeError) as error:
            self.not_declared = (
                f"the pipeline cannot be loaded ({error}), so its TTLs are not known: the stored 'expires_at' counts"
            )

    def declared(self) -> dict[str, StateTtl | None]:
        """Return the TTL of every declared state, by `operator.state`.

        Raises `ConfigError` or `TypeError` when the pipeline cannot be loaded.
        """
        from headrace.plan.bindings import load_pipeline
        from headrace.plan.planner import plan_stages

        return declared_ttls(plan_stages(load_pipeline(self._config)))

    def expiries_of(self, declared: DeclaredTtls) -> list[RowExpiry]:
        """Return the expiries of rows if these TTLs were declared, in a micro-batch now, or at the checkpoint's commit."""
        return row_expiries(declared, self._checkpoint, processing_time=self._now, paused_since=self._paused_since)

    @property
    def live(self) -> Mapping[tuple[str, str], LiveTtl]:
        """TTLs that are on, by operator and state. Empty if the TTLs are unknown."""
        return {(expiry.operator, expiry.state): expiry.live for expiry in self._expiries or ()}

    def clock_at(self, operator: str, ttl: LiveTtl, checkpoint: Checkpoint | None) -> int | None:
        """Return the time (ms) on the clock of an operator's TTL at a checkpoint, or now (None)."""
        if ttl.by_watermark:
            return (checkpoint or self._checkpoint).watermark_of(operator)
        return self._now if checkpoint is None else checkpoint.lineage_time

    def dead_sql(self, milliseconds: Callable[[str], str] = DUCKDB_MILLISECONDS) -> str:
        """Return an SQL condition for expired rows of keyed_state; see `RowExpiry.sql`."""
        if self._expiries is not None:
            return dead_sql(self._expiries, milliseconds)
        watermark = self._checkpoint.watermark
        return NEVER_DEAD if watermark is None else f"coalesce({milliseconds('expires_at')} <= {int(watermark)}, false)"

    def with_deaths(self, entries: Rows) -> Rows:
        """Return rows of keyed_state with `expires_at` by the TTLs declared now."""
        if self._expiries is None:
            return entries
        live = self.live
        place = {name: entries.columns.index(name) for name in ("operator", "state", *AGE_COLUMNS)}
        return Rows(entries.columns, [_with_death(row, place, live) for row in entries.rows])


def _with_death(
    row: tuple[Any, ...], place: Mapping[str, int], live: Mapping[tuple[str, str], LiveTtl]
) -> tuple[Any, ...]:
    ttl, stamp = live.get((row[place["operator"]], row[place["state"]])), row[place["last_access"]]
    values = list(row)
    values[place["expires_at"]] = None
    if ttl is not None and stamp is not None:
        end = ttl.expires_at(milliseconds(stamp), row[place["ttl_ms"]] or 0)
        values[place["expires_at"]] = timestamp(end)
    return tuple(values)
