"""Sink upsert materializer (FLIP-544): applies a changelog, whose rows may be out of order, to a table by primary key.

It follows the rules of Flink's operator. An addition goes to the end of the key's history (or replaces the row with the
same upsert key) and is emitted. A retraction removes the first matching row, whatever its kind: removing the last row
emits the row before it, removing the only row deletes the key, removing any other row emits nothing.

`on_conflict` (FLIP-558) changes the rules where several rows are left when the watermark has passed them: DO_NOTHING
shows the first row instead of the last, DEDUPLICATE removes the rows before the last one, ERROR fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import ClassVar, NamedTuple

import msgspec

from headrace.api.graph import Emit, OnConflict, UpsertMaterialize
from headrace.api.records import RowKind
from headrace.execution.element import Element, Watermark
from headrace.materializer.dict_layout import DictLayout
from headrace.materializer.histories import Histories, HistoryChange, Layout
from headrace.materializer.identities import ChangedKeys, IdentifiedRows, Mask, canonical, json_names
from headrace.materializer.ordered_multiset import ALL, LAST, NOTHING, OTHER, Identity, Removal
from headrace.materializer.row_lifetimes import RowLifetimes
from headrace.options import Layouts, MaterializerOptions
from headrace.records.order import FIRST_OUTPUT
from headrace.state.backend import StateBackend, Write
from headrace.state.timers import TimerChange

LONG_HISTORY = 10_000
"""Number of rows from which a history is reported as long: it is as fast as a short one, but nothing ever removes its rows."""


class Output(NamedTuple):
    """A row to emit, as JSON."""

    order: bytes
    kind: RowKind
    key_json: bytes
    raw: bytes


make_output = partial(tuple.__new__, Output)
"""Make an output from a tuple of all fields: a named tuple's own constructor is Python code."""


class Unmatched(NamedTuple):
    """A retraction that matched no row; `row` is its JSON."""

    element: Element
    row: bytes
    rows_in_history: int


INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
_RETRACTIONS = frozenset(int(kind) for kind in RowKind if kind.is_retraction)


_KEY = itemgetter(3)
"""Returns the key of an element."""

_AT_ONCE = 500
"""Number of elements that are read together."""

_TAKEN_OUT = ("taken out",)
"""Identity that no other row has, for the row to take out."""


