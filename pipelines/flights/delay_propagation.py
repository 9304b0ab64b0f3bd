"""Delays that propagate with an aircraft: the expected delay of its next leg, from its current leg.

The rules, which `verify.sql` states a second time as sets:

- An event comes 12 hours or more after the aircraft's last event: the function starts anew. It checks the clock
itself; the TTL only bounds the stored state. - `upcoming` are the scheduled legs in the order of their events. A leg
leaves the list by departing or being cancelled.
- `current` is the leg that departed last, arrived or not. A leg displaced before its arrival goes
  to `airborne`, and its arrival changes its own line only. A current leg is abandoned, and unknown from then on, when
  another leg departs 24 hours or more after it.
- The first of `upcoming` expects that the aircraft flies back and is turned round twice after `current`. Its line
  is written again whenever that changes. Once departed it keeps its expectation for good, unless its state is
  lost: the arrival of a leg unknown by then shows none.
- A departed leg is overdue at departure + scheduled block + 60 minutes. It gives exactly one alert if the flight
arrives after the deadline, or has not arrived when the watermark reaches it.

The alerts have a separate state without TTL. A leg's deadline may be more than 12 hours after its departure (New York
to Honolulu), and the watermark may jump far beyond a deadline when no events arrive: with the legs' TTL such an alert
would depend on the steps of the watermark. No entry stays there for good, because each is removed by its arrival or
its timer.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeVar

from msgspec.structs import replace

from headrace import Context, KeyedProcessFunction, RowKind, StateTtl, Struct, TtlTime, ValueState
from pipelines.flights.records import BoardRow, Enriched, OverdueAlert, board_row

MINUTE: Final = 60_000
FORGET_AFTER: Final = 12 * 60 * MINUTE
TURN_ROUND: Final = 30 * MINUTE
OVERDUE_AFTER: Final = timedelta(minutes=60)
GIVEN_UP_AFTER: Final = 24 * 60 * MINUTE
"""Flights that never land in the data must not stay in the state for good. The longest of 2013 took 20.4 hours."""


class Current(Struct, frozen=True):
    """The leg of an aircraft that departed last."""

    row: BoardRow
    delay: int
    """Milliseconds: that of the departure, once arrived that of the arrival."""


class Legs(Struct, frozen=True):
    """The known legs of one aircraft."""

    updated: int
    """When the last event that wrote this was emitted (ms)."""
    last_seq: int
    """The highest `seq` applied. Only redeliveries come with one as low as this or lower."""
    current: Current | None = None
    upcoming: tuple[BoardRow, ...] = ()
    airborne: tuple[BoardRow, ...] = ()


class Watches(Struct, frozen=True):
    """Departed legs, each as the alert that it gives unless it arrives in time."""

    pending: tuple[OverdueAlert, ...]


NOTHING_KNOWN: Final = Legs(updated=0, last_seq=0)
NO_WATCHES: Final = Watches(())

Row = TypeVar("Row", BoardRow, OverdueAlert)


class DelayPropagation(KeyedProcessFunction[Enriched, BoardRow]):
    """Keeps the board's lines of one aircraft, and watches its flights; keyed by `aircraft`.

    Emits a changelog of `BoardRow`s and, as side output "overdue", `OverdueAlert`s. Input rows of kind -U are
    ignored, because the function retracts its own output itself.
    """

    legs = ValueState("legs", Legs, ttl=StateTtl(timedelta(milliseconds=FORGET_AFTER), time=TtlTime.EVENT))
    watches = ValueState("watches", Watches)

    def __init__(self, overdue_after: timedelta = OVERDUE_AFTER) -> None:
        """A leg is overdue so long after it should have arrived, counted from its departure."""
        self.grace = overdue_after // timedelta(milliseconds=1)

    async def process(self, event: Enriched, ctx: Context, /) -> None:
        """Apply one event; an event that was applied before changes nothing."""
        if ctx.row_kind is RowKind.UPDATE_BEFORE:
            return
        legs = await self._known(event)
        if event.seq <= legs.last_seq:
            return
        changed = await self._apply(legs, event, ctx)
        await self.legs.update(replace(changed, updated=event.emitted_at, last_seq=event.seq))

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit alerts for the legs with this deadline."""
        watches = await self.watches.value() or NO_WATCHES
        for alert in watches.pending:
            if alert.deadline <= timestamp:
                ctx.output("overdue", alert)
        await self._keep(tuple(alert for alert in watches.pending if alert.deadline > timestamp))

    async def _known(self, event: Enriched) -> Legs:
        legs = await self.legs.value()
        if legs is None or event.emitted_at - legs.updated >= FORGET_AFTER:
            return NOTHING_KNOWN
        return legs

    async def _apply(self, legs: Legs, event: Enriched, ctx: Context) -> Legs:
        match event.event:
            case "scheduled":
                return _scheduled(legs, event, ctx)
            case "departed":
                await self._watch(event, ctx)
                return _departed(legs, event, ctx)
            case "arrived":
                await self._unwatch(event, ctx)
                return _arrived(legs, event, ctx)
            case "cancelled":
                return _cancelled(legs, event, ctx)

    async def _watch(self, event: Enriched, ctx: Context) -> None:
        alert = _alert(event, self.grace)
        watches = await self.watches.value() or NO_WATCHES
        ctx.timers.register_event_time(alert.deadline)
        await self._keep((*watches.pending, alert))

    async def _unwatch(self, event: Enriched, ctx: Context) -> None:
        watches = await self.watches.value() or NO_WATCHES
        alert, others = _take(watches.pending, event.flight_id)
        if alert is None:
            return
        if event.emitted_at > alert.deadline:
            ctx.output("overdue", alert)
        # One timer serves all legs of this aircraft with the same deadline.
        if all(other.deadline != alert.deadline for other in others):
            ctx.timers.delete_event_time(alert.deadline)
        await self._keep(others)

    async def _keep(self, pending: tuple[OverdueAlert, ...]) -> None:
        if pending:
            await self.watches.update(Watches(pending))
        else:
            await self.watches.clear()


