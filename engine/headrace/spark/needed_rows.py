"""Rows of a task that a materializer needs, before records are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from headrace.materializer.last_changes import ChangedKeys, Mask
from headrace.spark.transit import ROWS_AT_ONCE

Needed = Callable[[ChangedKeys], Mask | None]
"""Function that returns which of all changes of a task have an effect; None: all may have one."""


def needed_rows(batches: Iterable[pa.RecordBatch], needed: Needed) -> Iterable[pa.RecordBatch]:
    """Return the rows in transit of a task that have an effect, in batches."""
    batches = list(batches)
    if not batches:
        return batches
    rows = pa.Table.from_batches(batches)
    keys = rows["key"].dictionary_encode().chunks  # all with the same keys
    numbers = np.concatenate([part.indices.to_numpy() for part in keys])
    changes = ChangedKeys(keys[-1].dictionary.to_pylist(), numbers, rows["kind"].to_numpy())
    mask = needed(changes)
    return batches if mask is None else rows.filter(pa.array(mask)).to_batches(ROWS_AT_ONCE)
