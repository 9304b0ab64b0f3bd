"""Counters of a harness for async functions."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.attempts import Attempts
from headrace.async_io.element import AsyncElement
from headrace.async_io.element_queue import ElementQueue


@dataclass(frozen=True, slots=True)
class AsyncWaitStatistics:
    """State of an async operator at one moment, and counts since its start."""

    attempts: int
    """Times that an element was asked for: by a call, a group's call, an equal call in flight, or the cache."""
    in_flight: int
    """Calls in flight."""
    completed: int
    """Done elements that wait to be emitted behind others."""
    waiting_for_retry: int
    """Elements that wait for their next call in the operator."""
    parked: int
    """Elements that wait for their next call in the table."""
    queued: int
    """Elements and watermarks that were accepted and not emitted."""
    emitted: int
    """Elements whose results were emitted."""
    quarantined: int
    retries: int
    timeouts: int
    cache_hits: int
    coalesced: int
    batches: int
    calls: int
    """Started calls of the function; a call of `invoke_many` counts as one."""
    failures: int
    """Calls that raised, and single records for which a call of `invoke_many` failed."""
    breaker: str
    """`closed`, `open` or `half_open`; empty without a breaker."""

    @classmethod
    def of(
        cls, operator: AsyncWaitOperator, attempts: Attempts, queue: ElementQueue, *, parked: int, emitted: int
    ) -> AsyncWaitStatistics:
        """Return the counts of an operator, and the current content of its calls and its queue."""
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
