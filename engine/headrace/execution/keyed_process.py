"""Runs a keyed process function over the elements of one task (FLIP-425).

Keys are worked on out of order, each key in order. What one key sees is what a loop over the records would show it:
before a record starts, the key's timers that are due at the last watermark before it fire, in time order; timers of
keys without later records fire when all records before their watermark are done. So a watermark holds nobody up, and
no key can tell. Processing time moves on before the first record of a micro-batch, and a key's timers that are due then
fire before its records.
"""

from __future__ import annotations

import bisect
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import CoroutineType
from typing import Any, NamedTuple, cast

import msgspec

from headrace.api import BroadcastState, Process, RowKind, StateTtl, TimeDomain
from headrace.api._blocks import BoundBlock
from headrace.api._functions import KeyedFunction, has_timers, input_methods, is_blocking, listed_methods
from headrace.errors import HeadraceError, StateSchemaError, UserFunctionError
from headrace.execution.broadcast_input import BroadcastInput, is_broadcast
from headrace.execution.broadcast_moment import BroadcastMoment
from headrace.execution.controller import AsyncExecutionController, Call
from headrace.execution.declarations import declared_blocks, declared_states
from headrace.execution.element import Element, Emitted, ProcessingTime, Watermark, before_watermark
from headrace.execution.epoch import Epoch, EpochStatus
from headrace.execution.fast_drain import (
    PROCESS,
    BufferedRequest,
    Held,
    as_it_came,
    at_block,
    element_of,
    held_as,
    merged,
    split,
)
from headrace.execution.options import AsyncStateOptions, KeyOrder
from headrace.execution.process_context import LATEST_TIMER, Outputs, ProcessContext, TimerContext
from headrace.execution.record_codec import RecordCodec, shown_record
from headrace.execution.record_context import RecordContext
from headrace.execution.request import AsyncExecutor
from headrace.execution.state_executor import InlineStateExecutor, ThreadedStateExecutor
from headrace.execution.statistics import KeyedProcessStatistics
from headrace.plan.order import processing_timer_order, timer_order
from headrace.state.backend import StateBackend
from headrace.state.broadcast_store import BROADCAST_KEY, BroadcastStore
from headrace.state.cleanup_timer import CLEANUP_DOMAINS
from headrace.state.entry import EntryChange
from headrace.state.state_store import StateStore
from headrace.state.stores import store_for
from headrace.state.timer_service import DOMAINS, Timer, TimerService, turn
from headrace.state.ttl import Lives
from headrace.state.ttl_cleanup import TtlCleanup

__all__ = ["LATEST_TIMER", "NO_WATERMARK", "KeyedProcess"]

NO_WATERMARK = -(1 << 62)
"""The watermark before the first one: earlier than any time."""


