"""The weather service and its client, over real sockets of this machine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from pipelines.flights import pipeline
from pipelines.flights.records import FlightEvent
from pipelines.flights.weather_lookup import WeatherLookup, WeatherRefusedError, WeatherUnavailableError
from pipelines.flights.weather_service import WeatherService, load_observations, serve

TEN = 1_357_034_400_000
EWR_AT_TEN = {"origin": "EWR", "hour": "2013-01-01T10:00:00Z"}
EVENT = FlightEvent(
    seq=1,
    event="scheduled",
    emitted_at=TEN - 360 * 60_000,
    flight_id="2013-01-01-UA1545-EWR",
    carrier="UA",
    airline="United Air Lines Inc.",
    flight=1545,
    tailnum="N14228",
    origin="EWR",
    dest="IAH",
    scheduled_departure=TEN + 15 * 60_000,
    scheduled_arrival=TEN + 200 * 60_000,
    departure=None,
    arrival=None,
    distance=1400,
    seats=149,
)


@asynccontextmanager
async def client_of(service):
    async with TestClient(TestServer(service.application())) as client:
        yield client


@asynccontextmanager
async def lookup_of(service):
    async with TestServer(service.application()) as server:
        lookup = WeatherLookup()
        await lookup.open({"weather": str(server.make_url("/"))})
        try:
            yield lookup
        finally:
            await lookup.close()


def statuses(service, requests):
    async def run():
        async with client_of(service) as client:
            return [(await client.get("/weather", params=EWR_AT_TEN)).status for _ in range(requests)]

    return asyncio.run(run())


@pytest.fixture
def reliable(service_data):
    return WeatherService(service_data, failure_rate=0)


def test_observation_is_answered(reliable, service_data):
    async def run():
        async with client_of(reliable) as client:
            answer = await client.get("/weather", params=EWR_AT_TEN)
            return answer.status, await answer.json()

    assert asyncio.run(run()) == (200, service_data["EWR", "2013-01-01T10:00:00Z"])


def test_missing_observation_is_not_found(reliable):
    async def run():
        async with client_of(reliable) as client:
            answer = await client.get("/weather", params={**EWR_AT_TEN, "origin": "SFO"})
            return answer.status, await answer.json()

    assert asyncio.run(run()) == (404, {"error": "no observation at SFO for 2013-01-01T10:00:00Z"})


def test_incomplete_question_is_refused(reliable):
    async def run():
        async with client_of(reliable) as client:
            return (await client.get("/weather", params={"origin": "EWR"})).status

    assert asyncio.run(run()) == 400


def test_one_answer_in_a_hundred_fails(service_data):
    result = statuses(WeatherService(service_data, failure_rate=0.01, seed=13), 1_000)
    assert 3 <= result.count(503) <= 25
    assert result.count(503) + result.count(200) == 1_000


def test_same_seed_fails_at_the_same_requests(service_data):
    one, same, other = (
        statuses(WeatherService(service_data, failure_rate=0.2, seed=seed), 50) for seed in (13, 13, 14)
    )
    assert one == same != other


def test_outage_fails_everything_until_switched_off(reliable):
    async def run():
        async with client_of(reliable) as client:
            seen = [await (await client.post("/outage", json={"on": True})).json()]
            seen.append((await client.get("/weather", params=EWR_AT_TEN)).status)
            seen.append(await (await client.get("/outage")).json())
            seen.append((await client.get("/health")).status)
            await client.post("/outage", json={"on": False})
            seen.append((await client.get("/weather", params=EWR_AT_TEN)).status)
            return seen

    assert asyncio.run(run()) == [{"on": True}, 503, {"on": True}, 200, 200]


def test_outage_is_switched_by_a_boolean_only(reliable):
    async def run():
        async with client_of(reliable) as client:
            bodies = ({"on": "yes"}, {}, [])
            return [(await client.post("/outage", json=body)).status for body in bodies]

    assert asyncio.run(run()) == [400, 400, 400]


def test_answers_are_counted_by_kind(reliable):
    async def run():
        async with client_of(reliable) as client:
            await client.get("/weather", params=EWR_AT_TEN)
            await client.get("/weather", params={**EWR_AT_TEN, "origin": "SFO"})
            return await (await client.get("/statistics")).json()

    assert asyncio.run(run()) == {"requests": 2, "found": 1, "not_found": 1, "unavailable": 0, "refused": 0}


def test_ready_file_has_url_of_free_port(reliable, tmp_path):
    ready = tmp_path / "ready"

    async def run():
        serving = asyncio.create_task(serve(reliable, host="127.0.0.1", port=0, ready_file=ready))
        while not ready.exists():  # noqa: ASYNC110 - a file has no event to wait for
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as session, session.get(f"{ready.read_text()}/health") as answer:
            result = answer.status
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return result

    assert asyncio.run(run()) == 200


def test_missing_measurements_are_null(tmp_path):
    (tmp_path / "weather.csv").write_text(
        "origin,time_hour,temp,wind_speed,precip,visib\nEWR,2013-01-01T10:00:00Z,NA,1.5,0,10\n"
    )
    assert load_observations(tmp_path) == {
        ("EWR", "2013-01-01T10:00:00Z"): {"temp": None, "wind_speed": 1.5, "precip": 0.0, "visib": 10.0}
    }


def test_event_gets_the_weather_of_its_hour(reliable):
    async def run():
        async with lookup_of(reliable) as lookup:
            return await lookup.invoke(EVENT)

    (enriched,) = asyncio.run(run())
    assert (enriched.temp, enriched.wind_speed, enriched.aircraft) == (39.02, 12.65858, "N14228")


def test_event_without_an_observation_gets_nulls(reliable):
    event = msgspec.structs.replace(EVENT, origin="LGA", tailnum=None)

    async def run():
        async with lookup_of(reliable) as lookup:
            return await lookup.invoke(event)

    (enriched,) = asyncio.run(run())
    assert (enriched.temp, enriched.visib, enriched.aircraft) == (None, None, EVENT.flight_id)


def test_equal_questions_are_asked_once(reliable):
    (wait,) = (operator for operator in pipeline.operators if operator.name == "weather")
    events = [Emitted(record_order(at), at, 0, EVENT) for at in range(50)]

    async def run():
        async with TestServer(reliable.application()) as server:
            return await AsyncWaitOperator(wait, {"weather": str(server.make_url("/"))}).run_async(events)

    assert [emitted.record.temp for emitted in asyncio.run(run())] == [39.02] * 50
    assert reliable.statistics()["requests"] == 1


def test_events_of_an_hour_share_a_question():
    earlier = msgspec.structs.replace(EVENT, scheduled_departure=TEN)
    later = msgspec.structs.replace(EVENT, scheduled_departure=TEN + 60 * 60_000)
    keys = [WeatherLookup().cache_key(event) for event in (EVENT, earlier, later)]
    assert keys == [("EWR", TEN), ("EWR", TEN), ("EWR", TEN + 60 * 60_000)]


def test_failure_has_its_type(service_data):
    service = WeatherService(service_data, failure_rate=1)

    async def run():
        async with lookup_of(service) as lookup:
            with pytest.raises(WeatherUnavailableError, match="503"):
                await lookup.invoke(EVENT)
            service._failure_rate = 0
            return await lookup.invoke(EVENT)

    assert asyncio.run(run())[0].temp == 39.02


def test_unreachable_service_counts_as_unavailable():
    async def run():
        lookup = WeatherLookup()
        await lookup.open({"weather": "http://127.0.0.1:1"})
        try:
            await lookup.invoke(EVENT)
        finally:
            await lookup.close()

    with pytest.raises(WeatherUnavailableError, match="could not be reached"):
        asyncio.run(run())


def test_answer_that_cannot_be_read_is_refused(service_data):
    service_data["EWR", "2013-01-01T10:00:00Z"] = {"temp": "warm"}

    async def run():
        async with lookup_of(WeatherService(service_data, failure_rate=0)) as lookup:
            with pytest.raises(WeatherRefusedError, match="can't be read"):
                await lookup.invoke(EVENT)

    asyncio.run(run())


def test_wrong_address_is_not_missing_weather(reliable):
    async def run():
        async with TestServer(reliable.application()) as server:
            lookup = WeatherLookup()
            await lookup.open({"weather": str(server.make_url("/elsewhere"))})
            try:
                await lookup.invoke(EVENT)
            finally:
                await lookup.close()

    with pytest.raises(WeatherRefusedError, match="can't be read"):
        asyncio.run(run())


def test_closed_lookup_can_be_opened_again(reliable):
    async def run():
        async with TestServer(reliable.application()) as server:
            lookup = WeatherLookup()
            for _ in range(2):
                await lookup.open({"weather": str(server.make_url("/"))})
                await lookup.invoke(EVENT)
                await lookup.close()

    asyncio.run(run())
    assert reliable.statistics()["requests"] == 2


def test_outage_may_begin_after_more_requests(reliable):
    async def ask():
        async with client_of(reliable) as client:
            await client.post("/outage", json={"on": True, "after": 2})
            asked = [(await client.get("/weather", params=EWR_AT_TEN)).status for _ in range(3)]
            return asked, await (await client.get("/outage")).json()

    assert asyncio.run(ask()) == ([200, 200, 503], {"on": True})
