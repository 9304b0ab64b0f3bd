"""Lag: each row with an earlier row of its partition, on the materializer's history (FLIP-544, "Motivation").

    offset 1    +a      emits (a, -)
                +b      emits (b, a)
                +c      emits (c, b)
                -b      retracts (b, a), and emits (c, a)

A change affects the row itself and the `offset` rows after it: only these rows of the history are read.

Nothing is emitted for rows that expire by a TTL: results that contain them stay in the sink. Later results are made
without them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

import msgspec

from headrace.api.graph import LagNode
from headrace.api.records import RowKind
from headrace.errors import UserFunctionError
from headrace.execution.element import Element
from headrace.interrupts import is_interrupt
from headrace.materializer.histories import Layout
from headrace.materializer.identities import ChangedKeys, Mask
from headrace.materializer.ordered_multiset import Identity, Row
from headrace.materializer.upsert_materializer import Output, UpsertMaterializer
from headrace.options import Layouts
from headrace.records.order import output_order
from headrace.state.backend import StateBackend
from headrace.state.codec import encode


class Lagging(UpsertMaterializer):
    """One lag operator in one task. Its operator is a `LagNode`, and `record` the type of the input rows."""

    _reads_beside: ClassVar[bool] = True

    def __init__(
        self,
        operator: LagNode,
        backend: StateBackend,
        *,
        record: type[msgspec.Struct],
        layouts: Layouts | None = None,
        **times: Any,
    ) -> None:
        """Bind the operator's histories to `backend`, as `UpsertMaterializer` does."""
        super().__init__(operator, backend, record=record, layouts=layouts, **times)
        self._lag = operator
        self._read = msgspec.json.Decoder(record).decode
        self._outputs: dict[bytes, Output] = {}

    def needed(self, changes: ChangedKeys) -> Mask | None:  # noqa: ARG002 - the base class has it
        """Return None: each change has an effect."""
        return None

    def outputs(self) -> list[Output]:
        """Return the net change of each row of the output, in arrival order."""
        return sorted(self._outputs.values())

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
                self._emit(element, RowKind.UPDATE_AFTER, rows, self._affected(rows, number))
            else:
                rows.append(identity, raw, element.kind, element.timestamp)
                self._emit(element, RowKind.INSERT, rows, [rows.last()])
            self._histories.switch(element.key_json)

    def _take_back(self, element: Element, rows: Layout, number: int, identity: Identity) -> None:
        removed, *following = self._affected(rows, number)
        self._emit(element, RowKind.DELETE, rows, [removed])
        rows.remove(identity)
        self._emit(element, RowKind.UPDATE_AFTER, rows, following, index=1)

    def _affected(self, rows: Layout, number: int) -> list[Row]:
        """Return the row of this number, and the following rows whose results contain it."""
        return list(islice(_walk(rows, number), self._lag.offset + 1))

    def _emit(self, element: Element, kind: RowKind, rows: Layout, rows_to_emit: Sequence[Row], index: int = 0) -> None:
        for place, row in enumerate(rows_to_emit, index):
            record = self._record_of(element, row, self._before(rows, row))
            values = [getattr(record, name) for name in self._lag.primary_key]
            key = encode(values[0] if len(values) == 1 else values)
            self._outputs[key] = Output(output_order(element.order, place), kind, key, encode(record))

    def _before(self, rows: Layout, row: Row) -> Row | None:
        earlier: Row | None = row
        for _ in range(self._lag.offset):
            earlier = None if earlier is None else rows.before(earlier[0])
        return earlier

    def _record_of(self, element: Element, row: Row, before: Row | None) -> msgspec.Struct:
        records: list[Any] = [None if entry is None else self._read(entry[1]) for entry in (row, before)]
        try:
            return self._lag.function(*records)
        except BaseException as error:
            if is_interrupt(error):
                raise
            row_text, key = row[1].decode(errors="replace"), element.key_json.decode()
            raise UserFunctionError(self._lag.name, key, row_text, traceback.format_exc()) from error


def _walk(rows: Layout, number: int) -> Iterator[Row]:
    row: Row | None = rows.get(number)
    while row is not None:
        yield row
        row = rows.after(row[0])
