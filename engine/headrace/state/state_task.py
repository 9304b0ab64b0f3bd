"""The task that uses state, as its stores see it: whose code runs, and who takes requests that have to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.api import StateFuture
from headrace.api.future import CallbackTask
from headrace.state.backend import Action
from headrace.state.ttl import TtlMoment


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

    @property
    def order(self) -> bytes:
        """The place in arrival order."""
        ...

    index: int
    """How many outputs and list elements its code has made so far."""

    callbacks: Any
    """See `CallbackOwner`."""

    def declared_block(self, future: StateFuture[Any], /) -> str | None:
        """Return the id of the declared block that waits for `future`, if nothing else of the code is left."""
        ...


class StateTask(CallbackTask, Protocol):
    """Runs user code, whose context is its `Moment`, and takes requests that have to wait."""

    def request(self, context: Any, action: Action, answered: Callable[[Any], None], /) -> None:
        """Call `answered` with the backend's answer to `action`, as code of the context."""
        ...
