"""Runs a keyed process function over the elements of one task, one record at a time.

This is the synchronous form: state answers at once, so a coroutine never suspends. What it does per
key is the reference for every other way of executing: before a record, the key's due timers, in time
order; the clock that ages state is the last watermark before the record in arrival order.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from engine.api import KeyedProcessFunction, Process, RowKind, ValueState
from engine.errors import UserFunctionError
from engine.execution.element import Element, Emitted, Watermark, output_order, timer_order
from engine.state.backend import StateBackend
from engine.state.codec import decode_key
from engine.state.timer_service import Timer, TimerService
from engine.state.value_store import ValueStore

NO_WATERMARK = -(1 << 62)
"""The watermark before the first one: earlier than any time."""


class KeyedProcess:
    """One `Process` operator in one task.

    `last_watermark` is the last one that `run` will be given (ms), or None without any.
    """

    def __init__(
        self,
        operator: Process,
        backend: StateBackend,
        *,
        record: type[msgspec.Struct],
        watermark: int | None,
        last_watermark: int | None,
    ) -> None:
        """Bind the function's states and timers to `backend`."""
        self.operator = operator
        self.timers = TimerService(backend, last_watermark)
        self.stores: list[ValueStore[Any]] = []
        self.metrics: Counter[str] = Counter()
        self._function = self._bind(operator, backend)
        self._decode = msgspec.json.Decoder(record).decode
        self._watermark = NO_WATERMARK if watermark is None else watermark
        self._context = _Context(self.timers, operator)

    @property
    def emitted(self) -> list[Emitted]:
        """What was collected so far, in the order of the calls."""
        return self._context.emitted

    @property
    def side_outputs(self) -> dict[str, list[Emitted]]:
        """What went to each declared side output so far."""
        return self._context.sides

    def run(self, batches: Iterable[Sequence[Element]], watermarks: Sequence[Watermark]) -> None:
        """Process elements in arrival order, and `watermarks` (in order) between them.

        Raises `UserFunctionError` with operator, key, record and traceback when the function fails.
        """
        pending = iter(watermarks)
        upcoming = next(pending, None)
        for batch in batches:
            keys = {element.key_json for element in batch}
            for store in self.stores:
                store.prefetch(keys)
            for element in batch:
                while upcoming is not None and upcoming.order <= element.order:
                    self._advance(upcoming)
                    upcoming = next(pending, None)
                self._process(element)
        while upcoming is not None:
            self._advance(upcoming)
            upcoming = next(pending, None)

    def _bind(self, operator: Process, backend: StateBackend) -> KeyedProcessFunction[Any, Any]:
        # A function is bound in place. Its declarations stay in the class, so binding it again
        # (the next task of this worker process) finds them as they were written.
        function = operator.function
        for name, declared in declared_states(function).items():
            store = ValueStore(declared, operator.name, backend)
            self.stores.append(store)
            setattr(function, name, store)
        return function

    def _process(self, element: Element) -> None:
        record = self._decode(element.raw)
        self.metrics["records"] += 1
        if element.timestamp <= self._watermark:
            self.metrics["late"] += 1
        context = self._enter(element.order, element.timestamp, element.key_json)
        context.row_kind = _ROW_KINDS[element.kind]
        self._call(self._function.process(record, context), element.key_json, element.raw)
        for timer in context.overdue():
            self._fire_again(timer, element)

    def _fire_again(self, timer: Timer, element: Element) -> None:
        """Fire a timer that was registered for a time already past, before the key's next record."""
        if not self.timers.take(timer):
            return
        context = self._enter(element.order, timer.timestamp, timer.key_json, index=self._context.index)
        self._call(self._function.on_timer(timer.timestamp, context), timer.key_json, _describe(timer))

    def _advance(self, watermark: Watermark) -> None:
        self._watermark = watermark.timestamp
        for timer in self.timers.pop_due(watermark.timestamp):
            order = timer_order(watermark.order, timer.timestamp, timer.key_json)
            context = self._enter(order, timer.timestamp, timer.key_json)
            call = self._function.on_timer(timer.timestamp, context)
            self._call(call, timer.key_json, _describe(timer))

    def _enter(self, order: bytes, timestamp: int, key_json: bytes, index: int = 0) -> _Context:
        for store in self.stores:
            store.enter(key_json, timestamp, self._watermark)
        self._context.enter(order, timestamp, key_json, self._watermark, index)
        return self._context

    def _call(self, call: Coroutine[Any, Any, None], key_json: bytes, what: bytes) -> None:
        try:
            call.send(None)
        except StopIteration:
            return
        except Exception as error:
            raise UserFunctionError(
                self.operator.name,
                key_json.decode(),
                what[:500].decode(errors="replace"),
                "".join(traceback.format_exception(error)),
            ) from error
        call.close()
        msg = f"operator '{self.operator.name}' awaited something other than its own state"
        raise UserFunctionError(self.operator.name, key_json.decode(), what[:500].decode(), msg)


