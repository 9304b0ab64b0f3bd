"""W3: each record calls a service that takes 5 ms; one call in a hundred fails at first and is retried after 10 ms."""

import asyncio
import multiprocessing
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp
from aiohttp import web

from headrace import AsyncFunction, AsyncWait, FixedDelay, OutputMode, Struct
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.execution.element import Emitted
from headrace.records.order import record_order

CAPACITY = 1000
LATENCY = 0.005
RETRY = FixedDelay(max_retries=5, delay=timedelta(milliseconds=10), exceptions=(OSError,))
_SPAWN = multiprocessing.get_context("spawn")


class Question(Struct, frozen=True):
    number: int


class Answer(Struct, frozen=True):
    number: int


class Lookup(AsyncFunction[Question, Answer]):
    """Answers after 5 ms."""

    def __init__(self, *, failures):
        self.failures, self.failed, self.calls = failures, set(), 0

    async def invoke(self, question, /):
        self.calls += 1
        number = question.number
        await asyncio.sleep(LATENCY)
        if self.failures and number % 100 == 0 and number not in self.failed:
            self.failed.add(number)
            raise OSError("first attempt")
        return [Answer(number)]


class HttpLookup(AsyncFunction[Question, Answer]):
    """Asks a service over HTTP."""

    def __init__(self, url):
        self.url = url

    async def open(self, _, /):
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100))

    async def close(self):
        await self.session.close()

    async def invoke(self, question, /):
        async with self.session.get(f"{self.url}/{question.number}") as answer:
            if answer.status != 200:
                raise OSError(answer.status)
            return [Answer(int(await answer.text()))]


@dataclass(frozen=True)
class Bare:
    """A plain asyncio loop with a semaphore."""

    records: int
    failures: bool
    url: str | None = None
    capacity: int = CAPACITY

    def __call__(self):
        questions = [Question(number) for number in range(self.records)]

        def prepare():
            results = []
            function = HttpLookup(self.url) if self.url else Lookup(failures=self.failures)
            return (
                self.records,
                [lambda: results.extend(asyncio.run(self.all(function, questions)))],
                checked(results, self),
            )

        return prepare

    async def all(self, function, questions):
        room, results = asyncio.Semaphore(self.capacity), []

        async def one(question):
            async with room:
                while True:
                    try:
                        results.extend(await function.invoke(question))
                    except OSError:
                        await asyncio.sleep(0.01)
                    else:
                        return

        await function.open({})
        await asyncio.gather(*map(one, questions))
        await function.close()
        return results


@dataclass(frozen=True)
class Operator:
    """The async wait operator in one of its modes."""

    records: int
    failures: bool
    mode: OutputMode
    url: str | None = None
    capacity: int = CAPACITY

    def __call__(self):
        elements = [Emitted(record_order(number), number, 0, Question(number)) for number in range(self.records)]
        keyed = [(b"%d" % element.timestamp, element) for element in elements]

        def prepare():
            results = []
            function = HttpLookup(self.url) if self.url else Lookup(failures=self.failures)
            wait = AsyncWait("ask", function, self.mode, self.capacity, timedelta(seconds=60), RETRY)
            operator = AsyncWaitOperator(wait, {})
            if self.mode is OutputMode.KEYED_ORDERED:
                return (
                    self.records,
                    [lambda: results.extend(KeyedOrderedWait(operator).run(keyed))],
                    checked(results, self),
                )
            return self.records, [lambda: results.extend(operator.run(elements))], checked(results, self)

        return prepare


def checked(answers, variant):
    def check():
        records: list[Any] = [answer.record if isinstance(answer, Emitted) else answer for answer in answers]
        numbers = [record.number for record in records]
        assert sorted(numbers) == list(range(variant.records))
        if isinstance(variant, Operator):
            assert numbers == sorted(numbers), "results are handed on in arrival order"

    return check


@contextmanager
def loopback():
    """Start a service in a separate process that answers after 5 ms; return its URL."""
    mine, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(connection):
    async def answer(request):
        await asyncio.sleep(LATENCY)
        return web.Response(text=request.match_info["number"])

    async def serve():
        application = web.Application()
        application.add_routes([web.get("/{number}", answer)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        connection.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())
