"""Context of user code in a keyed process, and the outputs of its operator.

Each record and each timer has its own context. A function with `emits=` declares the meaning of its changes, and its
outputs compare each row kind with that.
"""

from __future__ import annotations

import heapq
import operator as operators
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace import native
from headrace.api.batches import Bundle
from headrace.api.changelog import ChangelogMode
from headrace.api.functions import TimeDomain
from headrace.api.graph import Process
from headrace.api.records import RowKind, check_namespace
from headrace.api.types import output_type
from headrace.execution.element import Emitted, Watermark, make_emitted
from headrace.execution.record_context import RecordContext
from headrace.execution.record_copies import copied, copier_of, is_immutable
from headrace.records.order import output_order, timer_order
from headrace.state.codec import decode_key
from headrace.state.timers import DOMAINS, EVENT_TIME, PROCESSING_TIME, Timer, TimerService, Turn, make_timer, turn

LATEST_TIMER = (1 << 63) // 1000 - 1
"""Latest time of a timer (ms since 1970): it is stored in microseconds."""

END_OF_INPUT = LATEST_TIMER // 2
"""Last watermark (ms), far beyond any event time. A stamp of this time still has room for a TTL."""


class Refused(NamedTuple):
    """A record that user code quarantined: its place, its key, and the reason."""

    order: bytes
    key_json: bytes
    record: msgspec.Struct
    reason: str


class Outputs(native.Outputs):
    """Emitted records of one operator and task, and the types that they must have."""

    __slots__ = (
        "_copy",
        "_output",
        "_side_types",
        "dropped_late",
        "late_to_side",
        "refused_records",
        "sides",
    )

    def __init__(self, operator: Process) -> None:
        """Start with nothing emitted."""
        super().__init__(Emitted, RowKind.INSERT)
        self.main: list[Emitted] = []
        self.dropped_late = self.late_to_side = 0
        """Records that were too late for the operator: dropped ones, and those that went to a side output."""
        self.refused_records: list[Refused] = []
        self.sides: dict[str, list[Emitted]] = {side.name: [] for side in operator.side_outputs}
        self._output = output_type(operator.function)
        self.type = self._output if is_immutable(self._output) else None
        """Type of records that are emitted as they are; None where code may change them."""
        self._copy: Callable[[msgspec.Struct], msgspec.Struct] = copier_of(self._output)
        self._side_types = {side.name: side.record for side in operator.side_outputs}

    def taken(self, record: msgspec.Struct, _kind: RowKind) -> msgspec.Struct:
        """Return what the main output takes for a record: a copy, if code may change it. Raises `TypeError` for another type than its own."""
        if type(record) is self._output:
            return self._copy(record)
        if not isinstance(record, self._output):
            msg = f"the output takes {self._output.__name__}, not {type(record).__name__}"
            raise TypeError(msg)
        return copied(record)

    def time_of(self, timestamp: int) -> int:
        """Return the time of a record that code gave (ms). Raises `TypeError` unless it is a whole number, `ValueError` if it cannot be stored."""
        return _storable(timestamp, "a record's time")

    def taken_aside(self, name: str, record: msgspec.Struct) -> msgspec.Struct:
        """Return what a side output takes for a record: a copy, if code may change it.

        Raises `ValueError` for an undeclared side output, `TypeError` unless it takes the record.
        """
        wanted = self._side_types.get(name)
        if wanted is None:
            known = ", ".join(self._side_types) or "none"
            msg = f"side output '{name}' is not declared in the pipeline (declared: {known})"
            raise ValueError(msg)
        if not isinstance(record, wanted):
            msg = f"side output '{name}' takes {wanted.__name__}, not {type(record).__name__}"
            raise TypeError(msg)
        return copied(record)

    def drop(self) -> None:
        """Drop everything that was emitted."""
        for emitted in (self.main, *self.sides.values()):
            emitted.clear()

    def sort(self) -> None:
        """Sort the records that different keys emitted into arrival order."""
        for emitted in (self.main, *self.sides.values()):
            emitted.sort(key=_order_of)
        self.refused_records.sort(key=_order_of)


def check_reason(reason: object) -> None:
    """Raise `TypeError` if the reason of a quarantine is no text, `ValueError` if it cannot be stored as UTF-8."""
    if not isinstance(reason, str):
        msg = f"quarantine() takes a text that says why, not {type(reason).__name__}"
        raise TypeError(msg)
    try:
        reason.encode()
    except UnicodeEncodeError as error:
        msg = f"the reason of a quarantine is {reason!a}, which is not UTF-8"
        raise ValueError(msg) from error


