"""What goes through the job: events of flights, the board that it keeps, and alerts."""

from __future__ import annotations

from typing import Literal

from headrace import Struct, Timestamp

Status = Literal["scheduled", "departed", "arrived"]
EventName = Literal["scheduled", "departed", "arrived", "cancelled"]


class FlightEvent(Struct, frozen=True):
    """A flight after an event, or before it when the row kind is -U or -D."""

    seq: int
    event: EventName
    emitted_at: Timestamp
    flight_id: str
    carrier: str
    airline: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    scheduled_departure: Timestamp
    scheduled_arrival: Timestamp
    departure: Timestamp | None
    arrival: Timestamp | None
    distance: int
    seats: int | None


class Enriched(FlightEvent, frozen=True):
    """An event with the weather at the origin in the hour of the scheduled departure."""

    aircraft: str
    """The tail number, or the flight id where no aircraft was ever assigned."""
    temp: float | None
    wind_speed: float | None
    precip: float | None
    visib: float | None


class BoardRow(Struct, frozen=True):
    """One line of the departures board. Cancelled flights have none."""

    flight_id: str
    aircraft: str
    carrier: str
    airline: str
    flight: int
    origin: str
    dest: str
    scheduled_departure: Timestamp
    scheduled_arrival: Timestamp
    departure: Timestamp | None
    arrival: Timestamp | None
    status: str
    expected_delay_minutes: int | None
    """What the aircraft's earlier leg made expect; unknown without such a leg."""
    temp: float | None
    wind_speed: float | None
    precip: float | None
    visib: float | None


class OverdueAlert(Struct, frozen=True):
    """A flight that has not arrived by its deadline."""

    flight_id: str
    aircraft: str
    deadline: Timestamp
    departure: Timestamp
    scheduled_arrival: Timestamp
    origin: str
    dest: str


class HourlyDepartures(Struct, frozen=True):
    """The number of departures of an airport in the hour that begins at `hour`."""

    origin: str
    hour: Timestamp
    departures: int


def with_weather(
    event: FlightEvent,
    *,
    temp: float | None = None,
    wind_speed: float | None = None,
    precip: float | None = None,
    visib: float | None = None,
) -> Enriched:
    """Return `event` with its aircraft and weather filled in."""
    return Enriched(
        seq=event.seq,
        event=event.event,
        emitted_at=event.emitted_at,
        flight_id=event.flight_id,
        carrier=event.carrier,
        airline=event.airline,
        flight=event.flight,
        tailnum=event.tailnum,
        origin=event.origin,
        dest=event.dest,
        scheduled_departure=event.scheduled_departure,
        scheduled_arrival=event.scheduled_arrival,
        departure=event.departure,
        arrival=event.arrival,
        distance=event.distance,
        seats=event.seats,
        aircraft=event.tailnum or event.flight_id,
        temp=temp,
        wind_speed=wind_speed,
        precip=precip,
        visib=visib,
    )


def board_row(event: Enriched, *, status: Status, expected: int | None) -> BoardRow:
    """Return the board's line for the flight in the state of `event`."""
    return BoardRow(
        flight_id=event.flight_id,
        aircraft=event.aircraft,
        carrier=event.carrier,
        airline=event.airline,
        flight=event.flight,
        origin=event.origin,
        dest=event.dest,
        scheduled_departure=event.scheduled_departure,
        scheduled_arrival=event.scheduled_arrival,
        departure=event.departure,
        arrival=event.arrival,
        status=status,
        expected_delay_minutes=expected,
        temp=event.temp,
        wind_speed=event.wind_speed,
        precip=event.precip,
        visib=event.visib,
    )
