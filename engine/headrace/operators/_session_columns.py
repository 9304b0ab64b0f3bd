"""Sessions over columns: records of a micro-batch are added to their sessions together, and the timers of changed sessions are set."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.api.batches import (
    BundledRecord,
    ChangedEntry,
    ChangedValue,
    ColumnResults,
    ColumnTimer,
    FiredTimer,
    KeyedColumns,
)
from headrace.api.functions import Context
from headrace.operators._event_time import check_in_calendar
from headrace.operators._part_columns import objects_of
from headrace.operators._running_fields import Flags, keys_with, retractions
from headrace.operators._slice_columns import parts_of
from headrace.operators._window_pieces import ColumnPieces, Places, moves_of, piece_names, united
from headrace.operators._window_results import WindowResult

if TYPE_CHECKING:
    import numpy.typing as npt


_start_of = attrgetter("start")


class StoredSpan(Protocol):
    """Span of a stored session (ms)."""

    @property
    def start(self) -> int:
        """Return the first timestamp."""
        ...

    @property
    def end(self) -> int:
        """Return the first timestamp after it."""
        ...


class _Part:
    """Records of a session between two merges: they are added to what the session has stored, or to what it has merged."""

    __slots__ = ("begun_at", "level", "merged", "number", "session")

    def __init__(self, number: int, session: _Session, begun_at: int, merged: Sequence[_Part] = ()) -> None:
        """Begin a part; `merged` are the parts of the sessions that its first record, at `begun_at` (ms), merges, the earliest first."""
        self.number, self.session, self.begun_at, self.merged = number, session, begun_at, merged
        self.level: int = 1 + max(part.level for part in merged) if merged else 0
        """Number of merges behind one another before its records."""


class _Session:
    """Session while its records come; `name`, `start` and `end` are those of its span (ms)."""

    __slots__ = ("changed_at", "end", "into", "is_over", "key", "name", "number", "part", "start", "stored")

    def __init__(self, key: bytes, name: str, start: int, end: int, stored: StoredSpan | None = None) -> None:
        """Begin a session of a key. `stored` is the span before the records, if the session has one."""
        self.key, self.name, self.start, self.end, self.stored = key, name, start, end, stored
        self.part: _Part | None = None
        self.changed_at: int | None = None
        """Event time of the last record that changed the span (ms)."""
        self.into: _Session | None = None
        """Session that it is merged into."""
        self.is_over = False
        """Whether it ends by the last watermark."""
        self.number = -1
        """Place among the sessions that are read and written."""

    @property
    def last_part(self) -> int:
        """Return the number of the part that has all its records, up to where it is merged into another."""
        assert self.part is not None  # noqa: S101 - only sessions with parts are numbered
        return self.part.number

    @property
    def stays(self) -> bool:
        """Return whether it is stored behind the last watermark."""
        return self.into is None and not self.is_over


class _Sessions:
    """Sessions and parts of all keys."""

    def __init__(self, gap: int) -> None:
        """Take the gap (ms)."""
        self._gap = gap
        self.parts: list[_Part] = []

    def take(self, key: bytes, stored: Mapping[str, StoredSpan], times: Sequence[int]) -> Iterator[int]:
        """Yield the number of the part of each record of a key, in arrival order; `times` are theirs (ms)."""
        live = [_Session(key, name, span.start, span.end, span) for name, span in stored.items()]
        live.sort(key=_start_of)
        starts = [*map(_start_of, live)]
        gap = self._gap
        for at in times:
            until = at + gap
            first = behind = bisect_left(starts, until)
            while first and live[first - 1].end > at:
                first -= 1
            if first == behind:
                session = _Session(key, str(at), at, until)
                session.changed_at = at
                live.insert(first, session)
                starts.insert(first, at)
            else:
                session = live[first]
                if behind - first > 1:
                    self._merge(live[first:behind], at)
                start, end = min(at, session.start), max(until, live[behind - 1].end)
                if session.start != start or session.end != end:
                    session.start, session.end, session.changed_at = start, end, at
                    live[first:behind], starts[first:behind] = [session], [start]
            yield (session.part or self._begin(session, at)).number

    def _begin(self, session: _Session, at: int, merged: Sequence[_Part] = ()) -> _Part:
        session.part = _Part(len(self.parts), session, at, merged)
        self.parts.append(session.part)
        return session.part

    def _merge(self, joined: Sequence[_Session], at: int) -> None:
        """Merge sessions into the first one of them."""
        first, *others = joined
        self._begin(first, at, [session.part or self._begin(session, at) for session in joined])
        for other in others:
            other.into = first

    def numbered(self, until: int) -> tuple[list[_Session], list[_Session]]:
        """Return the sessions that are read and written, with numbers, and those that begin and end with the records. `until` is the last watermark (ms)."""
        sessions = dict.fromkeys(part.session for part in self.parts)
        written, passing = [], []
        for session in sessions:
            session.is_over = session.into is None and session.end - 1 <= until
            if session.stored is not None or (session.into is None and not session.is_over):
                written.append(session)
            elif session.is_over:
                passing.append(session)
        for number, session in enumerate(written):
            session.number = number
        return written, passing


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionedColumns(KeyedColumns):
    """Records by part of a session: `key_numbers` are places in `parts`. The other fields are about sessions."""

    sessions: Sequence[_Session]
    """Those of `keys` and `namespaces`."""
    passing: Sequence[_Session]
    """Those that begin and end with the records: they are never stored."""
    parts: Sequence[_Part]


class _SessionPieces(ColumnPieces[_Session]):
    """Pieces of the sessions' parts: those that are stored, and behind the records."""

    def __init__(self, result: WindowResult, columns: SessionedColumns) -> None:
        """Take the result, and what is stored."""
        super().__init__(result.pieces, self._stored_pieces)
        self._result, self._columns = result, columns

    def _stored_pieces(self, places: Places[_Session]) -> list[Any]:
        """Return stored pieces; None for those of a session that is not stored."""
        stored = iter(self._columns.read([(session.number, name) for session, name in places if session.number >= 0]))
        return [next(stored) if session.number >= 0 else None for session, _ in places]

    def merge(self, session: _Session, part: Any, other: _Session, merged: Any, at: int) -> None:
        """Merge the pieces of another session's part into those of a part, as a record at `at` (ms) does it."""
        more = moves_of(merged)
        owners = dict.fromkeys(piece_names(other.name, more), other)
        for target, names in united(session.name, moves_of(part), other.name, more) if more else ():
            places = [(owners.get(name, session), name) for name in (target, *names)]
            _, *pieces = self.read(places)  # the target only so as to be set
            self.changed.update((place, (None, at)) for place in places)
            whole = self._result.create()
            for piece in pieces:
                whole = self._result.merge(whole, piece)
            self.changed[session, target] = whole, at

    def whole(self, session: _Session, part: Any) -> Any:
        """Return a session's part with all of its values, and remove its pieces."""
        names = piece_names(session.name, moves_of(part))
        if not names:
            return part
        places = [(session, name) for name in names]
        pieces = self.read(places)
        self.changed.update((place, (None, session.end - 1)) for place in places)
        divided = self._result.pieces
        return part if divided is None else divided.whole_of(part, pieces)

    def changes(self) -> Iterator[ChangedValue]:
        """Yield the changed pieces of the sessions that are read and written."""
        for (session, name), (piece, at) in self.changed.items():
            if session.number >= 0:
                yield ChangedValue(session.number, name, piece, at)


