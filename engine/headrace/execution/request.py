"""Interface between controller and executor: requests and batches.

The controller knows neither state nor services ("Generalize the Async execution model"): it keeps records of a key in
order, collects requests into batches and runs callbacks. Only the executor understands a request's `action`: an
`Action` of a state backend, or a call to a service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.execution.record_context import RecordContext


class AsyncRequest:
    """One request of a record. `answered` is called in the task's thread, with the executor's answer."""

    __slots__ = ("action", "answer", "answered", "context", "error")

    def __init__(self, context: RecordContext, action: Any, answered: Callable[[Any], None]) -> None:
        """Make a request without an answer."""
        self.context = context
        self.action = action
        self.answered = answered
        self.answer: Any = None
        self.error: BaseException | None = None


class AsyncExecutor(Protocol):
    """Executes batches of requests, in threads or a loop of its own."""

    @property
    def in_flight(self) -> int:
        """Return the number of submitted batches that `completed` has not returned yet."""
        ...

    @property
    def has_completed(self) -> bool:
        """Return whether a call of `completed` without waiting may return requests. Called before every record."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether another batch would start at once."""
        ...

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
        ...

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
        ...

    def close(self) -> None:
        """Wait for running requests, and release threads."""
        ...