class KeyedProcess:
    """One `Process` operator in one task.

    `records` are the record types of its inputs. `watermark` is the last one before the slice and `last_watermark` the last one that `run` will be given (ms), None
    without any. `processing_time` is that of the micro-batch; without one, it is what the clock says, and no timer of it
    fires by itself. `stage` is the operator's place among the pipeline's keyed ones,
    `lives` what TTL has to know of the job, `timers_fired` up to where the operator's timers have fired, by clock. `executor` answers state requests;
    unless given, it is one that fits the backend and `options`. `owns_broadcast` says that of all tasks, it is this one that
    tells what is the same in all of them: changes of broadcast state, and broadcast records that are held.
    """

    def __init__(
        self,
        operator: Process,
        backend: StateBackend,
        *,
        records: tuple[type[msgspec.Struct], ...],
        watermark: int | None,
        last_watermark: int | None,
        processing_time: ProcessingTime | None = None,
        stage: int = 0,
        lives: Lives | None = None,
        timers_fired: Mapping[str, int] | None = None,
        options: AsyncStateOptions | None = None,
        executor: AsyncExecutor | None = None,
        owns_broadcast: bool = True,
    ) -> None:
        """Bind the function's states and timers to `backend`."""
        options = options or AsyncStateOptions()
        self.operator = operator
        self.timers = TimerService(
            backend,
            watermark if last_watermark is None else last_watermark,
            None if processing_time is None else processing_time.timestamp,
            fired_until=timers_fired,
        )
        self._records = self._late = 0
        self.controller = AsyncExecutionController(self, executor or _executor_for(backend, options), options)
        self.stores: list[StateStore] = []
        self.broadcast = BroadcastInput(operator, owns=owns_broadcast)
        self._options = options
        self._outputs = Outputs(operator)
        self._backend = backend
        self._blocks: dict[str, BoundBlock] = {}
        self._function, self._is_plain = self._bind(operator, lives or Lives())
        # What a due timer calls with its time and context, by its domain. Internal ones are for whoever sets their timers.
        self.timer_functions: dict[str, Callable[..., Any]] = dict.fromkeys(TimeDomain, _on_timer_of(self._function))
        self.cleanup = TtlCleanup(_ttls(operator), self.stores, backend, self.timers)
        self.timer_functions.update(dict.fromkeys(CLEANUP_DOMAINS, self.cleanup.on_timer))
        self._methods = input_methods(self._function)
        self._processes = tuple(getattr(self._function, name) for name in self._methods)
        self._codec = RecordCodec(operator.name, records)
        self._stage = stage
        self._watermark = self._started_at = NO_WATERMARK if watermark is None else watermark
        self._has_stopped = False
        self._passed: list[tuple[int, bytes, Epoch]] = []
        self._processing_time = () if processing_time is None else (processing_time,)
        self._processing_times: list[ProcessingTime] = []

    @property
    def metrics(self) -> Counter[str]:
        """Records taken in, and how many of them were late; what is 0 isn't told."""
        return +Counter(records=self._records, late=self._late)

    def changes(self) -> list[tuple[StateStore | BroadcastStore, list[EntryChange]]]:
        """What each state has changed, and what TTL has expired; to be asked once, at the end, and before the timers are."""
        # What is held has not seen the watermarks since the start: for it, less is dead.
        watermark = self._started_at if self._has_stopped else self._watermark
        keyed = self.cleanup.changes(_End(watermark, self.timers.processing_time), self._records)
        return [*keyed, *self.broadcast.changes()]

    def statistics(self) -> KeyedProcessStatistics:
        """What is going on, as numbers, for every part."""
        return KeyedProcessStatistics(
            controller=self.controller.statistics(),
            states={store.name: store.statistics() for store in self.stores},
            timers=self.timers.statistics(),
            records=self._records,
            late=self._late,
            removed=self.cleanup.removed,
        )

    @property
    def emitted(self) -> list[Emitted]:
        """What was collected so far."""
        return self._outputs.main

    @property
    def side_outputs(self) -> dict[str, list[Emitted]]:
        """What went to each declared side output so far."""
        return self._outputs.sides

    def run(
        self,
        batches: Iterable[Sequence[Element]],
        watermarks: Sequence[Watermark],
        *,
        resumed: Sequence[BufferedRequest] = (),
        broadcast: Sequence[Element] = (),
        cut: bytes | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Held:
        """Process elements in arrival order, and processing time and `watermarks` between them; return what is held.

        That is everything at or after `cut`. When `stop`, asked every now and then, says so, it is also what has not
        begun by then, and what waits at a declared block. `resumed` is what an earlier run held. What was emitted is in arrival
        order afterwards.

        `broadcast` are the records of the second input of a `KeyedBroadcastFunction`, the same in all tasks, as are those in
        `resumed`. All tasks must have taken in the same ones when they end: so `stop` is not asked before the last one.

        Raises `UserFunctionError` with operator, key, record and traceback when the function fails, and `StateSchemaError` when a
        held record waits for a block or a state that the function doesn't declare.
        """
        pending: _Pending = deque(sorted([*self._processing_time, *watermarks], key=_order_of))
        others: list[Element | BufferedRequest] = [*resumed, *broadcast]
        self.broadcast.expect(others, cut)
        arriving = self._chunks(merged(batches, others) if others else batches)
        take: Callable[[Any], None] = self._take if others else self.process
        try:
            for chunk in arriving:
                here, rest = split(chunk, cut)
                self._prefetch(here)
                left = self._take_until(stop, here, pending, take)
                if left is not None:
                    return self._stop(cut, pending, [*left, *rest, *chain.from_iterable(arriving)])
                if rest:
                    return self._reach(cut, pending, [*rest, *chain.from_iterable(arriving)])
            return self._reach(cut, pending, [])
        finally:
            self.controller.close()
            self._outputs.sort()

    def _take_until(
        self,
        stop: Callable[[], bool] | None,
        chunk: Sequence[Element | BufferedRequest],
        pending: _Pending,
        take: Callable[[Any], None],
    ) -> Sequence[Element | BufferedRequest] | None:
        """Take in a chunk; what is left of it when `stop` says so, None unless it does."""
        for start in range(0, len(chunk), _ASKED_AFTER):
            for element in chunk[start : start + _ASKED_AFTER]:
                while pending and pending[0].order <= element.order:
                    self._advance_to_next(pending)
                take(element)
            if stop is not None and self.broadcast.is_complete and stop():
                return chunk[start + _ASKED_AFTER :]
        return None

    def _reach(self, cut: bytes | None, pending: _Pending, rest: Sequence[Element | BufferedRequest]) -> Held:
        """Finish all that comes before the cut."""
        while pending and (cut is None or pending[0].order <= cut):
            self._advance_to_next(pending)
        self.controller.drain()
        return Held.of(self._held(rest), (), cut)

    def _advance_to_next(self, pending: _Pending) -> None:
        event = pending.popleft()
        if isinstance(event, Watermark):
            self.advance(event)
            return
        # A watermark that an earlier micro-batch has held compares as the first record of this one.
        while pending and before_watermark(cast("Watermark", pending[0])) < event.order:
            self.advance(cast("Watermark", pending.popleft()))
        # What an earlier run has left comes before it, also where state is not at hand.
        self.controller.drain()
        self.advance_processing_time(event)

    def _stop(self, cut: bytes | None, pending: _Pending, rest: Sequence[Element | BufferedRequest]) -> Held:
        """Finish only what has begun. Timers of processing time that did not fire are due in the next run, too."""
        self._has_stopped = True
        unseen = [Watermark(order, time) for time, order, epoch in self._passed if epoch.status is EpochStatus.CLOSED]
        held: list[BufferedRequest] = []
        for context in self.controller.drain_fast(self._may_wait):
            if context.function is None:
                if context.record is TimeDomain.EVENT_TIME:
                    unseen.append(Watermark(context.order, context.timestamp))
            else:
                held.append(self._hold(context))
        unseen += [event for event in pending if isinstance(event, Watermark)]
        return Held.of([*held, *self._held(rest)], unseen, cut)

    def _held(self, rest: Sequence[Element | BufferedRequest]) -> Iterator[BufferedRequest]:
        return (held_as(one, self._codec) for one in rest if self.broadcast.holds(one))

    def _take(self, element: Element | BufferedRequest) -> None:
        if is_broadcast(element):
            self.process_broadcast(element if isinstance(element, Element) else element_of(element, self._codec))
        elif isinstance(element, Element):
            self.process(element)
        elif element.block_id == PROCESS:
            self.process(element_of(element, self._codec))
        else:
            self._resume(element)

    def _resume(self, request: BufferedRequest) -> None:
        """Take in a record that waits at a block: read the state again, and go on there."""
        store = next((store for store in self.stores if store.name == request.state), None)
        block = self._blocks.get(request.block_id)
        if store is None or block is None or self._is_plain:
            raise self._undeclared(request)

        record = element_of(request, self._codec).record
        context = self._context(request.key_json, _GoOn(store, block, request), record)
        context.enter(request.order, request.timestamp, self._watermark, self._watermark)
        context.row_kind, context.index = _ROW_KINDS[request.kind], request.index
        self.controller.process(context)

    def _may_wait(self, context: ProcessContext) -> bool:
        """Whether a record has not begun, or all that goes on for it is one request, whose answer a declared block waits for.

        Timers that were taken out are finished: there is no record to hold.
        """
        if isinstance(context, TimerContext) or context.overdue:
            return False
        if not context.references:
            return True
        # State-ordered, one of its key that has begun may be behind it, and must not get ahead.
        if self._options.order_with_same_key is KeyOrder.STATE_ORDERED:
            return False
        return context.references == _REQUEST_AND_CALLBACK and self._waiting(context) is not None

    def _waiting(self, context: ProcessContext) -> tuple[StateStore, str] | None:
        for store in self.stores:
            block_id = store.waiting_block(context)
            if block_id is not None:
                return store, block_id
        return None

    def _hold(self, context: ProcessContext) -> BufferedRequest:
        if isinstance(context.function, _GoOn) and not context.references:
            return context.function.request
        element = Element(
            context.order,
            context.timestamp,
            context.row_kind,
            context.key_json,
            context.record,
            self._input_of(context),
        )
        waiting = self._waiting(context)
        if waiting is None:
            self._records -= 1
            self._late -= context.timestamp <= context.watermark
            return as_it_came(element, self._codec)
        store, block_id = waiting
        store.forget_request(context)
        return at_block(element, self._codec, block_id, store.name, context.index)

    def process(self, element: Element) -> None:
        """Take in one element, which comes after all that were taken in before."""
        self._records += 1
        order, timestamp, kind, key_json, record, input_ = element
        watermark = self._watermark
        if timestamp <= watermark:
            self._late += 1
        # Written out, not through `_context` and `enter`: every call here is one more for each record.
        context = ProcessContext(self._outputs, self.timers, key_json, self._processes[input_], record)
        context.order = order
        context.timestamp = timestamp
        context.watermark = context.overdue_until = watermark
        context.row_kind = _ROW_KINDS[kind]
        self.controller.process(context)

    def process_broadcast(self, element: Element) -> None:
        """Take in a broadcast record: finish all that came before it, then let it change broadcast state.

        It is no record of this task alone, so `metrics` do not count it.
        """
        self.controller.drain()
        moment = BroadcastMoment(element, self._watermark, self.timers.processing_time)
        self.controller.context = moment
        self.broadcast.take(element, moment)

    def advance(self, watermark: Watermark, passed: Callable[[], None] | None = None) -> None:
        """Take in a watermark. `passed` is called when all before it is done, the timers that it fires included."""
        self.timers.extend(watermark.timestamp)
        self._watermark = watermark.timestamp
        self._passed.append((watermark.timestamp, watermark.order, self.controller.epochs.open))
        self.controller.on_non_record(lambda epoch: self._fire_due(watermark, epoch), passed or _nothing)

    def advance_processing_time(self, time: ProcessingTime) -> None:
        """Move processing time on, and fire the timers that are due then. Event time stays where it is.

        A timer waits for the running record of its key, for nothing else, and is counted to the open epoch.
        """
        self.timers.extend(time.timestamp, TimeDomain.PROCESSING_TIME)
        self._processing_times.append(time)
        watermark = self._watermark
        for key_json in self.timers.keys_due(time.timestamp, TimeDomain.PROCESSING_TIME):
            context = self._context(key_json, None, TimeDomain.PROCESSING_TIME)
            context.enter(time.order, _right_after(watermark), watermark, watermark)
            self.controller.process(context, self.controller.epochs.open)

    def _fire_due(self, watermark: Watermark, epoch: Epoch) -> None:
        for key_json in self.timers.keys_due(watermark.timestamp):
            context = self._context(key_json, None, TimeDomain.EVENT_TIME)
            context.enter(watermark.order, watermark.timestamp, watermark.timestamp, NO_WATERMARK)
            self.controller.process(context, epoch)

    # ----------------------------------------------------------------------------------- what the controller asks

    def call(self, context: ProcessContext) -> Call | None:
        """See `KeyedWork.call`."""
        function = context.function
        if function is None:
            return None
        call: Call | None = function(context.record, context)
        if call is not None and self._is_plain:
            raise self._not_plain(call)
        return call

    def _not_plain(self, call: object) -> TypeError:
        if isinstance(call, CoroutineType):
            call.close()
        name = type(self._function).__name__
        return TypeError(
            f"{listed_methods([*self._methods, 'on_timer'])} of {name} are plain functions and must return nothing, not {type(call).__name__}: "
            "emit with ctx.collect(); what wraps an 'async def' must be one itself"
        )

    @property
    def due(self) -> Collection[Timer]:
        """See `KeyedWork.due`."""
        return self.timers.live

    def before(self, context: ProcessContext) -> RecordContext | None:
        """See `KeyedWork.before`: the key's timers that are due."""
        if not self.timers.live:
            return None
        return self._event_timer_due(context) or self._processing_timer_due(context)

    def _event_timer_due(self, context: ProcessContext) -> TimerContext | None:
        timer = self.timers.first_due(context.key_json, context.watermark) if self._passed else None
        if timer is None:
            return None
        self.timers.take(timer)
        watermark, order, epoch = self._passed[bisect.bisect_left(self._passed, timer.timestamp, key=_time_of)]
        earlier = self._timer_context(timer)
        place = timer_order(order, timer.timestamp, timer.key_json, self._stage, timer.namespace)
        earlier.enter(place, timer.timestamp, watermark, timer.timestamp)
        earlier.processing_overdue_until = self.timers.processing_time
        earlier.epoch = epoch
        return earlier

    def _processing_timer_due(self, context: ProcessContext) -> TimerContext | None:
        times = self._processing_times
        latest = times[-1].timestamp if times else NO_WATERMARK
        timer = self.timers.first_due(context.key_json, latest, TimeDomain.PROCESSING_TIME)
        if timer is None:
            return None
        self.timers.take(timer)
        time = times[bisect.bisect_left(times, timer.timestamp, key=attrgetter("timestamp"))]
        earlier = self._timer_context(timer)
        place = processing_timer_order(time.order, timer.timestamp, timer.key_json, self._stage, timer.namespace)
        earlier.enter(place, _right_after(context.watermark), context.watermark, context.watermark)
        earlier.processing_overdue_until = timer.timestamp
        return earlier

    def after(self, context: ProcessContext) -> RecordContext | None:
        """See `KeyedWork.after`: timers that the context has registered for a time already past are its outcome."""
        while context.overdue:
            timer = min(context.overdue, key=turn)
            context.overdue.remove(timer)
            if self.timers.take(timer):
                follower = self._timer_context(timer)
                is_event = DOMAINS[timer.domain].clock is TimeDomain.EVENT_TIME
                timestamp = timer.timestamp if is_event else _right_after(context.watermark)
                follower.enter(context.order, timestamp, context.watermark, context.overdue_until)
                follower.processing_overdue_until = context.processing_overdue_until
                follower.index, follower.overdue = context.index, context.overdue
                return follower
        return None

    def failed(self, context: ProcessContext, error: Exception) -> Exception:
        """See `KeyedWork.failed`."""
        if isinstance(error, HeadraceError):
            return error  # such as state that does not fit its type: not the function's fault
        why = "".join(traceback.format_exception(error))
        shown = shown_record(context.record) if context.timer is None else _shown_timer(context.timer)
        method = None if len(self._methods) == 1 or context.timer else self._methods[self._input_of(context)]
        return UserFunctionError(self.operator.name, context.key_json.decode(), shown, why, method=method)

    def _input_of(self, context: ProcessContext) -> int:
        """The number of the input that a record came in by."""
        function = context.function
        return function.request.input if isinstance(function, _GoOn) else self._processes.index(function)

    # --------------------------------------------------------------------------------------------------- binding

    def _bind(self, operator: Process, lives: Lives) -> tuple[KeyedFunction, bool]:
        # A function is bound in place. Its declarations stay in the class, so binding it again
        # (the next task of this worker process) finds them as they were written.
        function = operator.function
        is_plain = is_blocking(function)
        for name, declared in declared_states(function).items():
            if isinstance(declared, BroadcastState):
                self.broadcast.bind(name, declared)
                continue
            store = store_for(declared, operator.name, self._backend, self.controller, lives, blocking=is_plain)
            store.waits = self._options.enabled
            self.stores.append(store)
            setattr(function, name, store.handle)
        for name, block in declared_blocks(function).items():
            bound = BoundBlock(block, function, self.controller)
            self._blocks[block.block_id] = bound
            setattr(function, name, bound)
        return function, is_plain

    def _context(self, key_json: bytes, function: Callable[..., Any] | None, record: Any) -> ProcessContext:
        return ProcessContext(self._outputs, self.timers, key_json, function, record)

    def _timer_context(self, timer: Timer) -> TimerContext:
        key_json, time = timer.key_json, timer.timestamp
        # Nobody's, if what the engine has set it for is not declared any more.
        function = self.timer_functions.get(timer.domain)
        return TimerContext(self._outputs, self.timers, key_json, function, time, timer)

    def _chunks(
        self, batches: Iterable[Sequence[Element | BufferedRequest]]
    ) -> Iterator[Sequence[Element | BufferedRequest]]:
        """The elements in portions no larger than what may be in flight."""
        size = self._options.in_flight_records_limit
        for batch in batches:
            for start in range(0, len(batch), size):
                yield batch[start : start + size]

    def _prefetch(self, chunk: Sequence[Element | BufferedRequest]) -> None:
        """Read the values of the keys of a chunk, with one call for each state."""
        if self._options.enabled and chunk:
            keys = {element.key_json for element in chunk}
            keys.discard(BROADCAST_KEY)
            for store in self.stores:
                store.trim(self._options.cache_entries)
                store.prefetch(keys)

    def _undeclared(self, request: BufferedRequest) -> StateSchemaError:
        declared = ", ".join(sorted(self._blocks)) or "none"
        return StateSchemaError(
            f"a record of key {request.key_json.decode()} waits at block '{request.block_id}' for state '{request.state}' of "
            f"operator '{self.operator.name}', and one of them is not declared any more, or the function is no longer 'async def' (blocks declared: {declared}). "
            "Bring it back until a run has gone through, or restore to a checkpoint before the run that stopped."
        )


class _End(NamedTuple):
    """When a task is over: what ages entries then (ms)."""

    watermark: int
    processing_time: int
    timestamp: int = 0


def _ttls(operator: Process) -> dict[str, StateTtl | None]:
    return {state.name: state.ttl for state in declared_states(operator.function).values()}


_Pending = deque[Watermark | ProcessingTime]
_order_of = attrgetter("order")
_ROW_KINDS = tuple(RowKind)
_REQUEST_AND_CALLBACK = 2
_ASKED_AFTER = 256
"""Records after which a task is asked again whether it has to stop."""


class _GoOn:
    """The code of a resumed record: read the state again, and go on in the block."""

    __slots__ = ("_block", "_store", "request")

    def __init__(self, store: StateStore, block: BoundBlock, request: BufferedRequest) -> None:
        self._store = store
        self._block = block
        self.request = request

    def __call__(self, _: Any, __: Any) -> None:
        answer = self._store.resume()
        if answer is None:
            msg = f"block '{self._block.block_id}' waits for what {self._store.what} had as another kind of state: give it a new name"
            raise StateSchemaError(msg)
        _ = answer.then_accept(self._block)


def _on_timer_of(function: KeyedFunction) -> Callable[..., Any]:
    return function.on_timer if has_timers(function) else lambda *_: None


def _nothing() -> None:
    return None


def _time_of(passed: tuple[int, bytes, Epoch]) -> int:
    return passed[0]


def _right_after(watermark: int) -> int:
    """The event time at which processing-time timers fire: it is not late downstream, and renews no state beyond it."""
    return 0 if watermark == NO_WATERMARK else watermark + 1


def _shown_timer(timer: Timer) -> str:
    clock = "processing-time " if DOMAINS[timer.domain].clock is TimeDomain.PROCESSING_TIME else ""
    where = f" in namespace '{timer.namespace}'" if timer.namespace else ""
    return f"{clock}timer at {timer.timestamp} ms{where}"


def _executor_for(backend: StateBackend, options: AsyncStateOptions) -> AsyncExecutor:
    if backend.answers_at_once or not options.enabled:
        return InlineStateExecutor(backend)
    return ThreadedStateExecutor(backend, options.io_parallelism)
