"""Tables of a feed of changes, whose events may come in any order: current rows, or all versions (slowly changing dimensions 1 and 2)."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec

from headrace.api.changelog import StreamChanges
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import OperatorFunction
from headrace.api.options import ChangeRules
from headrace.api.records import Struct
from headrace.api.states import MapState, ValueState
from headrace.operators._change_events import ChangeEvents
from headrace.operators._event_time import LAST_TIME, shown_length
from headrace.operators._ranking import Timed, emit_update
from headrace.operators._value_types import are_equal

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

_PLAIN = string.ascii_lowercase + string.digits + "_"
_LONGEST_NAME = 40


class _AppliedChanges(KeyedProcessFunction[In, Out], OperatorFunction):
    """Base of the functions of `Stream.apply_changes`."""

    KIND = "apply changes"
    TAKER = "apply_changes"
    takes_upserts = (0,)
    needs_keys_of_deletions = True
    retracts = True

    def __init__(self, events: ChangeEvents) -> None:
        """Take what reads the events."""
        self._events = events
        self._rules = events.rules
        self.read_of_deletions = events.rules.sequence_by

    def changes(self, name: str, keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the table.

        Raises `ValueError` for rows that take others back, which have no places of their own in the sequence, and for upserts of
        another key: one that moves a row to another key of the table would leave the old row.
        """
        (changes,) = taken
        key = keys[0].fields
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

    def _forget_after(self, at: int, length: int | None, ctx: Context) -> None:
        """Register a timer at the end of a length of event time, unless it lasts for ever."""
        if length is not None and at + length <= LAST_TIME:
            ctx.timers.register_event_time(at + length)

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
            "equal_sequences": "an equal event is dropped, another one goes to the quarantine",
            "deleted_keys": f"are known {_shown(rules.tombstones)}",
        }


class CurrentRowsFunction(_AppliedChanges[In, Out]):
    """Current row of each key: that of the last event in its sequence. Earlier ones that come later change nothing."""

    has_row_of_each_key = True

    last: ValueState[Any]

    def __init__(self, events: ChangeEvents, last: Any) -> None:
        """Take the type of the state."""
        super().__init__(events)
        self._last = last

    async def process(self, record: In, ctx: Context, /) -> None:
        """Replace the last event by a later one, and emit the change of the row."""
        event = self._events.read(record, ctx)
        if event is None:
            return
        order, kept = event
        last = await self.last.value()
        if last is not None and order <= last.order:
            if order == last.order:
                self._events.refuse_unless_equal(kept, last.record, ctx)
            return
        before, after = self._timed(last), None if kept is None else (self._events.row(kept), ctx.timestamp)
        if before is not None and after is not None and are_equal(before[0], after[0]):
            after = before  # it is retracted with the time with which it was emitted
        at = ctx.timestamp if after is None else after[1]
        await self.last.update(self._last(order=order, at=at, record=kept))
        emit_update(ctx, before, after)
        if kept is None:
            self._forget_after(at, self._rules.tombstones, ctx)

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


