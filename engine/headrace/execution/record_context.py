"""Context shared by all operations of one record (FLIP-425, "Record Context")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import native
from headrace.api.functions import BoundBlock
from headrace.state.key_groups import key_group

if TYPE_CHECKING:
    from collections import deque

    from headrace.api.future import Continuation, StateFuture
    from headrace.execution.epoch import Epoch


class RecordContext(native.RecordContext):
    """A record, or a timer, on its way through the controller.

    `references` counts its unfinished parts: its own code, each state request, and each callback that waits for its
    turn. At 0 it is finished, and the next record of its key may start. `epoch` is None until the record is counted as
    in flight; a record that never waits is not counted.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        awaited: StateFuture[Any]
        callbacks: deque[Continuation] | None
        epoch: Epoch | None
        due_in: Epoch | None

    @property
    def has_waited(self) -> bool:
        """Return whether its code has waited for an answer."""
        return hasattr(self, "awaited")

    @property
    def hash(self) -> int:
        """Return the hash code of the key."""
        return hash(self.key_json)

    def key_group(self, max_parallelism: int) -> int:
        """Return the key group of the record."""
        return key_group(self.key_json, max_parallelism)

    def next_callback(self) -> Continuation | None:
        """Remove and return the callback whose turn it is; None if there is none, or if it waits for an answer.

        It is the first one in order that does not wait for another callback, whether or not its answer has arrived: the
        order must not depend on the speed of requests.
        """
        if not self.callbacks:
            return None
        for place, continuation in enumerate(self.callbacks):
            if not continuation.waits_for_callback:
                if not continuation.is_answered:
                    return None
                del self.callbacks[place]
                return continuation
        return None

    def declared_block(self, future: StateFuture[Any]) -> str | None:
        """Return the id of the declared block that waits for `future`, if the record has no other code left."""
        if self.call is not None or self.callbacks is None or len(self.callbacks) != 1:
            return None
        (continuation,) = self.callbacks
        block = continuation.function
        return block.block_id if continuation.futures == (future,) and isinstance(block, BoundBlock) else None
