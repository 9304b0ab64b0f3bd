"""What goes through the job: entries of flights, planes of the registry, weather reports, and lines of the logbook."""

from __future__ import annotations

from headrace import Struct, Timestamp


class Entry(Struct, frozen=True):
    """A departed flight, as entered by its crew."""

    flight_id: str
    carrier: str
    flight: int
    tailnum: str
    origin: str
    dest: str
    departed_at: Timestamp
    hour: Timestamp
    """The hour of the scheduled departure: the flight's weather is that of this hour."""
    recorded_at: Timestamp


class Plane(Struct, frozen=True):
    """The plane that the registry has under a tail number."""

    tailnum: str
    manufacturer: str
    model: str
    built: int | None
    seats: int
    recorded_at: Timestamp


class Report(Struct, frozen=True):
    """The weather at an airport in one hour. A value that was not measured is null."""

    origin: str
    hour: Timestamp
    temp: float | None
    wind_speed: float | None
    visib: float | None
    recorded_at: Timestamp


class Flown(Struct, frozen=True):
    """An entry with its plane; a tail number that the registry lacks has none."""

    entry: Entry
    plane: Plane | None

    def place_and_hour(self) -> tuple[str, int]:
        """Return place and time of the weather of this flight."""
        return self.entry.origin, self.entry.hour


class Line(Struct, frozen=True):
    """One row of the logbook: a flight with the plane that flew it, and its weather."""

    flight_id: str
    carrier: str
    flight: int
    tailnum: str
    origin: str
    dest: str
    departed_at: Timestamp
    manufacturer: str | None
    model: str | None
    built: int | None
    seats: int | None
    temp: float | None
    wind_speed: float | None
    visib: float | None

    @classmethod
    def of(cls, flown: Flown, report: Report | None) -> Line:
        """Return the line of a flight, with the weather in its hour."""
        entry, plane = flown.entry, flown.plane
        return cls(
            flight_id=entry.flight_id,
            carrier=entry.carrier,
            flight=entry.flight,
            tailnum=entry.tailnum,
            origin=entry.origin,
            dest=entry.dest,
            departed_at=entry.departed_at,
            manufacturer=plane.manufacturer if plane else None,
            model=plane.model if plane else None,
            built=plane.built if plane else None,
            seats=plane.seats if plane else None,
            temp=report.temp if report else None,
            wind_speed=report.wind_speed if report else None,
            visib=report.visib if report else None,
        )
