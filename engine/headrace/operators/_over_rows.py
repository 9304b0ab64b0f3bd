"""Rows of one key, and their results: what a frame sees, and what a new row changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from headrace.api.functions import Context
from headrace.api.records import RowKind, Struct
from headrace.operators._event_time import LAST_TIME
from headrace.operators._frames import Frame, time_of
from headrace.operators._over_record import OverRecord, Row
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType, are_identical

END: Final = LAST_TIME + 1
"""Time that only the end of the input passes (ms)."""

order_of = attrgetter("order")
time_text = sort_text("event time", ValueType(int, may_be_none=False), descending=False)

EmittedRow = tuple[RowKind, int, Any]
"""Kind, event time (ms) and result."""


class Passed(Struct):
    """Rows of a key that no later row can change: their number, the last of them, and for an unbounded frame their aggregates."""

    number: int
    rows: list[Any]
    frame: Any


class Known(NamedTuple):
    """All that is stored of a key's rows that the watermark has passed."""

    passed: Any
    rows: dict[int, list[Any]]
    """Rows that a later row may change, or has in its frame, by event time (ms), in this order."""

    def before(self, at: int) -> list[Row]:
        """Return the rows before an event time (ms), in order."""
        return [*self.passed.rows, *chain.from_iterable(rows for time, rows in self.rows.items() if time < at)]

    def behind(self, at: int) -> list[Row]:
        """Return the rows behind an event time (ms), in order."""
        return list(chain.from_iterable(rows for time, rows in self.rows.items() if time > at))


class Changed(NamedTuple):
    """Rows of a key before and after a change. Those before place `first` are the same."""

    before: Sequence[Row]
    after: list[Row]
    first: int

    def emit(self, ctx: Context) -> None:
        """Emit the changes of results."""
        for kind, at, result in self.emitted():
            ctx.collect(result, kind, timestamp=at)

    def emitted(self) -> Iterator[EmittedRow]:
        """Yield the changes of results."""
        for old, new in zip(self.before[self.first :], self.after[self.first :], strict=True):
            if new.emitted and not old.emitted:
                yield RowKind.INSERT, new.at, new.result
            elif new.emitted and not are_identical(old.result, new.result):
                yield RowKind.UPDATE_BEFORE, new.at, old.result
                yield RowKind.UPDATE_AFTER, new.at, new.result

    @property
    def places(self) -> list[int]:
        """Return the places of rows that are stored otherwise from now on."""
        pairs = zip(self.before[self.first :], self.after[self.first :], strict=True)
        return [
            place
            for place, (old, new) in enumerate(pairs, self.first)
            if old.emitted is not new.emitted or not are_identical(old.result, new.result)
        ]


class Inserted(NamedTuple):
    """Rows of a key with new ones among them, and an unbounded frame with all of them."""

    changed: Changed
    frame: Any
    before: list[Row]
    behind: list[Row]


