"""Samples small enough to reason about: a scenario of one aircraft, and random flights as raw tables."""

from __future__ import annotations

import csv
import io
import random
import zipfile
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import RowKind, StateFuture
from pipelines.flights.delay_propagation import DelayPropagation
from pipelines.flights.records import BoardRow, Enriched, FlightEvent, OverdueAlert, Weather, with_weather
from pipelines.flights.weather_service import load_observations

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator
    from pathlib import Path

MINUTE = 60_000
FIVE_MINUTES = 5 * MINUTE


class FakeTimers:
    """The timers of one key."""

    def __init__(self) -> None:
        self.due: set[int] = set()

    def register_event_time(self, timestamp: int, /) -> None:
        self.due.add(timestamp)

    def delete_event_time(self, timestamp: int, /) -> None:
        self.due.discard(timestamp)


class FakeContext:
    """The context of one key; `emitted` and `alerts` are shared by all keys."""

    def __init__(self, key: str, emitted: list[tuple[RowKind, BoardRow]], alerts: list[OverdueAlert]) -> None:
        self.key: Any = key
        self.timestamp = 0
        self.watermark = 0
        self.row_kind = RowKind.INSERT
        self.timers = FakeTimers()
        self.emitted = emitted
        self.alerts = alerts

    def collect(self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT) -> None:
        assert isinstance(record, BoardRow)
        self.emitted.append((kind, record))

    def output(self, name: str, record: msgspec.Struct, /) -> None:
        assert name == "overdue"
        assert isinstance(record, OverdueAlert)
        self.alerts.append(record)


class FakeState:
    """A value state that never expires: the function must not need the TTL to be right."""

    def __init__(self) -> None:
        self.key = ""
        self.values: dict[str, Any] = {}
        self.writes = 0

    def value(self) -> StateFuture[Any]:
        return StateFuture(self.values.get(self.key))

    def update(self, value: Any, /) -> StateFuture[None]:
        self.values[self.key] = value
        self.writes += 1
        return StateFuture(None)

    def clear(self) -> StateFuture[None]:
        self.values.pop(self.key, None)
        self.writes += 1
        return StateFuture(None)


class Simulation:
    """One DelayPropagation with all its keys. `board` is the table that its changelog describes."""

    def __init__(self) -> None:
        self.function = DelayPropagation()
        self.legs, self.watches = FakeState(), FakeState()
        vars(self.function).update(legs=self.legs, watches=self.watches)
        self.emitted: list[tuple[RowKind, BoardRow]] = []
        self.alerts: list[OverdueAlert] = []
        self.contexts: dict[str, FakeContext] = {}
        self.watermark = 0

    def process(self, event: Enriched, kind: RowKind = RowKind.INSERT) -> None:
        context = self._context(event.aircraft)
        context.timestamp, context.row_kind, context.watermark = event.emitted_at, kind, self.watermark
        _run(self.function.process(event, context))

    def process_all(self, events: Iterable[tuple[RowKind, Enriched]]) -> None:
        for kind, event in events:
            self.process(event, kind)

    def advance(self, watermark: int) -> None:
        """Fire due timers, key by key in time order."""
        self.watermark = watermark
        for key, context in self.contexts.items():
            for timestamp in sorted(due for due in context.timers.due if due <= watermark):
                self._context(key).timers.due.discard(timestamp)
                context.timestamp, context.row_kind, context.watermark = timestamp, RowKind.INSERT, watermark
                _run(self.function.on_timer(timestamp, context))

    def board(self) -> dict[str, BoardRow]:
        rows: dict[str, BoardRow] = {}
        for kind, row in self.emitted:
            if kind is RowKind.DELETE:
                del rows[row.flight_id]
            elif kind is not RowKind.UPDATE_BEFORE:
                rows[row.flight_id] = row
        return rows

    def _context(self, key: str) -> FakeContext:
        if key not in self.contexts:
            self.contexts[key] = FakeContext(key, self.emitted, self.alerts)
        self.legs.key = self.watches.key = key
        return self.contexts[key]