class SessionColumns:
    """Adds records to sessions. Each comes before the watermark has passed its own time: so no session that it joins has fired."""

    def __init__(self, gap: int, result: WindowResult, span: Callable[[int, int], StoredSpan]) -> None:
        """Take the gap (ms), the result, and the function that makes a span."""
        self._gap = gap
        self._result = result
        self._parts = parts_of(result)
        self._span = span

    def taken_singly(self, columns: KeyedColumns) -> Flags | None:
        """Return for each key whether it has a retraction, or a record whose time the watermark before it has passed; None if none has."""
        return keys_with(retractions(columns) | (columns.watermarks >= columns.timestamps.to_numpy()), columns)

    def in_sessions(self, columns: KeyedColumns) -> SessionedColumns | None:
        """Return the records by key and session; None if too many merges come behind one another."""
        times = columns.timestamps.to_numpy()
        numbers = columns.key_numbers.to_numpy()
        order = np.argsort(numbers, kind="stable")
        ordered = times[order].tolist()
        bounds = np.searchsorted(numbers[order], np.arange(len(columns.keys) + 1)).tolist()
        sessions = _Sessions(self._gap)
        taken = chain.from_iterable(
            sessions.take(key, stored, ordered[bounds[number] : bounds[number + 1]])
            for number, (key, stored) in enumerate(zip(columns.keys, columns.entries, strict=True))
        )
        part_numbers = np.empty(len(times), np.int32)
        part_numbers[order] = np.fromiter(taken, np.int32, len(times))
        levels = 1 + max(part.level for part in sessions.parts)
        if levels > max(_FEW_LEVELS, len(times) // _RECORDS_OF_LEVEL):
            return None
        until = _NEVER if columns.last_watermark is None else columns.last_watermark
        written, passing = sessions.numbered(until)
        given = {field.name: getattr(columns, field.name) for field in fields(KeyedColumns)} | {
            "keys": [session.key for session in written],
            "namespaces": [session.name for session in written],
            "key_numbers": pa.array(part_numbers),
        }
        return SessionedColumns(**given, sessions=written, passing=passing, parts=sessions.parts)

    def results(self, columns: SessionedColumns) -> ColumnResults | None:
        """Return the sessions, the timers of those that have changed, and the results of those that are over; None where a record fails, and has to be named."""
        sessions = columns.sessions
        with contextlib.suppress(Exception):
            for session in chain(sessions, columns.passing):
                check_in_calendar(session.start, session.start, session.end)
            pieces = _SessionPieces(self._result, columns)
            accumulators = self._accumulators(columns, pieces)
            fired = [*self._fired(columns, accumulators, pieces)]
            return ColumnResults(
                [accumulators[session.last_part] if session.stays else None for session in sessions],
                timestamps=self._times(columns),
                timers=[
                    ColumnTimer(session.number, session.end - 1, session.name)
                    for session in sessions
                    if session.stays and session.changed_at is not None
                ],
                deleted_timers=[
                    ColumnTimer(session.number, session.stored.end - 1, session.name)
                    for session in sessions
                    if session.stored is not None and not (session.stays and session.changed_at is None)
                ],
                entries=[*self._entries(sessions)],
                fired=fired,
                others=[*pieces.changes()],
            )
        return None

    def _entries(self, sessions: Sequence[_Session]) -> Iterator[ChangedEntry]:
        for session in sessions:
            if not session.stays:
                yield ChangedEntry(session.number, session.name, None, session.changed_at)
            elif session.changed_at is not None:
                span = self._span(session.start, session.end)
                yield ChangedEntry(session.number, session.name, span, session.changed_at)

    @staticmethod
    def _times(columns: SessionedColumns) -> list[int | None]:
        """Return the time of the last record of each session, before it was merged into another; None without any."""
        last: list[int | None] = [None] * len(columns.parts)
        for number, at in zip(columns.key_numbers.to_pylist(), columns.timestamps.to_pylist(), strict=True):
            last[number] = at
        return [last[session.last_part] for session in columns.sessions]

    def _fired(
        self, columns: SessionedColumns, accumulators: Sequence[Any], pieces: _SessionPieces
    ) -> Iterator[FiredTimer]:
        """Yield the results of the sessions that are over."""
        keys: dict[bytes, Any] = {}
        for session in chain(columns.sessions, columns.passing):
            if session.is_over:
                key = keys.get(session.key)
                if key is None:
                    key = keys[session.key] = columns.key_of(session.key)
                part = pieces.whole(session, accumulators[session.last_part])
                result = self._result.result(part, key, session.start, session.end)
                at = session.end - 1
                yield FiredTimer(session.key, at, session.name, partial(self._emit, result, at))

    def _emit(self, result: Any, at: int, ctx: Context) -> None:
        self._result.emit(ctx, None, result, at=at)

    def _accumulators(self, columns: SessionedColumns, pieces: _SessionPieces) -> list[Any]:
        """Return the accumulator of each part."""
        accumulators: list[Any] = [None] * len(columns.parts)
        for parts, some in _by_level(columns):
            for part in parts:
                accumulators[part.number] = self._begun(part, columns, accumulators, pieces)
            if len(some.timestamps):
                numbers, of_record = np.unique(some.key_numbers.to_numpy(), return_inverse=True)
                of_records = [columns.parts[number] for number in numbers.tolist()]
                added = replace(
                    some,
                    keys=[b""] * len(numbers),
                    namespaces=[part.session.name for part in of_records],
                    key_numbers=pa.array(of_record.astype(np.int32)),
                    values=[accumulators[part.number] for part in of_records],
                    read=partial(_read, pieces, of_records),
                )
                stored = self._parts(added)
                for part, accumulator in zip(of_records, stored.rows, strict=True):
                    accumulators[part.number] = accumulator
                for number, name, piece, at in stored.pieces:
                    pieces.changed[of_records[number].session, name] = piece, at
        return accumulators

    def _begun(
        self, part: _Part, columns: SessionedColumns, accumulators: Sequence[Any], pieces: _SessionPieces
    ) -> Any:
        """Return the accumulator of a part before its records; None without any."""
        if not part.merged:
            return None if part.session.stored is None else columns.values[part.session.number]
        first, *others = part.merged
        # What no merge has made may share states with a stored accumulator, which must not change.
        whole = accumulators[first.number] if first.merged else deepcopy(accumulators[first.number])
        changes = [accumulators[other.number].changes for other in part.merged if self._result.pieces is not None]
        for other in others:
            merged = accumulators[other.number]
            pieces.merge(part.session, whole, other.session, merged, part.begun_at)
            whole = self._result.merge(whole, merged)
        if self._result.pieces is not None:
            pieces.move_merged(part.session, part.session.name, whole, changes, part.begun_at)
        return whole


def _read(pieces: _SessionPieces, parts: Sequence[_Part], places: Sequence[tuple[int, str]]) -> list[Any]:
    """Return pieces of some parts, which are given by their places."""
    return pieces.read([(parts[number].session, name) for number, name in places])


def _by_level(columns: SessionedColumns) -> Iterator[tuple[Sequence[_Part], KeyedColumns]]:
    """Yield the parts of each level, the lowest first, and their records."""
    levels = np.array([part.level for part in columns.parts])
    if not levels.any():
        yield columns.parts, columns
        return
    objects: list[BundledRecord] = []

    def bundled(rows: Sequence[int]) -> Iterator[Sequence[BundledRecord]]:
        if not objects:
            objects.extend(objects_of(columns))
        yield [objects[row] for row in rows]

    numbers, highest = columns.key_numbers.to_numpy(), levels.max()
    for parts, rows in zip(_split(levels, highest), _split(levels[numbers], highest), strict=True):
        some = replace(
            columns,
            records=columns.records.take(pa.array(rows)),
            timestamps=columns.timestamps.take(pa.array(rows)),
            key_numbers=pa.array(numbers[rows]),
            bundled=partial(bundled, rows.tolist()),
        )
        yield [columns.parts[number] for number in parts.tolist()], some


def _split(levels: npt.NDArray[np.int64], highest: int) -> list[npt.NDArray[np.int64]]:
    """Return the places of each level up to the highest one, in order."""
    order = np.argsort(levels, kind="stable")
    return np.split(order, np.searchsorted(levels[order], np.arange(1, highest + 1)))


_FEW_LEVELS: Final = 8
_RECORDS_OF_LEVEL: Final = 300
"""Number of records for each level below which columns take longer than single records, where levels are not few."""

_NEVER: Final = -(1 << 63)
"""A time before all others (ms)."""
