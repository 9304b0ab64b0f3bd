"""Tables of a feed of changes, whose events may come in any order: current rows, or all versions (slowly changing dimensions 1 and 2)."""

from __future__ import annotations

import hashlib
import string
import types
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from headrace.api.batches import ColumnFunction, ColumnResults, KeyedColumns
from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import ColumnReads, Kind, fields_read
from headrace.api.functions import (
    BroadcastContext,
    Context,
    KeyedBroadcastFunction,
    KeyedFunction,
    KeyedProcessFunction,
)
from headrace.api.graph import OperatorFunction, ToldEvent, VersionedFunction
from headrace.api.options import ChangeRules
from headrace.api.records import Struct
from headrace.api.states import BroadcastState, MapState, ValueState
from headrace.operators._change_events import ChangeEvents
from headrace.operators._event_links import EventLinks, emit_rows, end_of, row_of
from headrace.operators._event_time import shown_length
from headrace.operators._ranking import Timed, emit_update
from headrace.operators._value_types import are_equal, are_identical

if TYPE_CHECKING:
    from headrace.operators._current_row_columns import CurrentRowColumns
    from headrace.operators._running_fields import Flags
    from headrace.operators._version_columns import VersionColumns

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

_PLAIN = string.ascii_lowercase + string.digits + "_"
_LONGEST_NAME = 40


