"""Async functions that raise what would end a loop or a task, or that cancel tasks: errors of user code; a cancelled call fails like another."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    AsyncWait,
    Batching,
    BlockingFunction,
    FixedDelay,
    LookupCache,
    NoRetry,
    OnFailure,
    OutputMode,
)
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.errors import ServiceError, UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from tests.unit.support.asking import Answer, Question


class OwnError(BaseException):
    pass


EXCEPTIONS = [
    SystemExit(0),
    KeyboardInterrupt(),
    GeneratorExit(),
    OwnError(),
    StopAsyncIteration(),
    MemoryError(),
    BaseExceptionGroup("g", [SystemExit()]),
]
ONCE = FixedDelay(max_retries=1, delay=timedelta(0))
LONG = timedelta(seconds=60)


class Fails(AsyncFunction[Question, Answer]):
    """Fails at one place, for record 1, in its first calls."""

    def __init__(self, place="", fail=None, times=99):
        self.place, self.fail, self.left = place, fail, times

    def here(self, place, number=1):
        if place == self.place and number == 1 and self.left:
            self.left -= 1
            self.fail()

    async def open(self, services):
        self.here("open")

    async def close(self):
        self.here("close")

    async def invoke(self, question):
        self.here("at once", question.number)
        await asyncio.sleep(0)
        self.here("after a wait", question.number)
        if "timeout" in self.place and question.number == 1:
            await asyncio.sleep(60)
        if "default" in self.place and question.number == 1:
            raise OSError
        return [Answer(question.number, 1)]

    async def invoke_many(self, questions):
        for question in questions:
            self.here("many", question.number)
        return [[Answer(question.number, 1)] for question in questions]

    async def timeout(self, question):
        self.here("timeout")

    def default(self, question, error):
        self.here("default")

    def cache_key(self, question):
        self.here("cache key", question.number)
        return question.number


def raiser(error):
    def fail():
        raise error

    return fail


def number_of(element):
    assert isinstance(element.record, Question | Answer)
    return element.record.number


def run(function, mode=OutputMode.ORDERED, *, finishes=False, **options):
    wait = replace(AsyncWait("ask", function, mode, 3, LONG, NoRetry()), **options)
    operator = AsyncWaitOperator(wait, {}, finishes=finishes)
    elements = [Emitted(record_order(number), 0, 0, Question(number)) for number in range(4)]
    if mode is OutputMode.KEYED_ORDERED:
        emitted = KeyedOrderedWait(operator).run([(b"%d" % number_of(element), element) for element in elements])
    else:
        emitted = operator.run(elements)
    return [number_of(element) for element in emitted]


@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("at once", {}),
        ("after a wait", {}),
        ("open", {}),
        ("close", {}),
        ("many", {"batch": Batching(size=2, wait=timedelta(0))}),
        ("cache key", {"cache": LookupCache(size=10)}),
        ("at once", {"cache": LookupCache(size=10)}),
        ("timeout", {"timeout": timedelta(milliseconds=20)}),
        ("default", {"on_failure": OnFailure.DEFAULT}),
    ],
)
def test_exception_of_any_method_is_user_codes(mode, error, place, options):
    with pytest.raises(UserFunctionError, match=type(error).__name__) as caught:
        run(Fails(place, raiser(error)), mode, **options)
    assert caught.value.exit_code == 5
    assert __file__ in str(caught.value)


def cancel_itself():
    asyncio.current_task().cancel()


async def of_a_cancelled_child():
    child = asyncio.ensure_future(asyncio.sleep(60))
    child.cancel()
    await asyncio.gather(child)


class Cancels(Fails):
    """Cancels in one of many ways."""

    async def invoke(self, question):
        if question.number == 1 and self.left:
            self.left -= 1
            match self.place:
                case "raises":
                    raise asyncio.CancelledError
                case "itself, then waits":
                    cancel_itself()
                    await asyncio.sleep(0)
                case "itself, after a wait":
                    await asyncio.sleep(0)
                    cancel_itself()
                case "itself twice":
                    await asyncio.sleep(0)
                    cancel_itself()
                    cancel_itself()
                case "gather":
                    await of_a_cancelled_child()
                case "shield":
                    child = asyncio.ensure_future(asyncio.sleep(60))
                    asyncio.get_running_loop().call_soon(child.cancel)
                    await asyncio.shield(child)
        return [Answer(question.number, 1)]


WAYS = ["raises", "itself, then waits", "itself, after a wait", "itself twice", "gather", "shield"]


@pytest.mark.parametrize("cache", [None, LookupCache(size=10)])
@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.KEYED_ORDERED])
@pytest.mark.parametrize("way", WAYS)
def test_cancelled_call_is_a_failed_call(way, mode, cache):
    assert sorted(run(Cancels(way, times=1), mode, retry=ONCE, cache=cache)) == [0, 1, 2, 3]
    with pytest.raises(ServiceError, match="gave up after 2 calls"):
        run(Cancels(way), mode, retry=ONCE, cache=cache)
    with pytest.raises(UserFunctionError, match="CancelledError"):
        run(Cancels(way), mode, cache=cache)
    assert sorted(run(Cancels(way), mode, retry=ONCE, cache=cache, on_failure=OnFailure.QUARANTINE)) == [0, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_call_fails_at_finish(way):
    with pytest.raises(UserFunctionError, match="CancelledError"):
        run(Cancels(way), finishes=True)


class CancelsLater(Fails):
    """Cancels its task behind the answer of record 1: by what it leaves behind, or in a method that is called then."""

    async def invoke(self, question):
        answered = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, self.answer, answered, question.number, asyncio.current_task())
        await answered
        if self.place == "timeout" and question.number == 1:
            await asyncio.sleep(60)
        return [Answer(question.number, 1)]

    def answer(self, answered, number, task):
        answered.set_result(None)
        if self.place == "watchdog" and number == 1:
            asyncio.get_running_loop().call_soon(task.cancel)

    async def timeout(self, question):
        cancel_itself()
        return [Answer(question.number, 1)]


@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.KEYED_ORDERED])
@pytest.mark.parametrize("place", ["watchdog", "timeout"])
def test_cancellation_behind_an_answer_loses_no_record(place, mode, capacity):
    timeout = timedelta(milliseconds=50) if place == "timeout" else LONG
    emitted = run(CancelsLater(place), mode, capacity=capacity, timeout=timeout, retry=ONCE)
    assert sorted(emitted) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["itself", "raises", "answers"])
def test_cancelled_group_is_a_failed_call(way):
    class CancelledGroup(Fails):
        async def invoke_many(self, questions):
            if any(question.number == 1 for question in questions) and self.left:
                self.left -= 1
                if self.place == "itself":
                    cancel_itself()
                    await asyncio.sleep(0)
                if self.place == "raises":
                    raise asyncio.CancelledError
                return [asyncio.CancelledError()] * len(questions)
            return [[Answer(question.number, 1)] for question in questions]

    options = {"batch": Batching(size=2, wait=timedelta(0)), "retry": ONCE}
    assert run(CancelledGroup(way, times=1), **options) == [0, 1, 2, 3]
    with pytest.raises(ServiceError, match="gave up after 2 calls"):
        run(CancelledGroup(way), **options)


async def of_a_child_that_exits():
    sys.exit()


@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
@pytest.mark.parametrize("place", ["all", "child"])
def test_end_of_the_loop_is_user_codes(mode, place):
    class CancelsAll(Fails):
        async def invoke(self, question):
            if self.place == "child":
                await asyncio.create_task(of_a_child_that_exits())
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(0)
            return [Answer(question.number, 1)]

    with pytest.raises(UserFunctionError, match="CancelledError|SystemExit"):
        run(CancelsAll(place), mode)


class Strategy:
    def __init__(self, place):
        self.place = place

    def can_retry(self, retries):
        return self._here("can_retry") or retries < 1

    def backoff(self, retries):
        self._here("backoff")
        return timedelta(0)

    def retries_exception(self, error):
        self._here("retries_exception")
        return True

    def retries_result(self, results):
        self._here("retries_result")
        return False

    def _here(self, place):
        if place == self.place:
            sys.exit()


@pytest.mark.parametrize("place", ["can_retry", "backoff", "retries_exception", "retries_result"])
def test_strategy_that_exits_is_user_codes(place):
    with pytest.raises(UserFunctionError, match="SystemExit"):
        run(Fails("after a wait", raiser(OSError())), retry=Strategy(place))


class Blocks(BlockingFunction[Question, Answer]):
    def __init__(self, error):
        self.error, self.threads_seen = error, threading.active_count()

    def call(self, question):
        raise self.error


@pytest.mark.parametrize(
    "error", [*EXCEPTIONS, StopIteration(), asyncio.CancelledError()], ids=lambda error: type(error).__name__
)
def test_exception_in_a_thread_is_user_codes(error):
    with pytest.raises(UserFunctionError, match=type(error).__name__):
        run(Blocks(error))
