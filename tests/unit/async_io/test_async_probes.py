"""Probes of a breaker without a response: they give no new information, so they cost their element no attempt and no time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import AsyncWait, CircuitBreaker, FixedDelay, OnFailure, OutputMode, RecoveryOption
from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.pending_call import PendingCall
from headrace.errors import ServiceError
from headrace.execution.element import Emitted
from headrace.records.order import record_order
from headrace.testing import AsyncWaitHarness, QuarantinedRecord
from tests.unit.support.asking import Answer, Lingering, Promised, Question, in_virtual_time

MS = timedelta(milliseconds=1)
NEVER = (1e6, True)
FAILS = (0.0, False)
RESPONSES = (0.0, True)
BREAKER = CircuitBreaker(failures=1, probe_after=1000 * MS, longest=100_000 * MS)


class Asked(Promised):
    """Gives a default that differs from an answer; `timeout()` is never called for a probe."""

    def default(self, question, error, /):
        return [Answer(question.number, 0)]

    async def timeout(self, question, /):
        assert self.is_finishing, "timeout() was asked for a probe"
        raise TimeoutError

    is_finishing = False


def harness(function, **options):
    retry = FixedDelay(max_retries=1, delay=0 * MS)
    options = {"breaker": BREAKER, "timeout": 500 * MS, "retry": retry, "park_after": 0 * MS, **options}
    return AsyncWaitHarness(function, **options)


#   calls at 0 (fails, opens it), 1,000 (never answers, up to 1,500), 1,500 + 2,000 = 3,500 (is answered)


@pytest.mark.parametrize("on_failure", OnFailure)
def test_unanswered_probe_counts_as_failed(on_failure):
    with harness(Asked({1: [FAILS, NEVER]}), on_failure=on_failure) as h:
        h.process(Question(1))
        before = h.snapshot().queued[0]
        h.clock.advance(1500)
        after = h.snapshot().queued[0]
        assert (h.statistics().breaker, h.statistics().parked, h.statistics().timeouts) == ("open", 1, 1)
        assert (after.attempts, after.cost_ms, after.first_attempt_at) == (1, 0, 0)
        assert (after.next_attempt_at, after.last_error) == (3500, "no response within 0.5 s")
        assert (before.attempts, before.cost_ms) == (after.attempts, after.cost_ms)
        h.clock.advance(1999)
        assert (h.function.calls, h.output()) == ([1, 1], [])
        h.clock.advance(1)
        assert h.output() == [Answer(1, 3)]


@pytest.mark.parametrize("on_failure", OnFailure)
def test_unparked_element_keeps_waiting_in_the_task(on_failure):
    # Accepted at 0 with 5,000 ms; waits 1,000, probes up to 6,000, waits 2,000 more: 3,000 of its own are spent.
    with harness(Asked({1: [FAILS, NEVER]}), on_failure=on_failure, park_after=None, timeout=5000 * MS) as h:
        h.process(Question(1))
        h.clock.advance(7999)
        assert (h.statistics().waiting_for_retry, h.snapshot().queued[0].cost_ms) == (1, 2999)
        h.clock.advance(1)
        assert h.output() == [Answer(1, 3)]


def test_element_timeout_continues_after_the_probe():
    """An element's own time continues after the probe from its value before the probe."""
    # 2,000 ms, of which 1,000 are spent waiting for the probe; the next one would be 2,000 ms after it.
    with harness(Asked({1: [FAILS, NEVER]}), on_failure=OnFailure.QUARANTINE, park_after=None, timeout=2000 * MS) as h:
        h.function.is_finishing = True
        h.process(Question(1))
        h.clock.advance(1000 + 2000 + 999)
        assert h.output() == []
        h.clock.advance(1)
        last = "no response within 2 s (last error: no response within 2 s)"
        assert (h.output(), h.function.calls) == ([QuarantinedRecord(Question(1), last)], [1, 1])


def test_probe_has_whole_timeout():
    """A probe has the whole timeout, however little time the element has left."""
    # 400 of 500 ms are spent before the breaker opens, and half of 500 is the least: the probe takes 450.
    with harness(Asked({1: [(0.4, False), (0.45, True)]})) as h:
        h.process(Question(1))
        h.clock.advance(400 + 1000 + 450)
        assert h.output() == [Answer(1, 2)]


