"""Migrations of stored types, and state descriptors.

A migration converts stored state to a type that cannot read it as it is. A state descriptor is a class attribute of a
process function, bound to a key while a record runs.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import NoneType
from typing import Annotated, Any, Generic, Self, TypeVar, get_args, get_origin

from headrace.api.future import StateFuture
from headrace.api.ttl import AnyTtl, declared_ttl
from headrace.names import check_name

Old = TypeVar("Old")
New = TypeVar("New")


@dataclass(frozen=True, slots=True)
class Migration(Generic[Old, New]):
    """Converts all entries of a state from an old type to its successor.

        legs = ValueState("legs", Leg, migrate=Migration(OldLeg, lambda old: Leg(old.at * 1000)))

    They are converted before the first task of a run that opens the unmigrated state. Each stored value (element of a
    list, value of a map, accumulator) is decoded as `old` and given to `function`, and its result is stored; None
    removes the value. The conversion is a checkpoint of its own, which a restore undoes. Keys, namespaces and TTL
    stamps do not change.

    `function` is called once for each value, in no order, and must depend only on the value. An exception fails the run
    with `UserFunctionError`, and leaves the state as it was. `old` must fit the stored values, else `StateSchemaError`.

    `number` counts a state's migrations from 1. A state remembers the last one applied, so that none is applied twice,
    even if both types look alike (knots become metres a second). Keep older ones for as long as there are jobs,
    savepoints or branches that have not applied them:

        migrate=(Migration(First, to_second, number=1), Migration(Second, to_third, number=2))

    Raises `ValueError` for a number below 1.
    """

    old: Any
    function: Callable[[Old], New | None]
    number: int = 1

    def __post_init__(self) -> None:
        """Check the number."""
        if self.number < 1:
            msg = f"a migration's number counts from 1, it cannot be {self.number}"
            raise ValueError(msg)


Migrations = Migration[Any, Any] | Sequence[Migration[Any, Any]] | None
"""Migrations of a state, as its declaration takes them."""


def ordered_migrations(migrate: Migrations) -> tuple[Migration[Any, Any], ...]:
    """Return a state's migrations. Raises `ValueError` unless their numbers count up from 1 without a gap."""
    steps = () if migrate is None else (migrate,) if isinstance(migrate, Migration) else tuple(migrate)
    numbers = [step.number for step in steps]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        msg = f"the migrations of a state must be numbered without a gap, in order, not {', '.join(map(str, numbers))}"
        raise ValueError(msg)
    return steps


V = TypeVar("V")
K = TypeVar("K")
T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class State:
    """Base class of all kinds of state.

    `name` is stored with the state and must stay the same for the life of the job; it is an identifier, unique within
    the function, else `ValueError`. Types are encoded as JSON by msgspec. Without `ttl`, and with `Lifetime.FOREVER`, state lives
    until it is removed; a `timedelta` is short for `StateTtl(timedelta)`, and anything else a `TypeError`.

    The class attribute is only a declaration. The engine binds a live handle of the same kind to the function's
    instance. Do not change a value in place, neither one that you gave to the state nor one that it returned. A value
    that does not fit the declared type fails the micro-batch with `StateSchemaError`, before anything is stored.

    A `ttl` given with a call is the lifetime of that entry (FLIP-25, "set TTL in state get/update methods") until it is
    written again: at least a millisecond, and only in a state that has a TTL, else `ValueError`.

    `migrate` converts entries that were stored with another type: see `Migration`.

    Raises `RuntimeError` from every method that is called on the declaration, outside of a task.
    """

    def __init__(self, name: str, ttl: AnyTtl | None, migrate: Migrations = None) -> None:
        """Declare a state; subclasses add its types."""
        check_name(name)
        self.name = name
        self.ttl = declared_ttl(ttl)
        self.migrations = ordered_migrations(migrate)

    def namespace(self, namespace: str, /) -> Self:  # noqa: ARG002 - the handle takes it
        """Return the same state in a namespace, such as a window. A key's entries in different namespaces are separate; "" is none.

        A namespace is any text without a zero character, else `ValueError`.
        """
        raise self._unbound()

    def clear(self) -> StateFuture[None]:
        """Remove all entries of the key in this namespace."""
        raise self._unbound()

    def _unbound(self) -> RuntimeError:
        return RuntimeError(f"state '{self.name}' was used outside of process() or on_timer(): there is no key here")


