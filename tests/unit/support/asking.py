"""A service with predetermined answers: the answer of each call and its time are drawn beforehand."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace import AsyncFunction, OutputMode, Struct
from headrace import clock as engine_clock
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.testing._virtual_loop import LoopClock, VirtualLoop


class Question(Struct, frozen=True):
    number: int
    key: str = ""


class Answer(Struct, frozen=True):
    number: int
    attempt: int


class Unavailable(Exception):  # noqa: N818 - a test's own
    pass


class Promised(AsyncFunction[Question, Answer]):
    """The calls for a question take as long, and end, as its script says; later calls answer at once."""

    def __init__(self, scripts=None, error=Unavailable):
        self.scripts = scripts or {}
        self.error = error
        self.calls = []
        self.begun = []
        """When each call began, on the loop's clock, and for which number."""
        self.running, self.most = 0, 0
        self.by_key = Counter()
        self.overlapping = set()
        """Keys for which two calls ran at once. Not an assertion: the retry strategy would cover that up."""
        self.log = []

    async def open(self, services, /):
        self.log.append("open")

    async def close(self):
        self.log.append("close")

    async def invoke(self, question, /):
        number = question.number
        attempt = sum(1 for called in self.calls if called == number) + 1
        self.calls.append(number)
        self.begun.append((round(asyncio.get_running_loop().time(), 6), number))
        self.by_key[question.key] += 1
        if self.by_key[question.key] > 1:
            self.overlapping.add(question.key)
        self.running += 1
        self.most = max(self.most, self.running)
        script = self.scripts.get(number, ())
        seconds, succeeds = script[attempt - 1] if attempt <= len(script) else (0.0, True)
        try:
            await asyncio.sleep(seconds)
            if not succeeds:
                raise self.error(f"call {attempt} for {number}")
            return [Answer(number, attempt)]
        finally:
            self.running -= 1
            self.by_key[question.key] -= 1


class Lingering(Promised):
    """Takes a while to react to a cancellation."""

    async def invoke(self, question, /):
        try:
            return await super().invoke(question)
        finally:
            await asyncio.sleep(0.1)


def micro_batch(operator, elements, resumed, now):
    """Run a micro-batch that begins at `now`, with its own loop and clock; return its output and its end."""
    loop = VirtualLoop()
    virtual = LoopClock(loop, lambda: None)
    virtual.start_at(now)
    try:
        if operator.operator.mode is OutputMode.KEYED_ORDERED:
            loop.let_time_run()
            keyed = [(element.record.key.encode(), element) for element in elements]
            sent = KeyedOrderedWait(operator, loop=loop).run(keyed, resumed)
        else:
            sent = loop.run_whole(operator.run_async(elements, resumed))
        return sent, virtual.now()
    finally:
        loop.close()
        engine_clock.use(virtual.replaced)


def in_virtual_time(work):
    """Return the result of a coroutine, run with its own loop and clock."""
    loop = VirtualLoop()
    clock = LoopClock(loop, lambda: None)
    try:
        return loop.run_whole(work())
    finally:
        loop.close()
        engine_clock.use(clock.replaced)