class UpsertMaterializer:
    """One materializer in one task. `record` is the type of the rows, by which they are compared."""

    _reads_beside: ClassVar[bool] = False
    """Whether changes read the rows beside their own."""

    def __init__(
        self,
        operator: UpsertMaterialize,
        backend: StateBackend,
        *,
        record: type[msgspec.Struct] | None = None,
        layouts: Layouts | None = None,
        watermark: int | None = None,
        watermarks: Sequence[Watermark] = (),
        processing_time: int = 0,
        ttl_since: int | None = None,
        from_columns: bool = False,
    ) -> None:
        """Bind the operator's histories to `backend`.

        `layouts` are by default those of the operator's strategy on the hashmap backend. `watermark` is the last
        watermark before the records, `watermarks` are those among and after them, `processing_time` is that of the
        micro-batch (ms). `ttl_since` is the time at which TTL was enabled for existing histories (ms): no lifetime
        begins before it. `from_columns` says that the rows come from columns, as in a micro-batch: these need no check.
        """
        layouts = layouts or MaterializerOptions().layouts(operator.strategy, "hashmap")
        upsert_key = operator.upsert_key or ()
        one_a_key = bool(upsert_key) and {*upsert_key} <= {*operator.keyed_by}
        self.operator = operator
        self.metrics: Counter[str] = Counter()
        self.unmatched: list[Unmatched] = []
        self._rows = IdentifiedRows(operator.name, record, upsert_key, one_a_key=one_a_key, from_columns=from_columns)
        # Where a key has only one row, it is found by a field that no row has.
        by = ("",) if one_a_key else json_names(record, upsert_key)
        shows_first = operator.shows_first
        has_lifetimes = operator.ttl is not None or operator.on_conflict is not OnConflict.KEEP_HISTORY
        self._histories = Histories(
            backend,
            layouts,
            self._rows.identity_of,
            by=by,
            ages=operator.ttl is not None,
            linked=has_lifetimes or shows_first or self._reads_beside,
        )
        self._emitted: list[tuple[bytes, RowKind, bytes, bytes]] = []
        self._grown_at, self._shrunk_at = layouts.grown_at, layouts.shrunk_at
        self._replaces = bool(upsert_key)
        self._has_one_row = one_a_key
        self._moves = operator.on_conflict is OnConflict.DEDUPLICATE and self._replaces and not one_a_key
        self._shows_first = shows_first
        self._sink_holds_end = not operator.may_show_another
        self._lifetimes: RowLifetimes | None = None
        if has_lifetimes:
            self._lifetimes = RowLifetimes(
                operator,
                layouts.strategy,
                backend,
                self._histories,
                watermark=watermark,
                watermarks=watermarks,
                processing_time=processing_time,
                since=ttl_since,
            )

    def needed(self, changes: ChangedKeys) -> Mask | None:
        """Return which of all changes have an effect, and count the others; None: all may have one. Called before `run`."""
        if not self._has_one_row or self._lifetimes is not None or self._shows_first:
            return None
        if self.operator.emit is Emit.EVERY_CHANGE:
            return None
        self._histories.load(changes.keys)
        if not self._histories.are_short:
            return None
        needed = changes.last_of_one_row()
        self.metrics["records"] += len(needed) - int(needed.sum())
        return needed

    def run(self, batches: Iterable[Sequence[Element]]) -> None:
        """Process elements in arrival order; then apply all ends up to the last watermark.

        Raises `UserFunctionError` for a row with a number that JSON cannot represent, and for a conflict that is an
        error.
        """
        for batch in batches:
            self.take(batch)
        if self._lifetimes is not None:
            self._lifetimes.finish()
            self.metrics += self._lifetimes.metrics

    def take(self, batch: Sequence[Element]) -> None:
        """Process some elements."""
        keys = dict.fromkeys(map(_KEY, batch))
        self._histories.load(keys)
        self.metrics["records"] += len(batch)
        if self._lifetimes is not None:
            self._lifetimes.remember(keys)
        # What is read of a few elements is still in the processor's cache when they are taken.
        size = len(batch) if self._histories.is_partial else _AT_ONCE
        for first in range(0, len(batch), size or 1):
            self._take_part(batch[first : first + size])

    def _take_part(self, batch: Sequence[Element]) -> None:
        texts, identities = self._rows.read_for_history(batch)
        if self._histories.is_partial:
            self._histories.prefetch(
                (element[3], identity) for element, identity in zip(batch, identities, strict=True)
            )
        if self._lifetimes is not None:
            self._take_living(batch, texts, identities, self._lifetimes)
        elif self._shows_first:
            self._take_first(batch, texts, identities)
        else:
            self._take_last(batch, texts, identities)

    def take_out(self, retraction: Element, number: int) -> None:
        """Process the retraction of the row with this number, which the key must have, even where equal rows stand before it."""
        key = retraction.key_json
        self._histories.load([key])
        if self._lifetimes is not None:
            self._lifetimes.remember([key])
        rows = {row[0]: (identity, row) for identity, row in self._histories.live[key].entries()}
        _, row = rows[number]
        rows[number] = (_TAKEN_OUT, row)
        self._histories.replace(key, rows.values())
        if self._lifetimes is None:
            take = self._take_first if self._shows_first else self._take_last
            take([retraction], [row[1]], [_TAKEN_OUT])
        else:
            self._take_living([retraction], [row[1]], [_TAKEN_OUT], self._lifetimes)
            self._lifetimes.finish()

    def outputs(self) -> list[Output]:
        """Return the rows to emit: every change, or the net change of each key, in arrival order."""
        if self.operator.emit is Emit.EVERY_CHANGE:
            return [make_output((order + FIRST_OUTPUT, kind, key, raw)) for order, kind, key, raw in self._emitted]
        return sorted(self._net_changes())

    def changes(self) -> list[HistoryChange]:
        """Return the differences from the backend, row by row."""
        long = sum(layout.size >= LONG_HISTORY for layout in self._histories.live.values())
        if long:
            self.metrics["long_histories"] = long
        return self._histories.changes()

    def writes(self) -> Iterator[Write]:
        """Return the changed histories as writes to the backend."""
        return self._histories.writes()

    def rows_of(self, key_json: bytes) -> list[bytes]:
        """Return the rows of a key in order, as JSON. For tests and tools."""
        self._histories.load([key_json])
        return [row[1] for _, row in self._histories.live[key_json].entries()]

    def sizes(self, entries: Iterable[bytes]) -> list[tuple[int, bool]]:
        """Return the size of each history among a backend's entries, and whether it is stored as a map."""
        return self._histories.sizes(entries)

    def timer_changes(self) -> list[TimerChange]:
        """Return the sweeps that differ from the backend's."""
        return [] if self._lifetimes is None else self._lifetimes.timer_changes()

    def timer_writes(self, changes: Sequence[TimerChange]) -> Iterable[Write]:
        """Return `changes` of sweeps as writes to the backend."""
        return () if self._lifetimes is None else self._lifetimes.timer_writes(changes)

    def _take_last(self, batch: Sequence[Element], texts: Sequence[bytes], identities: Sequence[Identity]) -> None:
        """Process a batch where rows have no lifetime and the last one is shown: the loop in which all time is spent."""
        live, emit, switch = self._histories.live, self._emitted.append, self._histories.switch
        replaces, grown_at, shrunk_at, retractions = self._replaces, self._grown_at, self._shrunk_at, _RETRACTIONS
        for element, raw, identity in zip(batch, texts, identities, strict=True):
            order, at, kind, key, _, _ = element
            rows = live[key]
            size = rows.size
            if kind not in retractions:
                emit((order, UPDATE_AFTER if size else INSERT, key, raw))
                if type(rows) is DictLayout:
                    # This is `append`, and `put`, for a new identity, inlined: most rows of a long history take this path.
                    number = rows.last_number + 1
                    if rows.numbers.setdefault(identity, number) is number:
                        rows.rows[number] = (number, raw, kind, at)
                        rows.last_number = number
                        rows.size = size + 1
                        continue
                if replaces:
                    rows.put(identity, raw, kind, at)
                else:
                    rows.append(identity, raw, kind, at)
                if size >= grown_at - 1 and not rows.is_map and rows.size >= grown_at:
                    switch(key)
                continue
            if (
                type(rows) is DictLayout
                and size > shrunk_at + 1
                and not rows.copies
                and rows.numbers.get(identity, rows.last_number) != rows.last_number
            ):
                # This is `remove` for a row that is not the last, inlined as well.
                del rows.rows[rows.numbers.pop(identity)]
                rows.size = size - 1
                continue
            removed = rows.remove(identity)
            if removed is not OTHER:
                self._show_removal(removed, element, raw, rows)
            if rows.is_map and rows.size <= shrunk_at:
                switch(key)

    def _show_removal(self, removed: Removal, element: Element, raw: bytes, rows: Layout) -> None:
        """Emit the effect of a retraction that did not just remove a row before the last."""
        order, _, _, key, record, _ = element
        if removed is LAST:
            self._emitted.append((order, UPDATE_AFTER, key, rows.last()[1]))
        elif removed is ALL:
            self._emitted.append((order, DELETE, key, raw or canonical(record)))
        else:
            self._count_unmatched(element, raw, rows)

    def _take_living(
        self, batch: Sequence[Element], texts: Sequence[bytes], identities: Sequence[Identity], lifetimes: RowLifetimes
    ) -> None:
        """Process a batch one element at a time: rows that have ended are removed before the next element of their key."""
        live = self._histories.live
        take = self._take_first if self._shows_first else self._take_last
        for element, raw, identity in zip(batch, texts, identities, strict=True):
            key = element.key_json
            at = lifetimes.begin(key, element.order, element.timestamp)
            unmatched = len(self.unmatched)
            if self._moves and element.kind not in _RETRACTIONS and live[key].find(identity) is not None:
                self._move(element._replace(timestamp=at), raw, identity)
                continue
            take([element._replace(timestamp=at)], [raw], [identity])
            if (
                lifetimes.renews
                and element.kind in _RETRACTIONS
                and live[key].size
                and len(self.unmatched) == unmatched
            ):
                live[key].renew(at)

    def _move(self, element: Element, raw: bytes, identity: Identity) -> None:
        """Replace a row, and move the new one to the end."""
        order, at, kind, key, _, _ = element
        rows = self._histories.live[key]
        rows.remove(identity)
        rows.append(identity, raw, kind, at)
        self._emitted.append((order, UPDATE_AFTER, key, raw))

    def _take_first(self, batch: Sequence[Element], texts: Sequence[bytes], identities: Sequence[Identity]) -> None:
        """Process elements where the first row is shown: nothing is emitted for later rows until the first is retracted."""
        for element, raw, identity in zip(batch, texts, identities, strict=True):
            order, at, kind, key, _, _ = element
            rows = self._histories.live[key]
            before = rows.first()[0] if rows.size else None
            if kind in _RETRACTIONS:
                removed = rows.remove(identity)
                if removed is NOTHING:
                    self._count_unmatched(element, raw, rows)
                elif removed is ALL:
                    self._emitted.append((order, DELETE, key, raw or canonical(element.record)))
                elif rows.first()[0] != before:
                    self._emitted.append((order, UPDATE_AFTER, key, rows.first()[1]))
            else:
                shown = before is None or (self._replaces and rows.find(identity) == before)
                (rows.put if self._replaces else rows.append)(identity, raw, kind, at)
                if shown:
                    self._emitted.append((order, INSERT if before is None else UPDATE_AFTER, key, raw))
            self._histories.switch(key)

    def _count_unmatched(self, element: Element, raw: bytes, rows: Layout) -> None:
        self.metrics["unmatched_retractions"] += 1
        self.unmatched.append(Unmatched(element, raw or canonical(element.record), rows.size))

    def _net_changes(self) -> Iterator[Output]:
        """Yield the net effect of each key's changes on the sink, which may hold a row of the key or none."""
        last = {change[2]: change for change in self._emitted}
        for key, (order, kind, _, raw) in last.items():
            before, after = self._histories.size_before(key), self._histories.live[key]
            if self.operator.ttl is not None:
                # Nothing is emitted when rows expire, so the sink may hold a row of a key whose history is empty.
                yield make_output((order, kind, key, raw))
            elif not after.size:
                if before:
                    yield make_output((order, DELETE, key, raw))
            elif not before:
                yield make_output((order, INSERT, key, raw))
            elif self._changes_sink(key, after):
                yield make_output((order, UPDATE_AFTER, key, raw))

    def _changes_sink(self, key: bytes, after: Layout) -> bool:
        if not self._sink_holds_end:
            return True
        first, last = self._histories.ends_before(key)
        before, now = (first, after.first()) if self._shows_first else (last, after.last())
        return before is None or before[1] != now[1]
