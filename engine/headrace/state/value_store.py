"""Value state of one operator and task."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from sys import getrefcount
from typing import Any, Generic, TypeVar, cast

from headrace.api import StateFuture, ValueState
from headrace.native import accelerated
from headrace.state.backend import StateBackend
from headrace.state.cells import Cell
from headrace.state.single_store import SingleHandle, SingleStore
from headrace.state.state_task import Moment, StateTask
from headrace.state.ttl import NO_HISTORY, EntryLifetimes

V = TypeVar("V")


@accelerated
class ValueStore(SingleStore, ValueState[V], Generic[V]):
    """Live handle of a declared `ValueState`, for the key of the code that runs.

    It is its own handle, and reads and writes a cached value without a further call: most records do just that.
    """

    def __init__(
        self,
        declared: ValueState[V],
        operator: str,
        backend: StateBackend,
        task: StateTask,
        lives: EntryLifetimes = NO_HISTORY,
        *,
        blocking: bool = False,
    ) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        SingleStore.__init__(self, declared, operator, backend, task, lives, blocking=blocking)
        self.type, self.ttl = declared.type, declared.ttl
        answered = self._answered
        self._unshared = getrefcount(answered)  # with a local name, as in `value`

    @property
    def handle(self) -> ValueState[V]:
        """Return the handle that user code uses."""
        return self

    def namespace(self, namespace: str, /) -> Any:
        """Return the same state in a namespace."""
        return ValueHandle(self).namespace(namespace)

    def resume(self) -> StateFuture[Any]:
        """Read the key's state outside of namespaces, which a declared block may wait for when the run ends."""
        return self.value()

    def value(self) -> StateFuture[V | None]:
        """Read the key's value; `None` if there is none or it has expired."""
        moment = self._task.context
        cell = self._cells.get(moment.key_json)
        if cell is None or not moment.owns_key or (self._loading and id(moment) in self._loading):
            return self._value_later(moment)
        self.hits += 1
        value = cell.value if self._ttl is None else self.alive(moment, cell)
        answered = self._answered
        if getrefcount(answered) != self._unshared:
            answered = self._answered = StateFuture(None, self._task)
        answered.answer = value
        return answered

    def update(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Set the key's value; None is the same as `clear`."""
        moment = self._task.context
        cell = self._cells.get(moment.key_json)
        if ttl is None and moment.owns_key and not (self._loading and id(moment) in self._loading):
            if cell is None and not self._creation_counts:
                cell = self.cells.blank(moment.key_json)
            if cell is not None:
                if self._ttl is None and value is not None:  # `set` is inlined: the call takes 0.03 us
                    cell.value, cell.stamp, cell.own_ttl, cell.dirty = value, moment.timestamp, 0, True
                else:
                    self.set(moment, cell, value)
                return self._done
        operation = partial(self.set, value=value, own_ttl=self.own_ttl(ttl))
        return cast("StateFuture[None]", self.write(self.cells, moment.key_json, operation))

    def clear(self) -> StateFuture[None]:
        """Remove the key's value."""
        return cast("StateFuture[None]", self.write(self.cells, self.moment.key_json, self.remove))

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the entry still lives by its expiry clock; `None` without entry or TTL."""
        return cast("StateFuture[timedelta | None]", self.read(self.cells, self.moment.key_json, self.left))

    def _value_later(self, moment: Moment) -> StateFuture[V | None]:
        """Read the value as `read` does; a declared block may wait for it when the run ends."""
        name = moment.key_json
        actions = () if name in self._cells else (self.cells.prefix + name,)
        return cast(
            "StateFuture[V | None]",
            self.ask(moment, actions, self.once_known(self.cells, name, self.alive), resumes=True),
        )


@accelerated
class BlockingValueStore(ValueStore[V]):
    """Handle for a plain `def process`: a call returns the value itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        super().__init__(*arguments, **(options | {"blocking": True}))

    def value(self) -> Any:
        """Read the key's value; `None` if there is none or it has expired."""
        moment = self._task.context
        cell = self._cells.get(moment.key_json) or self._read(moment.key_json)
        return cell.value if self._ttl is None else self.alive(moment, cell)

    def update(self, value: V, /, ttl: timedelta | None = None) -> Any:
        """Set the key's value; None is the same as `clear`."""
        moment = self._task.context
        own_ttl = 0 if ttl is None else self.own_ttl(ttl)
        cell = self._cells.get(moment.key_json) or self._read(moment.key_json)
        self.set(moment, cell, value, own_ttl)

    def _read(self, key_json: bytes) -> Cell:
        self.prefetch((key_json,))
        return self._cells[key_json]


class ValueHandle(SingleHandle, ValueState[V]):
    """Handle of a value state in a namespace."""

    def value(self) -> StateFuture[V | None]:
        """Read the key's value; `None` if there is none or it has expired."""
        return cast("StateFuture[V | None]", self._store.read(self._store.cells, self._here, self._store.alive))

    def update(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Set the key's value; None is the same as `clear`."""
        operation = partial(self._store.set, value=value, own_ttl=self._store.own_ttl(ttl))
        return cast("StateFuture[None]", self._store.write(self._store.cells, self._here, operation))
