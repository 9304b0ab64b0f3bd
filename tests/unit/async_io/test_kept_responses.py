"""Rules by which an element takes a kept response, against a plain model."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, AsyncWait, FixedDelay, OnFailure, OutputMode, Struct
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.keyed_ordered import run_keyed_ordered
from headrace.async_io.pending_call import PendingCall, Status
from headrace.async_io.responses import KeptResponses, digest_of, kept_responses, ordinal_of
from headrace.errors import ConfigError, StateSchemaError
from headrace.execution.element import Emitted
from headrace.records.order import output_order, record_order
from tests.unit.support.fuzzing import examples
from tests.unit.support.records import record_of

MODES = (OutputMode.ORDERED, OutputMode.KEYED_ORDERED)


class Asked(Struct, frozen=True):
    what: int
    weight: float = 1.0


class Given(Struct, frozen=True):
    value: int


class Ask(AsyncFunction[Asked, Given]):
    """Answers -1."""

    def __init__(self):
        self.calls, self.opened = [], 0

    async def open(self, services, /):
        self.opened += 1

    async def invoke(self, asked, /):
        self.calls.append(asked.what)
        return [Given(-1)]


def wait_of(function, mode=OutputMode.ORDERED, **options):
    return AsyncWait(
        "ask",
        function,
        service="oracle",
        mode=mode,
        capacity=4,
        timeout=timedelta(hours=1),
        retry=FixedDelay(max_retries=0, delay=timedelta(0), exceptions=(ConnectionError,)),
        **options,
    )


def emitted(ordinal, what, index=None):
    order = record_order(ordinal)
    return Emitted(order if index is None else output_order(order, index), 0, 0, Asked(what))


def element(ordinal, what, index=None):
    result = PendingCall(emitted(ordinal, what, index))
    result.key_json = b'"k"'
    return result


def kept(wait, *answered):
    elements = []
    for ordinal, what, value in answered:
        asked_element = element(ordinal, what)
        asked_element.complete([Given(value)])
        elements.append(asked_element)
    return [*kept_responses(wait, elements, now=5, keep_for=10)]


def taken_from(wait, stored, *, never_calls=False):
    return KeptResponses(
        wait, lambda wanted: [answer for answer in stored if answer.digest in wanted], never_calls=never_calls
    )


PLACES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=8, unique=True)


@given(PLACES, st.integers(0, 12), st.integers(0, 2))
def test_nearest_answer_to_the_request_counts(places, ordinal, what):
    wait = wait_of(Ask())
    answers = taken_from(wait, kept(wait, *((at, asked, at) for at, asked in places)))
    asked_element = element(ordinal, what)
    answers.look_up([asked_element])
    same = sorted(at for at, asked in places if asked == what)
    assert (answers.has(asked_element), answers.take(asked_element)) == (bool(same), bool(same))
    if same:
        assert asked_element.results == [Given(min(same, key=lambda at: abs(at - ordinal)))]
        assert asked_element.kept_at == (5, 15)


def test_exact_place_wins_within_a_record():
    wait = wait_of(Ask())
    outputs = [element(3, 1, index) for index in range(3)]
    for number, output in enumerate(outputs):
        output.complete([Given(number)])
    again = [element(3, 1, index) for index in range(3)]
    answers = taken_from(wait, [*kept_responses(wait, outputs, now=5, keep_for=10)])
    answers.look_up(again)
    assert all(map(answers.take, again))
    assert [answer.results for answer in again] == [answer.results for answer in outputs]


@pytest.mark.parametrize("mode", MODES)
def test_only_elements_without_answer_are_called(mode):
    function = Ask()
    wait = wait_of(function, mode)
    stored = kept(wait, (1, 1, 10), (3, 3, 30))
    results, operator = run(wait, [emitted(number, number) for number in (1, 2, 3)], taken_from(wait, stored))
    assert results == [10, -1, 30]
    assert (function.calls, operator.metrics.responses_taken, len(operator.answered)) == ([2], 2, 3)


@pytest.mark.parametrize("mode", MODES)
def test_answered_elements_open_nothing(mode):
    function = Ask()
    wait = wait_of(function, mode)
    results, _ = run(wait, [emitted(1, 1)], taken_from(wait, kept(wait, (1, 1, 10))))
    assert (results, function.opened) == ([10], 0)


@pytest.mark.parametrize("mode", MODES)
def test_forbidden_call_stops_all_calls(mode):
    function = Ask()
    wait = wait_of(function, mode)
    answers = taken_from(wait, kept(wait, (3, 3, 30)), never_calls=True)
    with pytest.raises(ConfigError, match=r"no kept response of service 'oracle' for Asked\(what=2"):
        run(wait, [emitted(3, 3), emitted(4, 2)], answers)
    assert (function.calls, function.opened) == ([], 0)


def run(wait, elements, answers):
    operator = AsyncWaitOperator(wait, {}, responses=answers)
    if wait.mode is OutputMode.KEYED_ORDERED:
        results = run_keyed_ordered(operator, [(b'"k"', element) for element in elements])
    else:
        results = operator.run(elements)
    return [record_of(emission).value for emission in results], operator


@pytest.mark.parametrize(("policy", "is_taken"), [(OnFailure.QUARANTINE, True), (OnFailure.FAIL, False)])
def test_quarantine_policy_decides_about_kept_failures(policy, is_taken):
    failed = element(1, 1)
    failed.status, failed.attempts, failed.last_error = Status.QUARANTINED, 2, "gone"
    wait = wait_of(Ask(), on_failure=policy)
    answers = taken_from(wait, [*kept_responses(wait, [failed], now=5, keep_for=10)])
    asked_element = element(1, 1)
    answers.look_up([asked_element])
    assert answers.take(asked_element) is is_taken
    assert (asked_element.status is Status.QUARANTINED, asked_element.last_error) == (
        is_taken,
        "gone" if is_taken else None,
    )


def test_answer_of_another_type_is_refused():
    class Texts(Struct, frozen=True):
        value: str

    class AskForTexts(AsyncFunction[Asked, Texts]):
        async def invoke(self, asked, /):
            return [Texts("")]

    stored = kept(wait_of(Ask()), (1, 1, 10))
    answers = taken_from(wait_of(AskForTexts()), stored)
    asked_element = element(1, 1)
    answers.look_up([asked_element])
    with pytest.raises(
        StateSchemaError, match="service 'oracle' does not fit the output of operator 'ask'.*replay: call"
    ):
        answers.take(asked_element)


@examples(40)
@given(*[st.builds(Asked, st.integers(), st.floats(allow_nan=False) | st.just(float("nan")))] * 2)
def test_different_requests_have_different_digests(one, other):
    wait = wait_of(Ask())
    first, second = (PendingCall(Emitted(record_order(1), 0, 0, record)) for record in (one, other))
    assert (digest_of(wait, first) == digest_of(wait, second)) == (repr(one) == repr(other))


def test_key_is_part_of_a_keyed_request():
    wait, one, other = wait_of(Ask(), OutputMode.KEYED_ORDERED), element(1, 1), element(1, 1)
    other.key_json = b'"other"'
    assert digest_of(wait, one) != digest_of(wait, other)
    assert ordinal_of(one.emitted) == 1
