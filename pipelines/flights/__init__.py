"""The flights of 2013: a board with the expected delays of aircraft, alerts, and departures by airport and hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headrace import CircuitBreaker, ExponentialBackoff, LookupCache, OutputMode, Pipeline, StateTtl, Strategy
from pipelines.flights.delay_propagation import OVERDUE_AFTER, DelayPropagation
from pipelines.flights.hourly_departures import CountDepartures, airport_and_hour, has_departed
from pipelines.flights.records import BOARD_READS, WEATHER_READS, FlightEvent, OverdueAlert
from pipelines.flights.weather_lookup import WeatherLookup, WeatherUnavailableError


def flights(board_ttl: StateTtl | None = None, overdue_after: timedelta = OVERDUE_AFTER) -> Pipeline:
    """Return the graph; `board_ttl` is the time after a flight's last event at which its history on the board expires.

    A flight is overdue when it lands later than `overdue_after` its planned time in the air.
    """
    job = Pipeline("flights")
    events = job.source(
        "flight_events",
        FlightEvent,
        event_time="emitted_at",
        order_by=("emitted_at", "seq"),
        row_kind="kind",
        out_of_orderness=timedelta(minutes=5),
    )
    (
        # The board replaces a flight's row by the row after an update: half of all updates need no weather, and no operator.
        events.drop_update_before("flight_id")
        .async_wait(
            "weather",
            WeatherLookup(),
            # The next step of an aircraft depends on the order of its events, so no event may overtake a waiting one.
            mode=OutputMode.ORDERED,
            capacity=200,
            cache=LookupCache(size=1_000),
            timeout=timedelta(seconds=30),
            retry=ExponentialBackoff(
                max_retries=8,
                initial_delay=timedelta(milliseconds=100),
                max_delay=timedelta(seconds=5),
                jitter=0.5,
                exceptions=(WeatherUnavailableError,),
            ),
            # Longer waits move to the next run, in the table async_requests; a service that is down is not called for each event.
            park_after=timedelta(seconds=2),
            breaker=CircuitBreaker(failures=20, probe_after=timedelta(seconds=5), longest=timedelta(seconds=10)),
            service="weather",
            reads=WEATHER_READS,
        )
        .key_by("aircraft")
        .process("delay_propagation", DelayPropagation(overdue_after), reads=BOARD_READS)
        .side_output("overdue", OverdueAlert, sink="overdue_alerts")
        # With the upsert key a line whose state was forgotten is still replaced, or removed, rather than doubled. All
        # changes of a flight come from its aircraft, in order, so no history would be needed. The materializer is
        # kept all the same: it detects corrections that retract rows which were never on the board.
        .upsert_materialize(
            "board",
            primary_key=("flight_id",),
            upsert_key=("flight_id",),
            strategy=Strategy.ADAPTIVE,
            ttl=board_ttl,
            force=True,
        )
        .sink("flight_board")
    )
    # A second branch: it calls no service, so it continues while the weather service is down.
    (
        events.filter(has_departed, reads=("event", "departure"))
        .key_by(airport_and_hour, reads=("origin", "departure"))
        .process(
            "count_departures",
            CountDepartures(),
            reads={"*": ("flight_id",), "origin": ("origin",), "hour": ("departure",), "departures": ("flight_id",)},
        )
        .upsert_materialize("departures", primary_key=("origin", "hour"), upsert_key=("origin", "hour"))
        .sink("hourly_departures")
    )
    return job


pipeline: Final = flights()
strict: Final = flights(overdue_after=timedelta(minutes=30))
"""The same with earlier alerts: for a branch, to see how many more there would be."""

__all__ = ["flights", "pipeline", "strict"]