def expected_delay(current: Current | None, following: BoardRow) -> int | None:
    """Return the whole minutes by which `following` will depart late, or None without a current leg.

    The leg after `current` starts where `current` started, so the aircraft has to fly back first: one more block,
    and half an hour on the ground at either end.
    """
    if current is None:
        return None
    leg = current.row
    block = leg.scheduled_arrival - leg.scheduled_departure
    ready = leg.scheduled_arrival + current.delay + block + 2 * TURN_ROUND
    return max(0, ready - following.scheduled_departure) // MINUTE


def _scheduled(legs: Legs, event: Enriched, ctx: Context) -> Legs:
    row = board_row(event, status="scheduled", expected=None)
    if not legs.upcoming:
        row = replace(row, expected_delay_minutes=expected_delay(legs.current, row))
    ctx.collect(row, RowKind.INSERT)
    return replace(legs, upcoming=(*legs.upcoming, row))


def _departed(legs: Legs, event: Enriched, ctx: Context) -> Legs:
    known, upcoming = _take(legs.upcoming, event.flight_id)
    row = board_row(event, status="departed", expected=known.expected_delay_minutes if known else None)
    _replace_row(known, row, ctx)
    current = Current(row, delay=_departure(event) - event.scheduled_departure)
    airborne = (*legs.airborne, legs.current.row) if legs.current else legs.airborne
    if airborne:
        airborne = tuple(leg for leg in airborne if _may_land(leg, event.emitted_at))
    return _forecast(replace(legs, current=current, upcoming=upcoming, airborne=airborne), ctx)


def _arrived(legs: Legs, event: Enriched, ctx: Context) -> Legs:
    known, airborne = _take(legs.airborne, event.flight_id)
    is_current = legs.current is not None and legs.current.row.flight_id == event.flight_id
    if legs.current and is_current:
        known = legs.current.row
    row = board_row(event, status="arrived", expected=known.expected_delay_minutes if known else None)
    _replace_row(known, row, ctx)
    if not is_current:
        return replace(legs, airborne=airborne)
    current = Current(row, delay=event.emitted_at - event.scheduled_arrival)
    return _forecast(replace(legs, current=current), ctx)


def _cancelled(legs: Legs, event: Enriched, ctx: Context) -> Legs:
    known, upcoming = _take(legs.upcoming, event.flight_id)
    ctx.collect(known or board_row(event, status="scheduled", expected=None), RowKind.DELETE)
    return _forecast(replace(legs, upcoming=upcoming), ctx)


def _forecast(legs: Legs, ctx: Context) -> Legs:
    if not legs.upcoming or legs.current is None:
        return legs
    first, *later = legs.upcoming
    expected = expected_delay(legs.current, first)
    if expected == first.expected_delay_minutes:
        return legs
    row = replace(first, expected_delay_minutes=expected)
    _replace_row(first, row, ctx)
    return replace(legs, upcoming=(row, *later))


def _replace_row(old: BoardRow | None, new: BoardRow, ctx: Context) -> None:
    # The old row is unknown, so the retraction has only the key; the materializer finds the row by it.
    if old is not None:
        ctx.collect(old, RowKind.UPDATE_BEFORE)
    ctx.collect(new, RowKind.UPDATE_AFTER)


def _take(rows: tuple[Row, ...], flight_id: str) -> tuple[Row | None, tuple[Row, ...]]:
    for at, row in enumerate(rows):
        if row.flight_id == flight_id:
            return row, rows[:at] + rows[at + 1 :]
    return None, rows


def _may_land(leg: BoardRow, now: int) -> bool:
    return leg.arrival is None and leg.departure is not None and now - leg.departure < GIVEN_UP_AFTER


def _departure(event: Enriched) -> int:
    if event.departure is None:
        raise ValueError(f"flight {event.flight_id} departed without a departure time (seq {event.seq})")
    return event.departure


def _alert(event: Enriched, grace: int) -> OverdueAlert:
    departure = _departure(event)
    deadline = departure + (event.scheduled_arrival - event.scheduled_departure) + grace
    return OverdueAlert(
        event.flight_id, event.aircraft, deadline, departure, event.scheduled_arrival, event.origin, event.dest
    )
