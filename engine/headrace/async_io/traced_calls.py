"""Calls of a task that the trace of its run shows: the slowest ones, and those that failed.

A task keeps a bounded number of them, whatever the number of its calls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any, Final

import msgspec

from headrace import clock
from headrace.errors import without_credentials

MOST_CALLS: Final = 20
"""Number of the slowest calls of a task that are kept, and of those that failed."""
_LONGEST_TEXT = 300
_QUERY: Final = re.compile(r"(?<=://)([^\s?'\"]*)\?[^\s'\"]*")

ATTEMPT: Final = ContextVar("headrace_attempt", default=1)
"""Number of the attempt for which a call is made, in the asyncio task that makes it."""


def error_text(error: BaseException) -> str:
    """Return class and message of an error, without credentials and queries in URLs: it leaves this machine."""
    text = type(error).__name__
    with suppress(Exception):  # of an error that cannot show itself: the trace of a call changes nothing of it
        text = f"{text}: {error}"
    text = _QUERY.sub(r"\1?...", without_credentials(text.encode(errors="backslashreplace").decode()))
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


class TracedCall(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """A call of a service."""

    seconds: float
    begun: float
    """When it began (s), by the monotonic clock of the task's process."""
    operator: str
    service: str = ""
    outcome: str = "answered"
    """answered; failed: it raised; cancelled: its time was over, or the run stopped."""
    attempt: int = 0
    """Number of the attempt for its element; 0: a call for several elements."""
    elements: int = 1
    error: str = ""


class TracedCalls(msgspec.Struct):
    """The kept calls of a task."""

    slowest: list[TracedCall] = []
    """Heap of answered calls, the quickest first."""
    failed: list[TracedCall] = []
    """The first calls without an answer."""
    left_out: int = 0

    def passes_over(self, seconds: float) -> bool:
        """Count an answered call of this duration, and return True, if it is not among the slowest."""
        is_quick = len(self.slowest) == MOST_CALLS and seconds <= self.slowest[0].seconds
        self.left_out += is_quick
        return is_quick

    def note(self, call: TracedCall) -> None:
        """Keep a call, if it is among the first that failed, or among the slowest."""
        if call.outcome == "answered":
            if len(self.slowest) < MOST_CALLS:
                heappush(self.slowest, call)
                return
            heappushpop(self.slowest, call)
        elif len(self.failed) < MOST_CALLS:
            self.failed.append(call)
            return
        self.left_out += 1


AsyncCall = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class CallNotes:
    """Notes of an operator's calls for the task's trace."""

    calls: TracedCalls
    operator: str
    service: str

    def noted(self, call: AsyncCall, *, takes_many: bool = False) -> AsyncCall:
        """Return `call`, extended: each call is noted when it ends."""

        async def noting(asked: Any) -> Any:
            begun, outcome, text = clock.monotonic(), "answered", ""
            try:
                return await call(asked)
            except Exception as error:
                outcome, text = "failed", error_text(error)
                raise
            except (asyncio.CancelledError, GeneratorExit):
                outcome = "cancelled"
                raise
            finally:
                seconds = clock.monotonic() - begun
                if outcome != "answered" or not self.calls.passes_over(seconds):
                    self.calls.note(
                        TracedCall(
                            seconds=seconds,
                            begun=begun,
                            operator=self.operator,
                            service=self.service,
                            outcome=outcome,
                            attempt=0 if takes_many else ATTEMPT.get(),
                            elements=len(asked) if takes_many else 1,
                            error=text,
                        )
                    )

        return noting
