"""Lag: each row with one that came some rows before it, on the same history as the materializer's (FLIP-544, "Motivation").

    offset 1    +a      tells (a, -)
                +b      tells (b, a)
                +c      tells (c, b)
                -b      takes (b, a) back, and tells (c, a)

A change concerns the row itself and the `offset` rows after it: the history is walked that far, and no farther.

Rows that die by a TTL do so in silence: what was told of them, and with them, stays told. What is told from then on does
without them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from headrace.api import Lag, RowKind
from headrace.errors import UserFunctionError
from headrace.execution.element import Element
from headrace.materializer.histories import Layout
from headrace.materializer.options import Layouts
from headrace.materializer.ordered_multiset import Identity, Row
from headrace.materializer.upsert_materializer import Output, UpsertMaterializer
from headrace.plan.order import output_order
from headrace.state.backend import StateBackend
from headrace.state.codec import encode


class Lagging(UpsertMaterializer):
    """One lag in one task. Its operator is a `Lag`, and `record` the type of the rows that come in."""

    def __init__(
        self,
        operator: Lag,
        backend: StateBackend,
        *,
        record: type[msgspec.Struct],
        layouts: Layouts | None = None,
        **times: Any,
    ) -> None:
        """Bind the operator's histories to `backend`; see `UpsertMaterializer`."""
        super().__init__(operator, backend, record=record, layouts=layouts, **times)
        self._lag = operator
        self._read = msgspec.json.Decoder(record).decode
        self._told: dict[bytes, Output] = {}

    def outputs(self) -> list[Output]:
        """The net change of each row of the output, in arrival order."""
        return sorted(self._told.values())

    def _take_last(self, batch: Sequence[Element], texts: Sequence[bytes], identities: Sequence[Identity]) -> None:
        for element, raw, identity in zip(batch, texts, identities, strict=True):
            rows = self._histories.live[element.key_json]
            number = rows.find(identity)
            if RowKind(element.kind).is_retraction:
                if number is None:
                    self._count_unmatched(element, raw, rows)
                    continue
                self._take_back(element, rows, number, identity)
            elif number is not None and self._replaces:
                rows.put(identity, raw, element.kind, element.timestamp)
                self._tell(element, RowKind.UPDATE_AFTER, rows, self._from(rows, number))
            else:
                rows.append(identity, raw, element.kind, element.timestamp)
                self._tell(element, RowKind.INSERT, rows, [rows.last()])
            self._histories.switch(element.key_json)

    def _take_back(self, element: Element, rows: Layout, number: int, identity: Identity) -> None:
        gone, *concerned = self._from(rows, number)
        self._tell(element, RowKind.DELETE, rows, [gone])
        rows.remove(identity)
        self._tell(element, RowKind.UPDATE_AFTER, rows, concerned, index=1)

    def _from(self, rows: Layout, number: int) -> list[Row]:
        """The row of this number, and those after it that look back at it."""
        return list(islice(_walk(rows, number), self._lag.offset + 1))

    def _tell(self, element: Element, kind: RowKind, rows: Layout, told: Sequence[Row], index: int = 0) -> None:
        for place, row in enumerate(told, index):
            record = self._made(element, row, self._before(rows, row))
            values = [getattr(record, name) for name in self._lag.primary_key]
            key = encode(values[0] if len(values) == 1 else values)
            self._told[key] = Output(output_order(element.order, place), kind, key, encode(record))

    def _before(self, rows: Layout, row: Row) -> Row | None:
        found: Row | None = row
        for _ in range(self._lag.offset):
            found = None if found is None else rows.before(found[0])
        return found

    def _made(self, element: Element, row: Row, before: Row | None) -> msgspec.Struct:
        records: list[Any] = [None if one is None else self._read(one[1]) for one in (row, before)]
        try:
            return self._lag.function(*records)
        except Exception as error:
            told, key = row[1].decode(errors="replace"), element.key_json.decode()
            raise UserFunctionError(self._lag.name, key, told, traceback.format_exc()) from error


def _walk(rows: Layout, number: int) -> Iterator[Row]:
    found: Row | None = rows.get(number)
    while found is not None:
        yield found
        found = rows.after(found[0])
