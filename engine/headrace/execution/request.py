"""What the controller hands to an executor, and what an executor is.

The controller knows neither state nor services ("Generalize the Async execution model"): it keeps records of a key in
order, collects requests into batches and runs callbacks. A request's `action` is for its executor alone: an `Action`
of a state backend, or a call to a service to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.execution.record_context import RecordContext


class AsyncRequest:
    """One request of a record. `answered` is called in the task's thread, with what the executor has answered."""

    __slots__ = ("action", "answer", "answered", "context", "error")

    def __init__(self, context: RecordContext, action: Any, answered: Callable[[Any], None]) -> None:
        """Make a request that has no answer yet."""
        self.context = context
        self.action = action
        self.answered = answered
        self.answer: Any = None
        self.error: BaseException | None = None


class AsyncExecutor(Protocol):
    """Executes batches of requests, in threads or a loop of its own."""

    @property
    def in_flight(self) -> int:
        """Batches submitted whose completion `completed` has not given yet."""
        ...

    @property
    def has_completed(self) -> bool:
        """Whether asking for what is `completed`, without waiting, is worth it now. Asked before every record."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether another batch would be started at once."""
        ...

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
        ...

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """Requests answered since the last call; with `wait`, block until there is one, if any is in flight."""
        ...

    def close(self) -> None:
        """Wait for what is running, and let go of threads."""
        ...
