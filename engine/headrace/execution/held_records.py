"""Holds the records of a keyed process that has to stop, and resumes them in the next run (FLIP-425, "Faster Checkpoint Drain").

`fast_drain` defines the stored form of a held record. This module decides which records can be held: those that have
not begun, and those whose code waits at a declared block for a single request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.api.functions import BoundBlock
from headrace.api.records import RowKind
from headrace.errors import StateSchemaError
from headrace.execution.bound_function import BoundFunction
from headrace.execution.drain import BufferedRequest, as_it_came, at_block, element_of, held_as
from headrace.execution.element import Element, RecordCodec
from headrace.execution.process_context import Outputs, ProcessContext, TimerContext
from headrace.options import KeyOrder
from headrace.state.store import StateStore
from headrace.state.timers import TimerService

_ROW_KINDS = tuple(RowKind)
_REQUEST_AND_CALLBACK = 2


class Resumption:
    """Code of a resumed record: read the state again, and continue in the block."""

    __slots__ = ("_block", "_store", "request")

    def __init__(self, store: StateStore, block: BoundBlock, request: BufferedRequest) -> None:
        """Resume `request` in `block` with the value of `store`."""
        self._store = store
        self._block = block
        self.request = request

    def __call__(self, _: Any, __: Any) -> None:
        """Run as the user code of the record. Raises `StateSchemaError` where the state is now of another kind."""
        answer = self._store.resume()
        if answer is None:
            msg = f"block '{self._block.block_id}' waits for what {self._store.what} had as another kind of state. Nothing was committed. Give it a new name, then run again."
            raise StateSchemaError(msg)
        _ = answer.then_accept(self._block)


class HeldRecords:
    """Moves one operator's records into `buffered_requests` and out of it."""

    def __init__(
        self,
        function: BoundFunction,
        codec: RecordCodec,
        outputs: Outputs,
        timers: TimerService,
        order_with_same_key: KeyOrder,
    ) -> None:
        """Hold and resume records of `function`."""
        self._function = function
        self._codec = codec
        self._outputs = outputs
        self._timers = timers
        self._order_with_same_key = order_with_same_key

    def element_of(self, request: BufferedRequest) -> Element:
        """Return a held record that has not begun. Errors are those of `fast_drain.element_of`."""
        return element_of(request, self._codec)

    def resumed(self, request: BufferedRequest, watermark: int) -> ProcessContext:
        """Return the context of a record that waits at a block: it reads the state again, and continues there.

        Raises `StateSchemaError` when the function does not declare the block or the state.
        """
        store = next((store for store in self._function.stores if store.name == request.state), None)
        block = self._function.blocks.get(request.block_id)
        if store is None or block is None or self._function.is_plain:
            raise self._undeclared(request)

        record = element_of(request, self._codec).record
        code = Resumption(store, block, request)
        context = ProcessContext(self._outputs, self._timers, request.key_json, code, record)
        context.enter(request.order, request.timestamp, watermark, watermark)
        context.row_kind, context.index = _ROW_KINDS[request.kind], request.index
        return context

    def may_hold(self, context: ProcessContext) -> bool:
        """Return whether a record has not begun, or waits for a single request whose answer a declared block takes.

        Due timers that left the timer service must finish: there is no record to hold.
        """
        if isinstance(context, TimerContext) or context.overdue:
            return False
        if not context.references:
            return True
        # In state order, a later record of the same key may have begun. It must not overtake this record.
        if self._order_with_same_key is KeyOrder.STATE_ORDERED:
            return False
        return context.references == _REQUEST_AND_CALLBACK and self._waiting(context) is not None

    def hold(self, context: ProcessContext) -> BufferedRequest:
        """Return the stored form of a record for which `may_hold` is true."""
        if isinstance(context.function, Resumption) and not context.references:
            return context.function.request
        element = Element(
            context.order,
            context.timestamp,
            context.row_kind,
            context.key_json,
            context.record,
            self.input_of(context),
        )
        waiting = self._waiting(context)
        if waiting is None:
            return as_it_came(element, self._codec)
        store, block_id = waiting
        store.forget_request(context)
        return at_block(element, self._codec, block_id, store.name, context.index)

    def hold_all(self, elements: Iterable[Element | BufferedRequest]) -> Iterator[BufferedRequest]:
        """Return the stored form of elements that were about to be processed. One task holds each broadcast record."""
        return (held_as(element, self._codec) for element in elements if self._function.broadcast.holds(element))

    def input_of(self, context: ProcessContext) -> int:
        """Return the number of the input that a record came by."""
        code = context.function
        return code.request.input if isinstance(code, Resumption) else self._function.inputs.index(code)

    def _waiting(self, context: ProcessContext) -> tuple[StateStore, str] | None:
        for store in self._function.stores:
            block_id = store.waiting_block(context)
            if block_id is not None:
                return store, block_id
        return None

    def _undeclared(self, request: BufferedRequest) -> StateSchemaError:
        declared = ", ".join(sorted(self._function.blocks)) or "none"
        return StateSchemaError(
            f"a record of key {request.key_json.decode()} waits at block '{request.block_id}' for state '{request.state}' of "
            f"operator '{self._function.operator}', and one of them is not declared any more, or the function is no longer 'async def' (blocks declared: {declared}). Nothing was committed. "
            "Bring it back until a run has gone through, or restore to a checkpoint before the run that stopped."
        )
