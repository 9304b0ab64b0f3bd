"""Value state of one operator and task: a write-back cache of decoded values over a backend."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from engine.api import StateFuture, StateTtl, TtlTime, UpdateType, ValueState, Visibility
from engine.api._future import DONE
from engine.clock import now
from engine.state.backend import VALUES, StateBackend, Write
from engine.state.codec import Codec

V = TypeVar("V")

_STAMP = struct.Struct(">q")
_MISSING = object()


def value_entry(state: str, key_json: bytes) -> bytes:
    """The backend's entry for a key's value. JSON has no raw zero bytes, so the parts can't mix."""
    return b"%b%b\x00%b" % (VALUES, state.encode(), key_json)


def stored_value(stamp: int, raw: bytes) -> bytes:
    """The backend's value: TTL stamp (ms, 8 bytes) and JSON."""
    return _STAMP.pack(stamp) + raw


class ValueChange(NamedTuple):
    """A key's value as it is after the task; `raw` is None where it was removed."""

    key_json: bytes
    raw: bytes | None
    stamp: int


class _Cell:
    """One key's value: as decoded, its TTL stamp, and whether backend and cache differ."""

    __slots__ = ("dirty", "stamp", "stored", "value")

    def __init__(self, value: object, stamp: int, *, stored: bool) -> None:
        self.value = value
        self.stamp = stamp
        self.stored = stored
        self.dirty = False


class ValueStore(ValueState[V], Generic[V]):
    """The live handle of a declared `ValueState`: it answers for the key that `enter` named.

    Lives as long as the task. The cache holds the keys of the micro-batch, no more.
    """

    def __init__(self, declared: ValueState[V], operator: str, backend: StateBackend) -> None:
        """Bind `declared` to a backend."""
        super().__init__(declared.name, declared.type, ttl=declared.ttl)
        self._codec = Codec(declared.type, f"state '{declared.name}' of operator '{operator}'")
        self._backend = backend
        self._cells: dict[bytes, _Cell] = {}
        self._ttl = _live_ttl(declared.ttl)
        self._by_wall_clock = self._ttl is not None and self._ttl.time is TtlTime.PROCESSING
        self._key = b""
        self._stamp = 0
        self._clock = 0
        self.expired = 0

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load many keys' values with one call to the backend."""
        missing = [key for key in keys if key not in self._cells]
        entries = [value_entry(self.name, key) for key in missing]
        for key, stored in zip(missing, self._backend.get_many(entries), strict=True):
            self._cells[key] = self._decode(stored)

    def enter(self, key_json: bytes, stamp: int, clock: int) -> None:
        """Make this the current key. `stamp` renews entries, `clock` ages them (both ms, event time).

        State with a TTL in processing time takes the wall clock for both.
        """
        if self._by_wall_clock:
            stamp = clock = now()
        self._key, self._stamp, self._clock = key_json, stamp, clock

    def value(self) -> StateFuture[V | None]:
        """See `ValueState.value`."""
        cell = self._cell()
        value: Any = cell.value
        if value is _MISSING:
            return StateFuture(None)
        if self._ttl is not None:
            if self._is_dead(cell):
                return self._dead(cell, self._ttl)
            # A record that arrives late reads with an older stamp: reading never shortens a life.
            if self._ttl.update is UpdateType.ON_READ_AND_WRITE and cell.stamp < self._stamp:
                cell.stamp, cell.dirty = self._stamp, True
        return StateFuture(value)

    def update(self, value: V, /) -> StateFuture[None]:
        """See `ValueState.update`."""
        if value is None:
            return self.clear()
        cell = self._cell()
        born = cell.value is _MISSING or self._is_dead(cell)
        if born or self._ttl is None or self._ttl.update is not UpdateType.ON_CREATE:
            cell.stamp = self._stamp
        cell.value, cell.dirty = value, True
        return DONE

    def clear(self) -> StateFuture[None]:
        """See `ValueState.clear`."""
        self._clear(self._cell())
        return DONE

    def changes(self) -> Iterator[ValueChange]:
        """What differs from the backend, one change a key.

        Raises `StateSchemaError` for a value that does not fit the declared type.
        """
        encode = self._codec.encode
        for key, cell in self._cells.items():
            if not cell.dirty:
                continue
            if cell.value is not _MISSING:
                value: Any = cell.value
                yield ValueChange(key, encode(value), cell.stamp)
            elif cell.stored:
                yield ValueChange(key, None, cell.stamp)

    def writes(self, changes: Sequence[ValueChange]) -> Iterator[Write]:
        """`changes` as the backend takes them."""
        for change in changes:
            raw = None if change.raw is None else stored_value(change.stamp, change.raw)
            yield value_entry(self.name, change.key_json), raw

    def expires_at(self, stamp: int) -> int | None:
        """When an entry with this stamp dies (ms); `None` without TTL."""
        return None if self._ttl is None else stamp + self._ttl.milliseconds

    def _cell(self) -> _Cell:
        cell = self._cells.get(self._key)
        if cell is None:
            self.prefetch((self._key,))
            cell = self._cells[self._key]
        return cell

    def _decode(self, stored: bytes | None) -> _Cell:
        if stored is None:
            return _Cell(_MISSING, 0, stored=False)
        (stamp,) = _STAMP.unpack_from(stored)
        return _Cell(self._codec.decode(stored[_STAMP.size :]), stamp, stored=True)

    def _is_dead(self, cell: _Cell) -> bool:
        return self._ttl is not None and cell.stamp + self._ttl.milliseconds <= self._clock

    def _dead(self, cell: _Cell, ttl: StateTtl) -> StateFuture[V | None]:
        value: Any = cell.value
        if ttl.visibility is Visibility.RETURN_IF_NOT_CLEANED_UP:
            return StateFuture(value)
        self.expired += 1
        self._clear(cell)
        return StateFuture(None)

    def _clear(self, cell: _Cell) -> None:
        cell.value, cell.dirty = _MISSING, True


def _live_ttl(ttl: StateTtl | None) -> StateTtl | None:
    return None if ttl is None or ttl.update is UpdateType.DISABLED else ttl
