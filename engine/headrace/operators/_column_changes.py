"""Changes of results over columns: which results records replace, and what is emitted for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import EmittedColumns
from headrace.api.records import RowKind
from headrace.operators._running_fields import Flags, Layout, Numbers


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Changes of the results of keys, by place of the `layout`."""

    layout: Layout
    emits: Flags
    """Whether the record emits a change."""
    before: Numbers
    """The place of the result that it replaces."""
    had_result: Flags
    """Whether there was one."""
    has_result: Flags
    """Whether it makes one; if not, it deletes the one before."""

    def times(self, stored: list[int], records: pa.Int64Array) -> Numbers:
        """Return the event time of each result (ms): that of the record that made it, or the stored one."""
        times: Numbers = self.layout.placed(stored, records).to_numpy()
        return times[_latest(self.emits | self.layout.is_stored)]

    def emitted(
        self, times: Numbers, records: Callable[[Numbers], pa.StructArray], *, retract: bool = True
    ) -> EmittedColumns:
        """Return what is emitted, in the order of records: `-U` of the old result, if it is wanted, or `-D`, then the new one.

        `times` are those of the results (ms), and `records` makes the results at some places.
        """
        layout, places = self.layout, np.flatnonzero(self.emits)
        places = places[np.argsort(layout.order[places], kind="stable")]
        shows_old = self.had_result[places] & (retract | ~self.has_result[places])
        outputs = shows_old.astype(np.int64) + self.has_result[places]
        at = np.repeat(places, outputs)
        indices = np.arange(len(at)) - np.repeat(np.cumsum(outputs) - outputs, outputs)
        is_old = (indices == 0) & np.repeat(shows_old, outputs)
        shown = np.where(is_old, self.before[at], at)
        old = np.where(self.has_result[at], RowKind.UPDATE_BEFORE, RowKind.DELETE)
        new = np.where(self.had_result[at], RowKind.UPDATE_AFTER, RowKind.INSERT)
        return EmittedColumns(
            rows=pa.array(layout.order[at] - len(layout.starts)),
            indices=pa.array(indices.astype(np.int32)),
            timestamps=pa.array(times[shown]),
            kinds=pa.array(np.where(is_old, old, new).astype(np.int32)),
            records=records(shown),
        )


def differ(now: pa.Array, earlier: pa.Array) -> Flags:
    """Return for each pair of values whether they differ; null is equal to null, and -0.0 to 0.0."""
    unequal = pc.fill_null(pc.not_equal(now, earlier), False)
    flags: Flags = pc.or_(unequal, pc.xor(now.is_null(), earlier.is_null())).to_numpy(zero_copy_only=False)
    return flags


def are_other(now: pa.Array, earlier: pa.Array) -> Flags:
    """Return for each pair of values whether they differ, or are written otherwise: -0.0 is not 0.0."""
    flags = differ(now, earlier)
    if pa.types.is_floating(now.type):
        flags = flags | (_signs(now) != _signs(earlier))
    return flags


def _signs(values: pa.Array) -> Flags:
    signs: Flags = np.signbit(pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False))
    return signs


def _latest(marked: Flags) -> Numbers:
    """Return for each place the last marked one up to it."""
    return np.maximum.accumulate(np.where(marked, np.arange(len(marked)), 0))