def _storable(timestamp: int, what: str) -> int:
    """Return a time (ms) as a whole number. Raises `TypeError` for anything else, `ValueError` if it cannot be stored."""
    timestamp = operators.index(timestamp)  # refuses a float, which could be compared but not stored
    if not -LATEST_TIMER <= timestamp <= LATEST_TIMER:
        msg = f"{what} must lie within {LATEST_TIMER} ms of 1970, not at {timestamp}"
        raise ValueError(msg)
    return timestamp


_order_of = operators.itemgetter(0)


class ProcessContext(native.ProcessContext, RecordContext):
    """A record or timer of a keyed process, at its place in arrival order.

    `function` is its user code; None for a context that only fires its key's timers. `timer` is the timer that
    fires, None while a record is processed. `enter` sets its place.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        overdue: list[tuple[Turn, Timer]] | None
        timer: Timer | None
        _outputs: Outputs
        _timers: TimerService

    def enter(self, order: bytes, timestamp: int, watermark: int, expired_until: int) -> None:
        """Set its position: place in arrival order, event time, the watermark before it, or that of the timer.

        Entries that expire up to `expired_until` are expired: up to the watermark for a record, and before it for a
        timer that the watermark fires. An event-time timer registered for a time up to `watermark` is overdue, and
        fires right after this context.
        """
        self.order, self.timestamp, self.watermark, self.expired_until = order, timestamp, watermark, expired_until

    @property
    def key(self) -> Any:
        """Return the key of the record or timer."""
        return decode_key(self.key_json)

    @property
    def processing_time(self) -> int:
        """Return the wall clock as the driver read it for this micro-batch (ms)."""
        return self._timers.processing_time

    @property
    def time_domain(self) -> TimeDomain | None:
        """Return the clock that made the timer fire; None while a record is processed."""
        return None if self.timer is None else DOMAINS[self.timer.domain].clock

    @property
    def namespace(self) -> str:
        """Return the namespace of the timer; empty while a record is processed."""
        return "" if self.timer is None else self.timer.namespace

    @property
    def processing_overdue_until(self) -> int:
        """Return the processing time up to which a timer registered now is overdue (ms)."""
        return self._timers.processing_time

    @property
    def fired_by(self) -> int:
        """Return the watermark that this context is behind (ms)."""
        return self.watermark

    @property
    def timers(self) -> ProcessContext:
        """Return the timers of this key."""
        return self

    def output(self, name: str, record: msgspec.Struct, /, *, kind: RowKind = RowKind.INSERT) -> None:
        """Emit a record to the side output `name`. Raises `ValueError` if it is not declared, `TypeError` for another type.

        `kind` is for operators of the library: late records keep theirs.
        """
        record = self._outputs.taken_aside(name, record)
        order = output_order(self.order, self.index)
        self.index += 1
        self._outputs.sides[name].append(make_emitted((order, self.timestamp, kind, record)))

    def count_too_late(self, *, dropped: bool) -> None:
        """Count the record as too late for the operator: it was dropped, or went to a side output."""
        if dropped:
            self._outputs.dropped_late += 1
        else:
            self._outputs.late_to_side += 1

    def quarantine(self, reason: str, /, *, record: msgspec.Struct | None = None) -> None:
        """Move the record to the quarantine with a reason.

        `record` is for operators of the library: a stored record of the key, in place of the one that came. Raises `RuntimeError` in a timer, which has no record, and `TypeError` or `ValueError` for a reason that is no text, or that
        is not UTF-8.
        """
        check_reason(reason)
        if self.timer is not None:
            raise RuntimeError("quarantine() in a timer: there is no record to set aside")
        if record is None:
            record = self.record.current.record if isinstance(self.record, Bundle) else self.record
        self._outputs.refused_records.append(Refused(self.order, self.key_json, copied(record), reason))

    def register_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Call `on_timer(timestamp)` for this key once the watermark reaches `timestamp` (ms)."""
        self.register(timestamp, EVENT_TIME, namespace)

    def delete_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Delete a timer of this key and namespace; do nothing if there is none."""
        self._timers.delete(self._timer(timestamp, EVENT_TIME, namespace))

    def register_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Call `on_timer(timestamp)` for this key once processing time reaches `timestamp` (ms)."""
        self.register(timestamp, PROCESSING_TIME, namespace)

    def delete_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Delete a processing-time timer of this key and namespace; do nothing if there is none."""
        self._timers.delete(self._timer(timestamp, PROCESSING_TIME, namespace))

    def register(self, timestamp: int, domain: str, namespace: str = "") -> None:
        """Register a timer of the current key in a domain, including the engine's own. An overdue timer fires right after this context."""
        timer = self._timer(timestamp, domain, namespace)
        self._timers.register(timer)
        is_event = DOMAINS[domain].clock is EVENT_TIME
        if timer.timestamp <= (self.watermark if is_event else self.processing_overdue_until):
            if self.overdue is None:
                self.overdue = []
            heapq.heappush(self.overdue, (turn(timer), timer))

    def _timer(self, timestamp: int, domain: str, namespace: str) -> Timer:
        timestamp = _storable(timestamp, "a timer's time")
        check_namespace(namespace)
        return make_timer((timestamp, self.key_json, domain, namespace))


