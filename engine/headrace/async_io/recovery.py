"""Remaining time of an element (FLIP-232, "How to deal with retry state and recovery?")."""

from __future__ import annotations

import math

from headrace import clock
from headrace.api import AsyncRetryStrategy, AsyncWait, RecoveryOption
from headrace.async_io.element import AsyncElement, Status

_LIMIT = 1000


def recovered(element: AsyncElement, option: RecoveryOption) -> AsyncElement:
    """Return an element as a later micro-batch resumes it; `RESTART` clears its past."""
    if option is RecoveryOption.RESTART and not element.is_done:
        element.attempts, element.first_attempt_at, element.cost_ms = 0, None, 0.0
        element.status = Status.PENDING
    return element


def whole_timeout(wait: AsyncWait) -> float:
    """Return the operator's timeout (s); infinity without one."""
    return math.inf if wait.timeout is None else wait.timeout.total_seconds()


def seconds_left(element: AsyncElement, wait: AsyncWait) -> float:
    """Return the remaining timeout (s) of an element whose next call is about to begin.

    An element that was called before has at least `timeout / (max_retries + 1)`: the fair share of one call. With a
    timeout of 60 s and 5 retries, resumed after an hour, that is 10 s in place of the -3,540 s of the formula.
    """
    whole = whole_timeout(wait)
    if element.first_attempt_at is None:
        return whole
    spent = element.cost_ms if wait.recovery is RecoveryOption.COST_TIME else clock.now() - element.first_attempt_at
    # A clock that was set back makes `spent` negative: no element has more than the whole timeout.
    return min(whole, max(whole - spent / 1000, whole / (allowed_retries(wait.retry) + 1)))


def allowed_retries(retry: AsyncRetryStrategy) -> int:
    """Return the strategy's `max_retries`; for a user's own strategy, count with `can_retry`, up to 1,000."""
    known = getattr(retry, "max_retries", None)
    if isinstance(known, int):
        return known
    return next((retries for retries in range(_LIMIT) if not retry.can_retry(retries)), _LIMIT)
