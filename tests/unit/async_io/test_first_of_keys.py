"""Elements whose look-up is under way come after the first elements of further keys."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncWait, LookupCache, LookupFunction, NoRetry, OutputMode
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.lookup_cache import first_of_keys_first
from headrace.errors import UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from tests.unit.support.asking import Answer, Question, in_virtual_time


def arranged(names, window):
    return "".join(first_of_keys_first(names, lambda name: name, window))


@pytest.mark.parametrize(
    ("names", "window", "expected"),
    [
        ("", 2, ""),
        ("aabb", 2, "abab"),
        ("aabacdcde", 2, "abcdaaecd"),
        ("abcabc", 9, "abcabc"),
    ],
)
def test_further_elements_come_a_window_later(names, window, expected):
    assert arranged(names, window) == expected


@given(st.text("abcdef", max_size=40), st.integers(1, 5))
def test_every_element_comes_once_in_key_order(names, window):
    numbered = list(enumerate(names))
    result = list(first_of_keys_first(numbered, lambda item: item[1], window))
    assert sorted(result) == numbered
    for name in set(names):
        of_key = [item for item in result if item[1] == name]
        assert of_key == sorted(of_key)


def test_elements_without_a_key_come_at_once():
    assert list(first_of_keys_first([1, 1, [], 2], lambda item: item or [], 1)) == [1, [], 2, 1]


class Names(LookupFunction[Question, Answer]):
    def __init__(self):
        self.asked = []

    def cache_key(self, question, /):
        if question.number < 0:
            raise ValueError("no key")
        return question.key

    async def look_up(self, key, /):
        self.asked.append(key)
        return key

    def join(self, question, answer, /):
        return [Answer(question.number, len(answer))]


def run(questions):
    wait = AsyncWait(
        "names",
        Names(),
        mode=OutputMode.ORDERED,
        capacity=2,
        timeout=timedelta(seconds=5),
        retry=NoRetry(),
        cache=LookupCache(size=6),
    )
    operator = AsyncWaitOperator(wait, {})
    elements = [Emitted(record_order(at), at, 0, question) for at, question in enumerate(questions)]
    return operator, in_virtual_time(lambda: operator.run_async(elements))


def test_results_keep_arrival_order():
    operator, emitted = run([Question(at, "abc"[at % 3]) for at in range(12)])
    assert [item.record.number for item in emitted] == list(range(12))
    metrics = operator.metrics
    assert (operator.operator.function.asked, metrics.calls) == (["a", "b", "c"], 3)
    assert (metrics.elements, metrics.attempts, metrics.cache_hits + metrics.coalesced) == (12, 12, 9)


def test_failing_key_is_reported_as_user_error():
    with pytest.raises(UserFunctionError, match="no key"):
        run([Question(1, "a"), Question(-1, "a")])