class BundleContext(ProcessContext):
    """Records of a key that a function takes with one call. `next_watermark` comes right behind them."""

    __slots__ = ("may_wait", "next_watermark", "stage")

    may_wait: bool
    """Whether records may wait again; false as soon as the engine goes on with others."""

    next_watermark: Watermark
    stage: int

    def work_on_timer(self, timestamp: int, namespace: str) -> None:
        """Go on as a timer that the next watermark fires, which counts as fired. Raises `RuntimeError` if it does not."""
        watermark = self.next_watermark
        if timestamp > watermark.timestamp:
            msg = f"a timer at {timestamp} ms is not due behind these records"
            raise RuntimeError(msg)
        self.timer = self._timer(timestamp, EVENT_TIME, namespace)
        place = timer_order(watermark.order, timestamp, self.key_json, self.stage, namespace)
        self.enter(place, timestamp, timestamp, timestamp - 1)
        self.index = 0
        self._timers.fired += 1


class TimerContext(ProcessContext):
    """A timer of a keyed process.

    `processing_overdue_until` is the time of the processing-time timer that fires, `fired_by` the watermark that made the
    timer due: it may lie far beyond the timer's own time, which is the `watermark` that the timer's code sees.
    """

    __slots__ = ("fired_by", "processing_overdue_until")

    fired_by: int
    processing_overdue_until: int

    def register(self, timestamp: int, domain: str, namespace: str = "") -> None:
        """Register a timer; do nothing at the end of the input, where timers that register timers would never end."""
        if self.fired_by < END_OF_INPUT or domain != EVENT_TIME or self.time_domain is not EVENT_TIME:
            super().register(timestamp, domain, namespace)


_INSERTS = frozenset({RowKind.INSERT})
_UPSERTS = frozenset(RowKind) - {RowKind.UPDATE_BEFORE}


class DeclaredOutputs(Outputs):
    """Outputs that refuse row kinds which the declared mode does not have.

    `type` is None, so that each record comes to `taken`: functions without `emits=` pay nothing.
    """

    __slots__ = ("_kinds", "_mode")

    def __init__(self, operator: Process, mode: ChangelogMode) -> None:
        """Start with nothing emitted."""
        super().__init__(operator)
        self.type = None
        self._mode = mode
        self._kinds = _INSERTS if mode.is_insert else _UPSERTS

    def taken(self, record: msgspec.Struct, kind: RowKind) -> msgspec.Struct:
        """Return what the main output takes for a record. Raises `ValueError` for a row kind that the mode does not have."""
        if kind not in self._kinds:
            msg = f"the function declares emits={self._mode.declaration}, and emits {RowKind(kind).symbol}: {self._way_out()}"
            raise ValueError(msg)
        return super().taken(record, kind)

    def _way_out(self) -> str:
        if self._mode.is_insert:
            return "declare ChangelogMode.upsert(KEY), or ChangelogMode.RETRACT if each +U follows a -U with the whole old row"
        return "leave the -U out, or declare ChangelogMode.RETRACT if each +U follows one with the whole old row"


def outputs_of(operator: Process) -> Outputs:
    """Return the empty outputs of an operator. Retractions of all kinds need no comparison."""
    mode = operator.emits
    return Outputs(operator) if mode is None or mode.is_retract else DeclaredOutputs(operator, mode)
