"""Interface of the task that uses state, for its stores: the code that runs, and the receiver of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.api import StateFuture
from headrace.api.future import CallbackTask
from headrace.state.backend import Action
from headrace.state.ttl import TtlMoment


class Moment(TtlMoment, Protocol):
    """Context of the record or timer whose code accesses state."""

    @property
    def key_json(self) -> bytes:
        """Return the current key."""
        ...

    @property
    def owns_key(self) -> bool:
        """Return whether no other record may access the key's state."""
        ...

    @property
    def order(self) -> bytes:
        """Return the place in arrival order."""
        ...

    index: int
    """Number of outputs and list elements that its code has made so far."""

    callbacks: Any
    """Callbacks that its code chained, as in `CallbackOwner`."""

    def declared_block(self, future: StateFuture[Any], /) -> str | None:
        """Return the id of the declared block that waits for `future`, if the code has nothing else left."""
        ...


class StateTask(CallbackTask, Protocol):
    """Task that runs user code, whose context is its `Moment`, and accepts requests that have to wait."""

    def request(self, context: Any, action: Action, answered: Callable[[Any], None], /) -> None:
        """Call `answered` with the backend's answer to `action`, as code of the context."""
        ...
