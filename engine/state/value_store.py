"""Value state of one operator and task: a write-back cache of decoded values over a backend."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from engine.api import StateFuture, ValueState
from engine.api._future import CallbackTask
from engine.state.backend import VALUES, StateBackend, Write
from engine.state.codec import Codec
from engine.state.ttl import NO_HISTORY, Lives, TtlMoment

V = TypeVar("V")

_STAMP = struct.Struct(">q")


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


class Moment(TtlMoment, Protocol):
    """Whose state is accessed, and when: the context of a record or timer."""

    @property
    def key_json(self) -> bytes:
        """The current key."""
        ...

    @property
    def owns_key(self) -> bool:
        """Whether nobody else may access the key's state."""
        ...

    callbacks: Any
    """See `CallbackOwner`."""

    def declared_block(self, future: StateFuture[Any], /) -> str | None:
        """The id of the declared block that waits for `future`, if nothing else of the code is left."""
        ...


class StateTask(CallbackTask, Protocol):
    """Who runs user code, whose context is its `Moment`, and takes requests that have to wait."""

    def request(self, context: Any, entry: bytes, answered: Callable[[bytes | None], None], /) -> None:
        """Call `answered` with the stored value of `entry`, as code of the context."""
        ...


class _Cell:
    """One key's value: as decoded, its TTL stamp, and whether backend and cache differ.

    `value` is None where there is none, `stored` where nobody has asked yet whether the backend has the entry.
    """

    __slots__ = ("dirty", "stamp", "stored", "value")

    def __init__(self, value: Any, stamp: int, *, stored: bool | None) -> None:
        self.value = value
        self.stamp = stamp
        self.stored = stored
        self.dirty = False


