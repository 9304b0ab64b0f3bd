from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ExponentialBackoff, FixedDelay, NoRetry

SECOND = timedelta(seconds=1)


def exponential(**options):
    return ExponentialBackoff(**{"max_retries": 9, "initial_delay": SECOND, "max_delay": 60 * SECOND, **options})


def test_max_retries_counts_calls_after_the_first():
    strategy = FixedDelay(max_retries=2, delay=SECOND)
    assert [strategy.can_retry(retries) for retries in range(4)] == [True, True, False, False]
    assert not FixedDelay(max_retries=0, delay=SECOND).can_retry(0)


def test_fixed_delay_is_always_the_same():
    strategy = FixedDelay(max_retries=99, delay=SECOND)
    assert {strategy.backoff(retries) for retries in range(99)} == {SECOND}


def test_exponential_delay_doubles_up_to_the_longest():
    waits = [exponential(max_delay=timedelta(seconds=9)).backoff(retries) / SECOND for retries in range(6)]
    assert waits == [1, 2, 4, 8, 9, 9]


@given(
    retries=st.integers(0, 10**6),
    multiplier=st.floats(1, 1e300),
    initial=st.timedeltas(timedelta(0), timedelta.max),
    longest=st.timedeltas(timedelta(0), timedelta.max),
)
def test_wait_never_exceeds_the_longest(retries, multiplier, initial, longest):
    """Whatever the outage, no wait is longer than the longest one."""
    strategy = exponential(initial_delay=initial, max_delay=longest, multiplier=multiplier)
    assert timedelta(0) <= strategy.backoff(retries) <= longest
    assert strategy.backoff(retries) <= strategy.backoff(retries + 1)


def test_only_listed_exceptions_are_retried():
    strategy = exponential(exceptions=(OSError, KeyError))
    assert strategy.retries_exception(ConnectionError())  # an OSError
    assert not strategy.retries_exception(ValueError())
    assert exponential().retries_exception(ValueError())


def test_no_retry_strategy_makes_one_call():
    strategy = NoRetry()
    assert not strategy.can_retry(0)
    assert not strategy.retries_exception(ValueError())
    assert strategy.backoff(0) == timedelta(0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FixedDelay(max_retries=-1, delay=SECOND), "max_retries must not be negative, not -1"),
        (lambda: FixedDelay(max_retries=1, delay=-SECOND), "delay must not be negative"),
        (lambda: exponential(max_retries=-1), "max_retries must not be negative"),
        (lambda: exponential(initial_delay=-SECOND), "initial_delay must not be negative"),
        (lambda: exponential(max_delay=-SECOND), "max_delay must not be negative"),
        (lambda: exponential(multiplier=0.5), "multiplier must be at least 1, not 0.5"),
    ],
)
def test_invalid_retry_strategy_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
