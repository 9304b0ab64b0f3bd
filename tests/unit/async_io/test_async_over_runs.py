"""Runs that crash, stop, change their mode and restore elements: every element is in one place, and requested no more often than needed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AsyncFunction,
    AsyncWait,
    Batching,
    CircuitBreaker,
    FixedDelay,
    LookupCache,
    NoRetry,
    OnFailure,
    OutputMode,
    RecoveryOption,
)
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.limits import ServiceLimit
from headrace.async_io.pending_call import PendingCall, came, came_as
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from tests.unit.async_io.test_async_micro_batches import Table
from tests.unit.support.asking import Answer, Question, Unavailable, micro_batch
from tests.unit.support.fuzzing import examples
from tests.unit.support.records import record_of

MS = timedelta(milliseconds=1)
CAPACITY = 3
FREE_MODES = (OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.UNORDERED_PROCESSING_TIME)


class Wild(AsyncFunction[Question, Answer]):
    """Calls take as long, and end, as the script of their record says; a call that never ends takes a day."""

    def __init__(self, scripts, *, keyed=False):
        self.scripts, self.keyed = scripts, keyed
        self.calls = []
        self.running, self.most = 0, 0

    def cache_key(self, question, /):
        return question.number % 5

    async def invoke(self, question, /):
        (answer,) = await self.invoke_many([question])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def invoke_many(self, questions, /):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            result = [self._next(question) for question in questions]
            await asyncio.sleep(max(seconds for seconds, _ in result))
            return [
                [Answer(question.number, 0)] if succeeds else Unavailable(question.number)
                for question, (_, succeeds) in zip(questions, result, strict=True)
            ]
        finally:
            self.running -= 1

    def _next(self, question):
        attempt = self.calls.count(question.number)
        self.calls.append(question.number)
        script = self.scripts.get(question.number, ())
        return script[attempt] if attempt < len(script) else (0.0, True)


@dataclass
class Runs:
    """Micro-batches over one table. A crash is a micro-batch that is not committed."""

    wait: AsyncWait
    limit: int | None = None
    table: Table = field(default_factory=Table)
    now: int = 0
    taken: list = field(default_factory=list)
    emitted: list = field(default_factory=list)
    quarantine: list = field(default_factory=list)
    requeued: set = field(default_factory=set)
    open_until: int | None = None

    def micro_batch(self, keys, *, mode=None, crashes=False, looks=None):
        """`looks`: stop when the operator has polled the stop sign so often."""
        arriving = [Question(len(self.taken) + place, key) for place, key in enumerate(keys)]
        wait = replace(self.wait, mode=mode or self.wait.mode)
        limit = None if self.limit is None else ServiceLimit(concurrency=self.limit)
        stop = None if looks is None else iter([False] * looks + [True]).__next__
        operator = AsyncWaitOperator(wait, {}, limit=limit, open_until=self.open_until, stop=stop)
        done = {record_of(element.emitted).number for element in self.table.elements() if element.is_done}
        function: Any = wait.function
        before = len(function.calls)
        sent = self._run(
            operator, [Emitted(record_order(question.number), question.number, 0, question) for question in arriving]
        )
        assert wait.cache is not None or not done & set(function.calls[before:]), "a result was asked for again"
        assert function.running == 0
        if crashes:
            return
        self.taken += arriving
        self.emitted += [int.from_bytes(emission.order[:8]) for emission in sent]
        self.quarantine += [(element.key_json, came_as(element.emitted)) for element in operator.quarantined]
        self.table.commit(operator)
        self.open_until = operator.metrics.open_until
        self.check()

    def requeue(self):
        """Requeue elements as `headrace quarantine --requeue` does."""
        back = []
        for key, text in self.quarantine:
            element = PendingCall(came(text, Question))
            element.key_json = key
            back.append(element)
        self.requeued |= {record_of(element.emitted).number for element in back}
        self.quarantine = []
        nothing = AsyncWaitOperator(self.wait, {})
        nothing.pending = back
        self.table.commit(nothing)

    def check(self):
        pending = [record_of(element.emitted).number for element in self.table.elements()]
        given_up = [record_of(came(text, Question)).number for _, text in self.quarantine]
        assert sorted([*self.emitted, *given_up, *pending]) == list(range(len(self.taken)))
        function: Any = self.wait.function
        assert function.most <= min(self.wait.capacity, self.limit or CAPACITY)

    def check_order(self):
        """Check the order of all elements but the abandoned ones: arrival order, or arrival order within each key."""
        sent = [number for number in self.emitted if number not in self.requeued]
        if self.wait.mode is OutputMode.ORDERED:
            assert sent == sorted(sent)
        if self.wait.mode is OutputMode.KEYED_ORDERED:
            by_key = sorted(sent, key=lambda number: self.taken[number].key)
            assert by_key == sorted(by_key, key=lambda number: (self.taken[number].key, number))

    def _run(self, operator, elements):
        sent, self.now = micro_batch(operator, elements, self.table.elements(), self.now)
        if operator.operator.mode is not OutputMode.KEYED_ORDERED:
            for element in operator.pending:
                element.key_json = (
                    b"%d" % record_of(element.emitted).number if element.sequence is None else element.key_json
                )
        return sent


@pytest.mark.parametrize(("mode", "emitted"), [(OutputMode.ORDERED, []), (OutputMode.KEYED_ORDERED, [1])])
def test_stopping_run_does_not_wait_for_hooks(mode, emitted):
    class Pondering(Wild):
        async def timeout(self, question, /):
            await asyncio.sleep(86_400)

    function = Pondering({0: [(86_400.0, True)]})
    runs = Runs(AsyncWait("ask", function, mode, CAPACITY, 20 * MS, NoRetry()))
    runs.micro_batch("ab", looks=0)
    assert runs.emitted == emitted
    assert runs.now < 1000


call = st.tuples(st.sampled_from([0.0, 0.001, 0.03, 0.3, 86_400.0]), st.booleans())
steps = st.lists(
    st.tuples(
        st.text("abc", max_size=6),
        st.sampled_from(FREE_MODES),
        st.booleans(),
        st.none() | st.integers(0, 3),
        st.integers(0, 900),
        st.booleans(),
    ),
    max_size=7,
)
options_of = st.fixed_dictionaries(
    {
        "park_after": st.sampled_from([0 * MS, 40 * MS, None]),
        "breaker": st.sampled_from([None, CircuitBreaker(failures=2, probe_after=70 * MS, longest=300 * MS)]),
        "recovery": st.sampled_from(RecoveryOption),
        "cache": st.sampled_from([None, LookupCache(ttl=100 * MS), LookupCache(size=1, negative_ttl=0 * MS)]),
        "batch": st.sampled_from([None, None, Batching(size=2, wait=2 * MS), Batching(size=5, wait=0 * MS)]),
    }
)


def story(mode, changes, drawn, scripts, options, retries, timeout, limit):
    function = Wild(scripts)
    retry = FixedDelay(max_retries=retries, delay=50 * MS, exceptions=(Unavailable,))
    wait = AsyncWait("ask", function, mode, CAPACITY, timeout * MS, retry, on_failure=OnFailure.QUARANTINE, **options)
    runs = Runs(wait, limit)
    changes = changes and mode is not OutputMode.KEYED_ORDERED
    for keys, other, crashes, looks, pause, requeues in drawn:
        runs.micro_batch(keys, mode=other if changes else None, crashes=crashes, looks=looks)
        runs.now += pause
        if requeues:
            runs.requeue()
        if not changes:
            runs.check_order()
    function.scripts = {}
    for _ in range(30):
        runs.now += 1000
        runs.micro_batch("")
        if not runs.table.rows:
            break
        runs.requeue()
    assert not runs.table.rows


stories = given(
    mode=st.sampled_from([OutputMode.ORDERED, OutputMode.KEYED_ORDERED]),
    changes=st.booleans(),
    drawn=steps,
    scripts=st.dictionaries(st.integers(0, 20), st.lists(call, max_size=5)),
    options=options_of,
    retries=st.integers(0, 4),
    timeout=st.sampled_from([20, 200, 5_000]),
    limit=st.sampled_from([None, 1, 2]),
)


@examples(60)
@stories
def test_each_element_is_in_one_place_over_runs(mode, changes, drawn, scripts, options, retries, timeout, limit):
    """After any run, every element is in one place."""
    story(mode, changes, drawn, scripts, options, retries, timeout, limit)


@pytest.mark.long
@examples(800)
@stories
def test_many_more_schedules_keep_elements_in_one_place(
    mode, changes, drawn, scripts, options, retries, timeout, limit
):
    story(mode, changes, drawn, scripts, options, retries, timeout, limit)
