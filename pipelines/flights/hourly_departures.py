"""The number of departures of an airport per hour: a second branch of the job, beside the board.

An event may be delivered twice, so flights are counted once: each is remembered for two days, longer than a second
delivery takes. A count is written again with each departure; the table has one row for each airport and hour.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headrace import Context, KeyedProcessFunction, MapState, RowKind, StateTtl, TtlTime, ValueState
from pipelines.flights.records import FlightEvent, HourlyDepartures

HOUR: Final = 3_600_000
REMEMBERED: Final = StateTtl(timedelta(days=2), time=TtlTime.EVENT)


def has_departed(event: FlightEvent) -> bool:
    """Return whether the event is a departure, in the row after it: the row before it (-U) has no time of departure."""
    return event.event == "departed" and event.departure is not None


def airport_and_hour(event: FlightEvent) -> tuple[str, int]:
    """Return the airport, and the beginning of the hour of departure."""
    assert event.departure is not None  # noqa: S101 - has_departed has seen to it
    return event.origin, event.departure // HOUR * HOUR


class CountDepartures(KeyedProcessFunction[FlightEvent, HourlyDepartures]):
    """Counts the flights of one airport and hour, each once."""

    counted = MapState("counted", str, int, ttl=REMEMBERED)
    total = ValueState("total", int, ttl=REMEMBERED)

    async def process(self, event: FlightEvent, ctx: Context, /) -> None:
        """Count a departure, unless it was delivered before."""
        if await self.counted.contains(event.flight_id):
            return
        await self.counted.put(event.flight_id, 1)
        departures = (await self.total.value() or 0) + 1
        await self.total.update(departures)
        origin, hour = airport_and_hour(event)
        ctx.collect(HourlyDepartures(origin, hour, departures), RowKind.UPDATE_AFTER)
