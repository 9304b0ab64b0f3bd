"""Calls of user code to a state that wait for the backend, and for the calls before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.api.future import CallbackTask, StateFuture
from headrace.state.backend import (
    Action,
    StateBackend,
    answers,
)
from headrace.state.ttl import AccessTimes


class Access(AccessTimes, Protocol):
    """Context of the record or timer whose code accesses state."""

    @property
    def key_json(self) -> bytes:
        """Return the current key."""
        ...

    @property
    def owns_key(self) -> bool:
        """Return whether no other record may access the key's state."""
        ...

    @property
    def order(self) -> bytes:
        """Return the place in arrival order."""
        ...

    index: int
    """Number of outputs and list elements that its code has made so far."""

    callbacks: Any
    """Callbacks that its code chained, as in `CallbackOwner`."""

    def declared_block(self, future: StateFuture[Any], /) -> str | None:
        """Return the id of the declared block that waits for `future`, if the code has nothing else left."""
        ...


class StateTask(CallbackTask, Protocol):
    """Task that runs user code, whose context is its `Access`, and accepts requests that have to wait."""

    def request(self, context: Any, action: Action, answered: Callable[[Any], None], /) -> None:
        """Call `answered` with the backend's answer to `action`, as code of the context."""
        ...


Finish = Callable[[Access, Sequence[Any]], Any]
"""Processes the backend's answers. Its result is the call's answer, unless it is `More`."""


class More(NamedTuple):
    """Further reads: ask the backend for these as well, and then finish with this function."""

    actions: Sequence[Action]
    finish: Finish


class BackendRequest:
    """A request to the backend, and its answer."""

    __slots__ = ("action", "answer", "is_ready")

    def __init__(self, action: Action) -> None:
        """Ask for `action`."""
        self.action = action
        self.answer: Any = None
        self.is_ready = False


class WaitingCall:
    """A call of user code that waits for answers of the backend, and for the calls before it."""

    __slots__ = ("finish", "future", "requests", "resumes")

    def __init__(self, finish: Finish, future: StateFuture[Any], *, resumes: bool) -> None:
        """Complete `future` with the result of `finish`."""
        self.requests: list[BackendRequest] = []
        self.finish = finish
        self.future = future
        self.resumes = resumes

    def is_ready(self) -> bool:
        """Return whether all answers have arrived."""
        return all(request.is_ready for request in self.requests)


class WaitingCalls:
    """Waiting calls of one state in one task."""

    def __init__(self, task: StateTask) -> None:
        """Submit requests to `task`."""
        self.queues: dict[int, list[WaitingCall]] = {}
        """Queues by the `id` of the access of their code, in order. No queue is empty, except one that is about to get a call."""
        self._task = task

    def request(
        self, access: Access, queue: Sequence[WaitingCall], call: WaitingCall, actions: Sequence[Action]
    ) -> None:
        """Request the reads of a call that no earlier call in `queue` has requested."""
        known = {
            request.action: request for earlier in queue for request in earlier.requests if request.action is not None
        }
        call.requests = [known.get(action) or BackendRequest(action) for action in actions]  # type: ignore[arg-type]
        fresh = [request for request in call.requests if request.action not in known]
        for request in fresh:
            self._task.request(access, request.action, partial(self._answered, access, request))

    def _answered(self, access: Access, request: BackendRequest, answer: Any) -> None:
        request.answer, request.is_ready = answer, True
        queue = self.queues[id(access)]
        while queue and queue[0].is_ready():
            call = queue[0]
            result = call.finish(access, [asked.answer for asked in call.requests if asked.action is not None])
            if isinstance(result, More):
                call.finish = result.finish
                self.request(access, (), call, result.actions)
                continue
            queue.pop(0)
            call.future.complete(result)
        if not queue:
            del self.queues[id(access)]

    def waiting_block(self, access: Access) -> str | None:
        """Return the id of the declared block that waits for the value of the state, if the code waits for nothing else."""
        queue = self.queues.get(id(access), ())
        if len(queue) != 1 or not queue[0].resumes:
            return None
        return access.declared_block(queue[0].future)

    def forget(self, access: Access) -> None:
        """Drop the code's calls: it repeats them in another task."""
        del self.queues[id(access)]

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return sum(map(len, self.queues.values()))


def finish_at_once(backend: StateBackend, access: Access, actions: Sequence[Action], finish: Finish) -> Any:
    """Answer a call without waiting: ask the backend until the call is done."""
    while True:
        result = finish(access, answers(backend, actions))
        if not isinstance(result, More):
            return result
        actions, finish = result
