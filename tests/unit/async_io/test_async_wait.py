"""The async wait operator, on a virtual clock: waits between attempts take no time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, AsyncWait, ExponentialBackoff, FixedDelay, NoRetry, OutputMode, Struct
from headrace import clock as engine_clock
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.errors import ServiceError, UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import output_order, record_order
from tests.unit.support.asking import in_virtual_time


class Question(Struct, frozen=True):
    number: int
    kind: int = 0


class Answer(Struct, frozen=True):
    number: int
    attempt: int


class Unavailable(Exception):  # noqa: N818 - a test's own
    pass


def seconds(number):
    return timedelta(seconds=number)


class Service(AsyncFunction[Question, Answer]):
    """Fails as often as `failures` says for a question, then gives `responses` of them."""

    def __init__(self, failures=(), answers=(), error=Unavailable):
        self.failures, self.answers, self.error = dict(failures), dict(answers), error
        self.attempts, self.running, self.most, self.log = {}, 0, 0, []

    async def open(self, services, /):
        self.log.append(("open", services))

    async def close(self):
        self.log.append(("close", self.running))

    async def invoke(self, question, /):
        number = question.number
        attempt = self.attempts[number] = self.attempts.get(number, 0) + 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await engine_clock.sleep_async(0.001)
            if attempt <= self.failures.get(number, 0):
                raise self.error(f"attempt {attempt} of {number}")
            return [Answer(number, attempt)] * self.answers.get(number, 1)
        finally:
            self.running -= 1


def wait_of(function, *, capacity=3, timeout=30.0, retry=None):
    return AsyncWait("weather", function, OutputMode.UNORDERED, capacity, seconds(timeout), retry or NoRetry())


def run(function, count=1, **options):
    operator = AsyncWaitOperator(wait_of(function, **options), {"weather": "http://x"})
    asked = [Emitted(record_order(n), 1_000 + n, n % 4, Question(n, n % 4)) for n in range(count)]
    return in_virtual_time(lambda: operator.run_async(asked)), operator


retries = st.dictionaries(st.integers(0, 15), st.integers(0, 3))


@given(count=st.integers(0, 16), capacity=st.integers(1, 20), failures=retries, answers=retries)
def test_records_are_answered_once_ordered_within_capacity(count, capacity, failures, answers):
    service, retry = Service(failures, answers), FixedDelay(max_retries=3, delay=seconds(2))
    result, operator = run(service, count, capacity=capacity, timeout=1e6, retry=retry)
    assert result == [
        Emitted(output_order(record_order(n), index), 1_000 + n, n % 4, Answer(n, failures.get(n, 0) + 1))
        for n in range(count)
        for index in range(answers.get(n, 1))
    ]
    assert service.most <= capacity
    assert operator.metrics.elements == count
    assert operator.metrics.retries == sum(times for n, times in failures.items() if n < count)


def test_concurrent_calls_reach_capacity():
    service = Service()
    run(service, 10, capacity=4)
    assert service.most == 4


def test_function_opens_first_and_closes_last():
    """The function is opened with the services, and closed after the last call."""
    service = Service()
    run(service, 5)
    assert service.log == [("open", {"weather": "http://x"}), ("close", 0)]


def test_retry_strategy_sets_waits_between_attempts():
    retry = ExponentialBackoff(max_retries=3, initial_delay=seconds(1), max_delay=seconds(3))
    _, operator = run(Service({0: 3}), retry=retry)
    assert operator.metrics.retry_wait_ms == 1_000 + 2_000 + 3_000
    assert operator.metrics.busy_ms == 1_000 + 2_000 + 3_000 + 4  # four calls take a millisecond each


def test_used_up_retries_raise_service_error():
    """When retries are used up, the error is a service error with the last error."""
    service = Service({0: 9})
    with pytest.raises(
        ServiceError, match=r"'weather' gave up after 3 calls for Question.*Unavailable: attempt 3 of 0"
    ):
        run(service, retry=FixedDelay(max_retries=2, delay=seconds(1)))
    assert service.attempts == {0: 3}
    assert service.log[-1] == ("close", 0)


#    calls at 0, 10, 20, 30 s; the fifth could only begin at 40 s, after the timeout


def test_timeout_spans_all_attempts_and_is_final():
    service = Service({0: 99})
    with pytest.raises(ServiceError, match=r"no response within 35 s.*last error: Unavailable: attempt 4 of 0"):
        run(service, timeout=35, retry=FixedDelay(max_retries=98, delay=seconds(10)))
    assert service.attempts == {0: 4}


def test_unanswered_call_runs_into_timeout():
    class Silent(Service):
        async def invoke(self, _, /):
            await asyncio.Event().wait()

    service = Silent()
    with pytest.raises(ServiceError, match=r"no response within 0 s for Question\(number=0, kind=0\)\. Nothing"):
        run(service, timeout=0, retry=FixedDelay(max_retries=5, delay=seconds(0)))
    assert service.log[-1] == ("close", 0)


#   1 blocks the loop from 0 to 5 s; 2, whose call takes 1 ms, would have 1 s


def test_time_outside_the_event_loop_is_not_counted():
    class Blocking(Service):
        async def invoke(self, question, /):
            if question.number == 1:
                loop: Any = asyncio.get_running_loop()
                loop._virtual += 5
            return await super().invoke(question)

    service = Blocking()
    result, operator = run(service, 3, timeout=1)
    assert [out.record.number for out in result] == [0, 1, 2]
    assert operator.metrics.timeouts == 0


def test_timeout_counts_once_without_retry():
    class Silent(Service):
        async def invoke(self, _, /):
            self.attempts[0] = self.attempts.get(0, 0) + 1
            await asyncio.Event().wait()

    silent = Silent()
    operator = AsyncWaitOperator(wait_of(silent, timeout=0, retry=FixedDelay(max_retries=5, delay=seconds(0))), {})
    with pytest.raises(ServiceError):
        operator.run([Emitted(record_order(0), 0, 0, Question(0))])
    assert (operator.metrics.elements, operator.metrics.timeouts, operator.metrics.retries) == (1, 1, 0)
    assert silent.attempts == {0: 1}


def test_timeout_error_of_client_is_ordinary_failure():
    result, operator = run(Service({0: 1}, error=TimeoutError), retry=FixedDelay(max_retries=1, delay=seconds(1)))
    assert [out.record.attempt for out in result] == [2]
    assert (operator.metrics.elements, operator.metrics.retries, operator.metrics.timeouts) == (1, 1, 0)


@pytest.mark.parametrize("retry", [NoRetry(), FixedDelay(max_retries=5, delay=seconds(1), exceptions=(Unavailable,))])
def test_uncovered_exception_is_functions_fault(retry):
    """An exception that the strategy does not cover is the function's fault."""
    service = Service({0: 1}, error=ZeroDivisionError)
    with pytest.raises(UserFunctionError) as raised:
        run(service, retry=retry)
    assert service.attempts == {0: 1}
    assert (raised.value.operator, raised.value.key) == ("weather", None)
    assert raised.value.record == "Question(number=0, kind=0)"
    assert "in invoke" in raised.value.traceback
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_first_failure_cancels_calls_before_close():
    class Slow(Service):
        async def invoke(self, question, /):
            if question.number == 1:
                raise ZeroDivisionError
            self.running += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.running -= 1

    service = Slow()
    with pytest.raises(UserFunctionError):
        run(service, 6, capacity=6)
    assert service.log[-1] == ("close", 0)


