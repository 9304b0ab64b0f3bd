"""Records of a bundle as changes of an aggregate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.api import RowKind
from headrace.api.bundles import Bundle, BundledRecord
from headrace.operators._accumulators import Change, sign_of
from headrace.operators._unmatched import IN_WINDOW, unmatched

_SIGNS = tuple(sign_of(kind) for kind in RowKind)


class BundledChanges:
    """Some records of a bundle as changes. While one is applied, it is the bundle's current record."""

    __slots__ = ("_bundle", "records")

    def __init__(self, bundle: Bundle, records: Sequence[BundledRecord]) -> None:
        """Take the records, at least one, in arrival order."""
        self._bundle = bundle
        self.records = records

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes, each as the current one."""
        work_on = self._bundle.work_on
        for record in self.records:
            work_on(record)
            yield Change(record.record, record.timestamp, _SIGNS[record.kind])

    def set_aside(self) -> None:
        """Move the current record to the quarantine: a retraction that matches nothing."""
        self._bundle.quarantine(unmatched(RowKind(self._bundle.current.kind), IN_WINDOW))

    def end(self) -> None:
        """Make the last record the current one, as after an iteration."""
        self._bundle.work_on(self.records[-1])
