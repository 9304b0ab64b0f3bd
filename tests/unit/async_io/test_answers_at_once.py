"""A call that ends without a wait has the same outcome as one that waits: results, retries, errors and counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, AsyncWait, CircuitBreaker, FixedDelay, NoRetry, OnFailure, OutputMode
from headrace import clock as engine_clock
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.errors import UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from tests.unit.support.asking import Answer, Question, Unavailable, in_virtual_time


class Service(AsyncFunction[Question, Answer]):
    """Waits, fails and answers as `plans` say for each question: (waits, failures, number of answers)."""

    def __init__(self, plans, *, always_waits):
        self.plans, self.always_waits, self.attempts, self.answered = plans, always_waits, {}, 0

    async def invoke(self, question, /):
        waits, failures, answers = self.plans[question.number]
        attempt = self.attempts[question.number] = self.attempts.get(question.number, 0) + 1
        if waits or self.always_waits:
            await engine_clock.sleep_async(0.001)
        if attempt <= failures:
            raise Unavailable(question.number)
        self.answered += 1
        return [Answer(question.number, attempt) for _ in range(answers)]


def outcome_of(plans, mode, *, always_waits, rejects, breaker):
    judged = []

    def is_unwanted(answers):
        judged.append(answers)
        return len(answers) == rejects

    retry = FixedDelay(max_retries=2, delay=timedelta(milliseconds=5), exceptions=(Unavailable,), results=is_unwanted)
    service = Service(plans, always_waits=always_waits)
    wait = AsyncWait(
        "ask",
        service,
        mode=mode,
        capacity=3,
        timeout=timedelta(seconds=60),
        retry=retry,
        on_failure=OnFailure.QUARANTINE,
        breaker=breaker,
    )
    operator = AsyncWaitOperator(wait, {})
    elements = [Emitted(record_order(at), at, 0, Question(at)) for at in range(len(plans))]
    emitted = in_virtual_time(lambda: operator.run_async(elements))
    assert len(judged) == service.answered  # each response once, however it came
    failed = [(element.emitted.record, element.attempts, element.last_error) for element in operator.quarantined]
    metrics = operator.metrics
    counts = (metrics.elements, metrics.attempts, metrics.calls, metrics.failures, metrics.retries, metrics.quarantined)
    return emitted, failed, counts, sum(metrics.latencies.values())


PLANS = st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 2)), max_size=12)


@given(plans=PLANS, mode=st.sampled_from([OutputMode.ORDERED, OutputMode.UNORDERED]), rejects=st.integers(0, 5))
def test_answers_at_once_change_no_outcome(plans, mode, rejects):
    chosen = {"rejects": rejects, "breaker": None}
    at_once = outcome_of(plans, mode, always_waits=False, **chosen)
    assert at_once == outcome_of(plans, mode, always_waits=True, **chosen)


@given(plans=PLANS)
def test_breaker_that_stays_closed_changes_no_outcome(plans):
    breaker = CircuitBreaker(failures=1000)
    with_it = outcome_of(plans, OutputMode.ORDERED, always_waits=False, rejects=9, breaker=breaker)
    assert with_it == outcome_of(plans, OutputMode.ORDERED, always_waits=False, rejects=9, breaker=None)


@pytest.mark.parametrize("wrong", [None, Answer(2, 1), [Question(2)]])
def test_wrong_answer_at_once_names_its_record(wrong):
    class Wrong(Service):
        async def invoke(self, question, /):
            if question.number == 2:
                return self.plans
            return [Answer(question.number, 1)]

    function = Wrong(wrong, always_waits=False)
    wait = AsyncWait(
        "ask", function, mode=OutputMode.ORDERED, capacity=3, timeout=timedelta(seconds=60), retry=NoRetry()
    )
    elements = [Emitted(record_order(at), at, 0, Question(at)) for at in range(4)]
    with pytest.raises(UserFunctionError, match=r"(?s)number=2.*list of Answer"):
        in_virtual_time(lambda: AsyncWaitOperator(wait, {}).run_async(elements))
