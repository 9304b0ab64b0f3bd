"""Functions whose `open` needs a service that is down."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace import CircuitBreaker, FixedDelay, OnFailure, OutputMode
from headrace.errors import ServiceError, UserFunctionError
from headrace.testing import AsyncWaitHarness, QuarantinedRecord
from tests.unit.support.asking import Answer, Promised, Question

MS = timedelta(milliseconds=1)
RETRY = FixedDelay(max_retries=3, delay=100 * MS, exceptions=(OSError,))
BREAKER = CircuitBreaker(failures=2, probe_after=1000 * MS)


class Connecting(Promised):
    """`open` raises the errors in `refusals` one after the other, or takes as long (s); then it succeeds at once."""

    def __init__(self, *refusals):
        super().__init__()
        self.refusals = list(refusals)

    async def open(self, services, /):
        self.log.append("open")
        refusal = self.refusals.pop(0) if self.refusals else None
        if isinstance(refusal, tuple):
            seconds, refusal = refusal
            await asyncio.sleep(seconds)
        if refusal is not None:
            raise refusal


def harness(function, mode=OutputMode.UNORDERED, **options):
    key = (lambda question: question.key) if mode is OutputMode.KEYED_ORDERED else None
    return AsyncWaitHarness(function, mode=mode, key=key, **{"retry": RETRY, "timeout": 5000 * MS, **options})


@pytest.fixture(params=OutputMode, ids=lambda mode: mode.value)
def mode(request):
    return request.param


@pytest.mark.parametrize("refused", [0, 1, 2, 4])
def test_calls_retry_a_refused_opening(mode, refused):
    with harness(Connecting(*[OSError("no route")] * refused), mode) as h:
        for number in range(3):
            h.process(Question(number, key=str(number)))
        h.clock.advance(1000)
        assert sorted(h.output(), key=lambda item: item.number) == [Answer(number, 1) for number in range(3)]
    # A refused function is closed, so that the next attempt finds nothing half open.
    assert h.function.log == ["open", "close"] * (refused + 1)


def test_simultaneous_calls_share_an_opening_attempt(mode):
    """Calls that begin together share one attempt to open, and its failure."""
    slowly = [(0.05, OSError("no route")), (0.05, OSError("no route"))]
    with harness(Connecting(OSError("no route"), *slowly), mode, breaker=BREAKER, park_after=500 * MS) as h:
        for number in range(10):
            h.process(Question(number, key=str(number)))
        # One at the start, and one each for the calls and for their first retries: two failures, and the breaker is open.
        h.clock.advance(300)
        assert (h.function.log.count("open"), h.function.calls) == (3, [])
        assert (h.statistics().breaker, h.statistics().parked) == ("open", 10)
        h.clock.advance(1000)
        assert len(h.output()) == 10
    assert h.function.log == ["open", "close"] * 4


def test_later_run_opens_for_waiting_elements(mode):
    """Waiting elements are left to a later run that opens the function."""
    with harness(Connecting(*[OSError("no route")] * 2), mode, park_after=0 * MS) as h:
        h.process(Question(1, key="a"))
        left = h.snapshot()
    assert (left.queued[0].attempts, left.queued[0].last_error) == (1, "OSError: no route")
    key = h.key
    with AsyncWaitHarness.restore(left, Connecting(), mode=mode, key=key, retry=RETRY, now=100) as again:
        again.clock.advance(0)
        assert again.output() == [Answer(1, 1)]


@pytest.mark.parametrize("on_failure", [OnFailure.FAIL, OnFailure.QUARANTINE])
def test_element_never_opened_is_abandoned(mode, on_failure):
    with harness(Connecting(*[OSError("no route")] * 5), mode, on_failure=on_failure) as h:
        h.process(Question(1, key="a"))
        if on_failure is OnFailure.FAIL:
            with pytest.raises(ServiceError, match="gave up after 4 calls for .* OSError: no route"):
                h.clock.advance(1000)
        else:
            h.clock.advance(1000)
            assert h.output() == [QuarantinedRecord(Question(1, key="a"), "OSError: no route")]
    assert h.function.log == ["open", "close"] * 5


def test_permanent_opening_failure_fails_run_without_quarantine(mode):
    """A permanent failure fails the run and quarantines no record."""
    function = Connecting(OSError("no route"), KeyError("weather_url"))
    with harness(function, mode, on_failure=OnFailure.QUARANTINE) as h:
        with pytest.raises(UserFunctionError, match=r"open\(\) failed[^$]*KeyError: 'weather_url'"):
            h.process(Question(1, key="a"))
        assert h.output() == []


def test_strategy_that_fails_is_blamed(mode):
    class Wrong(FixedDelay):
        def retries_exception(self, _, /):
            raise ZeroDivisionError

    with pytest.raises(UserFunctionError, match=r"the retry strategy failed[^$]*ZeroDivisionError"):
        harness(Connecting(OSError("no route")), mode, retry=Wrong(max_retries=1, delay=0 * MS))


def test_timed_out_element_leaves_opening_to_others(mode):
    """The timeout of one element does not cancel the opening for others."""
    with harness(Connecting(OSError("no route"), (4, None)), mode, on_failure=OnFailure.QUARANTINE) as h:
        h.process(Question(1, key="a"))
        h.clock.advance(2000)
        h.process(Question(2, key="b"))
        h.clock.advance(1999)
        assert h.output() == []
        h.clock.advance(1)
        assert sorted(output.number for output in h.output()) == [1, 2]
    with harness(Connecting(OSError("no route"), (6, None)), mode, on_failure=OnFailure.QUARANTINE) as h:
        h.process(Question(1, key="a"))
        h.clock.advance(2000)
        h.process(Question(2, key="b"))
        h.clock.advance(4000)
        first, second = h.output()
        assert (first, second) == (QuarantinedRecord(Question(1, key="a"), "no response within 5 s"), Answer(2, 1))
    assert h.function.log == ["open", "close"] * 2


def test_task_end_cancels_hanging_attempt(mode):
    with harness(Connecting(OSError("no route"), (1e6, None)), mode) as h:
        h.process(Question(1, key="a"))
    assert h.function.log == ["open", "close", "open"]