class ValueState(State, Generic[V]):
    """One value for each key."""

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        *,
        ttl: AnyTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a value state of type `type`; for the rest see `State`."""
        super().__init__(name, ttl, migrate)
        self.type = type

    def value(self) -> StateFuture[V | None]:
        """Read the key's value; `None` if there is none or it has expired."""
        raise self._unbound()

    def update(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Set the key's value; None is the same as `clear`."""
        raise self._unbound()

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the value still lives by its expiry clock; `None` without value or TTL. Does not renew it.

        The answer is `timedelta.max` before the first watermark, when the clock has not started.
        """
        raise self._unbound()


class StateIterator(abc.ABC, Generic[T]):
    """Iterator over a list or map, in pages: at most one page is in memory (FLIP-425).

        async for minute, count in self.counts.entries(): ...        # in `async def`
        self.counts.entries().on_next(self.add)                      # with callbacks
        for minute, count in self.counts.entries(): ...              # in plain `def`

    It shows a snapshot from the time of the call: later changes are not seen, and do not disturb it. It can be used
    once. Entries that it returned count as read; entries after a `break` do not.
    """

    @abc.abstractmethod
    def __aiter__(self) -> AsyncIterator[T]: ...

    @abc.abstractmethod
    def __anext__(self) -> Awaitable[T]: ...

    @abc.abstractmethod
    def __iter__(self) -> Iterator[T]: ...

    @abc.abstractmethod
    def __next__(self) -> T: ...

    @abc.abstractmethod
    def on_next(self, function: Callable[[T], object], /) -> StateFuture[None]:
        """Call `function` with each remaining entry, in order; the future completes after the last one."""


class ListState(State, Generic[V]):
    """Any number of elements for each key, in the order in which they were added.

    Each element is an entry of its own: `add` reads nothing and writes one row, and with a `ttl` each has its own
    lifetime.
    """

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        *,
        ttl: AnyTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a list state of elements of `type`; for the rest see `State`."""
        super().__init__(name, ttl, migrate)
        self.type = type

    def add(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Append an element; None is a `ValueError`."""
        raise self._unbound()

    def add_all(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Append elements in their order; None among them is a `ValueError`."""
        raise self._unbound()

    def update(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Replace all elements by these."""
        raise self._unbound()

    def get(self) -> StateFuture[list[V]]:
        """Read all elements; an empty list if there are none."""
        raise self._unbound()

    def iterate(self) -> StateIterator[V]:
        """Return an iterator over the elements, page by page."""
        raise self._unbound()

    def get_namespaces(self, namespaces: Iterable[str]) -> StateFuture[dict[str, list[V]]]:  # noqa: ARG002
        """Read the lists of several namespaces with one call, in the order given; empty lists are left out.

        The namespace of this handle does not matter.
        """
        raise self._unbound()

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:  # noqa: ARG002
        """Move the elements of the namespaces `sources` to `target`, with their lifetimes.

        The merged list is in the order of addition, across namespaces. The namespace of this handle does not matter.
        """
        raise self._unbound()


class MapState(State, Generic[K, V]):
    """A map for each key. Each entry is stored by itself: `put` writes one row, however large the map, and reads nothing, but with a `ttl` that entry.

    With a `ttl`, each entry has its own lifetime. Entries are iterated in the order of their keys' JSON text.
    """

    def __init__(
        self,
        name: str,
        key_type: type[K],
        type: type[V],  # noqa: A002
        *,
        ttl: AnyTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a map state from keys of `key_type` to values of `type`; for the rest see `State`.

        Raises `TypeError` for a `type` that allows None: None is not a value, `put` of it removes an entry.
        """
        super().__init__(name, ttl, migrate)
        _check_values(self, type)
        self.key_type = key_type
        self.type = type

    def get(self, key: K, /) -> StateFuture[V | None]:  # noqa: ARG002 - the handle takes it
        """Read the value of `key`; `None` if there is none or it has expired."""
        raise self._unbound()

    def put(self, key: K, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Set the value of `key`; None is the same as `remove`."""
        raise self._unbound()

    def put_all(self, entries: Mapping[K, V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Set the values of several keys."""
        raise self._unbound()

    def remove(self, key: K, /) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Remove `key` and its value; do nothing if it isn't there."""
        raise self._unbound()

    def contains(self, key: K, /) -> StateFuture[bool]:  # noqa: ARG002 - the handle takes it
        """Return whether `key` has a value. Counts as a read of its entry."""
        raise self._unbound()

    def is_empty(self) -> StateFuture[bool]:
        """Return whether the map has no entry. Renews no entry."""
        raise self._unbound()

    def keys(self) -> StateIterator[K]:
        """Return an iterator over the keys, page by page."""
        raise self._unbound()

    def values(self) -> StateIterator[V]:
        """Return an iterator over the values, page by page."""
        raise self._unbound()

    def entries(self) -> StateIterator[tuple[K, V]]:
        """Return an iterator over pairs of key and value, page by page."""
        raise self._unbound()

    def remaining(self, key: K, /) -> StateFuture[timedelta | None]:  # noqa: ARG002 - the handle takes it
        """Return how long the entry of `key` still lives, as `ValueState.remaining`."""
        raise self._unbound()


class BroadcastState(State, Generic[K, V]):
    """A map that is the same for all keys, in all tasks; only in a `KeyedBroadcastFunction`.

    It is in memory, so calls return the value itself, also in `async def`. `process` and `on_timer` may read it; only
    `process_broadcast` may change it, else `RuntimeError`. It has no TTL. Entries come in the order of
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
        """Declare a broadcast state from keys of `key_type` to values of `type`; for the rest see `State`.

        Raises `TypeError` for a `type` that allows None: None is not a value, `put` of it removes an entry.
        """
        super().__init__(name, None, migrate)
        _check_values(self, type)
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
        """Set the values of several keys."""
        raise self._unbound()

    def remove(self, key: K, /) -> None:  # noqa: ARG002 - the handle takes it
        """Remove `key` and its value; do nothing if it isn't there."""
        raise self._unbound()

    def clear(self) -> None:  # type: ignore[override]  # answered at once, as all calls here
        """Remove all entries."""
        raise self._unbound()

    def namespace(self, namespace: str, /) -> Self:
        """Refuse: broadcast state has no namespaces. Raises `TypeError` always."""
        msg = f"broadcast state '{self.name}' has no namespaces: put '{namespace}' into its keys"
        raise TypeError(msg)


class ReducingState(State, Generic[V]):
    """One value for each key; each added value is reduced into it."""

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        reduce: Callable[[V, V], V],
        *,
        ttl: AnyTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a reducing state; for the rest see `State`.

        `reduce(so_far, added)` must be associative if namespaces are merged.
        """
        super().__init__(name, ttl, migrate)
        self.type = type
        self.reduce = reduce

    def add(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Reduce `value` into the state, or start with it. None is a `ValueError`."""
        raise self._unbound()

    def add_all(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Add values with one call, in their order: the same as `add` for each. None among them fails the record with `ValueError`."""
        raise self._unbound()

    def get(self) -> StateFuture[V | None]:
        """Read the reduced value; `None` if nothing was added, or it has expired."""
        raise self._unbound()

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the value still lives, as `ValueState.remaining`."""
        raise self._unbound()

    def get_namespaces(self, namespaces: Iterable[str]) -> StateFuture[dict[str, V]]:  # noqa: ARG002
        """Read the values of several namespaces with one call, in the order given; those without one are left out.

        The namespace of this handle does not matter.
        """
        raise self._unbound()

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:  # noqa: ARG002
        """Reduce the namespaces `target` and then `sources`, in this order, into `target`, and clear `sources`.

        This counts as a write to `target`. The namespace of this handle does not matter.
        """
        raise self._unbound()


class AggregateFunction(abc.ABC, Generic[In, Acc, Out]):
    """Aggregation of values of type `In` to a result of type `Out`, by an accumulator, which is stored.

    `Acc` is the accumulator's type: name it, as in `AggregateFunction[Sale, Sum, int]`. Methods may change a given
    accumulator in place.
    """

    @abc.abstractmethod
    def create_accumulator(self) -> Acc:
        """Return an empty accumulator. Called for the first value of a key."""

    @abc.abstractmethod
    def add(self, value: In, accumulator: Acc, /) -> Acc:
        """Return the accumulator with `value` added. Called for each value."""

    @abc.abstractmethod
    def get_result(self, accumulator: Acc, /) -> Out:
        """Return the result of an accumulator. Called for each read."""

    @abc.abstractmethod
    def merge(self, one: Acc, other: Acc, /) -> Acc:
        """Return an accumulator of all values of both. Called when namespaces are merged."""

    def retract(self, value: In, accumulator: Acc, /) -> Acc:
        """Return the accumulator without `value`, which was added before. Override it if the records may be taken back (`-U`, `-D`).

        Raises `NotImplementedError` unless it is overridden: aggregates then refuse a stream that may take records back.
        """
        del value, accumulator
        msg = f"{type(self).__name__} has no method retract(): it cannot take a value back"
        raise NotImplementedError(msg)


class AggregatingState(State, Generic[In, Acc, Out]):
    """One accumulator for each key; it takes values of one type and returns a result of another."""

    def __init__(
        self,
        name: str,
        function: AggregateFunction[In, Acc, Out],
        *,
        ttl: AnyTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare an aggregating state; for the rest see `State`. Raises `TypeError` unless `function` names its types."""
        super().__init__(name, ttl, migrate)
        self.function = function
        self.type = accumulator_type(function)

    def add(self, value: In, /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Add `value` to the accumulator."""
        raise self._unbound()

    def add_all(self, values: Iterable[In], /, ttl: timedelta | None = None) -> StateFuture[None]:  # noqa: ARG002
        """Add values with one call, in their order: the same as `add` for each. None among them fails the record with `ValueError`."""
        raise self._unbound()

    def get(self) -> StateFuture[Out | None]:
        """Read the result; `None` if nothing was added, or it has expired."""
        raise self._unbound()

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the accumulator still lives, as `ValueState.remaining`."""
        raise self._unbound()

    def get_namespaces(self, namespaces: Iterable[str]) -> StateFuture[dict[str, Out]]:  # noqa: ARG002
        """Read the results of several namespaces with one call, in the order given; those without one are left out.

        The namespace of this handle does not matter.
        """
        raise self._unbound()

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:  # noqa: ARG002
        """Merge the accumulators of `target` and then `sources`, in this order, into `target`, and clear `sources`.

        This counts as a write to `target`. The namespace of this handle does not matter.
        """
        raise self._unbound()


def accumulator_type(function: AggregateFunction[Any, Any, Any]) -> Any:
    """Return the type of a function's accumulators. Raises `TypeError` unless its class names it."""
    for cls in type(function).__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is AggregateFunction and not isinstance(get_args(base)[1], TypeVar):
                return get_args(base)[1]
    msg = f"{type(function).__name__} must name its types, as in AggregateFunction[Sale, Sum, int]"
    raise TypeError(msg)


def _check_values(state: State, values: Any) -> None:
    """Raise `TypeError` if values of a map may be None: an entry that is None could not be told from one that is not there."""
    plain = get_args(values)[0] if get_origin(values) is Annotated else values
    if plain in {None, NoneType} or NoneType in get_args(plain):
        msg = (
            f"{type(state).__name__} '{state.name}' has values of type {values}, but None is not a value: put() of None removes the entry. "
            "Declare the type without None, and call remove(); or use a Struct with an optional field, if None has a meaning"
        )
        raise TypeError(msg)
