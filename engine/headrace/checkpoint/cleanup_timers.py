"""Finding the cleanup timers of given keys in the delta backend, whenever they fire.

The table is sorted by time, so the keys' timers may lie in any file that has cleanup timers: exact cleanup costs a delta
backend one read of those for each task, where a local copy has them at hand.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from headrace.checkpoint.pruned_rows import Extent
from headrace.state.cleanup_timer import CLEANUP_DOMAINS


class CleanupTimersOf:
    """A `Selection` of the cleanup timers of some keys."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """`keys` are JSON texts."""
        self._keys = sorted(keys)

    def may_be_in(self, extent: Extent, /) -> bool:
        """See `Selection.may_be_in`."""
        if "domain" in extent:
            low, high = extent["domain"]
            if not any(low <= domain.encode() <= high for domain in CLEANUP_DOMAINS):
                return False
        if "key" not in extent:
            return True
        low, high = extent["key"]
        return any(low <= key <= high for key in self._keys)

    def among(self, rows: pa.Table, /) -> pa.Array:
        """See `Selection.among`."""
        of_keys = pc.is_in(rows["key"], pa.array([key.decode() for key in self._keys], pa.string()))
        return pc.and_(of_keys, pc.is_in(rows["domain"], pa.array(CLEANUP_DOMAINS, pa.string())))
