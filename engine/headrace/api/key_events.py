"""Functions that take all that happens to many keys in a micro-batch with one call: their records, and the timers that fire."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.api.batches import BundledRecord, KeyedColumns
from headrace.api.records import RowKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ValuesOfKeys(Protocol):
    """A value state of many keys, outside of namespaces."""

    def values_of(self, keys: Sequence[bytes], clocks: Sequence[int] = ()) -> list[Any]:
        """Return the values of some keys; None for a key without one. A state with TTL loses those that are expired when its clock is at `clocks` (ms)."""
        ...

    def set_values(self, keys: Sequence[bytes], values: Sequence[Any], timestamps: Sequence[int | None]) -> None:
        """Set values that `values_of` has returned, each written at an event time (ms); None removes one."""
        ...


class MapsOfKeys(Protocol):
    """A map state of many keys without TTL, outside of namespaces."""

    def entries_of(self, keys: Sequence[bytes]) -> list[dict[Any, Any]]:
        """Return the map of each key, in order of the names."""
        ...

    def entries_at(self, places: Sequence[tuple[bytes, Any]]) -> list[Any]:
        """Return the values of entries, given by key and name; None for no entry."""
        ...

    def set_entries(self, key: bytes, entries: Iterable[tuple[Any, Any, int | None]]) -> None:
        """Set entries of a key: the name, the value and the event time (ms) of each; a value of None removes it."""
        ...


class ListsOfKeys(Protocol):
    """A list state of many keys without TTL, in namespaces."""

    def lists_at(self, places: Sequence[tuple[bytes, str]]) -> list[list[Any]]:
        """Return the elements of lists, given by key and namespace."""
        ...

    def add_of(self, record: BundledRecord, key: bytes, namespace: str, value: Any) -> None:
        """Add the first element that a record of a key adds."""
        ...

    def clear_at(self, key: bytes, namespace: str) -> None:
        """Remove all elements that `lists_at` has returned for a key and a namespace."""
        ...


KeyTimer = tuple[int, str]
"""Timer of event time of a key: its time (ms), and its namespace."""

TimerResults = tuple[bytes, KeyTimer, Sequence[tuple[RowKind, int, Any]]]
"""What a timer of a key emits: the kind, the event time (ms) and the record of each, in the order of `collect`."""


@dataclass(frozen=True, slots=True)
class KeyEvents:
    """Records and timers of keys in a micro-batch, all that there are."""

    keys: Sequence[bytes]
    """Different keys, as JSON: those with records, and those with timers."""
    records: Mapping[bytes, Sequence[BundledRecord]]
    """Records of keys, in arrival order."""
    timers: Mapping[bytes, Collection[KeyTimer]]
    """Registered timers of keys that the watermarks fire, in no particular order."""
    before: int
    """Last watermark before the micro-batch (ms)."""
    watermark: int
    """Last watermark of the micro-batch (ms)."""
    key_of: Callable[[bytes], Any]
    """Function that returns a key as `ctx.key` has it."""
    states: Mapping[str, Any]
    """States of the function by name: `ValuesOfKeys`, `MapsOfKeys` and `ListsOfKeys`."""


@dataclass(slots=True)
class EventResults:
    """Outcome of the records and timers of keys. Their state is set; timers that fired are none any more."""

    left: set[bytes] = field(default_factory=set)
    """Keys whose records and timers have to be processed one by one, and of which no state was set."""
    emitted: list[TimerResults] = field(default_factory=list)
    registered: list[tuple[bytes, KeyTimer]] = field(default_factory=list)
    """Timers that records register, and that no watermark of the micro-batch fires. They may be stored."""
    first: list[tuple[bytes, KeyTimer]] = field(default_factory=list)
    """Further ones that are not stored."""
    unregistered: int = 0
    """Number of timers that records register, and that fire: they are never stored."""


class EventFunction(abc.ABC):
    """A keyed function that also takes all that happens to keys in a micro-batch. It has single values, maps and lists of any number.

    The engine asks it where no record is held and state is accessed asynchronously. State, timers and output must be those of `process`
    and `on_timer`. Of these only timers emit something.
    """

    @property
    @abc.abstractmethod
    def takes_columns(self) -> bool:
        """Return whether the function can take the events of keys together at all."""

    @abc.abstractmethod
    def taken_singly(self, columns: KeyedColumns, /) -> npt.NDArray[np.bool_] | None:
        """Return for each of the keys with records whether its events have to be processed one by one; None if none of them has to."""

    @abc.abstractmethod
    def process_events(self, events: KeyEvents, /) -> EventResults:
        """Set the state of all keys but those that are left, and return what else becomes of them.

        Values of keys that are left may have been changed in place.
        """
