"""Errors of user code in async I/O: the function is blamed for any exception, and no element hangs or is lost silently."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    AsyncWait,
    Batching,
    BlockingFunction,
    ExponentialBackoff,
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
from headrace.tables.changelog import Changelog
from headrace.tables.requests import waiting_element_rows
from headrace.testing import AsyncWaitHarness
from headrace.testing._virtual_loop import VirtualLoop
from tests.unit.support.asking import Answer, Promised, Question, Unavailable
from tests.unit.support.records import record_of

MS = timedelta(milliseconds=1)
MODES = (OutputMode.UNORDERED, OutputMode.ORDERED, OutputMode.KEYED_ORDERED)
TWICE = FixedDelay(max_retries=2, delay=0 * MS)


class Fatal(BaseException):
    """An error that `except Exception` does not catch."""


ENDINGS = (KeyboardInterrupt, SystemExit, GeneratorExit, Fatal, asyncio.CancelledError, StopIteration)


def run(function, mode=OutputMode.UNORDERED, **options):
    options = {"timeout": 20_000 * MS, "retry": NoRetry(), **options}
    wait = AsyncWait("ask", function, mode, 3, options.pop("timeout"), options.pop("retry"), **options)
    operator = AsyncWaitOperator(wait, {})
    asked = [Emitted(record_order(number), 0, 0, Question(number)) for number in range(5)]
    if mode is OutputMode.KEYED_ORDERED:
        KeyedOrderedWait(operator).run([(b"%d" % record_of(question).number, question) for question in asked])
    else:
        operator.run(asked)
    return operator


def function_of(**methods):
    """Return a function that answers, with the given methods replaced."""
    return type("Function", (Promised,), methods)()


def coroutine_raising(error):
    async def method(self, *_):
        raise error

    return method


def raising(error):
    def method(*_):
        raise error

    return method


# ------------------------------------------------------------------------- it takes its time, or no notice, when cancelled


async def takes_no_notice(question):
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()
    return [Answer(question.number, 1)]


async def takes_its_time(question):
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        for _ in range(question.number):
            await asyncio.sleep(0)


class WatchedLoop(VirtualLoop):
    """Notes where a real loop would wait for ever."""

    hangs = False

    def _idle(self, timeout):
        self.hangs |= timeout is None
        super()._idle(timeout)


@pytest.mark.parametrize("answers", [takes_no_notice, takes_its_time])
@pytest.mark.parametrize("failure_after", [0 * MS, MS, 1000 * MS])
@pytest.mark.parametrize("on_failure", OnFailure)
def test_failure_ends_calls_that_are_slow_to_end(answers, failure_after, on_failure):
    async def invoke(self, question, /):
        if question.number != 1:
            return await answers(question)
        try:
            await asyncio.sleep(failure_after.total_seconds())
        finally:
            raise UserFunctionError("ask", None, "question 1", "it fails")

    function = function_of(invoke=invoke)
    wait = AsyncWait("ask", function, OutputMode.KEYED_ORDERED, 3, 10 * MS, NoRetry(), on_failure=on_failure)
    loop = WatchedLoop()
    loop.let_time_run()
    calls = KeyedOrderedWait(AsyncWaitOperator(wait, {}), loop=loop)
    with pytest.raises((UserFunctionError, ServiceError)):
        calls.run([(b"%d" % number, Emitted(record_order(number), 0, 0, Question(number))) for number in range(5)])
    assert not loop.hangs


# ----------------------------------------------------------------------------------------- it raises anything at all


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", ENDINGS)
@pytest.mark.parametrize("method", ["open", "invoke", "close"])
def test_errors_of_methods_are_the_functions_fault(mode, error, method):
    with pytest.raises(UserFunctionError, match=error.__name__):
        run(function_of(**{method: coroutine_raising(error)}), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", ENDINGS)
def test_timeout_hook_errors_blame_the_hook(mode, error):
    function = function_of(timeout=coroutine_raising(error))
    function.scripts = {0: [(60.0, True)]}
    with pytest.raises(UserFunctionError, match=error.__name__):
        run(function, mode, timeout=5 * MS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", ENDINGS)
def test_default_method_errors_blame_the_method(mode, error):
    function = function_of(default=raising(error))
    function.scripts = {0: [(0.0, False)]}
    with pytest.raises(UserFunctionError, match=error.__name__):
        run(function, mode, on_failure=OnFailure.DEFAULT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", ENDINGS)
@pytest.mark.parametrize("options", [{"cache": LookupCache()}, {"batch": Batching(size=2)}])
def test_errors_of_shared_calls_are_the_functions_fault(mode, error, options):
    function = function_of(invoke=coroutine_raising(error), invoke_many=coroutine_raising(error))
    with pytest.raises(UserFunctionError, match=error.__name__):
        run(function, mode, **options)


class Thread(BlockingFunction[Question, Answer]):
    def __init__(self, error):
        self.error = error

    def call(self, question, /):
        raise self.error


@pytest.mark.parametrize("error", ENDINGS)
def test_errors_in_threads_are_the_functions_fault(error):
    with pytest.raises(UserFunctionError, match=error.__name__):
        run(Thread(error))


# --------------------------------------------------------------------------------------------- it is no coroutine


async def async_generator(self, question):
    yield Answer(question.number, 0)


def generator(self, question):
    yield Answer(question.number, 0)


def plain(self, question):
    return [Answer(question.number, 0)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("invoke", [async_generator, generator, plain])
def test_non_coroutine_invoke_is_the_functions_fault(mode, invoke):
    with pytest.raises(UserFunctionError, match=r"invoke\(\) must be an 'async def' without a yield"):
        run(function_of(invoke=invoke), mode, retry=TWICE)


def test_invoke_may_pass_on_a_coroutine():
    class Wrapped(Promised):
        def invoke(self, question, /):
            return super().invoke(question)

    assert run(Wrapped()).metrics.calls == 5


@pytest.mark.parametrize("method", ["open", "close"])
def test_raising_plain_method_is_blamed(method):
    with pytest.raises(UserFunctionError, match=rf"{method}\(\) failed[^$]*ZeroDivisionError"):
        run(function_of(**{method: raising(ZeroDivisionError)}))


def test_wrong_answer_type_names_its_method():
    async def timeout(self, question, /):
        return None

    late = function_of(timeout=timeout)
    late.scripts = {0: [(60.0, True)]}
    with pytest.raises(UserFunctionError, match=r"timeout\(\) must return a list of Answer"):
        run(late, timeout=5 * MS)
    given_up = function_of(default=lambda *_: 7)
    given_up.scripts = {0: [(0.0, False)]}
    with pytest.raises(UserFunctionError, match=r"default\(\) must return a list of Answer"):
        run(given_up, on_failure=OnFailure.DEFAULT)


# ------------------------------------------------------------------------------------------- strategies of one's own


class Strategy:
    """A strategy without faults, except for the given methods."""

    def __init__(self, **methods):
        self.__dict__ |= methods

    def can_retry(self, retries, /):
        return retries < 3

    def backoff(self, retries, /):
        return 0 * MS

    def retries_exception(self, error, /):
        return True

    def retries_result(self, results, /):
        return False


def failing():
    return Promised({1: [(0.0, False)]})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["can_retry", "backoff", "retries_exception", "retries_result"])
def test_raising_strategy_is_blamed_with_its_failure(mode, method):
    """A strategy that raises is blamed, and the error names the failed call."""
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as raised:
        run(failing(), mode, retry=Strategy(**{method: raising(ZeroDivisionError)}))
    assert method == "retries_result" or "Unavailable: call 1 for 1" in raised.value.traceback


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("answer", [0.5, float("nan"), None, -1])
def test_backoff_that_is_no_timedelta_is_blamed(mode, answer):
    with pytest.raises(UserFunctionError, match=r"backoff\(\) of the retry strategy must return a timedelta, not"):
        run(failing(), mode, retry=Strategy(backoff=lambda _: answer))


@pytest.mark.parametrize("wait", [timedelta.min, timedelta(days=-1)])
def test_negative_backoff_means_no_wait(wait):
    with AsyncWaitHarness(failing(), retry=Strategy(backoff=lambda _: wait)) as h:
        h.process(Question(1))
        assert (h.output(), h.clock.now()) == ([Answer(1, 2)], 0)


def test_negative_backoff_parks_if_park_after_is_zero():
    with AsyncWaitHarness(failing(), retry=Strategy(backoff=lambda _: -MS), park_after=0 * MS) as h:
        h.process(Question(1))
        assert h.output() == [Answer(1, 2)]
        assert h._operator.metrics.parked == 1


def test_longest_backoff_can_be_stored():
    operator = run(failing(), retry=Strategy(backoff=lambda _: timedelta.max), park_after=0 * MS)
    stored = Changelog("ask", 1, 128).requests(*waiting_element_rows(operator.pending, [], 1))
    assert stored["next_attempt_at"].to_pylist()[0].year == 9999


def test_multiplier_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="multiplier must be at least 1, not nan"):
        ExponentialBackoff(max_retries=1, initial_delay=MS, max_delay=MS, multiplier=float("nan"))


# ----------------------------------------------------------------------------------------------- calls that never end


def test_hanging_thread_does_not_delay_the_end():
    """A thread that hangs past the timeout does not hold up the end."""

    class Hanging(BlockingFunction[Question, Answer]):
        """A client without a timeout."""

        threads = 2
        patience = 20 * MS

        def __init__(self):
            self.comes_back = threading.Event()

        def call(self, question, /):
            if question.number == 0:
                self.comes_back.wait()
            return [Answer(question.number, 0)]

    function = Hanging()
    try:
        operator = run(function, timeout=50 * MS, on_failure=OnFailure.QUARANTINE)
        assert [record_of(element.emitted).number for element in operator.quarantined] == [0]
        assert not function.comes_back.is_set()
    finally:
        function.comes_back.set()


class Counting(AsyncFunction[Question, Answer]):
    """Its first calls never end."""

    def __init__(self, hang):
        self.hang, self.calls, self.running, self.most = hang, 0, 0, 0

    async def invoke(self, question, /):
        (answer,) = await self.invoke_many([question])
        return answer

    async def invoke_many(self, questions, /):
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(1e6 if self.calls <= self.hang else 0.001)
            return [[Answer(question.number, 0)] for question in questions]
        finally:
            self.running -= 1

    async def timeout(self, question, /):
        return []

    def cache_key(self, question, /):
        return question.key


#   calls for the key "a" and "b" hang; both records time out at 10 ms, and two others take their places


@pytest.mark.parametrize("options", [{"cache": LookupCache()}, {"batch": Batching(size=1)}, {}])
def test_unneeded_calls_are_ended_to_keep_capacity(options):
    """A call without waiting records is ended, so capacity holds."""
    function = Counting(hang=2)
    with AsyncWaitHarness(function, capacity=2, timeout=10 * MS, **options) as h:
        for number in range(4):
            h.process(Question(number, "abcd"[number]), block=True)
        h.clock.advance(20)
        assert [output.number for output in h.output()] == [2, 3]
        assert (function.most, function.running) == (2, 0)


def test_new_records_share_no_abandoned_call():
    function = Counting(hang=1)
    with AsyncWaitHarness(function, timeout=10 * MS, cache=LookupCache()) as h:
        h.process(Question(1, "a"))
        h.clock.advance(10)
        h.process(Question(2, "a"))
        h.clock.advance(1)
        assert h.output() == [Answer(2, 0)]
        assert function.calls == 2


def test_group_continues_while_a_record_waits():
    class Slow(Counting):
        async def invoke_many(self, questions, /):
            await asyncio.sleep(0.012)
            return [[Answer(question.number, 0)] for question in questions]

    with AsyncWaitHarness(Slow(0), timeout=18 * MS, batch=Batching(size=2, wait=9 * MS)) as h:
        h.process(Question(1))
        h.clock.advance(5)
        h.process(Question(2))
        h.clock.advance(12)
        assert h.output() == [Answer(1, 0), Answer(2, 0)]
    with AsyncWaitHarness(Slow(0), timeout=14 * MS, batch=Batching(size=2, wait=9 * MS)) as h:
        h.process(Question(1))
        h.clock.advance(5)
        h.process(Question(2))
        h.clock.advance(12)
        assert h.output() == [Answer(2, 0)]


def test_record_may_fail_without_its_group():
    class Partly(Counting):
        async def invoke_many(self, questions, /):
            self.calls += 1
            return [
                Unavailable() if self.calls == 1 and question.number == 1 else [Answer(question.number, self.calls)]
                for question in questions
            ]

    with AsyncWaitHarness(
        Partly(0), batch=Batching(size=2, wait=9 * MS), retry=FixedDelay(max_retries=1, delay=5 * MS)
    ) as h:
        h.process(Question(1))
        h.process(Question(2))
        assert h.output() == [Answer(2, 1)]
        h.clock.advance(5 + 9)
        assert h.output() == [Answer(1, 2)]
