"""Expiry of stored rows of `keyed_state` (FLIP-25): one rule, as an Arrow mask and as SQL.

The TTL that the job declares today decides. The column `expires_at` does not: it was computed from the TTL that the job
declared when it wrote the row. A row is dead

    without a TTL of its own   if its stamp is at or before the youngest dead stamp at the clock
    with `ttl_ms`              if that much time has passed since its stamp, not counting gaps
    without stamp              never: no state wrote it, so its age is unknown

Compaction uses the mask, and so does the rebuilding of a local copy, which leaves out dead rows. Readers use the SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.ttl import StateTtl
from headrace.state.ttl import EntryLifetimes, LiveTtl
from headrace.storage.predicate import literal

NEVER_DEAD = "false"
"""SQL condition for a table in which nothing expires."""

DUCKDB_MILLISECONDS = "epoch_ms({})".format
"""Function that converts a column of times to milliseconds, in the SQL of DuckDB."""


class RowExpiry(NamedTuple):
    """TTL of a state, and the time on its clock (ms)."""

    operator: str
    state: str
    live: LiveTtl
    clock: int

    @classmethod
    def of(
        cls,
        operator: str,
        state: str,
        ttl: StateTtl | None,
        lives: EntryLifetimes,
        *,
        watermark: int | None,
        processing_time: int,
    ) -> RowExpiry | None:
        """Return a state's expiry at this moment; None if nothing expires, or its clock has no time yet."""
        live = lives.of(ttl, state)
        if live is None:
            return None
        clock = watermark if live.by_watermark else processing_time
        return None if clock is None else cls(operator, state, live, clock)

    @property
    def youngest_dead(self) -> int | None:
        """Youngest dead stamp (ms) of rows without a TTL of their own; None if no row is dead."""
        return self.live.dead_until(self.clock)

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether it belongs to the state and is dead. Without a column `operator`, all rows are its operator's."""
        stamps = rows["last_access"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        own_ttls = pc.fill_null(rows["ttl_ms"], 0)
        has_own = pc.not_equal(own_ttls, 0)
        youngest = self.youngest_dead
        by_age = pa.scalar(False) if youngest is None else pc.less_equal(stamps, youngest)
        dead = pc.and_(pc.invert(has_own), by_age)
        if pc.any(has_own).as_py():
            pairs = zip(stamps.to_pylist(), own_ttls.to_pylist(), strict=True)
            of_own_age = [
                bool(ttl) and stamp is not None and self.live.is_dead_at(self.clock, stamp, ttl) for stamp, ttl in pairs
            ]
            dead = pc.or_(pc.fill_null(dead, False), pa.array(of_own_age, pa.bool_()))
        of_state = pc.equal(rows["state"], self.state)
        if "operator" in rows.schema.names:
            of_state = pc.and_(of_state, pc.equal(rows["operator"], self.operator))
        return pc.and_(of_state, pc.fill_null(dead, False))

    def sql(self, milliseconds: Callable[[str], str] = DUCKDB_MILLISECONDS) -> str:
        """Return an SQL condition for the rows that `mask` marks. `milliseconds` converts a column of times, in the engine's dialect."""
        stamp = milliseconds("last_access")
        of_state = f"operator = {literal(self.operator)} AND state = {literal(self.state)}"
        youngest = self.youngest_dead
        by_age = NEVER_DEAD if youngest is None else f"{stamp} <= {youngest}"
        lived = f"{_counted(self.live, self.clock)} - {_counted_sql(self.live, stamp)}"
        dead = f"CASE WHEN coalesce(ttl_ms, 0) = 0 THEN {by_age} ELSE {lived} >= ttl_ms END"
        return f"({of_state} AND last_access IS NOT NULL AND {dead})"


def rebuild_expiries(
    operator: str,
    declared: Mapping[str, StateTtl | None],
    lives: EntryLifetimes,
    *,
    watermark: int | None,
    processing_time: int,
) -> list[RowExpiry]:
    """Return the expiries of an operator's states, at the start of a micro-batch, for TTLs that clean up when state is loaded."""
    expiries = (
        RowExpiry.of(operator, state, ttl, lives, watermark=watermark, processing_time=processing_time)
        for state, ttl in declared.items()
        # Exact cleanup must find the entries that it removes, since it removes them from the tables, too.
        if ttl is not None and ttl.cleanup.at_compaction and not ttl.cleanup.exact
    )
    return [expiry for expiry in expiries if expiry is not None]


def deleted_if_dead(rows: pa.Table, expiries: Iterable[RowExpiry]) -> pa.Table:
    """Mark dead rows as deleted: so their entries are removed, and no older row takes their place."""
    deleted = rows["deleted"]
    for expiry in expiries:
        deleted = pc.or_(deleted, expiry.mask(rows))
    return rows.set_column(rows.schema.get_field_index("deleted"), "deleted", deleted)


def unexpired(rows: pa.Table, expiries: Iterable[RowExpiry]) -> pa.Table:
    """Return the rows that are not dead."""
    for expiry in expiries:
        rows = rows.filter(pc.invert(expiry.mask(rows)))
    return rows


def dead_sql(expiries: Iterable[RowExpiry], milliseconds: Callable[[str], str] = DUCKDB_MILLISECONDS) -> str:
    """Return an SQL condition for dead rows; see `RowExpiry.sql`."""
    return f"({' OR '.join(expiry.sql(milliseconds) for expiry in expiries) or NEVER_DEAD})"


def _counted(live: LiveTtl, time: int) -> int:
    """Return the time (ms) that has counted until `time`: all time except gaps."""
    return time - sum(max(0, min(time, end) - start) for start, end in live.gaps)


def _counted_sql(live: LiveTtl, stamp: str) -> str:
    """Return SQL for the time (ms) that has counted until an entry's stamp."""
    if live.since is not None:
        stamp = f"greatest({stamp}, {live.since})"
    gaps = [f"greatest(0, least({stamp}, {end}) - {start})" for start, end in live.gaps]
    return f"({stamp} - {_sum_sql(gaps)})" if gaps else stamp


def _sum_sql(terms: Sequence[str]) -> str:
    """Return SQL for the sum of some terms, as a tree of pairs: parsers allow a depth of 1,000, and a daily job has more gaps."""
    while len(terms) > 1:
        terms = [f"({' + '.join(terms[place : place + 2])})" for place in range(0, len(terms), 2)]
    return terms[0]
