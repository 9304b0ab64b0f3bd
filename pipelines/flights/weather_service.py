"""A weather service as others run them: mostly fast and right, now and then unavailable.

    python -m pipelines.flights.weather_service [--port 8013] [--failure-rate 0.01] [--seed 13] [--ready-file F]

It answers from the real observations of 2013 at the three airports of New York:

    GET  /weather?origin=EWR&hour=2013-01-01T10:00:00Z   the observation, 404 when there is none
    GET  /outage, POST /outage {"on": true}              whether all weather is unavailable; switch it
         POST /outage {"on": true, "after": 400}         ... once it has had so many more requests
    GET  /statistics                                     answers given so far, by kind
    GET  /health                                         always 200
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import errno
import random  # noqa: TID251 - seeded by the caller
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from aiohttp import web

from pipelines.flights.raw_data import data_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Observations = dict[tuple[str, str], dict[str, float | None]]

COLUMNS: Final = ("temp", "wind_speed", "precip", "visib")


def load_observations(folder: Path) -> Observations:
    """Return the observations by (origin, hour); the hour as in "2013-01-01T10:00:00Z"."""
    with (folder / "weather.csv").open(newline="", encoding="utf-8") as file:
        return {
            (row["origin"], row["time_hour"]): {name: _number(row[name]) for name in COLUMNS}
            for row in csv.DictReader(file)
        }


def _number(text: str) -> float | None:
    return None if text in {"", "NA"} else float(text)


class _Outage(msgspec.Struct, forbid_unknown_fields=True):
    on: bool
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class WeatherService:
    """The service's state and its handlers.

    Every weather request takes one number from the seeded sequence: whether the n-th request fails depends only on the seed.
    """

    def __init__(self, observations: Observations, *, failure_rate: float = 0.01, seed: int = 13) -> None:
        if not 0 <= failure_rate <= 1:
            raise ValueError(f"the failure rate must be between 0 and 1, not {failure_rate}")
        self._observations = observations
        self._failure_rate = failure_rate
        self._chance = random.Random(seed)  # noqa: S311 - chance, not a secret
        self._counts: Counter[str] = Counter()
        self._outage_from: int | None = None

    def application(self) -> web.Application:
        """Return an application of aiohttp that serves this; call it once."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/weather", self._weather),
                web.get("/outage", self._show_outage),
                web.post("/outage", self._switch_outage),
                web.get("/statistics", self._statistics),
                web.get("/health", self._health),
            ]
        )
        return application

    def statistics(self) -> Mapping[str, int]:
        """Return the number of weather requests, and of each kind of answer."""
        return {kind: self._counts[kind] for kind in ("requests", "found", "not_found", "unavailable", "refused")}

    async def _weather(self, request: web.Request) -> web.Response:
        self._counts["requests"] += 1
        fails = self._chance.random() < self._failure_rate
        if fails or self._is_out:
            return self._answer("unavailable", {"error": "try again later"}, status=503)
        try:
            key = request.query["origin"], request.query["hour"]
        except KeyError as missing:
            return self._answer("refused", {"error": f"the query lacks {missing}"}, status=400)
        observation = self._observations.get(key)
        if observation is None:
            return self._answer("not_found", {"error": f"no observation at {key[0]} for {key[1]}"}, status=404)
        return self._answer("found", observation)

    def _answer(self, kind: str, body: Mapping[str, object], *, status: int = 200) -> web.Response:
        self._counts[kind] += 1
        return web.json_response(body, status=status)

    @property
    def _is_out(self) -> bool:
        return self._outage_from is not None and self._counts["requests"] > self._outage_from

    async def _show_outage(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"on": self._outage_from is not None and self._counts["requests"] >= self._outage_from}
        )

    async def _switch_outage(self, request: web.Request) -> web.Response:
        try:
            wanted = msgspec.json.decode(await request.read(), type=_Outage)
        except msgspec.DecodeError:
            return web.json_response({"error": 'send {"on": true} or {"on": false}'}, status=400)
        self._outage_from = self._counts["requests"] + wanted.after if wanted.on else None
        return await self._show_outage(request)

    async def _statistics(self, _: web.Request) -> web.Response:
        return web.json_response(self.statistics())

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


async def serve(
    service: WeatherService, *, host: str, port: int, ready_file: Path | None = None, any_port: bool = False
) -> None:
    """Serve until cancelled. Port 0 takes a free port, and so does a port in use with `any_port`.

    `ready_file` gets the URL once the service is ready.
    """
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            if not any_port or error.errno != errno.EADDRINUSE:
                raise
            await web.TCPSite(runner, host, 0).start()
        url = f"http://{host}:{runner.addresses[0][1]}"
        print(f"weather at {url}", flush=True)  # noqa: T201 - a command line prints
        if ready_file is not None:
            _write_whole(ready_file, url)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _write_whole(path: Path, text: str) -> None:
    # Other processes poll for this file and must not find it empty.
    unfinished = path.with_name(f"_{path.name}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve with the options of the command line until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.flights.weather_service", description="Serve weather.")
    parser.add_argument("--host", default="127.0.0.1", help="only this machine unless given")
    parser.add_argument("--port", type=int, default=8013, help="0 takes a free one")
    parser.add_argument("--any-port", action="store_true", help="take a free port if this one is in use")
    parser.add_argument("--failure-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--ready-file", type=Path, help="gets the URL once the service answers")
    chosen = parser.parse_args(arguments)
    service = WeatherService(load_observations(data_folder()), failure_rate=chosen.failure_rate, seed=chosen.seed)
    try:
        asyncio.run(
            serve(
                service,
                host=chosen.host,
                port=chosen.port,
                ready_file=chosen.ready_file,
                any_port=chosen.any_port,
            )
        )
    except KeyboardInterrupt:
        print("weather stopped", flush=True)  # noqa: T201 - a command line prints


if __name__ == "__main__":
    main()