class OverRows:
    """Makes the results of one key's rows. It keeps nothing."""

    def __init__(self, record: OverRecord, frame: Frame, types: tuple[Any, Any], keep: int) -> None:
        """Take the result, its frame, the types of a stored row and of `Passed`, and how long a late row corrects results (ms)."""
        self.record = record
        self.frame = frame
        self._row, self._passed = types
        self.stay = keep + frame.reach
        """How long a row stays behind its event time (ms); 0: not at all."""
        self.lead = record.farthest_lead
        """How many rows behind a row its result needs."""
        self.context = max(frame.context, record.farthest_lag, self.lead)
        """How many rows before a row its result needs, whatever their times."""
        self.retracts = keep > 0
        """Whether a later row may change results."""

    @property
    def keeps_keys(self) -> bool:
        """Return whether something of each key is kept for as long as no lifetime ends it."""
        is_summed = self.frame.is_unbounded and bool(self.record.fields)
        return bool(self.context or self.record.numbers or is_summed)

    def first(self, passed: Any) -> Any:
        """Return what is stored of a key as a `Passed` that may change; None is a key without rows."""
        frame = None if passed is None else passed.frame
        if frame is None and self.frame.is_unbounded:
            frame = self.record.create()
        return self._passed(0, [], frame) if passed is None else self._passed(passed.number, passed.rows, frame)

    # ---------------------------------------------------------------------------------------------------- results

    def inserted(self, known: Known, at: int, new: Sequence[Row], key: Any) -> Inserted:
        """Put rows of one event time (ms) in their places."""
        before, behind = known.before(at), known.behind(at)
        same = sorted([*known.rows.get(at, ()), *new], key=order_of)
        rows = [*before, *same, *behind]
        frame = known.passed.frame
        if self.stay and frame is not None:
            frame = msgspec.json.decode(msgspec.json.encode(frame), type=self.record.slice)  # it is changed in place
        revised = self.revised(rows, len(before), known.passed, frame, key)
        return Inserted(Changed(rows, revised, max(0, len(before) - self.lead)), frame, before, behind)

    def revised(self, rows: Sequence[Row], first: int, passed: Any, frame: Any, key: Any) -> list[Row]:
        """Return the rows with the results that they have now: those from place `first` on, and before it new values of `Lead`.

        An unbounded frame adds the rows to `frame`.
        """
        revised = list(rows)
        number = passed.number - len(passed.rows) + 1
        parts = self.frame.parts(self.record, rows, first, frame, len(passed.rows))
        for place, part in enumerate(parts, first):
            if rows[place].emitted and rows[place].result is None:
                continue  # it was emitted before late rows corrected results: nobody knows what is to be taken back
            result = self.record.result_of(rows, place, number=number + place, part=part, key=key)
            revised[place] = msgspec.structs.replace(rows[place], result=result)
        for place in range(max(0, first - self.lead), len(rows)):
            is_complete = place + self.lead < len(rows)
            if is_complete or rows[place].emitted:
                revised[place] = self._completed(rows, place, revised[place])
        return revised

    def given_up(self, rows: Sequence[Row]) -> Changed:
        """Return the last rows with the defaults of `Lead`."""
        changed = Changed(rows, list(rows), max(0, len(rows) - self.lead))
        for place in range(changed.first, len(rows)):
            if not rows[place].emitted:
                changed.after[place] = self._completed(rows, place, rows[place])
        return changed

    def _completed(self, rows: Sequence[Row], place: int, row: Row) -> Row:
        """Return a row with its whole result, which is emitted."""
        is_final = row.emitted and not self.retracts
        if is_final or row.result is None:
            return row
        result = self.record.with_leads(row.result, rows, place) if self.lead else row.result
        return msgspec.structs.replace(row, result=result, emitted=True)

    # ------------------------------------------------------------------------------------------------------- state

    def settled(self, passed: Any, rows: Sequence[Row]) -> Any:
        """Return `passed` with rows that no later row changes."""
        frame = self.record.add_rows(passed.frame, rows) if self.frame.is_unbounded else None
        return self.extended(passed, [*passed.rows, *rows], frame)

    def extended(self, passed: Any, rows: Sequence[Row], frame: Any) -> Any:
        """Return `passed` with all of `rows`, of which it has the first."""
        more = len(rows) - len(passed.rows)
        return self._passed(passed.number + more, self._last(rows), frame)

    def rewritten(self, changed: Changed, passed: Any, *new: int) -> tuple[Any, dict[int, list[Row]]]:
        """Return what is stored of the rows that changed: `passed`, None if it stays, and those of event times with changes, or `new` rows (ms)."""
        settled = len(passed.rows)
        places = changed.places
        last = None
        if places and places[0] < settled:
            last = self._passed(passed.number, self._last(changed.after[:settled]), passed.frame)
        by_time = {}
        for time in sorted({*new, *(changed.after[place].at for place in places if place >= settled)}):
            first = bisect_left(changed.after, time, lo=settled, key=time_of)
            end = bisect_right(changed.after, time, lo=first, key=time_of)
            by_time[time] = list(self.stored(changed.after[first:end]))
        return last, by_time

    def _last(self, rows: Sequence[Row]) -> list[Row]:
        """Return the last rows, as far as later rows need them, as they are stored."""
        return list(self.stored(rows[len(rows) - self.context :] if len(rows) > self.context else rows))

    def stored(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Return rows without results, unless a later row may change these."""
        if self.lead or self.retracts:
            return iter(rows)
        stored = self._row
        return (
            row if row.result is None else stored(at=row.at, order=row.order, record=row.record, emitted=True)
            for row in rows
        )
