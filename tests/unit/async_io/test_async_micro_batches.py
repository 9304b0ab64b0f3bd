"""The async wait operator over micro-batches: waiting elements pass through the stored form to the next micro-batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncWait, CircuitBreaker, FixedDelay, OnFailure, OutputMode, RecoveryOption
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.pending_call import PendingCall, loaded
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from headrace.tables.requests import waiting_element_rows
from tests.unit.support.asking import Answer, Lingering, Promised, Question, in_virtual_time, micro_batch
from tests.unit.support.fuzzing import examples
from tests.unit.support.records import record_of

MS = timedelta(milliseconds=1)
MODES = (OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.KEYED_ORDERED)


class Table:
    """The contents of `async_requests`."""

    def __init__(self):
        self.rows = {}
        self.checkpoint = 0

    def elements(self):
        return loaded(list(self.rows.values()), Question, Answer)

    def commit(self, operator):
        self.checkpoint += 1
        rows, deleted = waiting_element_rows(operator.pending, operator.settled, self.checkpoint)
        for row, is_deleted in zip(rows, deleted, strict=True):
            if is_deleted:
                del self.rows[row.key, row.sequence]
            else:
                self.rows[row.key, row.sequence] = row


class Job:
    """Micro-batches one after the other, each in its own event loop, as in tasks."""

    def __init__(self, mode, function, **options):
        retry = FixedDelay(max_retries=4, delay=50 * MS)
        self.wait = AsyncWait("ask", function, mode, 4, 10_000 * MS, retry, on_failure=OnFailure.QUARANTINE, **options)
        self.function = function
        self.table, self.now, self.taken, self.emitted, self.given_up = Table(), 0, [], [], []
        self.open_until = None

    def micro_batch(self, keys, **options):
        arriving = [Question(len(self.taken) + place, key) for place, key in enumerate(keys)]
        self.taken += arriving
        elements = [Emitted(record_order(question.number), question.number, 0, question) for question in arriving]
        operator = AsyncWaitOperator(self.wait, {}, open_until=self.open_until, **options)
        asked_before = len(self.function.calls)
        completed = {record_of(element.emitted).number for element in self.table.elements() if element.is_done}
        self._run(operator, elements)
        assert not completed & set(self.function.calls[asked_before:]), "a result was asked for again"
        self.given_up += [record_of(element.emitted).number for element in operator.quarantined]
        self.table.commit(operator)
        self.open_until = operator.metrics.open_until
        self.check()

    def _run(self, operator, elements):
        emitted, self.now = micro_batch(operator, elements, self.table.elements(), self.now)
        self.emitted += [record_of(emission).number for emission in emitted]

    def check(self):
        pending = [record_of(element.emitted).number for element in self.table.elements()]
        assert sorted([*self.emitted, *self.given_up, *pending]) == [question.number for question in self.taken]
        assert self.function.most <= self.wait.capacity
        if self.wait.mode is OutputMode.ORDERED:
            assert self.emitted == sorted(self.emitted)
        if self.wait.mode is OutputMode.KEYED_ORDERED:
            assert not self.function.overlapping
            for key in "abc":
                mine = [number for number in self.emitted if self.taken[number].key == key]
                assert mine == sorted(mine)


script = st.lists(st.tuples(st.integers(0, 40).map(lambda ms: ms / 1000), st.booleans()), max_size=5)


@examples(100)
@given(
    mode=st.sampled_from(MODES),
    batches=st.lists(st.tuples(st.text("abc", max_size=8), st.integers(0, 120)), max_size=6),
    scripts=st.dictionaries(st.integers(0, 20), script),
    park_after=st.sampled_from([0, 30, 60]),
    breaker=st.sampled_from([None, CircuitBreaker(failures=2, probe_after=70 * MS)]),
    recovery=st.sampled_from(RecoveryOption),
    retries=st.integers(0, 4),
)
def test_elements_keep_place_and_order_over_micro_batches(
    mode, batches, scripts, park_after, breaker, recovery, retries
):
    """Over micro-batches, every element is in one place and in order."""
    job = Job(mode, Promised(scripts), park_after=park_after * MS, breaker=breaker, recovery=recovery)
    job.wait = replace(job.wait, retry=FixedDelay(max_retries=retries, delay=50 * MS))
    for keys, pause in batches:
        job.micro_batch(keys)
        job.now += pause
    for _ in range(60):
        if not job.table.rows:
            break
        job.now += 1000
        job.micro_batch("")
    assert not job.table.rows
    assert job.function.log == ["open", "close"] * (len(job.function.log) // 2)


def test_abandoned_elements_leave_before_earlier_waiters():
    """An abandoned element leaves at once, even while an earlier element waits."""
    #  0 fails at 40, and waits until 90; 1 fails at 0 and at 50, and is abandoned
    job = Job(OutputMode.ORDERED, Promised({0: [(0.04, False)], 1: [(0, False)] * 2}), park_after=0 * MS)
    job.wait = replace(job.wait, retry=FixedDelay(max_retries=1, delay=50 * MS))
    job.micro_batch("ab")
    job.now = 50
    job.micro_batch("")
    assert (job.given_up, [row.status for row in job.table.rows.values()]) == ([1], ["waiting for retry"])
    job.now = 90
    job.micro_batch("")
    assert (job.emitted, job.given_up, job.table.rows) == ([0], [1], {})


def test_element_not_due_keeps_its_row():
    job = Job(OutputMode.ORDERED, Promised({0: [(0, False)]}), park_after=0 * MS)
    job.micro_batch("ab")
    before = dict(job.table.rows)
    assert [row.status for row in before.values()] == ["waiting for retry", "completed"]
    job.micro_batch("")
    assert job.table.rows == before
    job.now += 50
    job.micro_batch("")
    assert (job.table.rows, job.emitted) == ({}, [0, 1])


def test_unused_breaker_stays_open_in_next_micro_batch():
    job = Job(
        OutputMode.ORDERED,
        Promised({0: [(0, False)] * 9}),
        park_after=0 * MS,
        breaker=CircuitBreaker(failures=1, probe_after=500 * MS),
    )
    job.micro_batch("a")
    assert job.open_until == 500
    job.micro_batch("")
    assert job.open_until == 500
    job.now = 600
    job.micro_batch("b")
    assert job.open_until == 600 + 1000
    assert job.function.calls == [0, 0]


def test_each_attempt_is_counted_in_the_row():
    job = Job(OutputMode.ORDERED, Promised({0: [(0.01, False)] * 3}), park_after=0 * MS)
    counted = []
    for _ in range(3):
        job.micro_batch("a" if not job.taken else "")
        job.now += 50
        counted += [(row.attempts, row.cost_ms, row.first_attempt_at) for row in job.table.rows.values()]
    assert counted == [(1, 10, 0), (2, 20, 0), (3, 30, 0)]


def test_failure_cancels_a_call_that_stop_interrupted():
    # If the function swallowed this cancellation, a worker would never end, and a task of Spark would hang.
    wait = AsyncWait(
        "ask", Lingering({0: [(9, True)]}), OutputMode.ORDERED, 1, 10_000 * MS, FixedDelay(max_retries=1, delay=MS)
    )

    async def stopped_then_cancelled():
        element = PendingCall(Emitted(record_order(0), 0, 0, Question(0)))
        async with AsyncWaitOperator(wait, {}).opened() as attempts:
            task = asyncio.create_task(attempts.settle(element))
            await asyncio.sleep(1)
            attempts.stop()
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.sleep(0.01)
            return task.cancelled()

    assert in_virtual_time(stopped_then_cancelled)


#   the run has to stop at 250 ms: 0 is answered, the call of 1 is running, 2 was not begun; capacity 1


def test_call_interrupted_by_run_end_counts_no_attempt():
    function = Promised({1: [(9, True)]})
    job = Job(OutputMode.ORDERED, function)
    job.wait = replace(job.wait, capacity=1)
    operator = AsyncWaitOperator(job.wait, {}, stop=lambda: True)
    job.taken = [Question(number) for number in range(3)]
    job._run(operator, [Emitted(record_order(question.number), 0, 0, question) for question in job.taken])
    job.table.commit(operator)
    assert job.emitted == [0]
    assert [(row.status, row.attempts) for row in job.table.rows.values()] == [("pending", 0), ("pending", 0)]
    function.scripts = {}
    job.micro_batch("")
    assert job.emitted == [0, 1, 2]
