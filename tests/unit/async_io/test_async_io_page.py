"""The function of docs/async-io.md calls a service, and the page's options are those of `async_wait`."""

from __future__ import annotations

import ast
from datetime import timedelta

import headrace
from headrace import AsyncWait, BlockingFunction, FixedDelay, Pipeline, Struct, Timestamp
from headrace.testing import AsyncWaitHarness
from tests.unit.support.doc_pages import blocks_of

URL = "http://weather"


class Reading(Struct, frozen=True):
    city: str
    at: Timestamp = 0


class Weather(Struct, frozen=True):
    city: str
    degrees: int


class WeatherUnavailableError(Exception):
    """The service is down."""


class WeatherClient:
    """Client of a service with two cities. Its first calls fail."""

    def __init__(self, url, failures=0):
        self.url, self.failures, self.calls, self.is_closed = url, failures, 0, False

    async def ask(self, city):
        self.calls += 1
        if self.calls <= self.failures:
            raise WeatherUnavailableError
        return {"Rome": [21], "Bonn": [12]}.get(city, [])

    async def close(self):
        self.is_closed = True


def page_names(**names):
    """Return the names that the page's blocks of Python can use, with the class of its second block."""
    used = {node.id for block in python_blocks() for node in ast.walk(parsed(block)) if isinstance(node, ast.Name)}
    known = {name: getattr(headrace, name) for name in used & {*headrace.__all__}}
    known |= {"Reading": Reading, "Weather": Weather, "WeatherClient": WeatherClient, "timedelta": timedelta}
    known |= {"WeatherUnavailableError": WeatherUnavailableError, **names}
    exec(compile(python_blocks()[1], "docs/async-io.md", "exec", dont_inherit=True), known)  # noqa: S102
    return known


def python_blocks():
    return [block.text for block in blocks_of("async-io") if block.language == "python"]


def parsed(block):
    """Return the syntax tree of a block; a call without its stream gets one."""
    return ast.parse(f"(stream\n{block})" if block.startswith(".") else block)


def test_function_of_the_page_asks_its_service():
    lookup = page_names()["WeatherLookup"]()
    with AsyncWaitHarness(lookup, services={"weather": URL}) as h:
        for city in ("Rome", "Bonn", "Atlantis"):
            h.process(Reading(city))
        h.clock.advance(0)
        assert sorted(h.output(), key=lambda item: item.city) == [Weather("Bonn", 12), Weather("Rome", 21)]
        assert (lookup.client.url, lookup.client.is_closed) == (URL, False)
    assert lookup.client.is_closed


def test_call_of_the_page_builds_a_pipeline():
    (call,) = parsed(python_blocks()[0]).body
    stream = Pipeline("cities").source("readings", Reading, event_time="at")
    code = compile(ast.Expression(call.value), "docs/async-io.md", "eval", dont_inherit=True)
    pipeline = eval(code, page_names(stream=stream)).sink("weather")  # noqa: S307 - the page's own code
    assert [node.service for node in pipeline.operators if isinstance(node, AsyncWait)] == ["weather"]


def test_max_retries_counts_calls_after_the_first():
    retry = FixedDelay(max_retries=2, delay=timedelta(0), exceptions=(WeatherUnavailableError,))
    names = page_names(WeatherClient=lambda url: WeatherClient(url, failures=2))
    lookup = names["WeatherLookup"]()
    with AsyncWaitHarness(lookup, services={"weather": URL}, retry=retry) as h:
        h.process(Reading("Rome"))
        h.clock.advance(0)
        assert (h.output(), lookup.client.calls) == ([Weather("Rome", 21)], 3)


def test_blocking_function_opens_behind_its_own_open():
    class Blocking(BlockingFunction[Reading, Weather]):
        async def open(self, services, /):
            await super().open(services)
            self.url = services["weather"]

        def call(self, record, /):
            return [Weather(record.city, len(self.url))]

    function = Blocking()
    with AsyncWaitHarness(function, services={"weather": URL}):
        assert function.url == URL
