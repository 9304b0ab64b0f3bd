"""Async execution controller (FLIP-425): order per key, batches of requests, callbacks, back-pressure.

    input ──> process() ──key free?──> user code ──state not cached──> active buffer ──full──> executor
                 │ no                     ^                                                       │
                 v                        └──────────── mailbox: callbacks, before input <────────┘
          blocking buffer ──key free──────┘

All user code runs in the thread that calls `process`, `on_non_record` and `drain`. The controller drives coroutines
itself: a coroutine runs until it awaits a future without an answer, and a mail resumes it when the answer has arrived.
Where the answer is in the cache it never suspends ("immediate execution"), and a record costs only some dictionary
look-ups more than a plain call.

Only the `KeyedWork` knows what a record is and what runs before and after it; only the executor knows what a request
reads. Access to state, and calls in order of keys, are two uses of this one controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from headrace import native
from headrace.api.future import Continuation, StateFuture
from headrace.execution.epoch import Epoch, EpochManager
from headrace.execution.key_accounting import KeyAccountingUnit
from headrace.execution.keyed_operator import Call, KeyedWork, foreign_await
from headrace.execution.record_context import RecordContext
from headrace.execution.requests import AsyncExecutor, AsyncRequest, RequestBatches, RequestBuffer
from headrace.execution.statistics import ControllerStatistics
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder


class AsyncExecutionController(native.RunningTask):
    """Async execution controller, one for each operator and task."""

    def __init__(self, work: KeyedWork, executor: AsyncExecutor, options: AsyncStateOptions) -> None:
        """Start with nothing in flight."""
        self.epochs = EpochManager()
        self.keys = KeyAccountingUnit()
        self.buffer = RequestBuffer()
        self.in_flight = 0
        self.batches = RequestBatches(self.buffer, executor, options)
        self.requests = 0
        self._work = work
        self._call, self._before, self._after, self._due = work.call, work.before, work.after, work.due
        self._occupied = self.keys.occupied
        self._activate, self._batch_is_due = self.batches.activate, self.batches.is_due
        self._executor = executor
        self._limit = options.in_flight_records_limit
        # If async state is switched off, there are no requests to keep in order: records of a key run one after the
        # other.
        self._state_ordered = options.enabled and options.order_with_same_key is KeyOrder.STATE_ORDERED
        self._strict = options.event_order_watermark is EventOrder.STRICTLY_ORDERED
        self._mails: deque[tuple[Callable[..., None], Any, Any]] = deque()
        self.context: Any = RecordContext(b"", None)

    # ------------------------------------------------------------------------------------------------ input

    def process(self, context: RecordContext, epoch: Epoch | None = None) -> None:
        """Accept a record: run it, or let it wait for its key.

        Blocks, running callbacks, while the limit of records in flight is reached. `epoch` is by default the open one.
        A context derived from an earlier one, such as a timer, has that one's epoch, and waits for its key in any mode.
        """
        self._get_on()
        if epoch is not None or self._state_ordered or context.key_json in self._occupied:
            self._take_in(context, epoch)
            return
        earlier = self._before(context) if self._due else None
        if earlier is None:
            self._run_at_once(context)
        else:
            self._admit(context)
            self._run_before(context, None, earlier)

    def run_due(self, context: RecordContext, epoch: Epoch, before: Callable[[Any], RecordContext | None]) -> None:
        """Run what is due before `context`, which has no code of its own, as `process` would, but without queues where nothing waits.

        There `before` says what is due: it is `KeyedWork.before`, or a function that takes several due things at once.
        """
        self._get_on()
        occupied = self._occupied
        while context.key_json not in occupied:
            earlier = before(context)
            if earlier is None:
                return
            # It counts in the epoch only when it makes a request: nothing else runs while its code runs.
            earlier.due_in, earlier.epoch = earlier.epoch or epoch, None
            self._run_at_once(earlier)
        self._take_in(context, epoch)

    def _get_on(self) -> None:
        """Run callbacks that are ready; block, running callbacks, while the limit of records in flight is reached."""
        executor = self._executor
        is_answered = executor.in_flight and executor.has_completed
        if is_answered or self._mails or (self.buffer.active and self._batch_is_due()):
            self.poll()
        while self.in_flight >= self._limit:
            self.yield_()

    def _take_in(self, context: RecordContext, epoch: Epoch | None) -> None:
        self._count_in(context, epoch or self.epochs.open)
        if self._state_ordered and epoch is None:
            self._run(context, None)
        elif self.keys.occupy(context):
            self._start(context, None)
        else:
            self.buffer.block(context)

    def _run_at_once(self, context: RecordContext) -> None:
        """Run a record whose key is free, and before which nothing is due.

        It is counted as in flight only when it makes a request: nothing else runs while its code runs. This is the
        common case where state is cached. So `_run` and `_step` are inlined here: three calls fewer save a fifth of the
        framework's cost.
        """
        context.owns_key = True
        context.references = 1
        self.context = context
        try:
            call = self._call(context)
        except BaseException as error:
            raise self._work.failed(context, error) from error
        if call is not None:
            try:
                awaited = call.send(None)
            except StopIteration:
                pass
            except BaseException as error:
                raise self._work.failed(context, error) from error
            else:
                self._suspend(context, call, awaited)
                self._settle(context)
                return
        if context.references > 1 or context.overdue:  # requests, callbacks, or an overdue timer right after it
            self.release(context)
            self._settle(context)
        else:
            context.references = 0

    @property
    def runs_at_once(self) -> bool:
        """Return whether nothing is in flight, so that each record runs when it arrives, and ends unless it waits."""
        return not (
            self.in_flight or self._mails or self.buffer.active or self._executor.in_flight or self._state_ordered
        )

    def run_loop(self, loop: native.RecordLoop, elements: Iterator[Any], watermark: int) -> None:
        """Run records one after the other; return when there are no more, or when one waits.

        Called while `runs_at_once`. The loop sets `context` before the code of each record, and returns after a record for
        which it called `run_behind` or `end_of_code`.
        """
        try:
            waiting = loop.run(elements, watermark)
        except BaseException as error:
            raise self._work.failed(self.context, error) from error
        if waiting is not None:
            self._suspend(self.context, *waiting)
            self._settle(self.context)

    @staticmethod
    async def awaiting(awaitable: Awaitable[None]) -> None:
        """Await what a function has returned instead of a coroutine."""
        await awaitable

    def run_behind(self, earlier: RecordContext, context: RecordContext) -> None:
        """Run a record of a loop after `earlier`, which is due before it."""
        self._admit(context)
        self._run_before(context, None, earlier)

    def end_of_code(self, context: RecordContext) -> None:
        """Finish a record of a loop, whose code has ended, when its requests and callbacks are done."""
        if context.has_waited:
            return  # the loop was resumed by `_step`, which does it
        self.release(context)
        self._settle(context)

    def _settle(self, context: RecordContext) -> None:
        self._go_on(context, None)
        if context.references and context.epoch is None:
            raise self._stuck(context)  # it made no request, so there is none to wait for

    def _admit(self, context: RecordContext) -> None:
        """Count a record whose key is free as in flight. Inlines `_count_in` and `occupy`: every first request calls this."""
        self.in_flight += 1
        context.epoch = epoch = context.due_in or self.epochs.open
        epoch.ongoing += 1
        self._occupied[context.key_json] = context
        context.owns_key = True

    def on_non_record(self, trigger: Callable[[Epoch], None], final: Callable[[], None]) -> None:
        """Accept a watermark, as `EpochManager.on_non_record` does. In strict order, it is processed on return."""
        self.on_event(trigger, final, strict=self._strict)

    def on_event(self, trigger: Callable[[Epoch], None], final: Callable[[], None], *, strict: bool = True) -> None:
        """Accept an event that is not a record. By default all records before it finish first, and it finishes before the next."""
        self.epochs.on_non_record(trigger, final)
        if strict:
            self.drain()
        elif self.epochs.can_advance:
            self.epochs.advance()

    def drain(self) -> None:
        """Finish all accepted records (FLIP-425, "Checkpoint Trigger")."""
        while not self.is_idle:
            self.yield_()

    def drain_fast(self, may_wait: Callable[[Any], bool]) -> list[Any]:
        """Finish only records that have begun (FLIP-425, "Faster Checkpoint Drain"); return the withdrawn contexts.

        `may_wait` is called for contexts that have not begun, and for those with a request that is not being executed:
        it says whether they can resume from there. Watermarks that had to wait are dropped.
        """
        withdrawn: list[Any] = []
        self.epochs.abandon()
        while not self.is_idle:
            withdrawn += self._withdraw(may_wait)
            if not self.is_idle:
                self.yield_()
        return withdrawn

    def _withdraw(self, may_wait: Callable[[Any], bool]) -> list[RecordContext]:
        withdrawn = self.buffer.withdraw(may_wait)
        for context in withdrawn:
            self.in_flight -= 1
            self._epoch_of(context).ongoing -= 1
            if context.owns_key:
                self._unblock(context)
        return withdrawn

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is in flight."""
        return not (self.in_flight or self._mails or not self.epochs.is_idle)

    # ------------------------------------------------------------------------------------------------- loop

    def poll(self) -> None:
        """Run ready callbacks, and start a batch that is full or has waited long enough."""
        for request in self._executor.completed(wait=False):
            self._answer(request)
        self.run_mails()
        if self.epochs.can_advance:
            self.epochs.advance()
        while self.buffer.active and self.batches.fires_by_itself and self._batch_is_due():
            self.batches.fire()

    def yield_(self) -> None:
        """Advance by one step: run callbacks, or else start a batch, or else wait for one."""
        if self._mails:
            self.run_mails()
        elif self.epochs.can_advance:
            self.epochs.advance()
        elif self.buffer.active and self._executor.has_room:
            self.batches.fire()
        else:
            done = self._executor.completed(wait=True)
            if not done and self.in_flight and not self._mails:
                raise self._stuck(self.keys.any() or self.context)
            for request in done:
                self._answer(request)

    def run_mails(self) -> None:
        """Run all mails, including those that arrive meanwhile."""
        mails = self._mails
        while mails:
            function, context, argument = mails.popleft()
            function(context, argument)

    @property
    def has_work(self) -> bool:
        """Return whether a callback or an epoch is ready."""
        return bool(self._mails) or self.epochs.can_advance

    def close(self) -> None:
        """Close the executor."""
        self._executor.close()

    # ---------------------------------------------------------------------------------------------- requests

    def request(self, context: RecordContext, action: Any, answered: Callable[[Any], None], /) -> None:
        """Accept a request of a record: it joins the next batch, once its record owns the key.

        `answered` is called with the executor's answer, as code of the record.
        """
        if context.epoch is None:
            self._admit(context)
        request = AsyncRequest(context, action, answered)
        context.references += 1
        self.requests += 1
        if context.owns_key:
            self._activate(request)
        elif self.buffer.join(request):
            return
        elif self.keys.occupy(context):
            self._start(context, request)
        else:
            self.buffer.block(context, request)

    def register(self, continuation: Continuation, /) -> None:
        """Run `continuation` at its turn, as code of the current record; increment the record's reference count."""
        context: RecordContext = self.context
        if not all(future.belongs_to(context) for future in continuation.futures):
            msg = "it chained a callback to what another record has asked for: state belongs to the key that runs"
            raise RuntimeError(msg)
        context.references += 1
        if context.callbacks is None:
            context.callbacks = deque()
        context.callbacks.append(continuation)

    def _answer(self, request: AsyncRequest) -> None:
        if request.error is not None:
            raise request.error
        context = request.context
        self.context = context
        try:
            request.answered(request.answer)
        except BaseException as error:
            raise self._work.failed(context, error) from error
        if context.callbacks or context.call is not None:
            self._mails.append((self._go_on, context, None))
        self.release(context)

    # ---------------------------------------------------------------------------------------------- user code

    def _start(self, context: RecordContext, request: AsyncRequest | None) -> None:
        """Start a context that now owns its key: run what is due before it, then the context, or its request."""
        earlier = self._before(context) if self._due else None
        if earlier is not None:
            self._run_before(context, request, earlier)
        elif request is None:
            self._run(context, None)
        else:
            for own_request in (request, *self.buffer.take_joined(context)):
                self._activate(own_request)

    def _run_before(self, context: RecordContext, request: AsyncRequest | None, earlier: RecordContext) -> None:
        self.buffer.block_first(context, request)
        self._count_in(earlier, earlier.epoch or self._epoch_of(context))
        self.keys.pass_on(context, earlier)
        if request is None:
            self._run(earlier, None)
        else:
            self._mails.append((self._run, earlier, None))  # the code that made the request is still running

    def _run(self, context: RecordContext, _: None) -> None:
        context.references = 1
        self.context = context
        try:
            call = self._call(context)
        except BaseException as error:
            raise self._work.failed(context, error) from error
        if call is None:
            self.release(context)
        else:
            self._step(context, call)
        if context.callbacks or context.call is not None:
            self._go_on(context, None)

    def _step(self, context: RecordContext, call: Call) -> None:
        """Run a coroutine until it awaits an answer that has not arrived, or ends."""
        self.context = context
        try:
            awaited = call.send(None)
        except StopIteration:
            self.release(context)
        except BaseException as error:
            raise self._work.failed(context, error) from error
        else:
            self._suspend(context, call, awaited)

    def _suspend(self, context: RecordContext, call: Call, awaited: object) -> None:
        if not isinstance(awaited, StateFuture) or not awaited.belongs_to(context):
            code = cast("Call", call.cr_await) if call.cr_code in _LOOPS else call
            raise self._work.failed(context, foreign_await(code))
        context.call, context.awaited = call, awaited

    def _go_on(self, context: RecordContext, _: None) -> None:
        """Run the record's callbacks whose turn it is; after the last one, resume the waiting code."""
        while True:
            continuation = context.next_callback()
            if continuation is not None:
                self._call_back(context, continuation)
            elif not context.callbacks and context.call is not None and context.awaited.done:
                call, context.call = context.call, None
                self._step(context, call)
            else:
                return

    def _call_back(self, context: RecordContext, continuation: Continuation) -> None:
        self.context = context
        try:
            continuation.run()
        except BaseException as error:
            raise self._work.failed(context, error) from error
        self.release(context)

    def release(self, context: RecordContext) -> None:
        """Decrement the record's reference count; at 0 finish the record, and release its key."""
        context.references -= 1
        if context.references:
            return
        follower = self._after(context) if context.overdue else None
        epoch = context.epoch
        if follower is not None:
            self._count_in(follower, epoch or context.due_in or self.epochs.open)
            self._hand_over(context, follower)
        if epoch is None:
            return
        if follower is None and context.owns_key:
            self._unblock(context)
        self.in_flight -= 1
        epoch.ongoing -= 1

    def _hand_over(self, context: RecordContext, follower: RecordContext) -> None:
        if context.owns_key:
            self.keys.pass_on(context, follower)
            self._mails.append((self._run, follower, None))
        elif self.keys.occupy(follower):
            self._mails.append((self._start, follower, None))
        else:
            self.buffer.block(follower)

    def _unblock(self, context: RecordContext) -> None:
        # Use the mailbox, not a call: a thousand records of one key would nest a thousand calls.
        waiter = self.buffer.unblock(context.key_json) if self.buffer.blocked else None
        if waiter is None:
            self.keys.release(context)
        else:
            self.keys.pass_on(context, waiter.context)
            self._mails.append((self._start, waiter.context, waiter.request))

    def _count_in(self, context: RecordContext, epoch: Epoch) -> None:
        self.in_flight += 1
        epoch.ongoing += 1
        context.epoch = epoch

    def _epoch_of(self, context: RecordContext) -> Epoch:
        assert context.epoch is not None  # noqa: S101 - set when it was accepted
        return context.epoch

    def _stuck(self, context: Any) -> BaseException:
        return self._work.failed(context, RuntimeError("it awaits a future that nothing will complete"))

    def statistics(self) -> ControllerStatistics:
        """Return the controller's statistics."""
        return ControllerStatistics(
            in_flight=self.in_flight,
            active=len(self.buffer.active),
            blocking=self.buffer.blocked,
            occupied_keys=len(self.keys),
            epochs=len(self.epochs),
            batches=self.batches.started,
            batches_in_flight=self._executor.in_flight,
            requests=self.requests,
        )


_LOOPS = {native.LOOP_CODE, AsyncExecutionController.awaiting.__code__}
"""Code of coroutines that await the code of a record."""
