"""State descriptors: class attributes of a process function, bound to a key while a record runs."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from headrace.api.future import StateFuture
from headrace.api.migration import Migrations, ordered_migrations
from headrace.api.state_ttl import StateTtl
from headrace.names import check_name

V = TypeVar("V")
K = TypeVar("K")
T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class State:
    """Base class of all kinds of state.

    `name` is stored with the state and must stay the same for the life of the job; it is unique within the function and an
    identifier, else `ValueError`. Types are encoded as JSON by msgspec. Without `ttl` state lives until it is removed.

    As a class attribute it is only a declaration; calling it there raises `RuntimeError`. The engine binds a live handle of the
    same kind to the function's instance. What is given to it, and what it gives, must not be changed in place. A value that does not fit
    the declared type fails the micro-batch with `StateSchemaError`, before anything is stored.

    A `ttl` given with a call is the length of that entry's life (FLIP-25, "set TTL in state get/update methods") until it is
    written again: at least a millisecond, and only in a state that has a TTL, else `ValueError`.

    `migrate` says what becomes of what was stored with another type: see `Migration`.
    """

    def __init__(self, name: str, ttl: StateTtl | None, migrate: Migrations = None) -> None:
        """Declare a state: `ValueState` and the other kinds say what of."""
        check_name(name)
        self.name = name
        self.ttl = ttl
        self.migrations = ordered_migrations(migrate)

    def namespace(self, namespace: str, /) -> Self:  # noqa: ARG002 - the handle takes it
        """The same state in a namespace, such as a window's: apart from what the key has in others, and in none ("").

        Any text without a zero character, else `ValueError`.
        """
        raise self._unbound()

    def clear(self) -> StateFuture[None]:
        """Remove all that the key has here."""
        raise self._unbound()

    def _unbound(self) -> RuntimeError:
        return RuntimeError(f"state '{self.name}' was used outside of process() or on_timer(): there is no key here")


class ValueState(State, Generic[V]):
    """One value a key."""

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        *,
        ttl: StateTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a value state. See `State`."""
        super().__init__(name, ttl, migrate)
        self.type = type

    def value(self) -> StateFuture[V | None]:
        """Read the key's value; `None` if there is none or it has expired."""
        raise self._unbound()

    def update(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Set the key's value; None is the same as `clear`."""
        raise self._unbound()

    def remaining(self) -> StateFuture[timedelta | None]:
        """How long the value has to live by the clock that ages it; `None` without value, or without TTL. Renews nothing.

        `timedelta.max` where the clock has not begun: before the first watermark.
        """
        raise self._unbound()


class StateIterator(abc.ABC, Generic[T]):
    """Walks over a list or map, in pages: no more than one is in memory (FLIP-425).

        async for minute, count in self.counts.entries(): ...        # in `async def`
        self.counts.entries().on_next(self.add)                      # with callbacks
        for minute, count in self.counts.entries(): ...              # in plain `def`

    It shows the state as it was when it was asked for: what is changed meanwhile is not seen, and does no harm. It goes through
    once. What it gives counts as read; what comes after a `break` doesn't.
    """

    @abc.abstractmethod
    def __aiter__(self) -> AsyncIterator[T]: ...

    @abc.abstractmethod
    async def __anext__(self) -> T: ...

    @abc.abstractmethod
    def __iter__(self) -> Iterator[T]: ...

    @abc.abstractmethod
    def __next__(self) -> T: ...

    @abc.abstractmethod
    def on_next(self, function: Callable[[T], object], /) -> StateFuture[None]:
        """Call `function` with each of what is left, in order; the answer comes after the last one."""


class ListState(State, Generic[V]):
    """Any number of elements a key, in the order in which they were added.

    Each is an entry of its own: adding one reads nothing and writes one row, and with a `ttl` each has its own life.
    """

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        *,
        ttl: StateTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a list state of elements of `type`. See `State`."""
        super().__init__(name, ttl, migrate)
        self.type = type

    def add(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Append an element, which must not be None (`ValueError`)."""
        raise self._unbound()

    def add_all(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Append elements."""
        raise self._unbound()

    def update(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Put these elements in place of those that are there."""
        raise self._unbound()

    def get(self) -> StateFuture[list[V]]:
        """All elements; an empty list if there are none."""
        raise self._unbound()

    def iterate(self) -> StateIterator[V]:
        """The elements, page by page."""
        raise self._unbound()

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:  # noqa: ARG002
        """Move the elements of `sources` to `target`, with their lives.

        The merged list is in the order of addition, whatever the namespace. It does not matter in which one this handle is.
        """
        raise self._unbound()


class MapState(State, Generic[K, V]):
    """A map a key. Each entry is stored by itself: putting one reads nothing and writes one row, however large the map.

    With a `ttl`, each entry has its own life. Entries are iterated in the order of their keys' JSON text.
    """

    def __init__(
        self,
        name: str,
        key_type: type[K],
        type: type[V],  # noqa: A002
        *,
        ttl: StateTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a map state from keys of `key_type` to values of `type`. See `State`."""
        super().__init__(name, ttl, migrate)
        self.key_type = key_type
        self.type = type

    def get(self, key: K, /) -> StateFuture[V | None]:  # noqa: ARG002 - the handle takes it
        """The value of `key`; `None` if there is none or it has expired."""
        raise self._unbound()

    def put(self, key: K, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Set the value of `key`; None is the same as `remove`."""
        raise self._unbound()

    def put_all(self, entries: Mapping[K, V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Set the values of some keys."""
        raise self._unbound()

    def remove(self, key: K, /) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Remove `key` and its value; nothing happens if it isn't there."""
        raise self._unbound()

    def contains(self, key: K, /) -> StateFuture[bool]:  # noqa: ARG002 - the handle takes it
        """Tell whether `key` has a value. Counts as a read of it."""
        raise self._unbound()

    def is_empty(self) -> StateFuture[bool]:
        """Tell whether the map has no entry. Renews none."""
        raise self._unbound()

    def keys(self) -> StateIterator[K]:
        """The keys, page by page."""
        raise self._unbound()

    def values(self) -> StateIterator[V]:
        """The values, page by page."""
        raise self._unbound()

    def entries(self) -> StateIterator[tuple[K, V]]:
        """Keys and values, page by page."""
        raise self._unbound()

    def remaining(self, key: K, /) -> StateFuture[timedelta | None]:  # noqa: ARG002 - the handle takes it
        """As `ValueState.remaining`, for one entry."""
        raise self._unbound()


class BroadcastState(State, Generic[K, V]):
    """A map that is the same for all keys, in all tasks: of a `KeyedBroadcastFunction` only.

    It is in memory, so calls answer with the value itself, also in `async def`. `process` and `on_timer` may read it;
    `process_broadcast` alone may change it, anyone else gets a `RuntimeError`. It has no TTL. Entries come in the order of
    their keys' JSON text.
    """

    def __init__(
        self,
        name: str,
        key_type: type[K],
        type: type[V],  # noqa: A002
        *,
        migrate: Migrations = None,
    ) -> None:
        """Declare a broadcast state from keys of `key_type` to values of `type`. See `State`."""
        super().__init__(name, None, migrate)
        self.key_type = key_type
        self.type = type

    def get(self, key: K, /) -> V | None:  # noqa: ARG002 - the handle takes it
        """Return the value of `key`; `None` if there is none."""
        raise self._unbound()

    def contains(self, key: K, /) -> bool:  # noqa: ARG002 - the handle takes it
        """Return whether `key` has a value."""
        raise self._unbound()

    def is_empty(self) -> bool:
        """Return whether the map has no entry."""
        raise self._unbound()

    def keys(self) -> list[K]:
        """Return all keys."""
        raise self._unbound()

    def values(self) -> list[V]:
        """Return all values."""
        raise self._unbound()

    def items(self) -> list[tuple[K, V]]:
        """Return all keys with their values."""
        raise self._unbound()

    def put(self, key: K, value: V | None, /) -> None:  # noqa: ARG002 - the handle takes it
        """Set the value of `key`; None is the same as `remove`."""
        raise self._unbound()

    def put_all(self, entries: Mapping[K, V], /) -> None:  # noqa: ARG002 - the handle takes it
        """Set the values of some keys."""
        raise self._unbound()

    def remove(self, key: K, /) -> None:  # noqa: ARG002 - the handle takes it
        """Remove `key` and its value; nothing happens if it isn't there."""
        raise self._unbound()

    def clear(self) -> None:  # type: ignore[override]  # answered at once, as all calls here
        """Remove all entries."""
        raise self._unbound()

    def namespace(self, namespace: str, /) -> Self:
        """Refuse: broadcast state has no namespaces."""
        msg = f"broadcast state '{self.name}' has no namespaces: put '{namespace}' into its keys"
        raise TypeError(msg)


class ReducingState(State, Generic[V]):
    """One value a key, into which each added one is reduced."""

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        reduce: Callable[[V, V], V],
        *,
        ttl: StateTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a reducing state. `reduce(so_far, added)` must be associative for namespaces to be merged. See `State`."""
        super().__init__(name, ttl, migrate)
        self.type = type
        self.reduce = reduce

    def add(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Reduce `value` into the state, or begin with it. It must not be None (`ValueError`)."""
        raise self._unbound()

    def get(self) -> StateFuture[V | None]:
        """Read the value that all added ones were reduced to; `None` if there are none, or it has expired."""
        raise self._unbound()

    def remaining(self) -> StateFuture[timedelta | None]:
        """As `ValueState.remaining`."""
        raise self._unbound()

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:  # noqa: ARG002
        """Reduce `target` and then `sources`, in this order, into `target`, and clear `sources`.

        It is a write to `target`. It does not matter in which namespace this handle is.
        """
        raise self._unbound()


class AggregateFunction(abc.ABC, Generic[In, Acc, Out]):
    """How values of type `In` become a result of type `Out`, by way of an accumulator, which is what is stored.

    `Acc` is its type: name it, as in `AggregateFunction[Sale, Sum, int]`. An accumulator that is given may be changed in place.
    """

    @abc.abstractmethod
    def create_accumulator(self) -> Acc:
        """An accumulator of nothing."""

    @abc.abstractmethod
    def add(self, value: In, accumulator: Acc, /) -> Acc:
        """The accumulator with `value` in it."""

    @abc.abstractmethod
    def get_result(self, accumulator: Acc, /) -> Out:
        """The result."""

    @abc.abstractmethod
    def merge(self, one: Acc, other: Acc, /) -> Acc:
        """An accumulator of all that is in both. Called when namespaces are merged."""


class AggregatingState(State, Generic[In, Acc, Out]):
    """One accumulator a key, to which values are added, and which gives a result of another type."""

    def __init__(
        self,
        name: str,
        function: AggregateFunction[In, Acc, Out],
        *,
        ttl: StateTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare an aggregating state. See `State`. Raises `TypeError` unless `function` names its types."""
        super().__init__(name, ttl, migrate)
        self.function = function
        self.type = accumulator_type(function)

    def add(self, value: In, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Add `value` to the accumulator."""
        raise self._unbound()

    def get(self) -> StateFuture[Out | None]:
        """The result; `None` if nothing was added, or it has expired."""
        raise self._unbound()

    def remaining(self) -> StateFuture[timedelta | None]:
        """As `ValueState.remaining`."""
        raise self._unbound()

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:  # noqa: ARG002
        """Merge the accumulators of `target` and then `sources`, in this order, into `target`, and clear `sources`.

        It is a write to `target`. It does not matter in which namespace this handle is.
        """
        raise self._unbound()


def accumulator_type(function: AggregateFunction[Any, Any, Any]) -> Any:
    """Return the type of a function's accumulators. Raises `TypeError` where its class does not name it."""
    for cls in type(function).__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is AggregateFunction and not isinstance(get_args(base)[1], TypeVar):
                return get_args(base)[1]
    msg = f"{type(function).__name__} must name its types, as in AggregateFunction[Sale, Sum, int]"
    raise TypeError(msg)
