"""What all operations of one record share (FLIP-425, "Record Context")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.state.key_groups import key_group

if TYPE_CHECKING:
    from engine.api._future import Callback
    from engine.execution.controller import AsyncExecutionController
    from engine.execution.epoch import Epoch


class RecordContext:
    """A record, or a timer, on its way through the controller.

    `references` counts what is still going on for it: its own code, each state request, and each callback that waits for
    one. At 0 it is finished, and the next record of its key may start.
    """

    __slots__ = ("controller", "epoch", "key_json", "owns_key", "record", "references")

    def __init__(self, controller: AsyncExecutionController, key_json: bytes, record: Any) -> None:
        """Make the context of `record`, whose key is `key_json`."""
        self.controller = controller
        self.key_json = key_json
        self.record = record
        self.references = 0
        self.owns_key = False
        self.epoch: Epoch | None = None

    @property
    def hash(self) -> int:
        """The hash code of the key."""
        return hash(self.key_json)

    def key_group(self, max_parallelism: int) -> int:
        """The key group that the record belongs to."""
        return key_group(self.key_json, max_parallelism)

    def retain(self) -> None:
        """See `FutureOwner.retain`."""
        if self.controller.context is not self:
            msg = "it chained a callback to what another record has asked for: state belongs to the key that runs"
            raise RuntimeError(msg)
        self.references += 1

    def post(self, callback: Callback, value: Any, /) -> None:
        """See `FutureOwner.post`."""
        self.controller.post(self, callback, value)

    def wake(self, waiting: Any, /) -> None:
        """See `FutureOwner.wake`."""
        self.controller.wake(self, waiting)