def table_of(rows: Iterable[msgspec.Struct], kind: type[msgspec.Struct]) -> pa.Table:
    """Return `rows` as columns; instants stay integers."""
    result = list(rows)
    columns = {name: pa.array([getattr(row, name) for row in result]) for name in kind.__struct_fields__}
    return pa.table({name: _typed(column) for name, column in columns.items()})


def _typed(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        # The future is answered at once, and there are no callbacks that would run first.
        while isinstance(awaited := coroutine.send(None), StateFuture) and awaited.done:
            pass
    except StopIteration:
        return
    raise AssertionError("the function waited for something other than state")


class Scenario:
    """The day of one aircraft, told by clock times as minutes; events are applied in the order of the calls."""

    def __init__(self) -> None:
        self.simulation = Simulation()
        self.seq = 0
        self.last: tuple[Enriched, RowKind] | None = None
        self.seen = 0
        self.flights: dict[str, FlightEvent] = {}

    def scheduled(self, name: str, departs: int, block: int) -> None:
        flight = FlightEvent(
            seq=0,
            event="scheduled",
            emitted_at=(departs - 360) * MINUTE,
            flight_id=name,
            carrier="UA",
            airline="United",
            flight=1,
            tailnum="N1",
            origin="EWR",
            dest="IAH",
            scheduled_departure=departs * MINUTE,
            scheduled_arrival=(departs + block) * MINUTE,
            departure=None,
            arrival=None,
            distance=1,
            seats=None,
        )
        self.flights[name] = flight
        self._send(flight, RowKind.INSERT)

    def departed(self, name: str, late: int = 0) -> None:
        flight = self.flights[name]
        at = flight.scheduled_departure + late * MINUTE
        self._send(self._changed(name, event="departed", emitted_at=at, departure=at), RowKind.UPDATE_AFTER)

    def arrived(self, name: str, late: int = 0) -> None:
        at = self.flights[name].scheduled_arrival + late * MINUTE
        self._send(self._changed(name, event="arrived", emitted_at=at, arrival=at), RowKind.UPDATE_AFTER)

    def cancelled(self, name: str) -> None:
        at = self.flights[name].scheduled_departure
        self._send(self._changed(name, event="cancelled", emitted_at=at), RowKind.DELETE)

    def delivered_again(self) -> None:
        assert self.last is not None
        self.simulation.process(*self.last)

    def advance(self, minute: int) -> None:
        self.simulation.advance(minute * MINUTE)

    def expected(self, name: str) -> int | None:
        return self.simulation.board()[name].expected_delay_minutes

    def emitted(self) -> list[tuple[str, str, str, int | None]]:
        """Return the emitted rows since the last call: row kind, flight, status, expected delay."""
        rows = [
            (kind.symbol, row.flight_id, row.status, row.expected_delay_minutes)
            for kind, row in self.simulation.emitted
        ]
        new, self.seen = rows[self.seen :], len(rows)
        return new

    def alerts(self) -> list[str]:
        return [alert.flight_id for alert in self.simulation.alerts]

    def _changed(self, name: str, **columns: object) -> FlightEvent:
        self.flights[name] = msgspec.structs.replace(self.flights[name], **columns)
        return self.flights[name]

    def _send(self, flight: FlightEvent, kind: RowKind) -> None:
        self.seq += 1
        event = with_weather(msgspec.structs.replace(flight, seq=self.seq), Weather(temp=39.0))
        self.last = (event, kind)
        self.simulation.process(event, kind)


AIRPORTS = {"IAH": (-6, "A"), "PHX": (-7, "N"), "HNL": (-10, "N"), "LAX": (-8, "A"), "BOS": (-5, "A")}
DESTINATIONS = [*AIRPORTS, "SJU"]
FLIGHT_COLUMNS = [
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
]


def write_raw(folder: Path, seed: int, *, first: date, days: int, flights: int) -> Path:
    """Write raw tables with far more anomalies than the real ones: overlaps, long delays, missing arrivals."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_random_flight(chance, number, first, days) for number in range(flights)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([FLIGHT_COLUMNS, *rows])
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    airports = [f"{code},{tz},{dst}" for code, (tz, dst) in AIRPORTS.items()]
    hours = [datetime(first.year, first.month, first.day, tzinfo=UTC) + timedelta(hours=n) for n in range(24 * days)]
    weather = [f"{o},{h:%Y-%m-%dT%H:%M:%SZ},{n}.02,NA,0,10" for o in ("EWR", "JFK") for n, h in enumerate(hours)]
    (folder / "airports.csv").write_text("\n".join(["faa,tz,dst", *airports]))
    (folder / "airlines.csv").write_text("carrier,name\nUA,United Air Lines Inc.\nDL,Delta Air Lines Inc.\n")
    (folder / "planes.csv").write_text("tailnum,seats\nN0,55\nN1,NA\n")
    (folder / "weather.csv").write_text("\n".join(["origin,time_hour,temp,wind_speed,precip,visib", *weather]))
    return folder


def _random_flight(chance: random.Random, number: int, first: date, days: int) -> list[object]:
    day = first + timedelta(days=chance.randrange(days))
    hour, minute = chance.randrange(3, 24), chance.randrange(0, 60, 20)
    cancelled = chance.random() < 0.1
    delay = chance.choice([0, 0, -43, 20, 60, 300, 1301])
    arrival = "NA" if cancelled or chance.random() < 0.1 else chance.randrange(1, 2401) // 100 * 100 + 20
    arrival_delay = "NA" if arrival == "NA" or chance.random() < 0.1 else delay + chance.randrange(-60, 200, 20)
    saving = date(2013, 3, 10) <= day < date(2013, 11, 3)
    instant = datetime(day.year, day.month, day.day, hour, tzinfo=UTC) + timedelta(hours=4 if saving else 5)
    return [
        *(day.year, day.month, day.day),
        *("NA" if cancelled else 1, hour * 100 + minute, "NA" if cancelled else delay),
        *(arrival, chance.randrange(24) * 100 + chance.randrange(0, 60, 20), arrival_delay),
        *(chance.choice(["UA", "DL"]), number, "NA" if cancelled and number % 2 else f"N{chance.randrange(4)}"),
        *(chance.choice(["EWR", "JFK", "LGA"]), chance.choice(DESTINATIONS), "NA", 1400, hour, minute),
        f"{instant:%Y-%m-%dT%H:%M:%SZ}",
    ]


def read_events(folder: Path, raw: Path) -> Iterator[tuple[RowKind, Enriched]]:
    """Yield the events of a folder in the order of the job: by file, each by (emitted_at, seq)."""
    weather = load_observations(raw)
    for path in sorted(folder.glob("2*.parquet")):
        table = pq.read_table(path).sort_by([("emitted_at", "ascending"), ("seq", "ascending")])
        instants = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        for name in instants:
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
        columns = [table[name].to_pylist() for name in FlightEvent.__struct_fields__]
        for kind, values in zip(table["kind"].to_pylist(), zip(*columns, strict=True), strict=True):
            event = FlightEvent(*values)
            hour = datetime.fromtimestamp(event.scheduled_departure // 3_600_000 * 3_600, UTC)
            result = weather.get((event.origin, f"{hour:%Y-%m-%dT%H:%M:%SZ}"), {})
            yield RowKind.parse(kind), with_weather(event, Weather(**result))


def simulate(folder: Path, raw: Path, *, step: int) -> Simulation:
    """Run the job's function over a folder; the watermark moves in jumps of at least `step` ms."""
    simulation = Simulation()
    for kind, event in read_events(folder, raw):
        simulation.process(event, kind)
        if event.emitted_at - FIVE_MINUTES >= simulation.watermark + step:
            simulation.advance(event.emitted_at - FIVE_MINUTES)
    return simulation


@pytest.fixture
def scenario():
    return Scenario()


@pytest.fixture
def service_data():
    return {
        ("EWR", "2013-01-01T10:00:00Z"): {"temp": 39.02, "wind_speed": 12.65858, "precip": 0.0, "visib": 10.0},
        ("JFK", "2013-01-01T10:00:00Z"): {"temp": None, "wind_speed": 3.0, "precip": 0.0, "visib": 10.0},
    }
