"""Events of a key in the order of their sequence: what each takes from the one before it, and the versions that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from headrace.operators._change_events import ChangeEvents
from headrace.operators._event_time import LAST_TIME
from headrace.operators._ranking import Timed, emit_update


class EventLinks:
    """Links events to those before them."""

    def __init__(self, events: ChangeEvents) -> None:
        """Take what reads the events."""
        self._events = events

    def linked(self, event: Any, place: str | None, before: Any) -> Any:
        """Return an event with what it takes from the event before it, whose text is `place`."""
        if event.record is None:
            return msgspec.structs.replace(event, before=place, row=None, begins=None)
        continued = before is not None and before.record is not None
        row = self._events.filled(event.record, row_of(before)) if continued else event.record
        is_filled = row is not event.record
        begins, began = event.sequence, event.at
        if continued and not self._events.opens_version(row, row_of(before)):
            begins, began = before.begins, before.began
        return msgspec.structs.replace(event, before=place, row=row if is_filled else None, begins=begins, began=began)

    def relinked(self, event: Any, place: str, later: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return the events behind a new one, with what they take from those before them."""
        linked = []
        for order, other in later:
            event = self.linked(other, place, event)
            place = order
            linked.append(event)
        return linked

    def is_final(self, event: Any, watermark: int) -> bool:
        """Return whether an event can change no more at a watermark (ms), and so none before it."""
        length = self._events.rules.corrections
        return length is not None and bool(event.at <= watermark - length)

    def timers(self, event: Any, *, is_last: bool) -> Iterator[int]:
        """Yield the times of the timers that free an event (ms): one for all events of a key in a length of `corrections`."""
        rules = self._events.rules
        ends = (
            []
            if rules.corrections is None
            else [end_of(event.at - event.at % rules.corrections, 2 * rules.corrections)]
        )
        if event.record is None and is_last:
            ends.append(end_of(event.at, rules.tombstones))
        yield from (end for end in ends if end is not None)

    def versions(self, events: Sequence[Any]) -> dict[Any, Timed]:
        """Return the rows of successive events, the last ones of their key, by the places where their versions begin.

        A version has the event time of the event that opened it (ms).
        """
        rows = {}
        for event, following in zip_longest(events, events[1:]):
            goes_on = following is not None and following.begins == event.begins
            if event.record is not None and not goes_on:
                ends = None if following is None else following.sequence
                rows[event.begins] = (self._events.version(row_of(event), event.begins, ends), event.began)
        return rows


def emit_rows(ctx: Any, before: Mapping[Any, Timed], after: Mapping[Any, Timed]) -> None:
    """Emit the changes of the rows of a key, by what tells them apart."""
    for begins in [*before, *(begins for begins in after if begins not in before)]:
        emit_update(ctx, before.get(begins), after.get(begins))


def end_of(begins: int, length: int | None) -> int | None:
    """Return the end of a length of event time (ms); None if it lasts for ever."""
    return None if length is None or begins + length > LAST_TIME else begins + length


def row_of(event: Any) -> Any:
    """Return the record of a stored event, with the values that it takes from events before it."""
    return event.record if event.row is None else event.row
