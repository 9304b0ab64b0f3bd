"""Calls the weather service for each event, but never twice for the same question."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from headrace import AsyncFunction, Struct
from pipelines.flights.records import Enriched, FlightEvent, with_weather

HOUR: Final = 3_600_000
SERVICE: Final = "weather"
"""The name under which the job's configuration gives the service's URL."""

LONGEST_REQUEST: Final = aiohttp.ClientTimeout(total=10)
"""Well below the operator's timeout over all attempts: a request that hangs is worth another one."""

Question = tuple[str, int]
"""An origin and the start of an hour (ms)."""


class Weather(Struct, frozen=True):
    """An observation; all None where the service has none."""

    temp: float | None = None
    wind_speed: float | None = None
    precip: float | None = None
    visib: float | None = None


class _NotFound(Struct, frozen=True):
    error: str


class WeatherUnavailableError(Exception):
    """The service could not be reached or answers with a temporary error: a retry may help."""


class WeatherRefusedError(Exception):
    """The service didn't take the question, or its answer can't be read: asking again won't help."""


class WeatherLookup(AsyncFunction[FlightEvent, Enriched]):
    """Adds the weather at the origin in the hour of the scheduled departure.

    Answers are kept for the length of a task, the `remembered` used last. Concurrent events with the same question
    share one request, and its failure; a failure is never cached.
    """

    def __init__(self, *, remembered: int = 1_000) -> None:
        if remembered < 1:
            raise ValueError(f"remembered must be at least 1, not {remembered}")
        self._remembered = remembered
        self._session: aiohttp.ClientSession | None = None
        self._url = ""
        self._answers: OrderedDict[Question, asyncio.Task[Weather]] = OrderedDict()

    async def open(self, services: dict[str, str], /) -> None:
        """Open the client; `services` must have "weather".

        Raises:
            `KeyError` if the job has no service of this name.
        """
        self._url = f"{services[SERVICE].rstrip('/')}/weather"
        self._session = aiohttp.ClientSession(timeout=LONGEST_REQUEST)
        self._answers = OrderedDict()

    async def close(self) -> None:
        """Cancel open requests and close the client."""
        for answer in self._answers.values():
            answer.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)
        self._answers.clear()
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def invoke(self, record: FlightEvent, /) -> list[Enriched]:
        """Return `record` with its weather.

        Raises:
            WeatherUnavailableError: the service answered 5xx or could not be reached.
            `WeatherRefusedError` if the answer has another status than 200 and 404, or cannot be read.
        """
        weather = await self._answer((record.origin, record.scheduled_departure // HOUR * HOUR))
        return [
            with_weather(
                record,
                temp=weather.temp,
                wind_speed=weather.wind_speed,
                precip=weather.precip,
                visib=weather.visib,
            )
        ]

    async def _answer(self, question: Question) -> Weather:
        answer = self._answers.get(question)
        if answer is None:
            answer = asyncio.create_task(self._ask(question))
            answer.add_done_callback(lambda done: self._forget_failure(question, done))
            self._answers[question] = answer
            self._drop_oldest()
        self._answers.move_to_end(question)
        if answer.done():
            return answer.result()
        # The timeout of one record must not cancel the answer for the others that wait for it.
        return await asyncio.shield(answer)

    def _forget_failure(self, question: Question, done: asyncio.Task[Weather]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._answers.get(question) is done:
            del self._answers[question]

    def _drop_oldest(self) -> None:
        # An open request continues for its waiting records, but new records no longer find it.
        while len(self._answers) > self._remembered:
            self._answers.popitem(last=False)

    async def _ask(self, question: Question) -> Weather:
        if self._session is None:
            raise RuntimeError("WeatherLookup was called before open()")
        origin, hour = question
        query = {"origin": origin, "hour": f"{datetime.fromtimestamp(hour / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"}
        try:
            async with self._session.get(self._url, params=query) as response:
                return _read(response.status, await response.read(), query)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WeatherUnavailableError(f"{self._url} could not be reached for {query}: {error}") from error


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
