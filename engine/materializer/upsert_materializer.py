"""The sink upsert materializer in its original form: a list of rows a key (FLIP-544, LEGACY).

Rules, as Flink's operator has them: an addition goes to the end of the key's list (or in place of the
row with the same upsert key) and is emitted; a retraction removes the first matching row, whatever its
kind; removing the last position brings back the row before it, removing the only row deletes the key,
removing any other position is silent.

Rows are compared and stored as JSON. Given the record type, it is first made the one text that equal
rows have: a function may put `5` where a float is declared, and read it back from its state as `5.0`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from engine.api import Emit, RowKind, UpsertMaterialize
from engine.errors import UserFunctionError
from engine.execution.element import Element, output_order
from engine.state.backend import HISTORY, StateBackend, Write
from engine.state.codec import encode


class HistoryRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of a key's history; `row` is JSON text, `inserted_at` the event time (ms)."""

    sequence_number: int
    row: msgspec.Raw
    row_kind: int
    inserted_at: int


class HistoryChange(NamedTuple):
    """A row of a key's history that came, changed, or went (`row` is None)."""

    key_json: bytes
    sequence_number: int
    row: bytes | None
    row_kind: int
    inserted_at: int


class Output(NamedTuple):
    """A row for downstream, as JSON."""

    order: bytes
    kind: RowKind
    key_json: bytes
    raw: bytes


class Unmatched(NamedTuple):
    """A retraction that matched no row."""

    element: Element
    rows_in_history: int


_decode_history = msgspec.json.Decoder(list[HistoryRow]).decode


def history_entry(key_json: bytes) -> bytes:
    """The backend's entry for a key's history."""
    return HISTORY + key_json


def stored_history(rows: Sequence[HistoryRow]) -> bytes:
    """The backend's value for a history."""
    return encode(rows)


