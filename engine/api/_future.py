"""The answer of a state call (FLIP-425, "Callback execution")."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from engine.api._blocks import BoundBlock

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

Callback = Callable[[Any], None]


class FutureOwner(Protocol):
    """The record whose code made the future. It is not finished while a callback of it waits."""

    def retain(self) -> None:
        """A callback was registered (the count goes up by 1 when `then` is called)."""
        ...

    def post(self, callback: Callback, value: Any, /) -> None:
        """Call `callback(value)` soon, as code of this record; then the count goes down by 1."""
        ...

    def wake(self, waiting: Any, /) -> None:
        """Resume what was suspended at the future."""
        ...


class Continuation(NamedTuple):
    """A callback that waits, what the user gave for it, and the future that it completes."""

    callback: Callback
    function: object
    result: StateFuture[Any] | None


class StateFuture(Generic[T]):
    """What a state call returns: `await` it, or chain a callback with one of the `then` methods.

    Both may be mixed in one function. Callbacks run in the task's one thread, as code of the record that made
    the call, so they may use its context and make further state calls. Where the answer is there already, which
    is the rule, a callback runs at once and awaiting does not suspend. There is no error to handle: a state
    access that fails, and a callback that raises, fail the task.

    Code behind a `then` call has no order with the callback, which runs at once or later: let only one of the two touch a
    state, and only one emit.
    """

    __slots__ = ("_continuations", "_owner", "_value", "_waiting", "done")
    _continuations: list[Continuation]
    _owner: FutureOwner
    _waiting: object

    def __init__(self, value: T, /) -> None:
        """Make a future that is complete."""
        self.done = True
        self._value = value

    @classmethod
    def pending(cls, owner: FutureOwner, /) -> StateFuture[Any]:
        """Make one that `complete` will complete. For the engine."""
        future: StateFuture[Any] = cls.__new__(cls)
        future.done = False
        future._owner = owner
        future._continuations = []
        future._waiting = None
        return future

    def __await__(self) -> Generator[StateFuture[Any], None, T]:
        """Return the answer, suspending until it is there."""
        if not self.done:
            yield self
        return self._value

    def then_apply(self, function: Callable[[T], U], /) -> StateFuture[U]:
        """Answer with `function(answer)`."""
        if self.done:
            return StateFuture(function(self._value))
        result = self._derived()
        self._then(lambda value: result.complete(function(value)))
        return result

    def then_accept(self, function: Callable[[T], object], /) -> StateFuture[None]:
        """Call `function(answer)` and answer None."""
        if self.done:
            function(self._value)
            return DONE
        result = self._derived()

        def accept(value: T) -> None:
            function(value)
            result.complete(None)

        self._then(accept, function, result)
        return result

    def then_compose(self, function: Callable[[T], StateFuture[U]], /) -> StateFuture[U]:
        """Answer with what the future `function(answer)` answers."""
        if self.done:
            return function(self._value)
        result = self._derived()
        self._then(lambda value: function(value).pass_on(result))
        return result

    def then_combine(self, other: StateFuture[U], function: Callable[[T, U], V], /) -> StateFuture[V]:
        """Answer with `function(answer, other's answer)` when both are there."""
        return self.then_compose(lambda mine: other.then_apply(lambda theirs: function(mine, theirs)))

    def then_conditionally_apply(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], U],
        if_false: Callable[[T], V] | None = None,
        /,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """Answer with whether the condition held, and the result of the function that was called for it."""

        def choose(value: T) -> tuple[bool, U | V | None]:
            if condition(value):
                return True, if_true(value)
            return False, None if if_false is None else if_false(value)

        return self.then_apply(choose)

    def then_conditionally_accept(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], object],
        if_false: Callable[[T], object] | None = None,
        /,
    ) -> StateFuture[bool]:
        """Call one of the functions; answer whether the condition held."""
        return self.then_conditionally_apply(condition, if_true, if_false).then_apply(lambda chosen: chosen[0])

    def then_conditionally_compose(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], StateFuture[U]],
        if_false: Callable[[T], StateFuture[V]] | None = None,
        /,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """Answer with whether the condition held, and what the future of the function called for it answers."""

        def choose(value: T) -> StateFuture[tuple[bool, U | V | None]]:
            if condition(value):
                return if_true(value).then_apply(lambda answer: (True, answer))
            if if_false is None:
                return StateFuture((False, None))
            return if_false(value).then_apply(lambda answer: (False, answer))

        return self.then_compose(choose)

    def complete(self, value: T, /) -> None:
        """Give the answer, once. For the engine."""
        self.done = True
        self._value = value
        for callback, _, _ in self._continuations:
            self._owner.post(callback, value)
        if self._waiting is not None:
            self._owner.wake(self._waiting)

    def belongs_to(self, owner: object, /) -> bool:
        """Whether `owner` made the call, of a future that is not done. For the engine."""
        return self._owner is owner

    def wake_up(self, waiting: object, /) -> None:
        """Resume `waiting`, a suspended coroutine, on completion. For the engine."""
        if self._waiting is not None:
            msg = "a future is awaited twice; chain it with then_apply() where two need its answer"
            raise RuntimeError(msg)
        self._waiting = waiting

    def declared_block(self) -> str | None:
        """The id of the declared block that waits for the answer, if nothing else does. For the engine."""
        if len(self._continuations) != 1 or self._waiting is not None:
            return None
        _, function, result = self._continuations[0]
        if not isinstance(function, BoundBlock) or result is None or result._is_waited_for():  # noqa: SLF001 - its own kind
            return None
        return function.block_id

    def _is_waited_for(self) -> bool:
        return bool(self._continuations) or self._waiting is not None

    def _then(self, callback: Callback, function: object = None, result: StateFuture[Any] | None = None) -> None:
        self._owner.retain()
        self._continuations.append(Continuation(callback, function, result))

    def _derived(self) -> StateFuture[Any]:
        return StateFuture.pending(self._owner)

    def pass_on(self, result: StateFuture[Any], /) -> None:
        """Complete `result` with the answer, once it is there. For the engine."""
        if self.done:
            result.complete(self._value)
        else:
            self._then(result.complete)


DONE: StateFuture[None] = StateFuture(None)
"""Shared by all calls that answer nothing."""
