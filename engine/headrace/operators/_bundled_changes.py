"""Records of a bundle as changes of an aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.api import RowKind
from headrace.api.bundles import Bundle, BundledRecord
from headrace.operators._accumulators import Change
from headrace.operators._result_record import sign_of

_SIGNS = tuple(sign_of(kind) for kind in RowKind)


def bundled_changes(bundle: Bundle, records: Iterable[BundledRecord]) -> Iterator[Change]:
    """Yield some records of a bundle as changes. While one is applied, it is the bundle's current record."""
    work_on = bundle.work_on
    for record in records:
        work_on(record)
        yield Change(record.record, record.timestamp, _SIGNS[record.kind])