class UpsertMaterializer:
    """One materializer in one task. `record` is the type of the rows, by which they are compared."""

    def __init__(
        self, operator: UpsertMaterialize, backend: StateBackend, *, record: type[msgspec.Struct] | None = None
    ) -> None:
        """Bind the operator's histories to `backend`."""
        self.operator = operator
        self.metrics: Counter[str] = Counter()
        self.unmatched: list[Unmatched] = []
        self._backend = backend
        self._stored: dict[bytes, list[HistoryRow]] = {}
        self._live: dict[bytes, list[HistoryRow]] = {}
        self._every: list[Output] = []
        self._last: dict[bytes, Output] = {}
        self._decode = None if record is None else msgspec.json.Decoder(record).decode
        self._upsert_key = _projection(operator.upsert_key)
        upsert_key = {*(operator.upsert_key or ())}
        self._one_row_a_key = bool(upsert_key) and upsert_key <= {*operator.primary_key}

    def run(self, batches: Iterable[Sequence[Element]]) -> None:
        """Take in elements in arrival order.

        Raises `UserFunctionError` for a row that does not fit the record type.
        """
        for batch in batches:
            self._prefetch({element.key_json for element in batch})
            for element in batch if self._decode is None else map(self._canonical, batch):
                self.metrics["records"] += 1
                if element.kind in _RETRACTIONS:
                    self._retract(element)
                else:
                    self._add(element)

    def outputs(self) -> list[Output]:
        """What to send on: every change, or the net change of each key, in arrival order."""
        if self.operator.emit is Emit.EVERY_CHANGE:
            return self._every
        return sorted(self._net_changes())

    def changes(self) -> list[HistoryChange]:
        """What differs from the backend, row by row."""
        found: list[HistoryChange] = []
        for key, rows in self._live.items():
            found += _difference(key, self._stored[key], rows)
        return found

    def writes(self) -> Iterator[Write]:
        """The changed histories as the backend takes them."""
        for key, rows in self._live.items():
            if rows != self._stored[key]:
                yield history_entry(key), stored_history(rows) if rows else None

    def _prefetch(self, keys: Iterable[bytes]) -> None:
        missing = [key for key in keys if key not in self._live]
        found = self._backend.get_many([history_entry(key) for key in missing])
        for key, stored in zip(missing, found, strict=True):
            rows = [] if stored is None else _decode_history(stored)
            self._stored[key] = rows
            self._live[key] = list(rows)

    def _canonical(self, element: Element) -> Element:
        assert self._decode is not None  # noqa: S101 - called only with a record type
        try:
            raw = encode(self._decode(element.raw))
        except msgspec.ValidationError as error:
            key, row = element.key_json.decode(), element.raw[:500].decode(errors="replace")
            why = f"the operator before it sent a row that does not fit: {error}"
            raise UserFunctionError(self.operator.name, key, row, why) from error
        return element if raw == element.raw else element._replace(raw=raw)

    def _add(self, element: Element) -> None:
        rows = self._live[element.key_json]
        kind = RowKind.UPDATE_AFTER if rows else RowKind.INSERT
        position = self._position_of_upsert_key(rows, element.raw)
        if position is None:
            number = rows[-1].sequence_number + 1 if rows else 0
            rows.append(_row(number, element))
        else:
            rows[position] = _row(rows[position].sequence_number, element)
        self._emit(element, kind, element.raw)

    def _retract(self, element: Element) -> None:
        rows = self._live[element.key_json]
        position = self._find(rows, element.raw)
        if position is None:
            self.metrics["unmatched_retractions"] += 1
            self.unmatched.append(Unmatched(element, len(rows)))
            return
        last = position == len(rows) - 1
        del rows[position]
        if not rows:
            self._emit(element, RowKind.DELETE, element.raw)
        elif last:
            self._emit(element, RowKind.UPDATE_AFTER, bytes(rows[-1].row))

    def _find(self, rows: Sequence[HistoryRow], raw: bytes) -> int | None:
        if self._upsert_key is not None:
            return self._position_of_upsert_key(rows, raw)
        for position, row in enumerate(rows):
            if bytes(row.row) == raw:
                return position
        return None

    def _position_of_upsert_key(self, rows: Sequence[HistoryRow], raw: bytes) -> int | None:
        if self._upsert_key is None:
            return None
        if self._one_row_a_key:
            return 0 if rows else None
        wanted = self._upsert_key(raw)
        for position, row in enumerate(rows):
            if self._upsert_key(bytes(row.row)) == wanted:
                return position
        return None

    def _emit(self, element: Element, kind: RowKind, raw: bytes) -> None:
        if self.operator.emit is Emit.EVERY_CHANGE:
            self._every.append(Output(output_order(element.order, 0), kind, element.key_json, raw))
        else:
            self._last[element.key_json] = Output(element.order, kind, element.key_json, raw)

    def _net_changes(self) -> Iterator[Output]:
        """What the last of a key's changes does to the sink, which may hold a row of it or none."""
        for key, output in self._last.items():
            before, after = self._stored[key], self._live[key]
            if not after:
                if before:
                    yield output._replace(kind=RowKind.DELETE)
            elif not before:
                yield output._replace(kind=RowKind.INSERT)
            elif self._changes_sink(before, after):
                yield output._replace(kind=RowKind.UPDATE_AFTER)

    def _changes_sink(self, before: Sequence[HistoryRow], after: Sequence[HistoryRow]) -> bool:
        # A row replaced in place is emitted from where it stands, so among several rows with upsert keys
        # the one that the sink holds need not be the last.
        sink_holds_last = self._upsert_key is None or self._one_row_a_key
        return not sink_holds_last or before[-1].row != after[-1].row


_RETRACTIONS = frozenset(int(kind) for kind in RowKind if kind.is_retraction)


class _Projection:
    """Picks the upsert key's fields out of a row's JSON; NULL equals NULL."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def __call__(self, raw: bytes) -> tuple[bytes, ...]:
        row = self._decode(raw)
        # A record type with `omit_defaults` leaves fields out: then absent equals absent.
        return tuple(bytes(row.get(field, b"")) for field in self._fields)


def _projection(fields: tuple[str, ...] | None) -> _Projection | None:
    return _Projection(fields) if fields else None


def _row(number: int, element: Element) -> HistoryRow:
    return HistoryRow(number, msgspec.Raw(element.raw), element.kind, element.timestamp)


def _difference(key: bytes, before: list[HistoryRow], after: list[HistoryRow]) -> list[HistoryChange]:
    old = {row.sequence_number: row for row in before}
    new = {row.sequence_number: row for row in after}
    gone = [HistoryChange(key, n, None, row.row_kind, row.inserted_at) for n, row in old.items() if n not in new]
    come = [
        HistoryChange(key, n, bytes(row.row), row.row_kind, row.inserted_at)
        for n, row in new.items()
        if old.get(n) != row
    ]
    return gone + come
