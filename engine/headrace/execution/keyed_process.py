"""Runs a keyed process function over the elements of one task (FLIP-425).

Different keys run out of order, the records of each key in order. Each key sees the same as in a loop over the records:
before a record starts, the key's timers that are due at the last watermark before it fire, in time order; timers of
keys without later records fire when all records before their watermark are done. So a watermark blocks no
record, and each key sees the same order of events. Processing time advances before the first record of a micro-batch, and a key's timers that are due then
fire before its records.
"""

from __future__ import annotations

import bisect
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple, cast

import msgspec

from headrace import native
from headrace.api.batches import Bundle, FiredTimer
from headrace.api.functions import VISIT_METHOD, TimeDomain
from headrace.api.graph import Process
from headrace.api.key_events import TimerResults
from headrace.api.records import RowKind
from headrace.errors import HeadraceError, UserFunctionError
from headrace.execution.bound_function import BoundFunction, hint_at, on_timer_of, ttls_of
from headrace.execution.broadcast import BroadcastAccess, BroadcastInput, is_broadcast
from headrace.execution.bundles import WaitingBundle, WaitingBundles
from headrace.execution.controller import AsyncExecutionController
from headrace.execution.drain import PROCESS, BufferedRequest, Held, chunked, merged, split
from headrace.execution.due_timers import DueTimers, shown_timer
from headrace.execution.element import (
    NO_WATERMARK,
    Element,
    Emitted,
    ProcessingTime,
    RecordCodec,
    Watermark,
    before_watermark,
    behind_watermark,
    make_emitted,
    shown_record,
)
from headrace.execution.epoch import Epoch
from headrace.execution.executor import executor_for
from headrace.execution.held_records import HeldRecords
from headrace.execution.keyed_operator import Call
from headrace.execution.process_context import BundleContext, ProcessContext, Refused, outputs_of
from headrace.execution.requests import AsyncExecutor
from headrace.execution.statistics import KeyedProcessStatistics
from headrace.interrupts import is_interrupt
from headrace.options import AsyncStateOptions, KeyOrder
from headrace.records.order import caused_at, outputs_of_timer, timer_order, timers_begin, visit_order
from headrace.state.backend import EntryChange, StateBackend, within
from headrace.state.broadcast import BROADCAST_KEY, BroadcastStore
from headrace.state.cleanup import CLEANUP_DOMAINS, TtlCleanup
from headrace.state.spilled_changes import SpilledChanges
from headrace.state.store import StateStore
from headrace.state.timers import TimerService
from headrace.state.ttl import EntryLifetimes


