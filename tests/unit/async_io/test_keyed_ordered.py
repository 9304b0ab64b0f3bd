"""Look-ups in order of keys, through the controller for state access."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncFunction, AsyncWait, FixedDelay, NoRetry, OutputMode, Struct
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.errors import ServiceError, UserFunctionError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from tests.unit.support.fuzzing import examples
from tests.unit.support.records import record_of


class Question(Struct, frozen=True):
    key: str
    number: int
    turns: int = 0
    fails: int = 0


class Answer(Struct, frozen=True):
    key: str
    number: int


class Service(AsyncFunction[Question, Answer]):
    """Takes as many turns of the loop as a question says, and fails as often."""

    def __init__(self):
        self.running, self.most, self.began, self.log = {}, 0, [], []
        self.failed = {}

    async def open(self, services, /):
        self.log.append("open")

    async def close(self):
        self.log.append("close")

    async def invoke(self, question, /):
        assert question.key not in self.running, "two calls for one key"
        self.running[question.key] = question.number
        self.began.append(question.number)
        self.most = max(self.most, len(self.running))
        try:
            for _ in range(question.turns):
                await asyncio.sleep(0)
            failed = self.failed[question.number] = self.failed.get(question.number, 0) + 1
            if failed <= question.fails:
                raise OSError(f"call {failed} for {question.number}")
            return [Answer(question.key, question.number)]
        finally:
            del self.running[question.key]


def ask(service, questions, capacity=3, retry=None):
    operator = AsyncWait("ask", service, OutputMode.UNORDERED, capacity, timedelta(seconds=60), retry or NoRetry())
    elements = [
        (question.key.encode(), Emitted(record_order(place), place, 0, question))
        for place, question in enumerate(questions)
    ]
    return [record_of(emitted).number for emitted in KeyedOrderedWait(AsyncWaitOperator(operator, {})).run(elements)]


@examples(40)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 2)), max_size=30), st.integers(1, 5)
)
def test_key_calls_are_sequential_within_capacity(drawn, capacity):
    questions = [Question(key, number, turns, fails) for number, (key, turns, fails) in enumerate(drawn)]
    service = Service()
    retry = FixedDelay(max_retries=2, delay=timedelta(0), exceptions=(OSError,))
    assert ask(service, questions, capacity, retry) == list(range(len(questions)))
    assert service.most <= capacity
    for key in "abc":
        mine = [question.number for question in questions if question.key == key]
        began = [number for number in service.began if number in mine]
        assert list(dict.fromkeys(began)) == mine
    assert service.log == ["open", "close"]


def test_calls_for_other_keys_overtake():
    service = Service()
    ask(service, [Question("a", 0, turns=50), Question("a", 1), Question("b", 2)])
    assert service.began == [0, 2, 1]


def test_final_failure_fails_task_and_closes_function():
    service = Service()
    with pytest.raises(ServiceError, match="gave up after 2 calls"):
        ask(
            service,
            [Question("a", 0, fails=9)],
            retry=FixedDelay(max_retries=1, delay=timedelta(0), exceptions=(OSError,)),
        )
    assert service.log == ["open", "close"]


def test_failing_open_is_a_user_error():
    class Closed(Service):
        async def open(self, services, /):
            raise ValueError("no client")

    with pytest.raises(UserFunctionError, match="no client"):
        ask(Closed(), [])
