"""Expiry of stored rows of `keyed_state` (FLIP-25): one rule, as an Arrow mask and as SQL.

The TTL that the job declares today decides. The column `expires_at` does not: it was computed from the TTL that the job
declared when it wrote the row. A row is dead

    with a stamp      if the stamp is at or before the youngest dead one of its lifetime: the state's TTL, or its own `ttl_ms`
    without a stamp   never: no state wrote it, so its age is unknown

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
        lifetimes: EntryLifetimes,
        *,
        watermark: int | None,
        processing_time: int,
    ) -> RowExpiry | None:
        """Return a state's expiry at this moment; None if nothing expires, or its clock has no time yet."""
        live = lifetimes.of(ttl, state)
        if live is None:
            return None
        clock = watermark if live.by_watermark else processing_time
        return None if clock is None else cls(operator, state, live, clock)

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether it belongs to the state and is dead. Without a column `operator`, all rows are its operator's."""
        stamps = rows["last_access"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        dead = pc.less_equal(stamps, self._thresholds(rows["ttl_ms"]))
        of_state = pc.equal(rows["state"], self.state)
        if "operator" in rows.schema.names:
            of_state = pc.and_(of_state, pc.equal(rows["operator"], self.operator))
        return pc.and_(of_state, pc.fill_null(dead, False))

    def _thresholds(self, own_ttls: pa.ChunkedArray) -> pa.ChunkedArray | pa.Scalar:
        """Return the youngest dead stamp for the lifetime of each row, or of all rows; null if rows with that lifetime are alive."""
        if own_ttls.null_count == len(own_ttls):
            return pa.scalar(self.live.dead_until(self.clock), pa.int64())
        own_ttls = pc.fill_null(own_ttls, 0)
        lifetimes = own_ttls.unique()
        youngest = [self.live.dead_until(self.clock, lifetime) for lifetime in lifetimes.to_pylist()]
        return pc.take(pa.array(youngest, pa.int64()), pc.index_in(own_ttls, lifetimes))

    def sql(self, milliseconds: Callable[[str], str] = DUCKDB_MILLISECONDS) -> str:
        """Return an SQL condition for the rows that `mask` marks. `milliseconds` converts a column of times, in the engine's dialect."""
        stamp, youngest = milliseconds("last_access"), self.live.dead_until(self.clock)
        by_state = NEVER_DEAD if youngest is None else f"{stamp} <= {youngest}"
        dead = f"CASE WHEN coalesce(ttl_ms, 0) = 0 THEN {by_state} ELSE {self._own_sql(stamp)} END"
        of_state = f"operator = {literal(self.operator)} AND state = {literal(self.state)}"
        return f"({of_state} AND last_access IS NOT NULL AND {dead})"

    def _own_sql(self, stamp: str) -> str:
        """Return SQL for `stamp <= live.dead_until(clock, ttl_ms)`."""
        counted = self.live.counted
        reading = counted.at(self.clock)
        gaps = [
            f"CASE WHEN ttl_ms <= {reading - at} THEN {length} ELSE 0 END"
            for at, length in counted.stops
            if at < reading
        ]
        dead = f"{stamp} <= {_sum_sql([f'{reading} - ttl_ms', *gaps])}"
        return dead if self.live.since is None else f"{dead} AND ttl_ms <= {reading - counted.at(self.live.since)}"


def rebuild_expiries(
    operator: str,
    declared: Mapping[str, StateTtl | None],
    lifetimes: EntryLifetimes,
    *,
    watermark: int | None,
    processing_time: int,
) -> list[RowExpiry]:
    """Return the expiries of an operator's states, at the start of a micro-batch, for TTLs that clean up when state is loaded."""
    expiries = (
        RowExpiry.of(operator, state, ttl, lifetimes, watermark=watermark, processing_time=processing_time)
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


def _sum_sql(terms: Sequence[str]) -> str:
    """Return SQL for the sum of some terms, as a tree of pairs: parsers allow a depth of 1,000, and a daily job has more gaps."""
    while len(terms) > 1:
        terms = [f"({' + '.join(terms[place : place + 2])})" for place in range(0, len(terms), 2)]
    return terms[0]
