"""First records of a window, by a ranking."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import Any

import msgspec

from headrace.api import Context, Struct
from headrace.api.ranks import Ranks
from headrace.names import counted
from headrace.operators._accumulators import Change
from headrace.operators._bundled_changes import BundledChanges
from headrace.operators._ranking import Ranking, merged
from headrace.operators._window_result import WindowResult

_kind_of = attrgetter("kind")


class _Rows(Struct):
    """Stored part of some records: the first ones, or all of them if records may be retracted."""

    first: list[Any]


class RankedWindow(WindowResult):
    """First records of a window. Its result is the list of emitted records."""

    def __init__(self, takes: type[Struct], ranks: Ranks, *, retracting: bool) -> None:
        """Take the ranking. `retracting` says that records may be retracted: then all records are kept. Errors are those of `Ranking`."""
        self._ranking = Ranking(takes, ranks, windowed=True)
        self._retracting = retracting
        self.takes, self.gives = takes, self._ranking.gives
        self.slice: Any = msgspec.defstruct(f"{takes.__name__}Ranks", [("first", self._ranking.rows)], bases=(_Rows,))

    @property
    def result_type(self) -> Any:
        """Return the type of a window's result, which `result` returns and `emit` takes."""
        return list[self.gives]  # type: ignore[name-defined]  # known when it is called

    def key_of_results(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a result that tell it from others of its window: those of the key, and the rank if there are several."""
        return self._ranking.key_of_results(fields)

    def has_bound(self, name: str) -> bool:
        """Return whether a field of the result holds this bound of the window."""
        return self._ranking.has_bound(name)

    def create(self) -> Any:
        """Return an empty part."""
        return self.slice(first=[])

    def add(self, change: Change, part: Any) -> Any:
        """Return `part` with a change applied: a record added, or one removed that the part holds."""
        row = self._ranking.row_of(change.record, change.at)
        if change.sign < 0:
            place = self._ranking.place_of(part.first, row)
            if place is not None:
                part.first.pop(place)
            return part
        part.first = self._kept(self._ranking.inserted(part.first, row))
        return part

    def may_hold(self, change: Change, part: Any) -> bool:
        """Return whether the part has the record of a retraction."""
        if part is None:
            return False
        return self._ranking.place_of(part.first, self._ranking.row_of(change.record, change.at)) is not None

    def add_together(self, changes: BundledChanges, part: Any) -> Any:
        """Return `part` with the changes applied: sorted together, where all are inserts."""
        rows = None
        if not any(map(_kind_of, changes.records)):
            # An error is raised again below, where the bundle's current record is the one that it belongs to.
            with contextlib.suppress(Exception):
                rows = self._ranking.with_records(part.first, changes.records, keeps_all=self._retracting)
        if rows is None:
            return super().add_together(changes, part)
        part.first = self._kept(rows)
        changes.end()
        return part

    def merge(self, one: Any, other: Any) -> Any:
        """Return `one` with the records of `other` merged in. `other` does not change; the records of `one` are earlier."""
        one.first = self._kept(merged(one.first, other.first))
        return one

    def _kept(self, rows: list[Any]) -> list[Any]:
        return rows if self._retracting else self._ranking.first(rows)

    def result(self, part: Any, key: Any, start: int, end: int) -> Any:
        """Return the result of a key's window (start and end in ms); None if it has no records."""
        del key
        if part is None or not part.first:
            return None
        return self._ranking.results(self._ranking.first(part.first), start, end)

    def emit(self, ctx: Context, before: Any, after: Any, *, at: int) -> None:
        """Emit the change of a result from `before` to `after`; None means no result. `at` is the event time of both (ms)."""
        self._ranking.emit(ctx, [(result, at) for result in before or ()], [(result, at) for result in after or ()])

    def retraction_refused_by(self) -> list[str]:
        """Return an empty list if all records are kept; else the ranking."""
        return [] if self._retracting else ["the ranking"]

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows."""
        first = f"{counted(self._ranking.n, 'record')}{' and all ties' if self._ranking.ties else ''} for each slice or session"
        kept = "all records of the window" if self._retracting else first
        return {**self._ranking.described(), "records_kept": kept}
