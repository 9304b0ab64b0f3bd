"""Harness that drives one async function, its statistics, and keys that a test steps.

Keyed-ordered wait of jobs, single-stepped: it advances as far as possible without time passing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace import clock
from headrace.api.functions import AsyncFunction
from headrace.api.graph import AsyncWait, OutputMode
from headrace.api.records import RowKind
from headrace.api.services import (
    AsyncRetryStrategy,
    Batching,
    CircuitBreaker,
    LookupCache,
    NoRetry,
    OnFailure,
    RecoveryOption,
)
from headrace.api.types import check_function, input_type, output_type
from headrace.async_io.async_wait import AsyncWaitOperator, queue_of
from headrace.async_io.attempts import Attempts, recovered
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.async_io.pending_call import PendingCall, Status, StoredCall, loaded, to_stored_element
from headrace.async_io.queue import ElementQueue, QueuedWatermark
from headrace.execution.element import Emitted
from headrace.execution.record_context import RecordContext
from headrace.records.order import record_order
from headrace.testing._output import Watermark
from headrace.testing._shared import described_stream
from headrace.testing._virtual_loop import LoopClock, VirtualLoop


@dataclass(frozen=True, slots=True)
class AsyncWaitStatistics:
    """State of an async operator at one time, and counts since its start."""

    attempts: int
    """Times that an element was asked for: by a call, a group's call, an equal call in flight, or the cache."""
    in_flight: int
    """Calls in flight."""
    completed: int
    """Done elements that wait to be emitted behind others."""
    waiting_for_retry: int
    """Elements that wait for their next call in the operator."""
    parked: int
    """Elements that wait for their next call in the table."""
    queued: int
    """Elements and watermarks that were accepted and not emitted."""
    emitted: int
    """Elements whose results were emitted."""
    quarantined: int
    retries: int
    timeouts: int
    cache_hits: int
    coalesced: int
    batches: int
    calls: int
    """Started calls of the function; a call of `invoke_many` counts as one."""
    failures: int
    """Calls that raised, and single records for which a call of `invoke_many` failed."""
    breaker: str
    """`closed`, `open` or `half_open`; empty without a breaker."""

    @classmethod
    def of(
        cls, operator: AsyncWaitOperator, attempts: Attempts, queue: ElementQueue, *, parked: int, emitted: int
    ) -> AsyncWaitStatistics:
        """Return the counts of an operator, and the current content of its calls and its queue."""
        operator.note_breaker()
        metrics = operator.metrics
        elements = [element for element in queue.remaining() if isinstance(element, PendingCall)]
        return cls(
            attempts=metrics.attempts,
            in_flight=len(attempts.under_way) - len(attempts.retrying),
            completed=sum(element.is_done for element in elements),
            waiting_for_retry=len(attempts.retrying),
            parked=parked,
            queued=len(queue),
            emitted=emitted,
            quarantined=metrics.quarantined,
            retries=metrics.retries,
            timeouts=metrics.timeouts,
            cache_hits=metrics.cache_hits,
            coalesced=metrics.coalesced,
            batches=metrics.batches,
            calls=metrics.calls,
            failures=metrics.failures,
            breaker=metrics.breaker,
        )


class SteppedKeys(KeyedOrderedWait):
    """Accepts elements one by one, whereas a micro-batch has them all; the controller does the rest, as in a job."""

    def __init__(self, wait: AsyncWaitOperator, loop: VirtualLoop) -> None:
        """Open the function on `loop`, which only `step` and the loop's owner advance afterwards."""
        loop.let_time_run()
        super().__init__(wait, loop=loop)
        self._loop = loop
        self._waiting: list[PendingCall] = []

    def take_in(self, element: PendingCall) -> None:
        """Begin the call for an element, or let it wait for its key."""
        self._waiting.append(element)
        self.controller.process(RecordContext(element.key_json, element))

    def step(self) -> list[PendingCall]:
        """Do everything possible now: submit calls, and process responses, until nothing more follows.

        Returns the elements that are done now, each of them once. Raises errors that fail a run.
        """
        controller = self.controller
        while True:
            while controller.batches.fire():
                pass
            self._loop.run_until(self._loop.time())
            controller.poll()
            if not controller.buffer.active:
                break
        done = [element for element in self._waiting if element.is_done]
        if done:
            self._waiting = [waiting for waiting in self._waiting if not waiting.is_done]
        return done

    def blocking(self) -> list[PendingCall]:
        """Return the elements that are parked, or not due yet, and block their keys."""
        first = {element.key_json: element for element in reversed(self._waiting)}
        return [record for key, record in first.items() if key in self._blocked]

    def take_up(self, element: PendingCall) -> None:
        """Resume an element that blocks its key: call for it, and for those behind it, as the next micro-batch would."""
        key = element.key_json
        self._blocked.discard(key)
        for waiting in self._waiting:
            if waiting.key_json == key:
                self.controller.process(RecordContext(key, waiting))

    def close(self) -> None:
        """Close the function, and the loop."""
        self._loop.let_time_run()
        self.controller.close()


