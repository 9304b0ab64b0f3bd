"""Values of the records of a bundle, for the aggregates that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

from headrace.api.bundles import BundledRecord


class BundledValues:
    """Values of one field in some records, or of a function of them. Records whose value is None are left out.

    All aggregates with the same field share it, so types are looked at once.
    """

    __slots__ = ("_records", "all", "type")

    def __init__(self, read: Callable[[Any], Any], records: Sequence[BundledRecord]) -> None:
        """Read the values of the records."""
        values = [read(record.record) for record in records]
        types = set(map(type, values))
        if NoneType in types:
            types.remove(NoneType)
            records = [record for record, value in zip(records, values, strict=True) if value is not None]
            values = [value for value in values if value is not None]
        self._records = records
        self.all = values
        self.type: type | None = types.pop() if len(types) == 1 else None
        """Type of the values, if all have the same; True is no int here."""

    @property
    def times(self) -> list[int]:
        """Return the event times of the records (ms)."""
        return [record.timestamp for record in self._records]