class HistoryFunction(_AppliedChanges[In, Out]):
    """Rows of each key that all its events make in the order of their sequence, in whatever order they come.

    `events` holds the events of a key by the sort text of their sequence, and each knows the one `before` it; `latest` is the text
    of the last one. So an event is put in its place by a walk back from the last one, and costs as many reads as there are events
    behind it. The rows of these alone can change.
    """

    LATE = "late"

    latest: ValueState[str]
    events: MapState[str, Any]

    def __init__(self, events: ChangeEvents, event: Any) -> None:
        """Take the type of a stored event."""
        super().__init__(events)
        self._event = event
        self.has_row_of_each_key = not events.rules.has_versions

    def unique_keys(self, fields: tuple[str, ...], taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the unique key of the rows: that of the stream, for versions with the place where they begin."""
        begins = self._events.key_of_versions()
        if not self._rules.has_versions:
            return super().unique_keys(fields, taken)
        return ((*fields, *begins),) if begins else ()

    async def process(self, record: In, ctx: Context, /) -> None:
        """Put an event in its place, and emit the changes of the rows from there on."""
        read = self._events.read(record, ctx)
        if read is None:
            return
        order, kept = read
        walk = await self._behind(order, ctx)
        if walk is None:
            self.set_aside_late(record, ctx)
            return
        place, before, later = walk
        if place == order:
            self._events.refuse_unless_equal(kept, before.record, ctx)
            return
        known = [] if before is None else [before]
        new = self._linked(
            self._event(at=ctx.timestamp, sequence=self._events.sequence_of(record), record=kept), place, before
        )
        behind = self._relinked(new, order, later)
        await self._store(order, new, later, behind)
        self._emit(ctx, self._rows([*known, *(event for _, event in later)]), self._rows([*known, new, *behind]))
        self._forget_later(new, ctx, is_last=not later)

    async def _behind(self, order: str, ctx: Context) -> tuple[str | None, Any, list[tuple[str, Any]]] | None:
        """Return the text of the event at or before a place, the event, and those behind it. None if that part is closed."""
        later: list[tuple[str, Any]] = []
        place, event = await self.latest.value(), None
        while place is not None:
            event = await self.events.get(place)
            if event is None or place <= order:
                break
            if self._rules.corrections is not None and event.at <= ctx.watermark - self._rules.corrections:
                return None
            later.append((place, event))
            place, event = event.before, None
        if place is not None and event is None:
            return None  # it was removed, with all before it
        return place, event, later[::-1]

    def _linked(self, event: Any, place: str | None, before: Any) -> Any:
        """Return an event with what it takes from the event before it, whose text is `place`."""
        if event.record is None:
            return msgspec.structs.replace(event, before=place, row=None, begins=None)
        continued = before is not None and before.record is not None
        row = self._events.filled(event.record, _row(before)) if continued else event.record
        is_filled = row is not event.record
        begins, began = event.sequence, event.at
        if continued and not self._events.opens_version(row, _row(before)):
            begins, began = before.begins, before.began
        return msgspec.structs.replace(event, before=place, row=row if is_filled else None, begins=begins, began=began)

    def _relinked(self, event: Any, place: str, later: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return the events behind a new one, with what they take from those before them."""
        linked = []
        for order, other in later:
            event = self._linked(other, place, event)
            place = order
            linked.append(event)
        return linked

    async def _store(self, order: str, new: Any, later: Sequence[tuple[str, Any]], linked: Sequence[Any]) -> None:
        await self.events.put(order, new)
        for (place, event), changed in zip(later, linked, strict=True):
            if not are_equal(changed, event):
                await self.events.put(place, changed)
        if not later:
            await self.latest.update(order)

    # --------------------------------------------------------------------------------------------------------- rows

    def _rows(self, events: Sequence[Any]) -> dict[Any, Timed]:
        """Return the rows of successive events, the last ones of their key, by what tells them apart, with their event times (ms).

        A version has the event time of the event that opened it.
        """
        if not self._rules.has_versions:
            last = events[-1] if events else None
            return {} if last is None or last.record is None else {None: (self._events.row(_row(last)), last.began)}
        rows = {}
        for event, following in zip_longest(events, events[1:]):
            goes_on = following is not None and following.begins == event.begins
            if event.record is not None and not goes_on:
                ends = None if following is None else following.sequence
                rows[event.begins] = (self._events.version(_row(event), event.begins, ends), event.began)
        return rows

    @staticmethod
    def _emit(ctx: Context, before: dict[Any, Timed], after: dict[Any, Timed]) -> None:
        for begins in [*before, *(begins for begins in after if begins not in before)]:
            emit_update(ctx, before.get(begins), after.get(begins))

    # --------------------------------------------------------------------------------------------------- forgetting

    def _forget_later(self, event: Any, ctx: Context, *, is_last: bool) -> None:
        """Register the timers that free an event: one for all events of a key in a length of `corrections`."""
        length = self._rules.corrections
        if length is not None:
            self._forget_after(event.at - event.at % length, 2 * length, ctx)
        if event.record is None and is_last:
            self._forget_after(event.at, self._rules.tombstones, ctx)

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


def _row(event: Any) -> Any:
    """Return the record of an event, with the values that it takes from events before it."""
    return event.record if event.row is None else event.row


def _shown(length: int | None) -> str:
    return "for ever (Lifetime.FOREVER)" if length is None else f"for {shown_length(length)} of event time"


class LastEvent(Struct, frozen=True):
    """Stored last event of a key: a text that sorts like its sequence, its row's event time (ms), and its record, None if it deletes."""

    order: str
    at: int
    record: Any


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


def apply_changes(takes: type[In], gives: type[Out], rules: ChangeRules) -> KeyedProcessFunction[In, Out]:
    """Return the function of `Stream.apply_changes`. Errors are those of `ChangeEvents`."""
    events = ChangeEvents(takes, gives, rules)
    # The names tell the fields of the sequence: places of other fields have another order.
    sequence = _name_of(rules.sequence_by)
    if not rules.keeps_events:
        last_type: Any = msgspec.defstruct(
            f"Last{takes.__name__}",
            [("order", str), ("at", int), ("record", takes | None)],
            bases=(LastEvent,),
            frozen=True,
        )

        class CurrentRows(CurrentRowsFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
            last = ValueState(f"last_event_by_{sequence}", last_type)

        return CurrentRows(events, last_type)
    place = events.sequence
    event_type: Any = msgspec.defstruct(
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

    class AppliedHistory(HistoryFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        latest = ValueState("latest", str)
        events = MapState(f"events_by_{sequence}", str, event_type)

    return AppliedHistory(events, event_type)