R = TypeVar("R", bound=msgspec.Struct)


class CapacityFull(Exception):  # noqa: N818 - it is the response to a question, not a failure
    """Error of a call while the queue is at the operator's capacity; nothing was accepted."""


class QuarantinedRecord(msgspec.Struct, frozen=True):
    """A record that failed for good, with its last error."""

    record: Any
    error: str | None


class AsyncSnapshot(msgspec.Struct, frozen=True):
    """Content of a checkpoint: all accepted elements that were not emitted. A watermark is stored as its time (ms)."""

    queued: tuple[StoredCall | int, ...]
    ordinal: int
    now: int


@dataclass
class AsyncWaitHarness(Generic[R]):
    """Drives one `AsyncFunction` on a virtual clock: nothing waits in real time, and nothing happens by itself.

        with AsyncWaitHarness(WeatherLookup(), mode=OutputMode.ORDERED, capacity=2, timeout=timedelta(seconds=1)) as h:
            h.process(FlightEvent(...))
            h.clock.advance(5)
            assert h.output() == [Enriched(...)]

    `process` begins a call and returns. `h.clock.advance(ms)` advances the time: calls end, retries begin and timeouts
    expire on the way, in order. The call that causes an error of the run raises it.

    In mode `KEYED_ORDERED` it drives the same controller as jobs (FLIP-425), one step at a time.

    Unlike in a micro-batch, watermarks and done elements that wait for earlier ones take capacity, as in Flink. Parked
    elements do not, and resume as soon as they are due, as if a micro-batch began then.

    Arguments are those of `Stream.async_wait`. Raises `ValueError` for mode KEYED_ORDERED without a `key`, and
    for another mode with a `key`; also the errors of `Stream.async_wait`.
    """

    function: AsyncFunction[R, Any]
    mode: OutputMode = OutputMode.UNORDERED
    capacity: int = 100
    timeout: timedelta | None = timedelta(seconds=30)
    retry: AsyncRetryStrategy = field(default_factory=NoRetry)
    recovery: RecoveryOption = RecoveryOption.COST_TIME
    park_after: timedelta | None = None
    on_failure: OnFailure = OnFailure.FAIL
    breaker: CircuitBreaker | None = None
    cache: LookupCache | None = None
    batch: Batching | None = None
    key: Callable[[R], Any] | None = None
    """Mode `KEYED_ORDERED`: function of a record that returns its key."""
    services: dict[str, str] = field(default_factory=dict)
    now: InitVar[int] = 0
    """Start time of the clock (ms)."""

    def __post_init__(self, now: int) -> None:
        """Install the virtual clock, and open the function; `close`, or the end of a `with` block, undoes both.

        Raises `ValueError` for mode KEYED_ORDERED without a key, and for another mode with a key; also the errors
        of `Stream.async_wait`.
        """
        if (self.key is not None) is not (self.mode is OutputMode.KEYED_ORDERED):
            raise ValueError("mode KEYED_ORDERED needs a key, and no other mode takes one")
        described = self._described()
        self._loop = VirtualLoop()
        self.clock = LoopClock(self._loop, self._advanced)
        self.clock.start_at(now)
        self._queue = queue_of(self.mode)
        self._parked: set[PendingCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: deque[PendingCall] = deque()
        """Parked elements that are due: they wait for a place, or for the controller's next step."""
        self._output: list[Any] = []
        self._failure: BaseException | None = None
        self._ordinal = 1
        self._emitted = 0
        self._is_finishing = False
        self._operator = AsyncWaitOperator(described, self.services)
        self._stack = AsyncExitStack()
        try:
            self._by_key = self._open()
        except BaseException:
            self._loop.close()
            clock.use(self.clock.replaced)
            raise

    @classmethod
    def restore(cls, snapshot: AsyncSnapshot, function: AsyncFunction[R, Any], **arguments: Any) -> AsyncWaitHarness[R]:
        """Return a harness that continues from `snapshot`. It repeats no call that has results, and waits out back-offs.

        The clock starts at the snapshot's time; give `now=ms` for a later one, as after an outage. Raises the errors of the
        constructor.
        """
        now = arguments.pop("now", snapshot.now)
        harness = cls(function, **arguments)
        harness.clock.start_at(now)
        harness._ordinal = snapshot.ordinal
        for queued in snapshot.queued:
            if isinstance(queued, int):
                harness._queue.put_watermark(queued)
            else:
                harness._resume(queued)
        harness._advanced_to_rest()
        return harness

    def process(
        self, record: R, timestamp: int | None = None, *, kind: RowKind = RowKind.INSERT, block: bool = False
    ) -> None:
        """Accept a record, and begin its call. `timestamp` is its event time (ms), by default the clock's.

        Raises `CapacityFull` when there is no room; with `block` the clock advances until there is.
        """
        clock.use(self.clock)
        self._make_room(block=block)
        time = self.clock.now() if timestamp is None else timestamp
        element = PendingCall(Emitted(record_order(self._ordinal), time, kind, record))
        self._ordinal += 1
        if self.key is not None:
            element.key_json = msgspec.json.encode(self.key(record))
        self._take_in(element)
        self._advanced_to_rest()

    def watermark(self, timestamp: int, *, block: bool = False) -> None:
        """Accept a watermark (ms), which is emitted as `OutputMode` says. Raises `CapacityFull` as `process` does."""
        clock.use(self.clock)
        if self.mode is OutputMode.UNORDERED_PROCESSING_TIME:
            self._output.append(Watermark(timestamp))
            return
        self._make_room(block=block)
        self._queue.put_watermark(timestamp)
        self._emit()

    def finish(self) -> None:
        """End the input: make waiting retries at once and for the last time, and run everything to its end."""
        clock.use(self.clock)
        self._is_finishing = True
        self._attempts.finish()
        for queued in self._queue.remaining():
            if isinstance(queued, PendingCall):
                queued.is_last = True
        for element in sorted(self._parked, key=lambda item: item.emitted.order):
            self._unpark(element)
        self._advanced_to_rest()
        while len(self._queue) and self._is_at_work:
            self._loop.run_to_next_timer()
            self._advanced()
        self.clock.has_moved()

    def output(self) -> list[Any]:
        """Return what was emitted since the last call: records, `Watermark` and `QuarantinedRecord`, in order."""
        output, self._output = self._output, []
        return output

    def snapshot(self) -> AsyncSnapshot:
        """Return the content of a checkpoint at this moment. The harness continues."""
        queued = (
            queued.timestamp if isinstance(queued, QueuedWatermark) else self._stored(queued)
            for queued in self._queue.remaining()
        )
        return AsyncSnapshot(tuple(queued), self._ordinal, self.clock.now())

    def statistics(self) -> AsyncWaitStatistics:
        """Return the counters."""
        return AsyncWaitStatistics.of(
            self._operator, self._attempts, self._queue, parked=len(self._parked), emitted=self._emitted
        )

    def close(self) -> None:
        """Interrupt calls in flight, close the function, and restore the real clock."""
        if self._loop.is_closed():
            return
        try:
            clock.use(self.clock)
            self._attempts.stop()
            if self._by_key is not None:
                self._by_key.close()
            else:
                self._loop.run_whole(self._end())
        finally:
            self._loop.close()
            clock.use(self.clock.replaced)

    def __enter__(self) -> AsyncWaitHarness[R]:
        """Return the harness."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the harness."""
        self.close()

    # ------------------------------------------------------------------------------------------------- private

    def _described(self) -> AsyncWait:
        check_function("a harness", self.function, AsyncFunction)
        stream = described_stream(input_type(self.function))
        if self.key is not None:
            stream = stream.key_by(self.key)
        responses = stream.async_wait(
            "function",
            self.function,
            mode=self.mode,
            capacity=self.capacity,
            timeout=self.timeout,
            retry=self.retry,
            park_after=self.park_after,
            recovery=self.recovery,
            on_failure=self.on_failure,
            breaker=self.breaker,
            cache=self.cache,
            batch=self.batch,
        )
        return cast("AsyncWait", responses.operators[-1])

    def _open(self) -> SteppedKeys | None:
        if self.key is not None:
            return SteppedKeys(self._operator, self._loop)
        self._loop.run_whole(self._stack.enter_async_context(self._operator.opened()))
        return None

    @property
    def _attempts(self) -> Attempts:
        assert self._operator.attempts is not None  # noqa: S101 - the function was opened
        return self._operator.attempts

    @property
    def _is_at_work(self) -> bool:
        return bool(self._tasks) or (self._by_key is not None and self._by_key.controller.in_flight > 0)

    async def _end(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    def _make_room(self, *, block: bool) -> None:
        while len(self._queue) - len(self._parked) >= self.capacity:
            if not block or not self._loop.run_to_next_timer():
                raise CapacityFull(f"no place is free (capacity {self.capacity})")
            self._advanced()

    def _take_in(self, element: PendingCall) -> None:
        self._queue.put(element)
        if element.is_done:
            self._queue.done(element)
        elif self._by_key is not None:
            self._by_key.take_in(element)
        else:
            self._begin(element)

    def _begin(self, element: PendingCall) -> None:
        pause = (element.next_attempt_at or 0) - self.clock.now()
        if pause > 0 and not self._is_finishing:
            self._park(element, pause)
            return
        if len(self._tasks) >= self.capacity:
            self._due.append(element)
            return
        task = self._loop.create_task(self._settle(element))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._due and not self._loop.is_closed():
            self._begin(self._due.popleft())

    async def _settle(self, element: PendingCall) -> None:
        try:
            await self._attempts.settle(element)
        except Exception as error:  # noqa: BLE001 - raised again by the call that made it happen
            self._failure = self._failure or error
            return
        if element.is_parked:
            self._park(element, (element.next_attempt_at or 0) - self.clock.now())
        elif element.is_done:
            self._queue.done(element)
            self._emit()

    def _park(self, element: PendingCall, milliseconds: int) -> None:
        self._parked.add(element)
        self._loop.call_later(max(milliseconds, 0) / 1000, self._unpark, element)

    def _unpark(self, element: PendingCall) -> None:
        if element in self._parked:
            self._parked.discard(element)
            element.next_attempt_at = None
            if self._by_key is None:
                self._begin(element)
            else:
                self._due.append(element)  # the controller must not run within the loop that it runs

    def _emit(self) -> None:
        for taken in self._queue.take():
            if isinstance(taken, QueuedWatermark):
                self._output.append(Watermark(taken.timestamp))
            elif taken.status is Status.QUARANTINED:
                self._output.append(QuarantinedRecord(taken.emitted.record, taken.last_error))
            else:
                self._emitted += 1
                self._output += taken.results or ()

    def _advanced_to_rest(self) -> None:
        """Run everything that can run without time passing."""
        self._loop.run_until(self._loop.time())
        self._advanced()

    def _step_keys(self, keys: SteppedKeys) -> None:
        while True:
            due, self._due = self._due, deque()
            for element in due:
                keys.take_up(element)
            for element in keys.step():
                self._queue.done(element)
            for element in keys.blocking():
                if element not in self._parked:
                    self._park(element, (element.next_attempt_at or 0) - self.clock.now())
            self._loop.run_until(self._loop.time())  # elements parked for no time at all
            if not self._due:
                return

    def _advanced(self) -> None:
        if self._by_key is not None:
            self._step_keys(self._by_key)
        self._emit()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _stored(self, element: PendingCall) -> StoredCall:
        row = to_stored_element(element, element.sequence or int.from_bytes(element.emitted.order[:8]))
        attempts, cost = self._attempts.so_far(element)
        return msgspec.structs.replace(row, attempts=attempts, cost_ms=round(cost))

    def _resume(self, row: StoredCall) -> None:
        (element,) = loaded([row], input_type(self.function), output_type(self.function))
        recovered(element, self.recovery)
        self._take_in(element)
