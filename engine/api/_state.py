"""State descriptors: class attributes of a process function, bound to a key while a record runs."""

from __future__ import annotations

from typing import Generic, TypeVar

from engine.api._future import StateFuture
from engine.api._migration import Migrations, in_order
from engine.api._names import check_name
from engine.api._ttl import StateTtl

V = TypeVar("V")


class ValueState(Generic[V]):
    """One value a key.

    `name` is stored with the value and must stay the same for the life of the job; it is unique
    within the function and an identifier, else `ValueError`. `type` is encoded as JSON by msgspec. Without `ttl` a value lives until
    it is cleared.

    As a class attribute it is only a declaration; calling it there raises `RuntimeError`. The
    engine binds a live handle of the same type to the function's instance.
    """

    def __init__(
        self,
        name: str,
        type: type[V],  # noqa: A002
        *,
        ttl: StateTtl | None = None,
        migrate: Migrations = None,
    ) -> None:
        """Declare a value state. `migrate` says what becomes of values of an older type: see `Migration`."""
        check_name(name)
        self.name = name
        self.type = type
        self.ttl = ttl
        self.migrations = in_order(migrate)

    def value(self) -> StateFuture[V | None]:
        """Read the key's value; `None` if there is none or it has expired."""
        raise self._unbound()

    def update(self, value: V, /) -> StateFuture[None]:  # noqa: ARG002 - the handle takes it
        """Set the key's value; None is the same as `clear`.

        `value` must not be changed in place afterwards. One that does not fit the declared type fails
        the micro-batch with `StateSchemaError`, before anything is stored.
        """
        raise self._unbound()

    def clear(self) -> StateFuture[None]:
        """Remove the key's value."""
        raise self._unbound()

    def _unbound(self) -> RuntimeError:
        return RuntimeError(f"state '{self.name}' was used outside of process() or on_timer(): there is no key here")
