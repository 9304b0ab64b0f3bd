"""Records of keys over columns, behind the records that are stored of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.api.batches import KeyedColumns
from headrace.operators._running_fields import Layout, Numbers, of_type

_record_of = attrgetter("record")


class ColumnRecords:
    """A stored record of each key, or None, and those of a micro-batch. Places are those of `layout`."""

    def __init__(self, columns: KeyedColumns, stored: Sequence[Any]) -> None:
        """Take the records, and the stored one of each key."""
        self.columns = columns
        self.layout = Layout.of(columns.key_numbers.to_numpy().astype(np.int64), len(stored))
        self._records = stored

    def row_of(self, places: Numbers) -> Numbers:
        """Return the numbers of the records at some places, none of which has a stored record."""
        return self.layout.order[places] - len(self._records)

    def objects(self, rows: Numbers) -> list[Any]:
        """Return some records of the micro-batch as objects, by their numbers."""
        return [*map(_record_of, chain.from_iterable(self.columns.objects(pa.array(rows))))]

    def times(self, places: Numbers) -> list[int]:
        """Return the event times of the records at some places, none of which has a stored record (ms)."""
        times: list[int] = self.columns.timestamps.take(pa.array(self.row_of(places))).to_pylist()
        return times

    @cached_property
    def _stored(self) -> pa.StructArray:
        return self.columns.columns_of(self._records)

    def values(self, name: str, places: Numbers) -> pa.Array:
        """Return a field of the records at some places; null for none."""
        values = pa.concat_arrays([self._stored.field(name), self.columns.records.field(name)])
        return values.take(pa.array(self.layout.order[places]))

    def rows(self, places: Numbers) -> pa.StructArray:
        """Return the records at some places as results, which have fields of them."""
        types = list(self.columns.result_type)
        return pa.StructArray.from_arrays(
            [of_type(self.values(field.name, places), field.type) for field in types], fields=types
        )
