"""Runs a keyed process function over the elements of one task, one record at a time.

This is the synchronous form: state answers at once, so a coroutine never suspends. What it does per
key is the reference for every other way of executing: before a record, the key's due timers, in time
order; the clock that ages state is the last watermark before the record in arrival order.
"""

from __future__ import annotations

import operator as operators
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CoroutineType
from typing import Any

import msgspec

from engine.api import KeyedProcessFunction, Process, RowKind, ValueState
from engine.api._pipeline import output_type
from engine.errors import HeadraceError, UserFunctionError
from engine.execution.element import Element, Emitted, Watermark, output_order, timer_order
from engine.state.backend import StateBackend
from engine.state.codec import decode_key
from engine.state.timer_service import Timer, TimerService
from engine.state.value_store import ValueStore

NO_WATERMARK = -(1 << 62)
"""The watermark before the first one: earlier than any time."""

LATEST_TIMER = (1 << 63) // 1000 - 1
"""The furthest that a timer can lie from 1970 (ms): it is stored in microseconds."""


class KeyedProcess:
    """One `Process` operator in one task.

    `watermark` is the last one before the slice and `last_watermark` the last one that `run` will be
    given (ms), None without any. `stage` is the operator's place among the pipeline's keyed ones.
    """

    def __init__(
        self,
        operator: Process,
        backend: StateBackend,
        *,
        record: type[msgspec.Struct],
        watermark: int | None,
        last_watermark: int | None,
        stage: int = 0,
    ) -> None:
        """Bind the function's states and timers to `backend`."""
        self.operator = operator
        self.timers = TimerService(backend, watermark if last_watermark is None else last_watermark)
        self.stores: list[ValueStore[Any]] = []
        self.metrics: Counter[str] = Counter()
        self._function = self._bind(operator, backend)
        self._decode = msgspec.json.Decoder(record).decode
        self._stage = stage
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
        self.metrics["records"] += 1
        if element.timestamp <= self._watermark:
            self.metrics["late"] += 1
        context = self._enter(element.order, element.timestamp, element.key_json)
        try:
            record = self._decode(element.raw)
        except msgspec.ValidationError as error:
            raise self._failed(
                element.raw, f"the operator before it sent a record that does not fit: {error}"
            ) from error
        context.row_kind = _ROW_KINDS[element.kind]
        context.overdue_until = self._watermark
        self._call(self._function.process, record, element.raw)
        self._fire_overdue(element.order)

    def _advance(self, watermark: Watermark) -> None:
        self._watermark = watermark.timestamp
        for timer in self.timers.pop_due(watermark.timestamp):
            order = timer_order(watermark.order, timer.timestamp, timer.key_json, self._stage)
            self._enter(order, timer.timestamp, timer.key_json).overdue_until = timer.timestamp
            self._call(self._function.on_timer, timer.timestamp, timer)
            self._fire_overdue(order)

    def _fire_overdue(self, order: bytes) -> None:
        """Fire the timers that a call has registered for a time already past: they are its outcome."""
        for timer in self._context.overdue():
            if self.timers.take(timer):
                self._enter(order, timer.timestamp, timer.key_json, index=self._context.index)
                self._call(self._function.on_timer, timer.timestamp, timer)

    def _enter(self, order: bytes, timestamp: int, key_json: bytes, index: int = 0) -> _Context:
        for store in self.stores:
            store.enter(key_json, timestamp, self._watermark)
        self._context.enter(order, timestamp, key_json, self._watermark, index)
        return self._context

    def _call(self, function: Callable[..., Any], subject: object, what: bytes | Timer) -> None:
        try:
            call: CoroutineType[Any, Any, None] = function(subject, self._context)
            call.send(None)
        except StopIteration:
            return
        except HeadraceError:
            raise  # such as state that does not fit its type: not the function's fault
        except Exception as error:
            raise self._failed(what, "".join(traceback.format_exception(error))) from error
        line = call.cr_frame.f_lineno if call.cr_frame is not None else "?"
        call.close()
        why = f"awaited something other than its own state in line {line}: calls to the outside belong in async_wait()"
        raise self._failed(what, f"{function.__qualname__} {why}")

    def _failed(self, what: bytes | Timer, why: str) -> UserFunctionError:
        record = f"timer at {what.timestamp} ms" if isinstance(what, Timer) else what[:500].decode(errors="replace")
        return UserFunctionError(self.operator.name, self._context.key_json.decode(), record, why)


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


_ROW_KINDS = tuple(RowKind)


class _Context:
    """The one context of a task, re-entered for each record and timer (no allocation a record)."""

    __slots__ = (
        "_order",
        "_out",
        "_overdue",
        "_timers",
        "_wanted",
        "emitted",
        "index",
        "key_json",
        "overdue_until",
        "row_kind",
        "sides",
        "timers",
        "timestamp",
        "watermark",
    )

    def __init__(self, timers: TimerService, operator: Process) -> None:
        self._timers = timers
        self._order = b""
        self._out = output_type(operator.function)
        self._overdue: list[Timer] = []
        self._wanted = {side.name: side.record for side in operator.side_outputs}
        self.emitted: list[Emitted] = []
        self.sides: dict[str, list[Emitted]] = {name: [] for name in self._wanted}
        self.index = 0
        self.key_json = b""
        self.overdue_until = NO_WATERMARK
        self.timestamp = 0
        self.watermark = NO_WATERMARK
        self.row_kind = RowKind.INSERT
        self.timers = self

    @property
    def key(self) -> Any:
        return decode_key(self.key_json)

    def enter(self, order: bytes, timestamp: int, key_json: bytes, watermark: int, index: int) -> None:
        self._order, self.key_json = order, key_json
        self.timestamp, self.watermark, self.index = timestamp, watermark, index
        self.row_kind = RowKind.INSERT

    def collect(self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT) -> None:
        if not isinstance(record, self._out):
            msg = f"the output takes {self._out.__name__}, not {type(record).__name__}"
            raise TypeError(msg)
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
        timer = self._timer(timestamp)
        self._timers.register(timer)
        if timestamp <= self.overdue_until:
            self._overdue.append(timer)

    def delete_event_time(self, timestamp: int, /) -> None:
        self._timers.delete(self._timer(timestamp))

    def _timer(self, timestamp: int) -> Timer:
        moment = operators.index(timestamp)  # refuses a float, which would compare but not be stored
        if not -LATEST_TIMER <= moment <= LATEST_TIMER:
            msg = f"a timer's time must lie within {LATEST_TIMER} ms of 1970, not at {moment}"
            raise ValueError(msg)
        return Timer(moment, self.key_json)

    def overdue(self) -> Iterator[Timer]:
        """Take out the timers registered for a past time, in time order, until there are none."""
        while self._overdue:
            self._overdue.sort(reverse=True)
            yield self._overdue.pop()
