"""Futures of state calls (FLIP-425, "Callback execution")."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from types import CoroutineType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace import native

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class CallbackOwner(Protocol):
    """A record whose code made a future. The record is not finished while one of its callbacks waits."""

    callbacks: Any
    """Callbacks that its code chained and that have not run, in order."""


class CallbackTask(Protocol):
    """A task that runs user code and its callbacks."""

    @property
    def context(self) -> Any:
        """Return the `CallbackOwner` whose code runs now."""
        ...

    def register(self, continuation: Continuation, /) -> None:
        """Run `continuation` at its turn, as code of the record that runs now; increment the record's reference count."""
        ...


class Continuation(NamedTuple):
    """A callback that waits for `futures`, the user's function for it, and the future that it completes."""

    futures: tuple[StateFuture[Any], ...]
    callback: Callable[..., None]
    function: object
    result: StateFuture[Any]

    @property
    def waits_for_callback(self) -> bool:
        """Return whether an answer that it needs comes from a callback that has not run."""
        return any(future.waits_for_callback for future in self.futures)

    @property
    def is_answered(self) -> bool:
        """Return whether all answers have arrived."""
        return all(future.done for future in self.futures)

    def run(self) -> None:
        """Call back with the answers."""
        self.callback(*[future.answer for future in self.futures])