class KeyedProcess:
    """One `Process` operator in one task.

    `records` are the record types of its inputs. `watermark` is the last one before the slice and `last_watermark` the
    last one that `run` will get (ms), None without any. `processing_time` is that of the micro-batch; if None, it is read
    from the clock, and timers of processing time do not fire by themselves. `stage` is the operator's place among the pipeline's keyed ones,
    `lifetimes` the job's data on TTL, `timers_fired` the times up to which the operator's timers have fired, by clock.
    `executor` answers state requests; by default it is the one for the backend and `options`. `owns_broadcast` says
    that this task, of all tasks, reports what is the same in all of them: changes of broadcast state, and held
    broadcast records. `spilled` takes changes of state that do not fit into memory; None: all have to.
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
        lifetimes: EntryLifetimes | None = None,
        timers_fired: Mapping[str, int] | None = None,
        options: AsyncStateOptions | None = None,
        executor: AsyncExecutor | None = None,
        owns_broadcast: bool = True,
        spilled: SpilledChanges | None = None,
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
        self._records = 0
        self._options = options
        self._outputs = outputs_of(operator)
        self._stage = stage
        self._watermark = self._started_at = NO_WATERMARK if watermark is None else watermark
        self.due_timers = DueTimers(
            self.timers, self._outputs, stage, on_timer_of(operator.function), started_at=self._watermark
        )
        # Methods of `KeyedWork`, set as attributes to save a call for each record.
        self.due = self.timers.live
        self.before = self.due_timers.before
        self.after = self.due_timers.after
        self.controller = AsyncExecutionController(self, executor or executor_for(backend, options), options)
        self.broadcast = BroadcastInput(operator, owns=owns_broadcast)
        self._function = BoundFunction(
            operator, backend, self.controller, self.broadcast, lifetimes or EntryLifetimes(), options=options
        )
        self._is_plain, self._inputs = self._function.is_plain, self._function.inputs
        self._loop = native.RecordLoop(
            self.controller,
            ProcessContext,
            self._outputs,
            self.timers,
            self._inputs,
            _ROW_KINDS,
            self.due,
            self.before,
            self._function.not_plain if self._is_plain else None,
        )
        in_record_order = options.order_with_same_key is KeyOrder.RECORD_ORDERED
        bundling = self._function.bundling
        self._waits_to_end = bundling is not None and bundling.waits_to_end
        if not in_record_order and not self._waits_to_end:
            bundling = None
        self._take_bundle = None if bundling is None else bundling.process_bundle
        turns = self.timers.turns_of(TimeDomain.EVENT_TIME)
        occupied = self.controller.keys.occupied
        self._waiting = None if bundling is None else WaitingBundles(bundling.first_timer, turns, occupied)
        self._most_waiting = sys.maxsize if self._waits_to_end else options.in_flight_records_limit
        self._takes_single_records = bundling is not None and bundling.takes_single_records
        self.due_timers.on_timers = self._function.on_timers if in_record_order else None
        self.stores = self._function.stores
        self.cleanup = TtlCleanup(ttls_of(operator.function), self.stores, backend, self.timers, spilled)
        self.due_timers.functions.update(dict.fromkeys(CLEANUP_DOMAINS, self.cleanup.on_timer))
        self._spilled = spilled
        self._spilling = [store for store in self.stores if not self.cleanup.needs_all_changes(store)]
        codec = RecordCodec(operator.name, records)
        self._held = HeldRecords(self._function, codec, self._outputs, self.timers, options.order_with_same_key)
        self._has_stopped = False
        self._processing_time = () if processing_time is None else (processing_time,)

    @property
    def metrics(self) -> Counter[str]:
        """Return the numbers of processed records, of late ones among them, and of those that were too late; counts of 0 are left out.

        A late record arrived at or behind the watermark. One that was too late changed nothing: the operator dropped it, or sent it to a
        side output.
        """
        outputs = self._outputs
        return +Counter(
            records=self._records,
            late=self._loop.late,
            dropped_late=outputs.dropped_late,
            late_to_side=outputs.late_to_side,
        )

    def changes(self) -> list[tuple[StateStore | BroadcastStore, list[EntryChange]]]:
        """Return the changes of each state, including expiries. Called once, at the end, before the timers' changes are read."""
        # Held records have not seen the watermarks since the start: for them, fewer entries have expired.
        watermark = self._started_at if self._has_stopped else self._watermark
        keyed = self.cleanup.changes(_TaskEnd(watermark, self.timers.processing_time), self._records)
        return [*keyed, *self.broadcast.changes()]

    @property
    def waits_to_end(self) -> bool:
        """Return whether the operator waits for all records before it takes the first."""
        return self._waits_to_end

    def sort_emitted(self) -> None:
        """Sort the records emitted so far into arrival order."""
        self._outputs.sort()

    def drop_emitted(self) -> None:
        """Drop the records emitted so far."""
        self._outputs.drop()

    def drop(self) -> None:
        """Drop state and output, at the very end.

        The parts of a process refer to each other. If they still held every entry, the collection at the end of the task would
        visit all of them, which takes 3 to 6 % of the CPU of a task.
        """
        for store in self.stores:
            store.drop()
        self._outputs.drop()

    def statistics(self) -> KeyedProcessStatistics:
        """Return the statistics of every part."""
        return KeyedProcessStatistics(
            controller=self.controller.statistics(),
            states={store.name: store.statistics() for store in self.stores},
            timers=self.timers.statistics(),
            records=self._records,
            late=self._loop.late,
            removed=self.cleanup.removed,
        )

    @property
    def emitted(self) -> list[Emitted]:
        """Return the records collected so far."""
        return self._outputs.main

    @property
    def side_outputs(self) -> dict[str, list[Emitted]]:
        """Return the records emitted to each declared side output so far."""
        return self._outputs.sides

    @property
    def refused(self) -> list[Refused]:
        """Return the records that user code quarantined so far."""
        return self._outputs.refused_records

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
        """Process elements in arrival order, with processing time and `watermarks` between them; return the held ones.

        These are the elements at or after `cut`. `stop` is called every 256 elements, or after each chunk where elements
        are bundled; once it returns true, elements that have not begun are held, too, and those that wait at a declared
        block. `resumed` are the elements that an earlier run held. The emitted records are in arrival order afterwards.

        `broadcast` are the records of the second input of a `KeyedBroadcastFunction`, the same in all tasks, like those
        in `resumed`. All tasks must have processed the same ones when they end: so `stop` is not called before the last
        one.

        Raises `UserFunctionError` with operator, key, record and traceback when the function fails, and
        `StateSchemaError` when a held record waits for a block or a state that the function doesn't declare.
        """
        pending: _Pending = deque(sorted([*self._processing_time, *watermarks], key=_place_of))
        others: list[Element | BufferedRequest] = [*resumed, *broadcast]
        self.broadcast.expect(others, cut)
        arriving = chunked(merged(batches, others) if others else batches, self._options.in_flight_records_limit)
        take: Callable[[Sequence[Any]], None] = self._take_mixed if others else self.process_all
        if not others and self._waiting is not None:
            take = partial(self._bundle_all, self._waiting)
        try:
            for chunk in arriving:
                before_cut, rest = split(chunk, cut)
                self._prefetch([*map(_key_of, before_cut)])
                left = self._take_until(stop, before_cut, pending, take)
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
        take: Callable[[Sequence[Any]], None],
    ) -> Sequence[Element | BufferedRequest] | None:
        """Process a chunk; return its rest when `stop` is true, otherwise None."""
        asked_after = _ASKED_AFTER if self._take_bundle is None else max(len(chunk), 1)
        for start in range(0, len(chunk), asked_after):
            self._take_with_events(chunk[start : start + asked_after], pending, take)
            if stop is not None and self.broadcast.is_complete and stop():
                self._process_waiting(None)
                return chunk[start + asked_after :]
        return None

    def _take_with_events(
        self,
        elements: Sequence[Element | BufferedRequest],
        pending: _Pending,
        take: Callable[[Sequence[Any]], None],
    ) -> None:
        """Process elements, and the events that come before each of them."""
        while pending and (place := _place_of(pending[0])) <= elements[-1].order:
            count = bisect.bisect_left(elements, place, key=_order_of)
            self._take_before(pending[0], elements[:count], take)
            elements = elements[count:]
            self._process_waiting(pending[0])
            self._advance_to_next(pending)
        self._take_before(pending[0] if pending else None, elements, take)
        if self._waiting is not None and self._waiting.count >= self._most_waiting:
            self._process_waiting(None)

    def _take_before(
        self,
        event: Watermark | ProcessingTime | None,
        elements: Sequence[Element | BufferedRequest],
        take: Callable[[Sequence[Any]], None],
    ) -> None:
        """Process elements that come before the next event. Some of them may be effects of timers that this watermark fires."""
        if not (elements and isinstance(event, Watermark) and elements[-1].order > before_watermark(event)):
            take(elements)
            return
        count = bisect.bisect_left(elements, before_watermark(event), key=_order_of)
        take(elements[:count])
        for time, effects in groupby(elements[count:], lambda element: caused_at(element.order)):
            if time is not None and time - 1 > self._watermark:
                self._step_to(time - 1, event)
            take([*effects])

    def _step_to(self, time: int, watermark: Watermark) -> None:
        """Let the next watermark pass a time before its own (ms): what a timer upstream causes at t comes behind t - 1."""
        step = Watermark(watermark.order, time)
        self._process_waiting(step)
        if self.controller.runs_at_once and self.timers.first_due(time) is None:
            self._watermark = time
        else:
            self.advance(step, fired_by=watermark.timestamp)

    def _reach(self, cut: bytes | None, pending: _Pending, rest: Sequence[Element | BufferedRequest]) -> Held:
        """Finish all elements before the cut."""
        while pending and (cut is None or any(event.order <= cut for event in pending)):
            self._process_waiting(pending[0])
            self._advance_to_next(pending)
        self._process_waiting(None)
        self.controller.drain()
        return Held.of(self._held.hold_all(rest), (), cut)

    def _advance_to_next(self, pending: _Pending) -> None:
        event = pending.popleft()
        if isinstance(event, Watermark):
            self.advance(event)
            return
        # Elements held by an earlier run go before it, also where state is not cached.
        self.controller.drain()
        self.advance_processing_time(event)

    def _stop(self, cut: bytes | None, pending: _Pending, rest: Sequence[Element | BufferedRequest]) -> Held:
        """Finish only elements that have begun. Timers of processing time that did not fire are due in the next run."""
        self._has_stopped = True
        unseen = self.due_timers.unseen_watermarks()
        held: list[BufferedRequest] = []
        for context in self.controller.drain_fast(self._held.may_hold):
            if context.function is None:
                if context.record is TimeDomain.EVENT_TIME:
                    unseen.append(Watermark(context.order, context.timestamp))
            elif isinstance(context.record, Bundle):
                self._records -= len(context.record.records)
                held += self._held.hold_all(cast("Sequence[Element]", context.record.records))
            else:
                held.append(self._hold(context))
        unseen += [event for event in pending if isinstance(event, Watermark)]
        return Held.of([*held, *self._held.hold_all(rest)], unseen, cut)

    def _hold(self, context: ProcessContext) -> BufferedRequest:
        request = self._held.hold(context)
        if request.block_id == PROCESS:
            self._records -= 1
            self._loop.late -= context.timestamp <= context.watermark
        return request

    def _take_mixed(self, elements: Sequence[Element | BufferedRequest]) -> None:
        for element in elements:
            self._take(element)

    def _take(self, element: Element | BufferedRequest) -> None:
        if is_broadcast(element):
            self.process_broadcast(element if isinstance(element, Element) else self._held.element_of(element))
        elif isinstance(element, Element):
            self._begin(element)
        elif element.block_id == PROCESS:
            self._begin(self._held.element_of(element))
        else:
            self.controller.process(self._held.resumed(element, self._watermark))

    def _begin(self, element: Element) -> None:
        if self._waiting is not None and self._waits_to_end:
            self._bundle_all(self._waiting, (element,))
        else:
            self.process(element)

    def count(self, records: int, late: int) -> None:
        """Count records that were processed as columns, and late ones among them."""
        self._records += records
        self._loop.late += late

    def places_of_timers(self, times: Sequence[int], watermarks: Sequence[Watermark]) -> list[bytes]:
        """Return how the places begin of timers at some times (ms) that `watermarks`, all of the slice in their order, fire: up to their keys."""
        known = [watermark.timestamp for watermark in watermarks]
        orders = (watermarks[bisect.bisect_left(known, time)].order for time in times)
        return [timers_begin(order, time, self._stage) for order, time in zip(orders, times, strict=True)]

    def fire(self, fired: Iterable[FiredTimer], watermarks: Sequence[Watermark]) -> None:
        """Emit what timers emit that `watermarks`, all of the slice in their order, fire, and that are never stored."""
        times = [watermark.timestamp for watermark in watermarks]
        for key_json, timestamp, namespace, emit in fired:
            context = BundleContext(self._outputs, self.timers, key_json, None, None)
            context.next_watermark, context.stage = watermarks[bisect.bisect_left(times, timestamp)], self._stage
            context.work_on_timer(timestamp, namespace)
            emit(context)

    def emit(self, emitted: Iterable[TimerResults], watermarks: Sequence[Watermark]) -> None:
        """Emit what timers emit that `watermarks`, all of the slice in their order, fire."""
        outputs, stage = self._outputs, self._stage
        times = [watermark.timestamp for watermark in watermarks]
        for key_json, (timestamp, namespace), records in emitted:
            order = watermarks[bisect.bisect_left(times, timestamp)].order
            place = timer_order(order, timestamp, key_json, stage, namespace)
            for output, (kind, at, record) in zip(outputs_of_timer(place, len(records)), records, strict=True):
                taken = record if type(record) is outputs.type else outputs.taken(record, kind)
                outputs.main.append(make_emitted((output, at, kind, taken)))

    def process(self, element: Element) -> None:
        """Process one element, which follows all earlier ones in arrival order."""
        self._records += 1
        self._process(element, self._watermark)

    def process_all(self, elements: Sequence[Element]) -> None:
        """Process elements, which follow all earlier ones in arrival order; no event comes between them."""
        self._process_all(elements, self._watermark)

    def _process_all(self, elements: Sequence[Element], watermark: int) -> None:
        """Process elements; `watermark` is the last one before each of them (ms)."""
        arriving, controller = iter(elements), self.controller
        self._records += len(elements)
        while True:
            if controller.runs_at_once:
                controller.run_loop(self._loop, arriving, watermark)
            element = next(arriving, None)
            if element is None:
                return
            self._process(element, watermark)

    def _process(self, element: Element, watermark: int) -> None:
        order, timestamp, kind, key_json, record, input_ = element
        if timestamp <= watermark:
            self._loop.late += 1
        # `enter` is inlined: every call costs time for each record.
        context = ProcessContext(self._outputs, self.timers, key_json, self._inputs[input_], record)
        context.order = order
        context.timestamp = timestamp
        context.watermark = context.expired_until = watermark
        context.row_kind = _ROW_KINDS[kind]
        self.controller.process(context)

    def _bundle_all(self, waiting: WaitingBundles, elements: Sequence[Element]) -> None:
        """Let elements wait for others of their keys; process late ones, and those before them."""
        watermark = self._watermark
        for element in elements:
            if element.timestamp > watermark:
                waiting.add(element, watermark)
                continue
            if self._waits_to_end:
                waiting.add_late(element, watermark)
                continue
            earlier = waiting.take(element.key_json)
            if earlier is not None:
                self._process_bundles([earlier])
            self.process(element)

    def _process_waiting(self, event: Watermark | ProcessingTime | None) -> None:
        """Process the elements that cannot wait beyond an event; None stands for the end of the input, or of what may wait."""
        waiting = self._waiting
        if waiting is None or (self._waits_to_end and event is not None):
            return
        if isinstance(event, Watermark):
            self._process_bundles(waiting.take_before(event.timestamp), event)
        else:
            self._process_bundles(waiting.take_all())

    def _process_bundles(self, bundles: Sequence[WaitingBundle], event: Watermark | None = None) -> None:
        """Process bundles, which come in the order of the watermarks before them. Single records go first.

        `event` is the watermark right behind the bundles, if nothing else can come before it.
        """
        fewest = 1 if event is not None and self._takes_single_records else 2
        single = (bundle for bundle in bundles if len(bundle.elements) < fewest)
        for watermark, group in groupby(single, attrgetter("watermark")):
            self._process_all([bundle.elements[0] for bundle in group], watermark)
        for bundle in bundles:
            if len(bundle.elements) >= fewest:
                self._process_bundle(bundle, event)

    def _process_bundle(self, bundle: WaitingBundle, event: Watermark | None) -> None:
        elements, first = bundle.elements, bundle.elements[0]
        self._records += len(elements)
        self._loop.late += bundle.late
        if event is None:
            context = ProcessContext(self._outputs, self.timers, first.key_json, self._take_bundle, None)
            context.record = Bundle(elements, context, None)
        else:
            context = BundleContext(self._outputs, self.timers, first.key_json, self._take_bundle, None)
            context.next_watermark, context.stage = event, self._stage
            context.may_wait = bundle.returns < _MOST_RETURNS
            context.record = Bundle(elements, context, event.timestamp)
        context.enter(first.order, first.timestamp, bundle.watermark, bundle.watermark)
        self.controller.process(context)
        if isinstance(context, BundleContext):
            context.may_wait = False
            if context.record.waiting is not None:
                self._put_back(bundle, *context.record.waiting)
        if context.epoch is None:  # its code has ended
            # Context and bundle refer to each other: the collection at the task's end would visit all records (6 % of
            # the CPU of a window's aggregates).
            context.record = None

    def _put_back(self, bundle: WaitingBundle, elements: Sequence[Element], until: int) -> None:
        assert self._waiting is not None  # noqa: S101 - the bundle comes from there
        self._waiting.put_back(bundle, elements, until)
        self._records -= len(elements)

    def process_broadcast(self, element: Element) -> None:
        """Process a broadcast record: finish all records before it, let it change broadcast state, and visit the keys that it names.

        It does not belong to this task alone, so `metrics` does not count it.
        """
        self.controller.drain()
        access = BroadcastAccess(element, self._watermark, self.timers.processing_time, self._function.visited_store)
        self.controller.context = access
        self.broadcast.take(element, access)
        self._outputs.refused_records += self.broadcast.refused(element, access)
        if access.visited:
            self._visit(element, access.visited_keys())

    def _visit(self, element: Element, keys: Sequence[bytes]) -> None:
        """Process a broadcast record for each of some keys, and finish that: a later record sees all of it."""
        for start in range(0, len(keys), self._options.in_flight_records_limit):
            some = keys[start : start + self._options.in_flight_records_limit]
            self._prefetch(some)
            for key_json in some:
                context = ProcessContext(self._outputs, self.timers, key_json, self._function.visit, element.record)
                place = visit_order(element.order, key_json)
                context.enter(place, element.timestamp, self._watermark, self._watermark)
                context.row_kind = _ROW_KINDS[element.kind]
                self.controller.process(context)
            self.controller.drain()

    def advance(
        self, watermark: Watermark, passed: Callable[[], None] | None = None, *, fired_by: int | None = None
    ) -> None:
        """Process a watermark. `passed` is called when everything before it is done, including the timers that it fires.

        `fired_by` is given for a step on the way to a later watermark: the time of that one (ms).
        """
        self.due_timers.pass_watermark(watermark, self.controller.epochs.open, fired_by)
        self._watermark = watermark.timestamp
        self.controller.on_non_record(lambda epoch: self._fire_due(watermark, epoch), passed or _nothing)

    def advance_processing_time(self, time: ProcessingTime) -> None:
        """Advance processing time, and fire the timers that are due then. Event time does not change.

        A timer waits only for the running record of its key, and is counted in the open epoch.
        """
        self.due_timers.pass_processing_time(time)
        for context in self.due_timers.at_processing_time(time, self._watermark):
            self.controller.run_due(context, self.controller.epochs.open, self.before)

    def _fire_due(self, watermark: Watermark, epoch: Epoch) -> None:
        due = self.due_timers.at_watermark(watermark)
        while some := {context.key_json: context for context in islice(due, self._options.in_flight_records_limit)}:
            self._prefetch_of_timers(watermark.timestamp, some)
            for context in some.values():
                self.controller.run_due(context, epoch, self.due_timers.bundle_before)

    def _prefetch_of_timers(self, watermark: int, keys: Iterable[bytes]) -> None:
        """Read the values that due timers of some keys read, with one call, where they are in namespaces that are known."""
        turns, read_by = self.timers.turns_of(TimeDomain.EVENT_TIME), self._function.read_by_timer
        names = [
            within(key_json, namespace)
            for key_json in keys
            for time, *_ in turns.get(key_json, ())
            if time <= watermark and (namespace := read_by(time)) is not None
        ]
        if names and self._options.enabled:
            self.stores[0].make_room()
            self.stores[0].prefetch(names)

    # ----------------------------------------------------------------------------------- what the controller asks

    def call(self, context: ProcessContext) -> Call | None:
        """Start the user code of a record: return its coroutine, or None if it has run to its end."""
        function = context.function
        if function is None:
            return None
        call: Call | None = function(context.record, context)
        if call is not None and self._is_plain:
            raise self._function.not_plain(call)
        return call

    def failed(self, context: ProcessContext, error: BaseException) -> BaseException:
        """Return the error that the task fails with when the user code of a record raised `error`."""
        if isinstance(error, HeadraceError) or is_interrupt(error):
            return error  # errors that the function did not cause, such as state that does not fit its type
        why = "".join(traceback.format_exception(error)) + hint_at(error)
        current = context.record.current if isinstance(context.record, Bundle) else None
        record = context.record if current is None else current.record
        shown = shown_record(record) if context.timer is None else shown_timer(context.timer)
        methods, method = self._function.methods, None
        if context.function is not None and context.function is self._function.visit:
            method = VISIT_METHOD
        elif len(methods) > 1 and context.timer is None:
            method = methods[self._held.input_of(context) if current is None else current.input]
        return UserFunctionError(self.operator.name, context.key_json.decode(), shown, why, method=method)

    def make_room(self) -> None:
        """Drop state that is in the backend, if the caches are full; write what has changed there, if it takes too much memory. Called between two records."""
        spilled = self._spilled
        is_due = spilled is not None and spilled.is_due(self._spilling)
        if not is_due and not any(store.is_full for store in self.stores):
            return
        self.controller.drain()
        if spilled is not None and is_due:
            for store in self._spilling:
                spilled.spill(store)
        for store in self.stores:
            store.release()

    def read_ahead(self, keys: Sequence[bytes]) -> None:
        """Read the values of keys that come soon, given once each, where that is cheaper than to read them as they come."""
        if self._options.enabled:
            for store in self.stores:
                store.read_ahead(keys)

    def _prefetch(self, keys: Sequence[bytes]) -> None:
        """Read the values of the keys of a chunk, with one call for each state; make room for them first."""
        self.make_room()
        if self._options.enabled and keys:
            if not self.broadcast.is_complete:
                keys = [key for key in keys if key != BROADCAST_KEY]
            for store in self.stores:
                store.prefetch(keys)


class _TaskEnd(NamedTuple):
    """End of a task: the times that expire entries then (ms)."""

    watermark: int
    processing_time: int
    timestamp: int = 0

    @property
    def expired_until(self) -> int:
        """Return the time up to which entries are expired."""
        return self.watermark


def _place_of(event: Watermark | ProcessingTime) -> bytes:
    """Return the place of an event among elements. A watermark comes behind the effects of all timers that it fires.

    One that an earlier micro-batch held, or that the end of the input adds, comes before the first record of this micro-batch. So it comes
    before the micro-batch's processing time, too.
    """
    return behind_watermark(event) if isinstance(event, Watermark) else event.order


_Pending = deque[Watermark | ProcessingTime]
_order_of = attrgetter("order")
_key_of = attrgetter("key_json")
_ROW_KINDS = tuple(RowKind)
_ASKED_AFTER = 256
"""Number of records between two calls of `stop`."""

_MOST_RETURNS = 8
"""How often records may wait again: each time, the function looks at all records of the bundle."""


def _nothing() -> None:
    return None
