"""The counters of a harness for async functions."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.attempts import Attempts
from headrace.async_io.element import AsyncElement
from headrace.async_io.element_queue import ElementQueue


@dataclass(frozen=True, slots=True)
class AsyncWaitStatistics:
    """What is going on, as numbers."""

    attempts: int
    """How often an element was asked for: by a call, a group's call, an equal call in flight, or the cache."""
    in_flight: int
    """Calls under way."""
    completed: int
    """Elements that are done and wait for others, to be emitted."""
    waiting_for_retry: int
    """Elements that wait for their next call in the operator."""
    parked: int
    """Elements that wait for it in the table."""
    queued: int
    """Elements and watermarks that were taken in and not emitted."""
    emitted: int
    """Elements whose results were emitted."""
    quarantined: int
    retries: int
    timeouts: int
    cache_hits: int
    coalesced: int
    batches: int
    calls: int
    """Calls of the function that were begun; one of `invoke_many` is one call."""
    failures: int
    """Calls that raised, and single records that a call of `invoke_many` failed for."""
    breaker: str
    """`closed`, `open` or `half_open`; empty without one."""

    @classmethod
    def of(
        cls, operator: AsyncWaitOperator, attempts: Attempts, queue: ElementQueue, *, parked: int, emitted: int
    ) -> AsyncWaitStatistics:
        """Count what an operator has done, and what its calls and its queue hold now."""
        operator.note_breaker()
        metrics = operator.metrics
        elements = [element for element in queue.remaining() if isinstance(element, AsyncElement)]
        return cls(
            attempts=metrics.attempts,
            in_flight=len(attempts.under_way) - len(attempts.retrying),
            completed=sum(element.is_done for element in elements),
            waiting_for_retry=len(attempts.retrying),
            parked=parked,
            queued=len(queue),
            emitted=emitted,
            quarantined=metrics.quarantined,
            retries=metrics.retries,
            timeouts=metrics.timeouts,
            cache_hits=metrics.cache_hits,
            coalesced=metrics.coalesced,
            batches=metrics.batches,
            calls=metrics.calls,
            failures=metrics.failures,
            breaker=metrics.breaker,
        )
