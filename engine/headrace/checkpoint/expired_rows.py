"""Rows of `keyed_state` that a rebuilt local copy can do without: those of entries that are dead by then (FLIP-25)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import StateTtl
from headrace.state.ttl import Age, Lives


def ages_of(
    declared: Mapping[str, StateTtl | None], lives: Lives, *, watermark: int | None, processing_time: int
) -> dict[str, Age]:
    """By state, who is dead when a micro-batch starts, of the states whose TTL is to clean up what is loaded."""
    found: dict[str, Age] = {}
    for state, ttl in declared.items():
        live = lives.of(ttl, state)
        # What exact cleanup is about to remove has to be there: the removal is for the tables, too.
        if ttl is None or live is None or not ttl.cleanup.at_compaction or ttl.cleanup.exact:
            continue
        clock = watermark if live.by_watermark else processing_time
        if clock is not None:
            found[state] = live.age(clock)
    return found


def removed_if_dead(rows: pa.Table, ages: Mapping[str, Age]) -> pa.Table:
    """The rows, those of dead entries marked as deleted: so they are removed, and not passed over for an older row."""
    deleted = rows["deleted"]
    for state, age in ages.items():
        deleted = pc.or_(deleted, _dead(rows, state, age))
    return rows.set_column(rows.schema.get_field_index("deleted"), "deleted", deleted)


def _dead(rows: pa.Table, state: str, age: Age) -> pa.ChunkedArray:
    stamps = rows["last_access"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    own = pc.fill_null(rows["ttl_ms"], 0)
    dead = pc.and_(pc.equal(own, 0), pc.less_equal(pc.cast(stamps, pa.float64()), age.youngest))
    if pc.any(pc.not_equal(own, 0)).as_py():
        pairs = zip(stamps.to_pylist(), own.to_pylist(), strict=True)
        singly = [bool(ttl) and stamp is not None and age.is_dead(stamp, ttl) for stamp, ttl in pairs]
        dead = pc.or_(pc.fill_null(dead, False), pa.array(singly, pa.bool_()))
    return pc.and_(pc.equal(rows["state"], state), pc.fill_null(dead, False))