def declared_states(function: KeyedProcessFunction[Any, Any]) -> dict[str, ValueState[Any]]:
    """The states that a function declares, by attribute, base classes first.

    Raises `TypeError` when two of them share a stored name.
    """
    found: dict[str, ValueState[Any]] = {}
    for cls in reversed(type(function).__mro__):
        found |= {name: value for name, value in vars(cls).items() if isinstance(value, ValueState)}
    names = Counter(state.name for state in found.values())
    for name, count in names.items():
        if count > 1:
            msg = f"{type(function).__name__} declares two states named '{name}'"
            raise TypeError(msg)
    return found


def _describe(timer: Timer) -> bytes:
    return b"timer at %d ms" % timer.timestamp


_ROW_KINDS = tuple(RowKind)


class _Context:
    """The one context of a task, re-entered for each record and timer (no allocation a record)."""

    __slots__ = ("_key_json", "_order", "_overdue", "_sides", "_timers", "_wanted", "emitted", "index",
                 "row_kind", "sides", "timers", "timestamp", "watermark")

    def __init__(self, timers: TimerService, operator: Process) -> None:
        self._timers = timers
        self._order = b""
        self._key_json = b""
        self._overdue: list[Timer] = []
        self._wanted = {side.name: side.record for side in operator.side_outputs}
        self.emitted: list[Emitted] = []
        self.sides: dict[str, list[Emitted]] = {name: [] for name in self._wanted}
        self.index = 0
        self.timestamp = 0
        self.watermark = NO_WATERMARK
        self.row_kind = RowKind.INSERT
        self.timers = self

    @property
    def key(self) -> Any:  # noqa: ANN401 - the type of the key field
        return decode_key(self._key_json)

    def enter(self, order: bytes, timestamp: int, key_json: bytes, watermark: int, index: int) -> None:
        self._order, self._key_json = order, key_json
        self.timestamp, self.watermark, self.index = timestamp, watermark, index
        self.row_kind = RowKind.INSERT

    def collect(self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT) -> None:
        order = output_order(self._order, self.index)
        self.index += 1
        self.emitted.append(Emitted(order, self.timestamp, kind, record))

    def output(self, name: str, record: msgspec.Struct, /) -> None:
        wanted = self._wanted.get(name)
        if wanted is None:
            known = ", ".join(self._wanted) or "none"
            msg = f"side output '{name}' is not declared in the pipeline (declared: {known})"
            raise ValueError(msg)
        if not isinstance(record, wanted):
            msg = f"side output '{name}' takes {wanted.__name__}, not {type(record).__name__}"
            raise TypeError(msg)
        order = output_order(self._order, self.index)
        self.index += 1
        self.sides[name].append(Emitted(order, self.timestamp, RowKind.INSERT, record))

    def register_event_time(self, timestamp: int, /) -> None:
        timer = Timer(timestamp, self._key_json)
        self._timers.register(timer)
        if timestamp <= self.watermark:
            self._overdue.append(timer)

    def delete_event_time(self, timestamp: int, /) -> None:
        self._timers.delete(Timer(timestamp, self._key_json))

    def overdue(self) -> Iterable[Timer]:
        """Take out the timers registered for a past time, in time order, until there are none."""
        while self._overdue:
            self._overdue.sort(reverse=True)
            yield self._overdue.pop()

