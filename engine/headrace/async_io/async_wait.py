"""Async wait operator (Flink Async I/O, FLIP-232): processes the elements of a slice, and resumes pending earlier ones.

At most `capacity` elements are in flight at once on one asyncio loop. Results leave through the queue of the operator's
mode; elements left in the queue at the end go to the table `async_requests`. Elements of a slice are in memory anyway,
so unlike in Flink, results that wait for earlier ones take no capacity: in ordered mode, an element that waits for its
retry delays only results.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from operator import attrgetter, methodcaller

from headrace import clock
from headrace.api.graph import AsyncWait, OutputMode
from headrace.api.records import RowKind
from headrace.async_io.attempts import Attempts, recovered, user_error
from headrace.async_io.deletions import Deletions, settling_retractions
from headrace.async_io.executor import MisuseError, awaited, take_back, turn
from headrace.async_io.invocation import Invocation
from headrace.async_io.limits import Breaker, BreakerState, Opening, RefusedError, ServiceLimit
from headrace.async_io.lookup_cache import first_of_keys_first
from headrace.async_io.metrics import ServiceMetrics
from headrace.async_io.pending_call import PENDING, QUARANTINED, PendingCall, outputs_of
from headrace.async_io.queue import ElementQueue, OrderedQueue, UnorderedQueue
from headrace.async_io.responses import KeptResponses
from headrace.async_io.traced_calls import CallNotes
from headrace.errors import UserFunctionError
from headrace.execution.element import Emitted
from headrace.interrupts import is_interrupt

_SECONDS_BETWEEN_LOOKS = 0.25
_RETRACTIONS = frozenset(int(kind) for kind in RowKind if kind.is_retraction)


class AsyncWaitOperator:
    """One `AsyncWait` operator in one task."""

    def __init__(
        self,
        operator: AsyncWait,
        services: dict[str, str],
        *,
        limit: ServiceLimit | None = None,
        open_until: int | None = None,
        stop: Callable[[], bool] | None = None,
        finishes: bool = False,
        responses: KeptResponses | None = None,
        job: str = "JOB",
        notes: CallNotes | None = None,
    ) -> None:
        """Take `services`, the URLs for the function's `open`, and `limit`, the load limits of its service.

        `open_until` is when a breaker that an earlier micro-batch left open admits a probe (ms). `stop` is called four
        times a second and says whether to stop: calls in flight are then interrupted, and their elements stay pending.
        With `finishes`, elements that an earlier micro-batch left, due or not, are called at once and for the last time
        (FLIP-232, `endInput`). On a branch, elements take outcomes of the live lineage from `responses`, as far as they are kept.
        `job` is the job as commands name it, for messages. `notes` take the calls for the task's trace.
        """
        self.operator = operator
        self.metrics = ServiceMetrics(latencies={})
        self.pending: list[PendingCall] = []
        """After a run: accepted elements that were not emitted, in order."""
        self.settled: list[PendingCall] = []
        """After a run: resumed elements whose rows are to be removed."""
        self.quarantined: list[PendingCall] = []
        self._services = services
        self._limit = limit
        self._open_until = open_until
        self._stop = stop
        self._finishes = finishes
        self._responses = responses
        self._job = job
        self._notes = notes
        self._deletions = Deletions(operator) if operator.upsert_key else None
        self._settle = settling_retractions(operator, self._deletions)
        self._arrived: Sequence[PendingCall] = ()
        self._done_before: set[int | None] = set()
        self._breaker: Breaker | None = None
        self.attempts: Attempts | None = None
        """The object that makes the calls, while the function is open."""

    def run(self, elements: Sequence[Emitted], resumed: Sequence[PendingCall] = ()) -> list[Emitted]:
        """Call `run_async` in a loop of its own."""
        with self.guarded():
            return asyncio.run(self.run_async(elements, resumed))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Raise `UserFunctionError` where a task that user code has made ends the loop, or cancels the engine's tasks.

        asyncio lets SystemExit and KeyboardInterrupt out of any task, past the code that waits for it.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or is_interrupt(error):
                raise
            raise user_error(self.operator.name, "unknown: a task that it has made, or cancelled", error) from error

    async def run_async(self, elements: Sequence[Emitted], resumed: Sequence[PendingCall] = ()) -> list[Emitted]:
        """Process new elements, and those of `resumed` that are due; return the results to emit, in arrival order.

        Raises `ServiceError` when an element fails for good and the operator says `FAIL`; `UserFunctionError` for an
        exception that the retry strategy does not cover, a response that is not a list of the function's output type, or
        an exception of `open` or `close` (which never hides an earlier failure). The first failure ends the run: calls
        in flight are cancelled.
        """
        queue = queue_of(self.operator.mode)
        arrived = in_arrival_order(map(PendingCall, elements), self.taken_up(resumed))
        self.look_up(arrived)
        if self.needs_no_call_for_some:
            for element in arrived:
                self.take(element)
        for element in arrived:
            queue.put(element)
            if element.is_done:
                queue.done(element)
        due = [
            element
            for element in arrived
            if (element.status is PENDING and element.next_attempt_at is None) or is_due(element)
        ]
        if due:
            async with self.opened() as attempts:
                await self._settle_all(attempts, due, queue)
        taken = sorted((element for element in queue.take() if isinstance(element, PendingCall)), key=_order_of)
        self.keep(taken, [element for element in queue.remaining() if isinstance(element, PendingCall)], arrived)
        return self.emitted

    def taken_up(self, resumed: Sequence[PendingCall]) -> Iterable[PendingCall]:
        """Return the elements that an earlier micro-batch left, with their remaining time, in arrival order."""
        self.metrics.resumed += len(resumed)
        self._done_before = {element.sequence for element in resumed if element.is_done}
        if self._finishes:
            for waiting in resumed:
                waiting.is_last = True
        return sorted((recovered(element, self.operator.recovery) for element in resumed), key=_order_of)

    @property
    def answered(self) -> list[PendingCall]:
        """Return, after a run, the elements that have an outcome of the service since this run. A deletion asks it nothing."""
        return [
            element
            for element in self._arrived
            if element.is_done and element.sequence not in self._done_before and not self._is_deletion(element)
        ]

    @property
    def has_responses(self) -> bool:
        """Return whether elements may take outcomes of the live lineage."""
        return self._responses is not None

    @property
    def needs_no_call_for_some(self) -> bool:
        """Return whether `take` may complete elements."""
        return self._responses is not None or self._settle is not None

    def look_up(self, arrived: Sequence[PendingCall]) -> bool:
        """Read the kept responses to elements; return whether all of them are done, or have one.

        Raises `ConfigError` for an element that is due and has none, if the service must not be called.
        """
        if self._responses is None:
            return False
        self._responses.look_up(arrived)
        unanswered = [
            element
            for element in arrived
            if not element.is_done and not self._responses.has(element) and not self._is_deletion(element)
        ]
        for element in unanswered:
            if is_due(element):
                self._responses.refuse_call(element)
        return not unanswered

    def take(self, element: PendingCall) -> bool:
        """Give an element its outcome without a call: that of the live lineage, or of a deletion; return False if there is none."""
        if self._settle is not None and self._is_deletion(element) and not element.is_done:
            return self._settle(element)
        if self._responses is None or element.is_done or not self._responses.take(element):
            return False
        self.metrics.responses_taken += 1
        self.metrics.quarantined += element.status is QUARANTINED
        return True

    def _is_deletion(self, element: PendingCall) -> bool:
        return self._settle is not None and element.emitted.kind in _RETRACTIONS

    def keep(self, taken: Sequence[PendingCall], left: Sequence[PendingCall], arrived: Sequence[PendingCall]) -> None:
        """Store the results and states of elements: those that may be emitted (`taken`), those `left`, of all that `arrived`."""
        if self._deletions is None:
            self.emitted = list(outputs_of(taken))
            # A quarantined element has no results, so nothing waits for earlier elements.
            self.pending = [element for element in left if element.status is not QUARANTINED]
        else:
            self.emitted = list(self._deletions.outputs(taken))
            self.pending = self._deletions.left(left)
        self.quarantined = [element for element in arrived if element.status is QUARANTINED]
        self._arrived = arrived
        finished = [*taken, *(element for element in left if element.status is QUARANTINED)]
        self.settled = [element for element in finished if element.sequence is not None]
        if self._breaker is None and self.operator.breaker is not None and self._open_until is not None:
            # There was no call, so the breaker has not changed.
            self.metrics.breaker, self.metrics.open_until = BreakerState.OPEN.value, self._open_until

    def drop(self) -> None:
        """Forget all elements after a run: freed one by one, they cost the collection at the end of the task nothing."""
        self.emitted, self.pending, self.settled, self.quarantined, self._arrived = [], [], [], [], ()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Attempts]:
        """Open the function for the block, and always close it afterwards."""
        function, began, opening = self.operator.function, clock.monotonic(), Opening(self._open)
        _keep_freed_memory()
        try:
            await opening.begin()
            attempts = self.attempts = self._attempts(opening)
            try:
                with self._looking_for_stop(attempts):
                    yield attempts
            finally:
                attempts.close()
                await self._invocation.close()
                await opening.close()
        except BaseException:
            with contextlib.suppress(BaseException):  # the first error is the one to report
                await function.close()
            raise
        if opening.is_open:
            await self._opens_or_closes(
                "none any more: close() failed", partial(awaited(methodcaller("close"), "close"), function)
            )
        self.metrics.busy_ms += round((clock.monotonic() - began) * 1000)
        self.note_breaker()

    async def _open(self) -> None:
        function = self.operator.function
        try:
            await self._opens_or_closes(
                "none yet: open() failed", partial(awaited(function.open, "open"), self._services)
            )
        except UserFunctionError as error:
            cause = error.__cause__
            if not isinstance(cause, Exception) or isinstance(cause, MisuseError) or not self._is_worth_a_retry(cause):
                raise
            with contextlib.suppress(Exception):  # release what `open` acquired before it failed
                await function.close()
            raise RefusedError(cause) from cause

    def _is_worth_a_retry(self, error: Exception) -> bool:
        try:
            return self.operator.retry.retries_exception(error)
        except BaseException as raised:
            if is_interrupt(raised):
                raise
            raise user_error(self.operator.name, "none yet: the retry strategy failed", raised) from raised

    def _attempts(self, opening: Opening) -> Attempts:
        policy = self.operator.breaker
        self._breaker = None if policy is None else Breaker(policy, self._open_until)
        self._invocation = Invocation(self.operator, self.metrics, self._limit, opening, self._notes)
        return Attempts(self.operator, self._invocation, self.metrics, self._breaker, job=self._job)

    def note_breaker(self) -> None:
        """Copy the breaker's state to the metrics."""
        if self._breaker is not None:
            self.metrics.breaker = self._breaker.state.value
            self.metrics.breaker_opened = self._breaker.opened
            self.metrics.open_until = self._breaker.open_until

    async def _settle_all(self, attempts: Attempts, due: Sequence[PendingCall], queue: ElementQueue) -> None:
        feed = self._feed(due)

        async def worker() -> None:
            task = asyncio.current_task()
            for element in feed:
                if attempts.answered_at_once(element):
                    queue.done(element)
                    continue
                if (await attempts.settle(element, task)).is_done:
                    queue.done(element)
                if attempts.is_stopping:
                    continue
                try:
                    await turn()
                except asyncio.CancelledError:
                    if task is None or attempts.is_ending:
                        raise
                    take_back(task)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.operator.capacity, len(due))):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__

    def _feed(self, due: Sequence[PendingCall]) -> Iterator[PendingCall]:
        """Yield elements in arrival order, but with a cache, ask for each key before further elements need its response."""
        wait = self.operator
        window = 0 if wait.cache is None else min(wait.capacity, wait.cache.size // 3)
        if not window:
            return iter(due)
        return first_of_keys_first(due, lambda element: wait.function.cache_key(element.emitted.record), window)

    @contextlib.contextmanager
    def _looking_for_stop(self, attempts: Attempts) -> Iterator[None]:
        """Call `stop` four times a second, but not at once: a run without time left still makes some progress."""
        if self._stop is None:
            yield
            return
        looking = asyncio.create_task(_look(self._stop, attempts))
        try:
            yield
        finally:
            looking.cancel()

    async def _opens_or_closes(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise user_error(self.operator.name, what, error) from error


def _keep_freed_memory() -> None:
    """Free a large block, from which on glibc keeps freed blocks of up to this size for the process.

    asyncio takes 256 KiB for each response that it reads, and frees what the response does not fill. Until it has seen a larger block
    freed, glibc asks the system for each of them: two page faults and 10 us of CPU a call.
    """
    bytes(1 << 20)


async def _look(stop: Callable[[], bool], attempts: Attempts) -> None:
    await clock.sleep_async(_SECONDS_BETWEEN_LOOKS)
    while not stop():
        await clock.sleep_async(_SECONDS_BETWEEN_LOOKS)
    attempts.stop()


def queue_of(mode: OutputMode) -> ElementQueue:
    """Return a queue for a mode."""
    return OrderedQueue() if mode is OutputMode.ORDERED else UnorderedQueue()


def is_due(element: PendingCall) -> bool:
    """Return whether an element is to be called now."""
    if element.is_done:
        return False
    return element.is_last or element.next_attempt_at is None or element.next_attempt_at <= clock.now()


def in_arrival_order(arriving: Iterable[PendingCall], resumed: Iterable[PendingCall]) -> list[PendingCall]:
    """Return new and resumed elements together, in arrival order."""
    resumed = list(resumed)
    return list(merge(resumed, arriving, key=_order_of)) if resumed else list(arriving)


_order_of = attrgetter("emitted.order")