class ValueStore(ValueState[V], Generic[V]):
    """The live handle of a declared `ValueState`: it answers for the key of the code that runs.

    A write-back cache: a value in it is read and written at once. Of one that is not, reading waits for the backend,
    and writing need not (only a TTL `ON_CREATE` has to know when the old value was born). Lives as long as the task.
    """

    def __init__(
        self, declared: ValueState[V], operator: str, backend: StateBackend, task: StateTask, lives: Lives = NO_HISTORY
    ) -> None:
        """Bind `declared` to a backend, and to the task whose code will use it."""
        super().__init__(declared.name, declared.type, ttl=declared.ttl)
        self._codec = Codec(declared.type, f"state '{declared.name}' of operator '{operator}'")
        self._backend = backend
        self._task = task
        self._done: StateFuture[None] = StateFuture(None, task)
        self._cells: dict[bytes, _Cell] = {}
        self._loading: dict[int, list[tuple[Callable[[Moment, _Cell], Any], StateFuture[Any]]]] = {}
        self._ttl = lives.of(declared.ttl, declared.name)
        self._creation_counts = self._ttl is not None and not self._ttl.renews_on_write
        self.waits = True
        """Whether a read that the cache cannot answer may wait; else it is answered at once, whatever that takes."""
        self.expired = 0
        self.hits = 0
        self.misses = 0

    def value(self) -> StateFuture[V | None]:
        """See `ValueState.value`."""
        moment = self._task.context
        cell = self._cells.get(moment.key_json)
        if cell is None or not moment.owns_key or (self._loading and id(moment) in self._loading):
            return self._later(moment, self._read)
        self.hits += 1
        return StateFuture(cell.value if self._ttl is None else self._read(moment, cell), self._task)

    def update(self, value: V, /) -> StateFuture[None]:
        """See `ValueState.update`."""
        moment = self._task.context
        cell = self._cells.get(moment.key_json)
        if cell is None or not moment.owns_key or (self._loading and id(moment) in self._loading):
            return self._write_later(moment, partial(self._write, value=value))
        self._write(moment, cell, value)
        return self._done

    def clear(self) -> StateFuture[None]:
        """See `ValueState.clear`."""
        moment = self._task.context
        cell = self._cells.get(moment.key_json)
        if cell is None or not moment.owns_key or (self._loading and id(moment) in self._loading):
            return self._write_later(moment, self._clear)
        self._clear(moment, cell)
        return self._done

    # ------------------------------------------------------------------------------------------------ loading

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load many keys' values with one call to the backend."""
        missing = [key for key in keys if key not in self._cells]
        self.admit(missing, self._backend.get_many([value_entry(self.name, key) for key in missing]))

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Which of `keys` the cache does not have."""
        return [key for key in keys if key not in self._cells]

    def admit(self, keys: Sequence[bytes], stored: Sequence[bytes | None]) -> None:
        """Take in what the backend has for `keys`. What is in the cache already is newer, and stays."""
        cells = self._cells
        for key, value in zip(keys, stored, strict=True):
            if key not in cells:
                cells[key] = self._decode(value)

    def peek(self, key_json: bytes) -> V | None:
        """A key's value as it stands, TTL apart; None if there is none. For tests and tools."""
        return cast("V | None", self._cell(key_json).value)

    def trim(self, limit: int) -> None:
        """Forget values that the backend has as well, if there are more than `limit`."""
        if len(self._cells) > limit:
            self._cells = {key: cell for key, cell in self._cells.items() if cell.dirty}

    def waiting_block(self, moment: Moment) -> str | None:
        """The id of the declared block that waits for this state's value, if nothing else of the code at `moment` does."""
        queue = self._loading.get(id(moment), ())
        if len(queue) != 1:
            return None
        operation, future = queue[0]
        return moment.declared_block(future) if operation == self._read else None

    def forget_request(self, moment: Moment) -> None:
        """Take the code's requests back: it will make them again in another task."""
        del self._loading[id(moment)]

    def _later(self, moment: Moment, operation: Callable[[Moment, _Cell], Any]) -> StateFuture[Any]:
        """Answer with `operation(moment, cell)` once the key's value is loaded, and those before it are answered."""
        queue = self._loading.get(id(moment))
        if queue is None:
            self.misses += 1
            if moment.owns_key and not self._may_wait:
                return StateFuture(operation(moment, self._cell(moment.key_json)), self._task)
        future = StateFuture.pending(self._task)
        if queue is not None:
            queue.append((operation, future))
            return future
        self._loading[id(moment)] = [(operation, future)]
        entry = value_entry(self.name, moment.key_json)
        self._task.request(moment, entry, lambda stored: self._loaded(moment, stored))
        return future

    def _write_later(self, moment: Moment, operation: Callable[[Moment, _Cell], None]) -> StateFuture[None]:
        if moment.owns_key and id(moment) not in self._loading and not self._creation_counts:
            cell = self._cells.setdefault(moment.key_json, _Cell(None, 0, stored=None))
            operation(moment, cell)
            return self._done
        return self._later(moment, operation)

    @property
    def _may_wait(self) -> bool:
        return self.waits and not self._backend.answers_at_once

    def _loaded(self, moment: Moment, stored: bytes | None) -> None:
        self.admit((moment.key_json,), (stored,))
        cell = self._cells[moment.key_json]
        for operation, future in self._loading.pop(id(moment)):
            future.complete(operation(moment, cell))

    def _cell(self, key_json: bytes) -> _Cell:
        if key_json not in self._cells:
            self.prefetch((key_json,))
        return self._cells[key_json]

    def _decode(self, stored: bytes | None) -> _Cell:
        if stored is None:
            return _Cell(None, 0, stored=False)
        (stamp,) = _STAMP.unpack_from(stored)
        return _Cell(self._codec.decode(stored[_STAMP.size :]), stamp, stored=True)

    # --------------------------------------------------------------------------------------------------- cells

    def _read(self, moment: Moment, cell: _Cell) -> Any:
        value: Any = cell.value
        ttl = self._ttl
        if ttl is None or value is None:
            return value
        if ttl.is_dead(moment, cell.stamp):
            if ttl.returns_expired:
                return value
            self.expired += 1
            self._clear(moment, cell)
            return None
        # A record that arrives late reads with an older stamp: reading never shortens a life.
        if ttl.renews_on_read and cell.stamp < (stamp := ttl.stamp(moment)):
            cell.stamp, cell.dirty = stamp, True
        return value

    def _write(self, moment: Moment, cell: _Cell, value: V) -> None:
        if value is None:
            self._clear(moment, cell)
            return
        ttl = self._ttl
        if ttl is None:
            cell.stamp = moment.timestamp
        elif ttl.renews_on_write or cell.value is None or ttl.is_dead(moment, cell.stamp):
            cell.stamp = ttl.stamp(moment)
        cell.value, cell.dirty = value, True

    def _clear(self, _: Moment, cell: _Cell) -> None:
        cell.value, cell.dirty = None, True

    # ------------------------------------------------------------------------------------------------- changes

    def changes(self) -> Iterator[ValueChange]:
        """What differs from the backend, one change a key.

        Raises `StateSchemaError` for a value that does not fit the declared type.
        """
        self._find_out_what_is_stored()
        encode = self._codec.encode
        for key, cell in self._cells.items():
            if not cell.dirty:
                continue
            if cell.value is not None:
                value: Any = cell.value
                yield ValueChange(key, encode(value), cell.stamp)
            elif cell.stored:
                yield ValueChange(key, None, cell.stamp)

    def _find_out_what_is_stored(self) -> None:
        """Ask for entries that were cleared unread: only one that is there is removed."""
        unknown = [key for key, cell in self._cells.items() if cell.stored is None and cell.value is None]
        stored = self._backend.get_many([value_entry(self.name, key) for key in unknown])
        for key, value in zip(unknown, stored, strict=True):
            self._cells[key].stored = value is not None

    def writes(self, changes: Sequence[ValueChange]) -> Iterator[Write]:
        """`changes` as the backend takes them."""
        for change in changes:
            raw = None if change.raw is None else stored_value(change.stamp, change.raw)
            yield value_entry(self.name, change.key_json), raw

    def expires_at(self, stamp: int) -> int | None:
        """When an entry with this stamp dies (ms); `None` without TTL."""
        return None if self._ttl is None else self._ttl.expires_at(stamp)


class BlockingValueStore(ValueStore[V]):
    """The handle that a plain `def process` gets: a call answers with the value itself."""

    def value(self) -> Any:
        """Read the key's value; `None` if there is none or it has expired."""
        moment = self._task.context
        return self._read(moment, self._cell(moment.key_json))

    def update(self, value: V, /) -> Any:
        """See `ValueState.update`."""
        moment = self._task.context
        self._write(moment, self._cell(moment.key_json), value)

    def clear(self) -> Any:
        """See `ValueState.clear`."""
        moment = self._task.context
        self._clear(moment, self._cell(moment.key_json))
