"""Ranges of key groups that are read one at a time, so that a process never holds a whole state in memory.

All rows of a key are in one key group, so whatever looks at an entry's changes, or at a key's rows, can do so range by range. The
ranges follow from the sizes in the table's log: a small table is one range. One key group is the least: a state of which one group
does not fit into memory needs more groups (`headrace rescale`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from headrace.state.key_groups import KeyGroupRange

RANGE_BYTES: Final = 64 << 20
"""Estimated size in memory of the rows of a range.

Sorting, filtering and writing copy the rows, so a process needs some five times as much. A compaction of 10,000,000 keys peaks
at 550 MB; with 256 MiB at 1.2 GB, and with 16 MiB at 450 MB, but then a rebuild of the state takes a third longer, since ranges
share row groups.
"""

_BYTES_OF_ROW: Final = 256
"""Size in memory of a row with a short key and value."""

_UNPACKED: Final = 4
"""Size in memory of a byte in a file: texts are compressed there."""


def key_group_ranges(files: pa.Table, key_groups: KeyGroupRange, range_bytes: int) -> Iterator[KeyGroupRange]:
    """Divide key groups into ranges whose rows take about `range_bytes` in memory; yield nothing if no file has any of them.

    `files` are the add actions of the table. The rows of a file are taken to be spread evenly over its key groups; a file without
    statistics may have rows of all groups.
    """
    sizes = _sizes(files, key_groups)
    first, held = key_groups.first, 0
    for group, size in enumerate(sizes, key_groups.first):
        if held and size and held + size > range_bytes:
            yield KeyGroupRange(first, group - 1)
            first, held = group, 0
        held += size
    if any(sizes):
        yield KeyGroupRange(first, key_groups.last)


def _sizes(files: pa.Table, key_groups: KeyGroupRange) -> list[int]:
    """Return the estimated size of the rows of each key group."""
    count = key_groups.last - key_groups.first + 1
    changes = [0] * (count + 1)  # from one group to the next
    for file in files.to_pylist():
        low, high = file.get("min.key_group"), file.get("max.key_group")
        low, high = (0, key_groups.last) if low is None or high is None else (low, high)
        begin, end = max(low, key_groups.first) - key_groups.first, min(high, key_groups.last) - key_groups.first + 1
        if begin < end:
            size = -(-_size(file) // (high - low + 1))
            changes[begin] += size
            changes[end] -= size
    return [*accumulate(changes[:count])]


def _size(file: dict[str, Any]) -> int:
    size: int = (file.get("num_records") or 0) * _BYTES_OF_ROW + file["size_bytes"] * _UNPACKED
    return size