def test_self_cancelling_call_keeps_its_record():
    # A task group treats a cancelled task as a successful task.
    with pytest.raises(UserFunctionError, match="CancelledError"):
        run(Service({1: 1}, error=asyncio.CancelledError), 3, capacity=1)


@pytest.mark.parametrize("answer", [None, 7, Answer(0, 0), [Question(0)], [None], {"a": 1}])
def test_answer_without_output_list_is_functions_fault(answer):
    """An answer that is not a list of the output type is the function's fault."""

    class Wrong(Service):
        async def invoke(self, _, /):
            return answer

    with pytest.raises(UserFunctionError, match=r"invoke\(\) must return a list of Answer, not "):
        run(Wrong())


def test_function_failing_to_open_is_closed_and_blamed():
    class Broken(Service):
        async def open(self, _, /):
            raise KeyError("weather_url")

    service = Broken()
    with pytest.raises(UserFunctionError, match=r"open\(\) failed[^$]*KeyError: 'weather_url'"):
        run(service, 3)
    assert service.log == [("close", 0)]
    assert service.attempts == {}


@pytest.mark.parametrize("method", ["open", "close"])
def test_plain_methods_are_refused(method):
    plain = type("Plain", (Service,), {method: lambda *_: None})
    with pytest.raises(UserFunctionError, match=rf"{method}\(\) must be an 'async def'"):
        run(plain())


def test_error_of_a_call_names_the_quarantine():
    """An exception that no retry covers is an error of the code, or an answer such as "not found"."""

    class Missing(Service):
        async def invoke(self, record, /):
            raise LookupError("404 Not Found")

    with pytest.raises(
        UserFunctionError, match=r"(?s)404 Not Found.*\nWith on_failure=OnFailure.QUARANTINE the record goes to"
    ):
        run(Missing())


def test_failing_close_hides_no_earlier_error():
    class Broken(Service):
        async def close(self):
            raise OSError("half closed")

    with pytest.raises(UserFunctionError, match=r"close\(\) failed[^$]*half closed"):
        run(Broken())
    with pytest.raises(ServiceError, match="gave up after 1 call "):
        run(Broken({0: 1}), retry=FixedDelay(max_retries=0, delay=seconds(1)))
