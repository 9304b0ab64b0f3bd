"""Asks the weather service, once for all events of an airport and hour."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from headrace import LookupFunction, Struct
from pipelines.flights.records import Enriched, FlightEvent, Weather, with_weather

HOUR: Final = 3_600_000
SERVICE: Final = "weather"
"""The name under which the job's configuration gives the service's URL."""

LONGEST_REQUEST: Final = aiohttp.ClientTimeout(total=10)
"""Well below the operator's timeout over all attempts: a request that hangs is worth another one."""

Question = tuple[str, int]
"""An origin and the start of an hour (ms)."""


class _NotFound(Struct, frozen=True):
    error: str


class WeatherUnavailableError(Exception):
    """The service could not be reached or answers with a temporary error: a retry may help."""


class WeatherRefusedError(Exception):
    """The service didn't take the question, or its answer can't be read: asking again won't help."""


class WeatherLookup(LookupFunction[FlightEvent, Enriched]):
    """Adds the weather at the origin in the hour of the scheduled departure."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._url = ""

    async def open(self, services: dict[str, str], /) -> None:
        """Open the client; `services` must have "weather".

        Raises:
            `KeyError` if the job has no service of this name.
        """
        self._url = f"{services[SERVICE].rstrip('/')}/weather"
        self._session = aiohttp.ClientSession(timeout=LONGEST_REQUEST)

    async def close(self) -> None:
        """Close the client."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    def cache_key(self, record: FlightEvent, /) -> Question:
        """Return the origin and the hour of the scheduled departure."""
        return record.origin, record.scheduled_departure // HOUR * HOUR

    async def look_up(self, key: Question, /) -> Weather:
        """Ask the service.

        Raises:
            WeatherUnavailableError: the service answered 5xx or could not be reached.
            `WeatherRefusedError` if the answer has another status than 200 and 404, or cannot be read.
        """
        if self._session is None:
            raise RuntimeError("WeatherLookup was called before open()")
        origin, hour = key
        query = {"origin": origin, "hour": f"{datetime.fromtimestamp(hour / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"}
        try:
            async with self._session.get(self._url, params=query) as response:
                return _read(response.status, await response.read(), query)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WeatherUnavailableError(f"{self._url} could not be reached for {query}: {error}") from error

    def join(self, record: FlightEvent, answer: Weather, /) -> list[Enriched]:
        """Return `record` with its weather."""
        return [with_weather(record, answer)]

    def deleted(self, record: FlightEvent, /) -> Enriched:
        """Return `record` without weather."""
        return with_weather(record)


def _read(status: int, body: bytes, query: dict[str, str]) -> Weather:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise WeatherUnavailableError(f"the weather service answered {status} for {query}")
    if status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
        raise WeatherRefusedError(f"the weather service answered {status} for {query}: {body[:200]!r}")
    try:
        if status == HTTPStatus.OK:
            return msgspec.json.decode(body, type=Weather)
        # A wrong URL gives 404 too, from any server. Only the service's own 404 means that there is no observation.
        msgspec.json.decode(body, type=_NotFound)
        return Weather()
    except msgspec.DecodeError as error:
        raise WeatherRefusedError(f"the weather service's answer for {query} can't be read: {error}") from error
