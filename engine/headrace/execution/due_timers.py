"""Order of due timers: which one of a key fires before or after a record, at which place in arrival order (FLIP-425, "Timers").

    order      1   2   | W |   4        key of 4: its timers up to W fire right before 4
                                        keys without later records: their timers fire when all before W is done

A timer fires with the first watermark, or processing time, at which it is due. Its code sees a watermark at the
timer's own time, and state as of then: what expires at this moment is still there, and expires behind the timer. So a
watermark that moves far equals many that move by a millisecond. A timer that user code registers for a past time fires
right after that code, and sees the same watermark as that code.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from headrace.api.batches import TimerBundle
from headrace.api.functions import TimeDomain
from headrace.execution.element import NO_WATERMARK, ProcessingTime, Watermark
from headrace.execution.epoch import Epoch, EpochStatus
from headrace.execution.process_context import Outputs, ProcessContext, TimerContext
from headrace.records.order import processing_timer_order, timer_order
from headrace.state.timers import DOMAINS, Timer, TimerService


class _Passed(NamedTuple):
    """A watermark that has come: its time (ms), its place, and the epoch that it closes.

    `fired_by` is later if it was only a step on the way to that watermark.
    """

    time: int
    order: bytes
    epoch: Epoch
    fired_by: int


class DueTimers:
    """Due timers of one operator in one task, as contexts that the controller runs.

    `stage` is the operator's place among the pipeline's keyed ones. `on_timer` is the user code of a timer. No timer sees
    a watermark before `started_at`, also one whose time is earlier.
    """

    def __init__(
        self,
        timers: TimerService,
        outputs: Outputs,
        stage: int,
        on_timer: Callable[..., Any],
        *,
        started_at: int = NO_WATERMARK,
    ) -> None:
        """Start behind the watermark `started_at` (ms)."""
        self.functions: dict[str, Callable[..., Any]] = dict.fromkeys(TimeDomain, on_timer)
        """By domain, the function that a timer calls with its time and context. The engine's own domains add theirs here."""
        self.on_timers: Callable[..., Any] | None = None
        """The user code that takes a `DueBundle`, if there is one."""
        self._timers = timers
        self._event_turns = timers.turns_of(TimeDomain.EVENT_TIME)
        self._processing_turns = timers.turns_of(TimeDomain.PROCESSING_TIME)
        self._outputs = outputs
        self._stage = stage
        self._started_at = started_at
        self._watermarks: list[_Passed] = []
        self._processing_times: list[ProcessingTime] = []

    def pass_watermark(self, watermark: Watermark, epoch: Epoch, fired_by: int | None = None) -> None:
        """Make the timers up to a watermark due. `epoch` is the one that the watermark closes.

        `fired_by` is the time of the watermark (ms) on the way to which this one is only a step.
        """
        self._timers.extend(watermark.timestamp)
        by = watermark.timestamp if fired_by is None else fired_by
        self._watermarks.append(_Passed(watermark.timestamp, watermark.order, epoch, by))

    def pass_processing_time(self, time: ProcessingTime) -> None:
        """Make the timers up to a processing time due."""
        self._timers.extend(time.timestamp, TimeDomain.PROCESSING_TIME)
        self._processing_times.append(time)

    def unseen_watermarks(self) -> list[Watermark]:
        """Return the watermarks that wait for records before them."""
        return [
            Watermark(passed.order, passed.time)
            for passed in self._watermarks
            if passed.epoch.status is EpochStatus.CLOSED
        ]

    def at_watermark(self, watermark: Watermark) -> Iterator[ProcessContext]:
        """Yield a context for each key with due timers. It has no code of its own: `before` returns its timers."""
        for key_json in self._timers.keys_due(watermark.timestamp):
            context = ProcessContext(self._outputs, self._timers, key_json, None, TimeDomain.EVENT_TIME)
            context.enter(watermark.order, watermark.timestamp, watermark.timestamp, NO_WATERMARK)
            yield context

    def at_processing_time(self, time: ProcessingTime, watermark: int) -> Iterator[ProcessContext]:
        """Yield a context for each key with due timers of processing time, as `at_watermark` does."""
        for key_json in self._timers.keys_due(time.timestamp, TimeDomain.PROCESSING_TIME):
            context = ProcessContext(self._outputs, self._timers, key_json, None, TimeDomain.PROCESSING_TIME)
            context.enter(time.order, _right_after(watermark), watermark, watermark)
            yield context

    def before(self, context: ProcessContext) -> TimerContext | None:
        """Remove and return the key's next timer that fires before `context`, as `KeyedWork.before` requires."""
        # Called before each record. Usually the key's first timer is not due, so this must cost no more than a look
        # at that timer.
        turns = self._event_turns.get(context.key_json) if self._watermarks else None
        earlier = self._event_timer_due(context) if turns and turns[0][0] <= context.watermark else None
        if earlier is None and self._processing_times and self._processing_turns:
            return self._processing_timer_due(context)
        return earlier

    def _event_timer_due(self, context: ProcessContext) -> TimerContext | None:
        timer = self._timers.take_due(context.key_json, context.watermark)
        if timer is None:
            return None
        passed = self._passed_at(timer.timestamp)
        earlier = self._timer_context(timer)
        place = timer_order(passed.order, timer.timestamp, timer.key_json, self._stage, timer.namespace)
        self._enter(earlier, place, timer.timestamp, passed)
        return earlier

    def bundle_before(self, context: ProcessContext) -> TimerContext | None:
        """As `before`, but several timers at once, where `on_timers` takes the next ones: those that one watermark fires."""
        turns = self._event_turns.get(context.key_json)
        if self.on_timers is None or not turns or turns[0][0] > context.watermark:
            return self.before(context)
        passed = self._passed_at(turns[0][0])
        timers = self._timers.take_all_due(context.key_json, passed.time)
        if not timers:
            return self.before(context)
        earlier = TimerContext(self._outputs, self._timers, context.key_json, self.on_timers, None, timers[0])
        earlier.record = DueBundle(timers, earlier, passed.order, self._stage)
        self._enter(earlier, passed.order, timers[0].timestamp, passed)
        return earlier

    def _enter(self, context: TimerContext, place: bytes, timestamp: int, passed: _Passed) -> None:
        """Set a timer's position: everything that expires before its time is expired, and nothing that expires at it."""
        started_at = self._started_at
        context.enter(place, timestamp, max(timestamp, started_at), max(timestamp - 1, started_at))
        context.fired_by, context.epoch = passed.fired_by, passed.epoch
        context.processing_overdue_until = self._timers.processing_time

    def _passed_at(self, timestamp: int) -> _Passed:
        """Return the first watermark that a time has not passed."""
        passed = self._watermarks
        if len(passed) == 1 or passed[-2].time < timestamp:  # nearly always
            return passed[-1]
        return passed[bisect.bisect_left(passed, timestamp, key=_time_of)]

    def _processing_timer_due(self, context: ProcessContext) -> TimerContext | None:
        times = self._processing_times
        timer = self._timers.take_due(context.key_json, times[-1].timestamp, TimeDomain.PROCESSING_TIME)
        if timer is None:
            return None
        time = times[bisect.bisect_left(times, timer.timestamp, key=attrgetter("timestamp"))]
        earlier = self._timer_context(timer)
        place = processing_timer_order(time.order, timer.timestamp, timer.key_json, self._stage, timer.namespace)
        earlier.enter(place, _right_after(context.watermark), context.watermark, context.watermark)
        earlier.fired_by = context.fired_by
        earlier.processing_overdue_until = timer.timestamp
        return earlier

    def after(self, context: ProcessContext) -> TimerContext | None:
        """Remove and return the next overdue timer that the context registered, as `KeyedWork.after` requires."""
        while context.overdue:
            _, timer = heapq.heappop(context.overdue)
            if self._timers.take(timer):
                follower = self._timer_context(timer)
                is_event = DOMAINS[timer.domain].clock is TimeDomain.EVENT_TIME
                timestamp = timer.timestamp if is_event else _right_after(context.watermark)
                follower.enter(context.order, timestamp, context.watermark, context.expired_until)
                follower.fired_by = context.fired_by
                follower.processing_overdue_until = context.processing_overdue_until
                follower.index, follower.overdue = context.index, context.overdue
                return follower
        return None

    def _timer_context(self, timer: Timer) -> TimerContext:
        key_json, time = timer.key_json, timer.timestamp
        # None if the function no longer declares the state that the engine set the timer for.
        function = self.functions.get(timer.domain)
        return TimerContext(self._outputs, self._timers, key_json, function, time, timer)


