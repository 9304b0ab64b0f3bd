"""Lifetimes of values over columns: which keys columns may take although their values expire."""

from __future__ import annotations

import numpy as np

from headrace.api.batches import KeyedColumns
from headrace.api.ttl import StateTtl, TtlTime, UpdateType
from headrace.operators._running_fields import Flags


def columns_see_end(ttl: StateTtl | None) -> bool:
    """Return whether each write begins a lifetime anew, and columns see its end. Pauses and a late TTL only prolong it."""
    if ttl is None:
        return True
    has_one_clock = ttl.expires_by_watermark or ttl.time is TtlTime.PROCESSING
    return ttl.update is not UpdateType.ON_CREATE and has_one_clock and not ttl.cleanup.entries_per_access


def may_expire_before(columns: KeyedColumns, ttl: StateTtl | None) -> Flags:
    """Return for each record whether a value that the record before it has written may have expired by then."""
    marked = np.zeros(len(columns.timestamps), bool)
    if ttl is not None and ttl.is_active and ttl.expires_by_watermark:
        order = np.argsort(columns.key_numbers.to_numpy(), kind="stable")
        keys, ends = columns.key_numbers.to_numpy()[order], columns.timestamps.to_numpy()[order] + ttl.milliseconds
        marked[order[1:]] = (keys[1:] == keys[:-1]) & (ends[:-1] <= columns.watermarks[order[1:]])
    return marked


def last_watermarks(columns: KeyedColumns) -> list[int]:
    """Return for each key the last watermark before its last record (ms)."""
    last = np.empty(len(columns.keys), np.int64)
    last[columns.key_numbers.to_numpy()] = columns.watermarks  # of equal numbers, the last one stays
    watermarks: list[int] = last.tolist()
    return watermarks