def test_waiting_for_a_probe_costs_no_time():
    """Elements that wait for the outcome of a probe lose no time by it."""
    # One of them probes from 1,000 to 1,500; the others have 500 ms as well, and wait with it.
    with harness(Asked({1: [FAILS, NEVER], 2: [NEVER], 3: [NEVER]}), mode=OutputMode.ORDERED) as h:
        for number in (1, 2, 3):
            h.process(Question(number))
        h.clock.advance(1500)
        assert [(row.attempts, row.cost_ms, row.next_attempt_at) for row in h.snapshot().queued] == [
            (1, 0, 3500),
            (0, 0, 3500),
            (0, 0, 3500),
        ]
        h.function.scripts = {}
        h.clock.advance(2000)
        assert [output.number for output in h.output()] == [1, 2, 3]


def test_failed_first_probe_counts_no_attempt():
    """A first call that is a failed probe counts as never made."""
    # 1 opens the breaker, and is itself not due before 9,000; so 2 is the probe.
    retry = FixedDelay(max_retries=1, delay=9000 * MS)
    with harness(Asked({1: [FAILS], 2: [NEVER]}), recovery=RecoveryOption.LATENCY_FIRST, retry=retry) as h:
        h.process(Question(1))
        h.process(Question(2))
        h.clock.advance(1500)
        assert [(row.attempts, row.first_attempt_at) for row in h.snapshot().queued] == [(1, 0), (0, None)]


@pytest.mark.parametrize("park_after", [0 * MS, None])
def test_snapshot_during_probe_counts_no_time(park_after):
    with harness(Asked({1: [FAILS, NEVER]}), park_after=park_after, timeout=5000 * MS) as h:
        h.process(Question(1))
        h.clock.advance(1400)
        row = h.snapshot().queued[0]
    assert (row.attempts, row.cost_ms) == (1, 1000 if park_after is None else 0)


@pytest.mark.parametrize("on_failure", OnFailure)
def test_unanswered_probe_at_end_is_abandoned(on_failure):
    """When the input has ended, an unanswered probe is abandoned."""
    outcome = {
        OnFailure.QUARANTINE: [
            QuarantinedRecord(Question(1), "no response within 0.5 s (last error: Unavailable: call 1 for 1)")
        ],
        OnFailure.DEFAULT: [Answer(1, 0)],
    }
    with harness(Asked({1: [FAILS, NEVER]}), on_failure=on_failure) as h:
        h.function.is_finishing = True
        h.process(Question(1))
        h.clock.advance(1200)
        if on_failure is OnFailure.FAIL:
            with pytest.raises(ServiceError, match=r"no response within 0\.5 s"):
                h.finish()
        else:
            h.finish()
            assert h.output() == outcome[on_failure]
        assert h.function.calls == [1, 1]


def test_external_cancellation_stops_a_late_probe():
    """If the operator cancels a probe whose time is up, the cancellation takes effect."""
    retry = FixedDelay(max_retries=1, delay=0 * MS)
    wait = AsyncWait("ask", Lingering({1: [NEVER]}), OutputMode.ORDERED, 1, 1000 * MS, retry, breaker=BREAKER)

    async def cancelled_while_it_ends():
        element = PendingCall(Emitted(record_order(1), 0, 0, Question(1)))
        async with AsyncWaitOperator(wait, {}, open_until=0).opened() as attempts:
            task = asyncio.create_task(attempts.settle(element))
            await asyncio.sleep(1.05)
            attempts.is_ending = True
            task.cancel()
            await asyncio.sleep(0.01)
            return task.cancelled()

    assert in_virtual_time(cancelled_while_it_ends)


vain = st.lists(st.sampled_from([FAILS, NEVER, (0.3, False)]), max_size=6)


@given(
    probes=vain,
    on_failure=st.sampled_from(OnFailure),
    recovery=st.sampled_from(RecoveryOption),
    mode=st.sampled_from(OutputMode),
)
def test_failed_probes_never_give_an_element_up(probes, on_failure, recovery, mode):
    function = Asked({1: [FAILS, *probes]})
    key = (lambda question: question.key) if mode is OutputMode.KEYED_ORDERED else None
    with harness(function, on_failure=on_failure, recovery=recovery, mode=mode, key=key) as h:
        h.process(Question(1, "a"))
        due, interval = 1000, 1000
        for seconds, succeeds in probes:
            interval = min(2 * interval, 100_000)
            due += interval + (500 if succeeds else round(seconds * 1000))
        h.clock.advance(due - 1)
        assert (len(function.calls), h.output()) == (1 + len(probes), [])
        h.clock.advance(1)
        assert h.output() == [Answer(1, 2 + len(probes))]