class StateFuture(native.StateFuture[T], Generic[T]):
    """Future of a state call: `await` it, or chain a callback with one of the `then` methods.

    A function may use both. Callbacks run in the task's one thread, as code of the record that made
    the call, so they may use its context and make further state calls. There are no errors to handle: a state
    access that fails, and a callback that raises, fail the task.

    A record's callbacks run in the order in which they were chained, when its code awaits or ends, and never before: it
    makes no difference whether the state is in the cache. A callback on the result of another runs after that one. An
    `await` continues when all callbacks chained before it have run.

        self.a.value().then_accept(first)      # runs second
        self.b.value().then_accept(second)     # runs third, even if b is cached and a is not
        third()                                # runs first
        await self.c.value()                   # first and second have run when this continues

    A future made by user code, `StateFuture(answer)`, is complete: its callbacks run at once.
    """

    __slots__ = ()
    _followers: list[StateFuture[Any]]
    answer: T
    """Answer of a complete future. For the engine."""
    _source: StateFuture[Any] | _Source

    def __init__(self, value: T, /, task: CallbackTask | None = None) -> None:
        """Make a complete future. `task` is for the engine."""
        self.done = True
        self.answer = value
        self._task: CallbackTask = AT_ONCE if task is None else task

    @classmethod
    def pending(cls, task: CallbackTask, /) -> StateFuture[Any]:
        """Make a future for the code that runs now; `complete` completes it. For the engine."""
        return cls._incomplete(task, task.context, _REQUEST)

    @classmethod
    def _incomplete(cls, task: CallbackTask, owner: object, source: _Source) -> StateFuture[Any]:
        future: StateFuture[Any] = cls.__new__(cls)
        future.done = False
        future._task = task
        future._owner = owner
        future._source = source
        future._followers = []
        return future

    def then_apply(self, function: Callable[[T], U], /) -> StateFuture[U]:
        """Return a future of `function(answer)`."""
        result = self.derived()
        return self._then(lambda value: result.complete(_no_coroutine(function(value))), function, result)

    def then_accept(self, function: Callable[[T], object], /) -> StateFuture[None]:
        """Call `function(answer)` and return a future of None."""
        result = self.derived()

        def accept(value: T) -> None:
            _no_coroutine(function(value))
            result.complete(None)

        return self._then(accept, function, result)

    def then_compose(self, function: Callable[[T], StateFuture[U]], /) -> StateFuture[U]:
        """Return a future of the answer of the future that `function(answer)` returns. Raises `TypeError` if it returns another type."""
        result = self.derived()
        return self._then(lambda value: result._follow(_checked(function(value))), function, result)  # noqa: SLF001 - its own kind

    def then_combine(self, other: StateFuture[U], function: Callable[[T, U], V], /) -> StateFuture[V]:
        """Return a future of `function(answer, other_answer)`, called when both have arrived."""
        result: StateFuture[V] = self._derived_with(other)

        def combine(mine: T, theirs: U) -> None:
            result.complete(_no_coroutine(function(mine, theirs)))

        result._task.register(Continuation((self, other), combine, function, result))
        return result

    def then_conditionally_apply(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], U],
        if_false: Callable[[T], V] | None = None,
        /,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """Return a future of whether the condition held, and of the result of the function called for it."""

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
        """Call one of the functions; return a future of whether the condition held."""
        return self.then_conditionally_apply(condition, if_true, if_false).then_apply(lambda chosen: chosen[0])

    def then_conditionally_compose(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], StateFuture[U]],
        if_false: Callable[[T], StateFuture[V]] | None = None,
        /,
    ) -> StateFuture[tuple[bool, U | V | None]]:
        """Return a future of whether the condition held, and of the answer of the future that the function for it returns."""

        def choose(value: T) -> StateFuture[tuple[bool, U | V | None]]:
            if condition(value):
                return if_true(value).then_apply(lambda answer: (True, answer))
            if if_false is None:
                return StateFuture((False, None))
            return if_false(value).then_apply(lambda answer: (False, answer))

        return self.then_compose(choose)

    def complete(self, value: T, /) -> None:
        """Set the answer, once. For the engine."""
        answered: list[StateFuture[Any]] = [self]
        while answered:  # not by recursion: a chain of composed futures may be long
            future: StateFuture[Any] = answered.pop()
            future.done = True
            future.answer = value
            answered += future._followers

    def belongs_to(self, owner: object, /) -> bool:
        """Return whether `owner`'s code may wait for it. For the engine."""
        return self.done or self._owner is owner

    @property
    def waits_for_callback(self) -> bool:
        """Return whether its answer comes from a callback that has not run, and not from a request alone. For the engine."""
        return _CALLBACK in self._sources()

    def _then(self, callback: Callable[[T], None], function: object, result: StateFuture[V]) -> StateFuture[V]:
        self._task.register(Continuation((self,), callback, function, result))
        return result

    def derived(self) -> StateFuture[Any]:
        """Return an incomplete future, for the result of a callback. For the engine."""
        return StateFuture._incomplete(self._task, self._task.context, _CALLBACK)

    def _derived_with(self, other: StateFuture[Any]) -> StateFuture[Any]:
        return other.derived() if self._task is AT_ONCE else self.derived()

    def _sources(self) -> Iterator[object]:
        """Yield this future, the one that it follows, and so on, down to the source of the answer."""
        future: StateFuture[Any] = self
        while not future.done:
            yield future
            source = future._source
            if not isinstance(source, StateFuture):
                yield source
                return
            future = source

    def __bool__(self) -> bool:
        """Raise `TypeError`: the future is never the answer, so `if self.seen.value():` would always hold."""
        msg = "a StateFuture is neither true nor false: did you forget 'await'?"
        raise TypeError(msg)

    def _follow(self, source: StateFuture[T]) -> None:
        """Take the answer of `source` once it has one, and let the same task run the callbacks."""
        if self._task is AT_ONCE:  # the combined future now behaves like an answer of state
            self._task = source._task
            self._owner = None if source.done else source._owner
        if not source.belongs_to(self._owner):
            msg = "a callback answers with what another record has asked for: state belongs to the key that runs"
            raise RuntimeError(msg)
        if source.done:
            self.complete(source.answer)
            return
        self._source = source
        if self in source._sources():
            msg = "a callback answers with a future that waits for that callback"
            raise RuntimeError(msg)
        source._followers.append(self)


def _checked(answer: Any) -> StateFuture[Any]:
    if isinstance(answer, StateFuture):
        return answer
    msg = f"the function of then_compose() must return a StateFuture, not {type(answer).__name__}"
    raise TypeError(msg)


def _no_coroutine(answer: Any) -> Any:
    if isinstance(answer, CoroutineType):
        answer.close()
        msg = f"{answer.__qualname__}() is 'async def', but callbacks are plain functions: await the state call instead"
        raise TypeError(msg)
    return answer


class _Source(enum.Enum):
    """Source of the answer of an incomplete future, unless it follows another future."""

    REQUEST = enum.auto()
    CALLBACK = enum.auto()


_REQUEST, _CALLBACK = _Source.REQUEST, _Source.CALLBACK


class _AtOnce(native.RunningTask):
    """Task that runs the callbacks of futures made by user code."""

    callbacks = (None,)
    """Never empty: an `await` must ask the record that runs, whichever it is, whether callbacks wait."""

    def __init__(self) -> None:
        self.context = self

    def register(self, continuation: Continuation, /) -> None:
        continuation.run()


AT_ONCE: CallbackTask = _AtOnce()
