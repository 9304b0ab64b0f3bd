"""Calls of user code that wait for the backend: each record's calls are answered in the order in which it made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace.api import StateFuture
from headrace.state.backend import Action, StateBackend, answers
from headrace.state.state_task import Moment, StateTask

Finish = Callable[[Moment, Sequence[Any]], Any]
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
        """Queues by the `id` of the moment of their code, in order. No queue is empty, except one that is about to get a call."""
        self._task = task

    def request(
        self, moment: Moment, queue: Sequence[WaitingCall], call: WaitingCall, actions: Sequence[Action]
    ) -> None:
        """Request the reads of a call that no earlier call in `queue` has requested."""
        known = {
            request.action: request for earlier in queue for request in earlier.requests if request.action is not None
        }
        call.requests = [known.get(action) or BackendRequest(action) for action in actions]  # type: ignore[arg-type]
        fresh = [request for request in call.requests if request.action not in known]
        for request in fresh:
            self._task.request(moment, request.action, partial(self._answered, moment, request))

    def _answered(self, moment: Moment, request: BackendRequest, answer: Any) -> None:
        request.answer, request.is_ready = answer, True
        queue = self.queues[id(moment)]
        while queue and queue[0].is_ready():
            call = queue[0]
            result = call.finish(moment, [asked.answer for asked in call.requests if asked.action is not None])
            if isinstance(result, More):
                call.finish = result.finish
                self.request(moment, (), call, result.actions)
                continue
            queue.pop(0)
            call.future.complete(result)
        if not queue:
            del self.queues[id(moment)]

    def waiting_block(self, moment: Moment) -> str | None:
        """Return the id of the declared block that waits for the value of the state, if the code waits for nothing else."""
        queue = self.queues.get(id(moment), ())
        if len(queue) != 1 or not queue[0].resumes:
            return None
        return moment.declared_block(queue[0].future)

    def forget(self, moment: Moment) -> None:
        """Drop the code's calls: it repeats them in another task."""
        del self.queues[id(moment)]

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return sum(map(len, self.queues.values()))


def finish_at_once(backend: StateBackend, moment: Moment, actions: Sequence[Action], finish: Finish) -> Any:
    """Answer a call without waiting: ask the backend until the call is done."""
    while True:
        result = finish(moment, answers(backend, actions))
        if not isinstance(result, More):
            return result
        actions, finish = result
