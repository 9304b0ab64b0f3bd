"""The table that a changelog describes."""

from __future__ import annotations

from collections import Counter

import msgspec

from headrace import RowKind


class ChangelogTable:
    """Rows with their numbers. A retracted row must exist."""

    def __init__(self):
        self.rows = Counter()

    def apply(self, kind, record):
        row = msgspec.json.encode(record)
        if RowKind(kind).is_retraction:
            assert self.rows[row] > 0, (kind, record)
            self.rows[row] -= 1
        else:
            self.rows[row] += 1

    def records(self, record):
        """The rows as records of a type, sorted by their fields."""
        rows = [msgspec.json.decode(row, type=record) for row in (+self.rows).elements()]
        return sorted(rows, key=lambda row: repr(msgspec.structs.astuple(row)))


def table_of(changes, record):
    """Return the remaining records of changes, sorted by their fields."""
    table = ChangelogTable()
    for kind, changed in changes:
        table.apply(kind, changed)
    return table.records(record)


def by_fields(records):
    """Records, sorted by their fields."""
    return sorted(records, key=lambda row: repr(msgspec.structs.astuple(row)))
