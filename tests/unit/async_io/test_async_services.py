"""The parts between an operator and its service: breaker, cache, groups, limits, threads."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    AsyncWait,
    Batching,
    BlockingFunction,
    CircuitBreaker,
    FixedDelay,
    LookupCache,
    LookupFunction,
    NoRetry,
    OutputMode,
    RowKind,
    clock,
)
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.limits import Breaker, ServiceLimit
from headrace.errors import UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from headrace.testing import AsyncWaitHarness
from tests.unit.support.asking import Answer, Promised, Question, Unavailable
from tests.unit.support.records import record_of

MS = timedelta(milliseconds=1)
ALWAYS = FixedDelay(max_retries=99, delay=10 * MS)


def harness(function, **options):
    return AsyncWaitHarness(function, **{"capacity": 100, "timeout": 100_000 * MS, **options})


def failing(calls):
    return {number: [(0.0, False)] * calls for number in range(1000)}


# ------------------------------------------------------------------------------------------------------ breaker


def test_breaker_opens_after_failures_and_parks_others():
    """A breaker opens after its limit of failures in a row, and parks the other elements."""
    breaker = CircuitBreaker(failures=3, probe_after=1000 * MS)
    scripts = {number: [(0.0, False)] for number in range(3)}
    with harness(Promised(scripts), breaker=breaker, park_after=0 * MS, retry=ALWAYS) as h:
        for number in range(100):
            h.process(Question(number))
        assert (h.statistics().breaker, h.statistics().attempts, h.statistics().parked) == ("open", 3, 100)
        h.clock.advance(999)
        assert h.statistics().attempts == 3
        h.clock.advance(1)
        assert h.statistics().breaker == "closed"
        h.clock.advance(100)
        assert sorted(output.number for output in h.output()) == list(range(100))


#   opens at 0; probes at 1,000, at 1,000 + 2,000 = 3,000, at 3,000 + 3,000 (the longest) = 6,000


def test_failed_probe_doubles_wait_up_to_longest():
    breaker = CircuitBreaker(failures=1, probe_after=1000 * MS, longest=3000 * MS)
    function = Promised(failing(4))
    with harness(function, breaker=breaker, retry=FixedDelay(max_retries=99, delay=0 * MS)) as h:
        h.process(Question(1))
        at = []
        for _ in range(7000):
            before = len(function.calls)
            h.clock.advance(1)
            at += [h.clock.now()] * (len(function.calls) - before)
        assert at == [1000, 3000, 6000]


def test_failed_probe_costs_its_element_no_attempt():
    breaker = CircuitBreaker(failures=1, probe_after=10 * MS, longest=10 * MS)
    function = Promised(failing(50))
    with harness(function, breaker=breaker, retry=FixedDelay(max_retries=1, delay=0 * MS)) as h:
        h.process(Question(1))
        h.clock.advance(499)
        assert (len(function.calls), h.output()) == (50, [])
        h.clock.advance(1)
        assert h.output() == [Answer(1, 51)]


def test_late_failure_of_earlier_call_is_no_probe():
    # Call 1 fails at once and opens the breaker until 10; call 2 began earlier and fails at 12, during the probe, which ends at 20.
    scripts = {1: [(0.0, False), (0.010, True)], 2: [(0.012, False)]}
    breaker = CircuitBreaker(failures=1, probe_after=10 * MS)
    with harness(Promised(scripts), breaker=breaker, retry=FixedDelay(max_retries=9, delay=0 * MS)) as h:
        h.process(Question(2))
        h.process(Question(1))
        h.clock.advance(15)
        assert h.statistics().breaker == "half_open"
        h.clock.advance(5)
        assert h.statistics().breaker == "closed"


def test_clock_set_back_does_not_extend_breaker():
    """If the clock is set back, the breaker stays open for no longer than the longest wait."""
    policy = CircuitBreaker(probe_after=10 * MS, longest=500 * MS)
    virtual = clock.VirtualClock(1000)
    with clock.installed(virtual):
        assert Breaker(policy, open_until=86_400_000).seconds_to_probe() == 0.5
        assert Breaker(policy, open_until=1100).seconds_to_probe() == 0.1


def test_success_among_failures_keeps_breaker_closed():
    scripts = {1: [(0.0, False)], 2: [(0.0, True)], 3: [(0.0, False)]}
    with harness(Promised(scripts), breaker=CircuitBreaker(failures=2), retry=ALWAYS) as h:
        for number in (1, 2, 3):
            h.process(Question(number))
        assert h.statistics().breaker == "closed"


def test_records_sharing_a_call_count_one_failure():
    with harness(
        Promised({0: [(0.001, False)]}), breaker=CircuitBreaker(failures=2), cache=LookupCache(), retry=ALWAYS
    ) as h:
        for _ in range(10):
            h.process(Question(0))
        h.clock.advance(1)
        assert (h.statistics().breaker, h.statistics().waiting_for_retry) == ("closed", 10)


def test_unanswered_calls_open_the_breaker_too():
    class Silent(Promised):
        async def timeout(self, question, /):
            return []

    scripts = {number: [(9e9, True)] for number in range(3)}
    with harness(Silent(scripts), breaker=CircuitBreaker(failures=3), timeout=50 * MS) as h:
        for number in range(3):
            h.process(Question(number))
        h.clock.advance(50)
        assert h.statistics().breaker == "open"


# -------------------------------------------------------------------------------------------------------- cache


class Prices(LookupFunction[Question, Answer]):
    """Looks up prices by key; the empty key is unknown."""

    def __init__(self):
        self.asked = []

    def cache_key(self, question, /):
        return question.key

    async def look_up(self, key, /):
        self.asked.append(key)
        await asyncio.sleep(0.005)
        if key == "broken":
            raise Unavailable(key)
        return len(key) or None

    def join(self, question, answers, /):
        return [Answer(question.number, answers)] if answers else []


def test_equal_calls_are_shared_then_cached():
    """Equal calls in flight are one call; later ones are answered from the cache."""
    with harness(Prices(), cache=LookupCache()) as h:
        h.process(Question(1, "abc"))
        h.process(Question(2, "abc"))
        h.clock.advance(5)
        h.process(Question(3, "abc"))
        assert h.output() == [Answer(1, 3), Answer(2, 3), Answer(3, 3)]
        assert h.function.asked == ["abc"]
        assert (h.statistics().coalesced, h.statistics().cache_hits) == (1, 1)


def test_only_calls_that_leave_the_process_are_counted():
    with harness(Prices(), cache=LookupCache()) as h:
        for number in range(4):
            h.process(Question(number, "abc"))
        h.clock.advance(5)
        for number in range(3):
            h.process(Question(number, "abc"))
        counts = h.statistics()
    assert (counts.attempts, counts.calls, counts.coalesced, counts.cache_hits) == (7, 1, 3, 3)


def test_shared_failure_counts_once():
    with harness(Prices(), cache=LookupCache(), retry=FixedDelay(max_retries=1, delay=10 * MS)) as h:
        h.process(Question(1, "broken"))
        h.process(Question(2, "broken"))
        h.clock.advance(5)
        assert (h.statistics().calls, h.statistics().failures) == (1, 1)


def test_cached_answers_count_in_no_percentile():
    wait = AsyncWait("ask", Prices(), OutputMode.ORDERED, 100, 10_000 * MS, NoRetry(), cache=LookupCache())
    operator = AsyncWaitOperator(wait, {})
    elements = [Emitted(record_order(number), 0, RowKind.INSERT, Question(number, "abc")) for number in range(3)]
    operator.run(elements)
    assert sum(operator.metrics.latencies.values()) == operator.metrics.calls == 1


def test_negative_answers_expire_sooner_than_positive_answers():
    cache = LookupCache(ttl=100 * MS, negative_ttl=10 * MS)
    with harness(Prices(), cache=cache) as h:
        for wait in (0, 10, 95, 10):
            h.clock.advance(wait)
            h.process(Question(1, "abc"))
            h.process(Question(2, ""))
            h.clock.advance(5)
        assert (h.function.asked.count("abc"), h.function.asked.count("")) == (2, 4)


def test_least_recently_used_answer_is_evicted_first():
    with harness(Prices(), cache=LookupCache(size=2)) as h:
        for key in ("a", "b", "a", "c", "a", "b"):
            h.process(Question(1, key))
            h.clock.advance(5)
        assert h.function.asked == ["a", "b", "c", "b"]


def test_failure_is_shared_but_never_cached():
    with harness(Prices(), cache=LookupCache(), retry=FixedDelay(max_retries=1, delay=10 * MS)) as h:
        h.process(Question(1, "broken"))
        h.process(Question(2, "broken"))
        h.clock.advance(14)
        assert h.function.asked == ["broken"]
        h.clock.advance(1)
        assert h.function.asked == ["broken", "broken"]


def test_timed_out_record_leaves_answer_to_others():
    class Patient(Prices):
        async def timeout(self, question, /):
            return []

    with harness(Patient(), cache=LookupCache(), timeout=4 * MS) as h:
        h.process(Question(1, "abc"))
        h.clock.advance(3)
        h.process(Question(2, "abc"))
        h.clock.advance(2)
        assert h.output() == [Answer(2, 3)]


def test_refused_answer_is_not_cached():
    retry = FixedDelay(max_retries=3, delay=10 * MS, results=lambda answers: answers[0].attempt < 2)
    with harness(Promised(), cache=LookupCache(), retry=retry) as h:
        h.process(Question(1))
        h.clock.advance(10)
        assert h.output() == [Answer(1, 2)]


# ------------------------------------------------------------------------------------------------------- groups


class Bulk(AsyncFunction[Question, Answer]):
    def __init__(self, answer=None):
        self.groups = []
        self.answer = answer or (lambda questions: [[Answer(question.number, 0)] for question in questions])

    async def invoke(self, question, /):
        raise AssertionError("invoke_many is called in its place")

    async def invoke_many(self, questions, /):
        self.groups.append([question.number for question in questions])
        await asyncio.sleep(0.001)
        return self.answer(questions)


def test_records_are_grouped_by_size_and_wait():
    with harness(Bulk(), batch=Batching(size=3, wait=10 * MS)) as h:
        for number in range(5):
            h.process(Question(number))
        h.clock.advance(1)
        assert len(h.output()) == 3
        h.clock.advance(9)
        assert h.function.groups == [[0, 1, 2], [3, 4]]
        h.clock.advance(1)
        assert (len(h.output()), h.statistics().batches) == (2, 2)
        assert (h.statistics().attempts, h.statistics().calls) == (5, 2)


def test_record_failing_its_group_counts_as_failure():
    bulk = Bulk(lambda questions: [Unavailable() if question.number else [Answer(0, 0)] for question in questions])
    with harness(bulk, batch=Batching(size=3, wait=10 * MS), retry=ALWAYS) as h:
        for number in range(3):
            h.process(Question(number))
        h.clock.advance(1)
        assert (h.statistics().calls, h.statistics().failures) == (1, 2)


def test_failed_group_is_retried_record_by_record():
    def once(questions):
        if len(bulk.groups) == 1:
            raise Unavailable
        return [[Answer(question.number, 0)] for question in questions]

    bulk = Bulk(once)
    with harness(bulk, batch=Batching(size=2), retry=ALWAYS) as h:
        h.process(Question(1))
        h.process(Question(2))
        h.clock.advance(12)
        assert sorted(output.number for output in h.output()) == [1, 2]


@pytest.mark.parametrize("answer", [lambda _: [], lambda _: None, lambda _: [[]]])
def test_group_with_missing_answers_is_functions_fault(answer):
    with harness(Bulk(answer), batch=Batching(size=2)) as h:
        h.process(Question(1))
        h.process(Question(2))
        with pytest.raises(UserFunctionError, match=r"invoke_many\(\) got 2 records and answered with"):
            h.clock.advance(1)


# ------------------------------------------------------------------------------------------------------- limits


def test_rate_spaces_calls_and_concurrency_bounds_them():
    async def run():
        loop = asyncio.get_running_loop()
        began = loop.time()
        at, running, most = [], 0, 0

        async def call(asked):
            nonlocal running, most
            running += 1
            most = max(most, running)
            at.append(round(loop.time() - began, 3))
            await asyncio.sleep(0.25)
            running -= 1
            return asked

        limited = ServiceLimit(rate=10, concurrency=2).over(call)
        assert await asyncio.gather(*map(limited, range(4))) == [0, 1, 2, 3]
        return at, most

    with harness(Promised()) as h:
        at, most = h._loop.run_whole(run())
    assert at == [0.0, 0.1, 0.25, 0.35]
    assert most == 2


# ------------------------------------------------------------------------------------------------------ threads


class Blocking(BlockingFunction[Question, Answer]):
    threads = 3

    def __init__(self):
        self.names = set()

    def call(self, question, /):
        self.names.add(threading.current_thread().name)
        if question.number == 13:
            raise ZeroDivisionError
        return [Answer(question.number, 0)]


def run_blocking(*numbers):
    wait = AsyncWait("ask", Blocking(), OutputMode.ORDERED, 10, timedelta(seconds=30), NoRetry())
    asked = [Emitted(record_order(place), 0, 0, Question(number)) for place, number in enumerate(numbers)]
    return [record_of(emission).number for emission in AsyncWaitOperator(wait, {}).run(asked)], wait.function


def test_blocking_client_runs_in_own_threads():
    result, function = run_blocking(*range(12))
    assert result == list(range(12))
    assert 1 <= len(function.names) <= 3
    assert all(name.startswith("Blocking") for name in function.names)


def test_thread_exception_is_handled_like_any_other():
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        run_blocking(12, 13)


def test_unopened_blocking_function_raises_a_clear_error():
    with pytest.raises(RuntimeError, match=r"called before open\(\)"):
        asyncio.run(Blocking().invoke(Question(1)))