class _AppliedChanges(KeyedFunction, OperatorFunction):
    """Base of the functions of `Stream.apply_changes`.

    `truncates` holds the events that empty the table, by the sort text of their sequence; None where the feed has none. They are for all keys, and
    each key with a row is visited. A truncate takes back what is before it in the sequence, also what comes later. An event
    with its sequence is refused, whichever of the two came first: its row is taken back with those before it.
    """

    KIND = "apply changes"
    TAKER = "apply_changes"
    takes_upserts = (0,)
    needs_keys_of_deletions = True
    retracts = True

    truncates: BroadcastState[str, Any] | None = None

    def __init__(self, events: ChangeEvents) -> None:
        """Take what reads the events."""
        self._events = events
        self._rules = events.rules
        self.deletes_inserts = events.rules.deletes is not None or bool(events.rules.truncates)
        self.read_of_deletions = events.rules.sequence_by

    def column_reads(self) -> ColumnReads:
        """Return what the rows read: events, their sequence, and what deletes, truncates or opens a version."""
        truncates = fields_read(self._rules.sequence_by, Kind.SORT, number=1) if self._rules.truncates else frozenset()
        return ColumnReads(self._events.columns, self._events.rows | truncates)

    def changes(self, name: str, keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the table.

        Raises `ValueError` for rows that take others back, which have no places of their own in the sequence, and for upserts of
        another key: one that moves a row to another key of the table would leave the old row.
        """
        changes, key = taken[0], keys[0].fields
        if changes.mode.is_retract and changes.is_known:
            msg = (
                f"{self.TAKER} '{name}' gets {changes}: its -U and -D hold old rows, with the places of these in the sequence. Call "
                f"drop_update_before{key!r} before it, if each -D has a place of its own; or read a feed without row_kind, and give deletes="
            )
            raise ValueError(msg)
        if changes.mode.key and {*changes.mode.key} != {*key}:
            msg = f"{self.TAKER} '{name}': the stream is {changes}, so its rows are identified by {changes.mode.key!r}, not by {key!r}"
            raise ValueError(msg)
        return super().changes(name, keys, taken)

    def _is_refused(self, order: str, ctx: Context) -> bool:
        """Set an event aside that has the sequence of a truncate which came before it; return whether it has."""
        is_refused = self.truncates is not None and self.truncates.contains(order)
        if is_refused:
            self._refuse(None, ctx)
        return is_refused

    def _refuse(self, stored: Any, ctx: Any) -> None:
        """Set an event aside that has the sequence of a truncate: a stored one that came before it, or the one that comes (None)."""
        ctx.quarantine(
            f"a truncate has the same {', '.join(self._rules.sequence_by)}: nothing says which one is the later",
            record=stored,
        )

    def _next_truncate(self, order: str) -> tuple[str, Any] | None:
        """Return the first truncate behind a place in the sequence, with its text; None without one."""
        known = () if self.truncates is None else self.truncates.items()
        return next((truncate for truncate in known if truncate[0] > order), None)

    def _forget_after(self, at: int, length: int | None, ctx: Context) -> None:
        """Register a timer at the end of a length of event time, unless it lasts for ever."""
        end = end_of(at, length)
        if end is not None:
            ctx.timers.register_event_time(end)

    def _is_forgotten(self, event: Any, at: int) -> bool:
        """Return whether a key's last event is a deletion that needs no longer be known at a time (ms)."""
        lifetime = self._rules.tombstones
        return event.record is None and lifetime is not None and event.at + lifetime <= at

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        rules = self._rules
        nulls = {"nulls": "keep the value before them"} if rules.ignore_nulls else {}
        return {
            "history": "every version of a key" if rules.has_versions else "the current row of a key",
            "ordered_by": ", ".join(rules.sequence_by),
            **nulls,
            **({"truncates": "empty the table, in their place of the sequence"} if rules.truncates else {}),
            "equal_sequences": "an equal event is dropped, another one goes to the quarantine",
            "deleted_keys": f"are known {_shown(rules.tombstones)}",
        }


class CurrentRowsFunction(_AppliedChanges, ColumnFunction):
    """Current row of each key: that of the last event in its sequence. Earlier ones that come later change nothing."""

    has_row_of_each_key = True

    last: ValueState[Any]

    def __init__(self, events: ChangeEvents, last: Any) -> None:
        """Take the type of the state."""
        super().__init__(events)
        self._last = last

    async def process(self, record: Any, ctx: Context, /) -> None:
        """Replace the last event by a later one, and emit the change of the row."""
        event = self._events.read(record, ctx)
        if event is None or self._is_refused(event[0], ctx) or self._next_truncate(event[0]) is not None:
            return
        order, kept = event
        last = await self.last.value()
        if last is not None and order <= last.order:
            if order == last.order:
                self._events.refuse_unless_equal(kept, last.record, ctx)
            return
        before, after = self._timed(last), None if kept is None else (self._events.row(kept), ctx.timestamp)
        if before is not None and after is not None and are_identical(before[0], after[0]):
            after = before  # it is retracted with the time with which it was emitted
        at = ctx.timestamp if after is None else after[1]
        await self.last.update(self._last(order=order, at=at, record=kept))
        emit_update(ctx, before, after)
        if kept is None:
            self._forget_after(at, self._rules.tombstones, ctx)

    @cached_property
    def _columns(self) -> CurrentRowColumns:
        from headrace.operators._current_row_columns import CurrentRowColumns

        return CurrentRowColumns(self._events, self._last)

    @property
    def takes_columns(self) -> bool:
        """Return whether columns can order the events and compare the rows. A truncate visits keys between two events."""
        return self.truncates is None and self._columns.is_complete

    def taken_singly(self, columns: KeyedColumns, /) -> Flags | None:
        """Return for each key whether the order of its events does not decide alone; None if it does for all."""
        return self._columns.taken_singly(columns)

    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Return the results of the events; None if they have to be processed one by one."""
        return self._columns.results(columns)

    def process_broadcast(self, record: Any, ctx: BroadcastContext, /) -> None:
        """Remember a truncate in place of those before it in the sequence, which it covers, and visit the keys."""
        order = self._events.order_of(record, ctx)
        if order is None or self.truncates is None or self._next_truncate(order) is not None:
            return
        self.truncates.clear()
        self.truncates.put(order, Truncate(ctx.timestamp, self._events.sequence_of(record)))
        ctx.visit_keys(self.last)

    async def visit(self, _record: Any, ctx: Context, /) -> None:
        """Take the row back that is not behind a truncate, and forget the event: the truncate keeps older ones away."""
        last = await self.last.value()
        if last is None:
            return
        has_equal = last.record is not None and self.truncates is not None and self.truncates.contains(last.order)
        if not has_equal and self._next_truncate(last.order) is None:
            return
        if has_equal:
            self._refuse(last.record, ctx)
        await self.last.clear()
        emit_update(ctx, self._timed(last), None)

    def _timed(self, last: Any) -> Timed | None:
        """Return the row of the last event with its event time (ms); None if there is none."""
        return None if last is None or last.record is None else (self._events.row(last.record), last.at)

    async def on_timer(self, timestamp: int, _ctx: Context, /) -> None:
        """Forget a deleted key."""
        last = await self.last.value()
        if last is not None and self._is_forgotten(last, timestamp):
            await self.last.clear()

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {**super().described(), "state_kept": "the last event of each key"}


class HistoryFunction(_AppliedChanges, VersionedFunction, ColumnFunction):
    """Rows of each key that all its events make in the order of their sequence, in whatever order they come.

    `events` holds the events of a key by the sort text of their sequence, and each knows the one `before` it; `latest` is the text
    of the last one. So an event is put in its place by a walk back from the last one, and costs as many reads as there are events
    behind it. The rows of these alone can change.
    """

    LATE = "late"
    reads_entries = False

    latest: ValueState[str]
    events: MapState[str, Any]

    def __init__(self, events: ChangeEvents, event: Any) -> None:
        """Take the type of a stored event."""
        super().__init__(events)
        self._event = event
        self._links = EventLinks(events)
        self.has_row_of_each_key = not events.rules.has_versions

    def unique_keys(self, fields: tuple[str, ...], taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the unique key of the rows: that of the stream, for versions with the place where they begin."""
        begins = self._events.key_of_versions()
        if not self._rules.has_versions:
            return super().unique_keys(fields, taken)
        return ((*fields, *begins),) if begins else ()

    async def process(self, record: Any, ctx: Context, /) -> None:
        """Put an event in its place, and emit the changes of the rows from there on; a truncate behind it ends its version."""
        read = self._events.read(record, ctx)
        if read is None or self._is_refused(read[0], ctx):
            return
        order, kept = read
        walk = await self._behind(order, ctx)
        if walk is None:
            self.set_aside_late(record, ctx)
            return
        if walk.place == order:
            self._events.refuse_unless_equal(kept, walk.before.record, ctx)
            return
        event = self._event(at=ctx.timestamp, sequence=self._events.sequence_of(record), record=kept)
        await self._insert(order, event, walk, ctx)
        truncate = self._next_truncate(order)
        if truncate is not None:
            await self._truncate(*truncate, ctx)

    @cached_property
    def _columns(self) -> VersionColumns:
        from headrace.operators._version_columns import VersionColumns

        return VersionColumns(self._events, self._event)

    @property
    def takes_columns(self) -> bool:
        """Return whether columns can order the events and compare the rows. A truncate visits keys between two events."""
        return self.truncates is None and self._columns.is_complete

    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Return the results of the events of keys that keep their order; None if all have to be processed one by one."""
        return self._columns.results(columns)

    def process_broadcast(self, record: Any, ctx: BroadcastContext, /) -> None:
        """Remember a truncate, and visit the keys. An equal sequence is that of the same truncate again."""
        order = self._events.order_of(record, ctx)
        if order is None or self.truncates is None or self.truncates.contains(order):
            return
        self.truncates.put(order, Truncate(ctx.timestamp, self._events.sequence_of(record)))
        ctx.visit_keys(self.latest)

    async def visit(self, record: Any, ctx: Context, /) -> None:
        """End the version of a key in which a truncate lies."""
        order = self._events.order_of(record, ctx)
        truncate = None if order is None or self.truncates is None else self.truncates.get(order)
        if order is not None and truncate is not None:
            await self._truncate(order, truncate, ctx)

    async def _truncate(self, order: str, truncate: Any, ctx: Any) -> None:
        """Put a deletion in the place of a truncate, if a version lies there. A key whose events there are final stays as it is."""
        walk, replaced = await self._behind(order, ctx), None
        if walk is not None and walk.place == order and walk.before.record is not None:
            replaced = walk.before
            walk = None if self._links.is_final(replaced, ctx.watermark) else await self._around(replaced, walk.later)
        if walk is None:
            ctx.count_too_late(dropped=True)
            return
        if replaced is not None:
            self._refuse(replaced.record, ctx)
        elif walk.place == order or walk.before is None or walk.before.record is None:
            return
        deletion = self._event(at=truncate.at, sequence=truncate.sequence, record=None)
        await self._insert(order, deletion, walk, ctx, replaced)

    async def _insert(self, order: str, event: Any, walk: Walk, ctx: Context, replaced: Any = None) -> None:
        """Store an event in its place, where one may be that it replaces, and emit the changes of the rows from there on."""
        place, before, later = walk
        known = [] if before is None else [before]
        former = known if replaced is None else [*known, replaced]
        new = self._links.linked(event, place, before)
        behind = self._links.relinked(new, order, later)
        await self._store(order, new, later, behind)
        emit_rows(ctx, self._rows([*former, *(event for _, event in later)]), self._rows([*known, new, *behind]))
        for end in self._links.timers(new, is_last=not later):
            ctx.timers.register_event_time(end)

    async def _around(self, event: Any, later: list[tuple[str, Any]]) -> Walk | None:
        """Return the events around the place of a stored one. None if that part is closed."""
        before = None if event.before is None else await self.events.get(event.before)
        return None if before is None and event.before is not None else Walk(event.before, before, later)

    async def _behind(self, order: str, ctx: Context) -> Walk | None:
        """Return the events around a place. None if that part is closed."""
        later: list[tuple[str, Any]] = []
        place, event = await self.latest.value(), None
        while place is not None:
            event = await self.events.get(place)
            if event is None or place <= order:
                break
            if self._links.is_final(event, ctx.watermark):
                return None
            later.append((place, event))
            place, event = event.before, None
        if place is not None and event is None:
            return None  # it was removed, with all before it
        return Walk(place, event, later[::-1])

    async def _store(self, order: str, new: Any, later: Sequence[tuple[str, Any]], linked: Sequence[Any]) -> None:
        await self.events.put(order, new)
        for (place, event), changed in zip(later, linked, strict=True):
            if not are_identical(changed, event):
                await self.events.put(place, changed)
        if not later:
            await self.latest.update(order)

    # --------------------------------------------------------------------------------------------------------- rows

    def _rows(self, events: Sequence[Any]) -> dict[Any, Timed]:
        """Return the rows of successive events, the last ones of their key, by what tells them apart, with their event times (ms)."""
        if self._rules.has_versions:
            return self._links.versions(events)
        last = events[-1] if events else None
        return {} if last is None or last.record is None else {None: (self._events.row(row_of(last)), last.began)}

    def told(self, stored: Mapping[str, Any], truncates: Collection[str]) -> list[ToldEvent]:
        """Return what the stored events of a key did, in the order of their places."""
        return [
            ToldEvent(
                place,
                self._did(event, is_truncate=place in truncates),
                None if event.record is None else self._events.values(row_of(event)),
            )
            for place, event in sorted(stored.items())
        ]

    def _did(self, event: Any, *, is_truncate: bool) -> str:
        if event.record is None:
            return "truncates" if is_truncate else "deletes"
        return "opens" if event.begins == event.sequence else "goes on"

    def may_be(self, record: Any, place: str, stored: Any) -> bool:
        """Return whether an event that comes in may be the stored one of a place: of a deletion, only the place is stored."""
        try:
            text = self._events.text_of(record)
        except ValueError:
            return False
        return text == place and (stored.record is None or are_equal(record, stored.record))

    # --------------------------------------------------------------------------------------------------- forgetting

    async def on_timer(self, timestamp: int, _ctx: Context, /) -> None:
        """Forget a deleted key, or the events before the last one that no event can come before any more."""
        latest = await self.latest.value()
        if latest is None:
            return
        if self._is_forgotten(await self.events.get(latest), timestamp):
            await self.latest.clear()
            await self.events.clear()
        elif self._rules.corrections is not None:
            await self._free(latest, timestamp - self._rules.corrections)

    async def _free(self, place: str | None, closed: int) -> None:
        """Remove the events before the last one with an event time up to `closed` (ms)."""
        while place is not None:
            event = await self.events.get(place)
            if event is None:
                return
            if event.at <= closed:
                break
            place = event.before
        async for order in self.events.keys():
            if place is None or order >= place:
                return
            await self.events.remove(order)

    # ------------------------------------------------------------------------------------------------------- sides

    def side_types(self) -> dict[str, type[Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {self.LATE: self._events.takes}

    def declare_side(self, operator: str, name: str, record: object) -> None:
        """Emit records to the side output `name` from now on: a deletion there must be whole. Errors are those of the base."""
        super().declare_side(operator, name, record)
        self.needs_keys_of_deletions = False

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        tracked = (
            {"opens_a_version": f"a change of {', '.join(self._events.tracked)}"} if self._rules.has_versions else {}
        )
        return {
            **super().described(),
            **tracked,
            "late_events": "go to side output 'late'" if self.LATE in self.declared else "are dropped",
            "state_kept": "a row for each event of a key; a timer for each length of corrections that has events",
            "corrections": f"an event can be put before another one {_shown(self._rules.corrections)}",
            "state_freed": "events before the last one that is final; all of a deleted key",
        }


class Walk(NamedTuple):
    """Events of a key around a place: the text of the one at or before it, the event itself, and those behind it with their texts."""

    place: str | None
    before: Any
    later: list[tuple[str, Any]]


def _shown(length: int | None) -> str:
    return "for ever (Lifetime.FOREVER)" if length is None else f"for {shown_length(length)} of event time"


class LastEvent(Struct, frozen=True, omit_defaults=True):
    """Stored last event of a key: a text that sorts like its sequence, its row's event time (ms), and its record, None if it deletes.

    `sequence` is never stored. Its type has the fields of the sequence, so a job that orders by others is refused, also where the
    names of its states are the same: `a_b` is the name for a and b, and for a_b.
    """

    order: str
    at: int
    record: Any
    sequence: Any = None


class Truncate(Struct, frozen=True):
    """Stored truncate: its event time (ms), and its place in the sequence."""

    at: int
    sequence: Any


class StoredEvent(Struct, frozen=True):
    """Event of a key: its event time (ms), its place in the sequence, and its record, None if it deletes.

    `before` is the text of the event before it. `begins` is where its version begins, and `began` that event's time (ms). `row` is
    the record with values of earlier events in place of nulls, if it has such values.
    """

    at: int
    sequence: Any
    record: Any
    before: str | None = None
    begins: Any = None
    began: int = 0
    row: Any = None


def _name_of(fields: Sequence[str]) -> str:
    """Return a part of a state's name that tells these fields: their names, or a digest where these are long or no plain letters."""
    names = "_".join(fields)
    is_plain = len(names) <= _LONGEST_NAME and all(letter in _PLAIN for letter in names)
    return names if is_plain else hashlib.blake2b(names.encode(), digest_size=8).hexdigest()


def apply_changes(
    takes: type[In], gives: type[Out], rules: ChangeRules
) -> KeyedProcessFunction[In, Out] | KeyedBroadcastFunction[In, In, Out]:
    """Return the function of `Stream.apply_changes`; with `truncates` its second input has these. Errors are those of `ChangeEvents`."""
    events = ChangeEvents(takes, gives, rules)
    # The names tell the fields of the sequence: places of other fields have another order.
    sequence = _name_of(rules.sequence_by)
    base: Any = KeyedProcessFunction[takes, gives]  # type: ignore[valid-type]  # known when it is called
    states: dict[str, Any] = {"__module__": __name__}
    if rules.truncates:
        base = KeyedBroadcastFunction[takes, takes, gives]  # type: ignore[valid-type]
        truncate = msgspec.defstruct(
            f"Truncate{takes.__name__}", [("at", int), ("sequence", events.sequence)], bases=(Truncate,), frozen=True
        )
        states["truncates"] = BroadcastState(f"truncates_by_{sequence}", str, truncate)
    rows: type[_AppliedChanges] = HistoryFunction if rules.keeps_events else CurrentRowsFunction
    if rules.keeps_events:
        stored = _stored_event(takes, events)
        states["latest"] = ValueState("latest", str)
        states["events"] = MapState(f"events_by_{sequence}", str, stored)
    else:
        stored = _last_event(takes, events)
        states["last"] = ValueState(f"last_event_by_{sequence}", stored)
    function_type: Any = types.new_class(
        rows.__name__, (rows, base), exec_body=lambda namespace: namespace.update(states)
    )
    function: KeyedProcessFunction[In, Out] | KeyedBroadcastFunction[In, In, Out] = function_type(events, stored)
    return function


def _last_event(takes: type[Struct], events: ChangeEvents) -> Any:
    """Return the type of a stored last event."""
    return msgspec.defstruct(
        f"Last{takes.__name__}",
        [("order", str), ("at", int), ("record", takes | None), ("sequence", events.sequence | None, None)],
        bases=(LastEvent,),
        frozen=True,
        omit_defaults=True,
    )


def _stored_event(takes: type[Struct], events: ChangeEvents) -> Any:
    """Return the type of a stored event."""
    place = events.sequence
    return msgspec.defstruct(
        f"Stored{takes.__name__}",
        [
            ("at", int),
            ("sequence", place),
            ("record", takes | None),
            ("before", str | None, None),
            ("begins", place | None, None),
            ("began", int, 0),
            ("row", takes | None, None),
        ],
        bases=(StoredEvent,),
        frozen=True,
    )
