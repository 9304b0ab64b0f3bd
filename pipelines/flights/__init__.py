"""The flights of 2013: a departures board that knows how late an aircraft will be, and alerts for overdue flights."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headrace import CircuitBreaker, ExponentialBackoff, OutputMode, Pipeline, StateTtl, Strategy
from pipelines.flights.delay_propagation import DelayPropagation
from pipelines.flights.records import FlightEvent, OverdueAlert
from pipelines.flights.weather_lookup import WeatherLookup, WeatherUnavailableError


def departures(board_ttl: StateTtl | None = None) -> Pipeline:
    """Return the pipeline; with `board_ttl` rows of the board's history end after so long."""
    return (
        Pipeline("flights")
        .source(
            "flight_events",
            FlightEvent,
            event_time="emitted_at",
            order_by=("emitted_at", "seq"),
            row_kind="kind",
            out_of_orderness=timedelta(minutes=5),
        )
        .async_wait(
            "weather",
            WeatherLookup(),
            # What an aircraft does next depends on the order of its events, so nothing may overtake one that waits.
            mode=OutputMode.ORDERED,
            capacity=200,
            timeout=timedelta(seconds=30),
            retry=ExponentialBackoff(
                max_retries=8,
                initial_delay=timedelta(milliseconds=100),
                max_delay=timedelta(seconds=5),
                jitter=0.5,
                exceptions=(WeatherUnavailableError,),
            ),
            # Longer waits are for the next run, in the table async_requests; a service that is down is not asked for each event.
            park_after=timedelta(seconds=2),
            breaker=CircuitBreaker(failures=20, probe_after=timedelta(seconds=5), longest=timedelta(seconds=10)),
            service="weather",
        )
        .key_by("aircraft")
        .process("delay_propagation", DelayPropagation())
        .side_output("overdue", OverdueAlert, sink="overdue_alerts")
        # With the upsert key a line whose state was forgotten is still replaced, or removed, rather than doubled.
        # All changes of a flight come from its aircraft, in order, so no history would be needed. It is kept all the same: it
        # finds corrections that take back what never was on the board.
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


pipeline: Final = departures()

__all__ = ["departures", "pipeline"]