class DueBundle(TimerBundle):
    """Timers of a key that the watermark at `order` fires. Each has the place and time that it would have alone."""

    def __init__(self, timers: Sequence[Timer], context: TimerContext, order: bytes, stage: int) -> None:
        """Take the timers, and their common context."""
        self.timers: Sequence[Timer] = timers
        self._context: TimerContext | None = context
        self._order, self._stage = order, stage

    def walk(self) -> Iterator[Timer]:
        """Yield the timers, once. What the function does next is done at the time and the place of the timer that it has got."""
        context = self._context
        assert context is not None  # noqa: S101 - it is walked once
        self._context = None  # it refers to the bundle: without a cycle both are freed at once
        for timer in self.timers:
            timestamp = timer.timestamp
            context.timer, context.index = timer, 0
            place = timer_order(self._order, timestamp, timer.key_json, self._stage)
            context.enter(place, timestamp, timestamp, timestamp - 1)
            yield timer


def shown_timer(timer: Timer) -> str:
    """Return a timer as errors show it."""
    clock = "processing-time " if DOMAINS[timer.domain].clock is TimeDomain.PROCESSING_TIME else ""
    where = f" in namespace '{timer.namespace}'" if timer.namespace else ""
    return f"{clock}timer at {timer.timestamp} ms{where}"


_time_of = attrgetter("time")


def _right_after(watermark: int) -> int:
    """Return the event time at which processing-time timers fire: not late downstream, and it prolongs no state."""
    return 0 if watermark == NO_WATERMARK else watermark + 1
