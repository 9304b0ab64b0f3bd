"""The async execution controller (FLIP-425): order per key, batches of requests, callbacks, back-pressure.

    input ──> process() ──key free?──> user code ──state not at hand──> active buffer ──full──> executor
                 │ no                     ^                                                       │
                 v                        └──────────── mailbox: callbacks, before input <────────┘
          blocking buffer ──key free──────┘

All user code runs in the thread that calls `process`, `on_non_record` and `drain`. A coroutine is driven by hand: it runs
until it awaits a future that has no answer yet, and is resumed by a mail when the answer is there. Where the answer
is at hand it never suspends ("immediate execution"), and a record costs some dictionary look-ups more than
a plain call.

What a record is, and what comes before and after it, is known to the `KeyedWork` alone; what a request asks for, to the
executor. Access to state, and look-ups in order of keys, are two uses of this one controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.api import StateFuture
from headrace.api.future import Continuation
from headrace.execution.epoch import Epoch, EpochManager
from headrace.execution.key_accounting import KeyAccountingUnit
from headrace.execution.keyed_work import Call, KeyedWork, foreign_await
from headrace.execution.options import AsyncStateOptions, EventOrder, KeyOrder
from headrace.execution.record_context import RecordContext
from headrace.execution.request import AsyncExecutor, AsyncRequest
from headrace.execution.request_batches import RequestBatches
from headrace.execution.request_buffer import RequestBuffer
from headrace.execution.statistics import ControllerStatistics


class AsyncExecutionController:
    """One per operator and task."""

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
        # Switched off, there is no request to order by: records of a key run one after the other.
        self._state_ordered = options.enabled and options.order_with_same_key is KeyOrder.STATE_ORDERED
        self._strict = options.event_order_watermark is EventOrder.STRICTLY_ORDERED
        self._mails: deque[tuple[Callable[..., None], Any, Any]] = deque()
        self.context: Any = RecordContext(b"", None)

    # ------------------------------------------------------------------------------------------------ input

    def process(self, context: RecordContext, epoch: Epoch | None = None) -> None:
        """Take a record in: run it, or let it wait for its key.

        Blocks, running callbacks, while the limit of records in flight is reached. `epoch` is the open one, unless the
        context is derived from an earlier one, such as a timer: then it waits for its key in any mode.
        """
        executor = self._executor
        is_answered = executor.in_flight and executor.has_completed
        if is_answered or self._mails or (self.buffer.active and self._batch_is_due()):
            self.poll()
        while self.in_flight >= self._limit:
            self.yield_()
        if epoch is not None or self._state_ordered or context.key_json in self._occupied:
            self._take_in(context, epoch)
            return
        earlier = self._before(context) if self._due else None
        if earlier is None:
            self._run_at_once(context)
        else:
            self._admit(context)
            self._run_before(context, None, earlier)

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

        It is not counted in unless it makes a request: as long as its code runs, nothing else does. Where state is at hand
        that is the rule. So this is `_run` and `_step` written out: three calls less are a fifth of the framework's cost.
        """
        context.owns_key = True
        context.references = 1
        self.context = context
        try:
            call = self._call(context)
        except Exception as error:
            raise self._work.failed(context, error) from error
        if call is not None:
            try:
                awaited = call.send(None)
            except StopIteration:
                pass
            except Exception as error:
                raise self._work.failed(context, error) from error
            else:
                self._suspend(context, call, awaited)
                self._settle(context)
                return
        if context.references > 1 or context.overdue:  # requests, callbacks, or what has to run right after it
            self.release(context)
            self._settle(context)
        else:
            context.references = 0

    def _settle(self, context: RecordContext) -> None:
        self._go_on(context, None)
        if context.references and context.epoch is None:
            raise self._stuck(context)  # it has made no request, so there is none to wait for

    def _admit(self, context: RecordContext) -> None:
        """Count in a record whose key is free. `_count_in` and `occupy` written out: this is every first request's way."""
        self.in_flight += 1
        context.epoch = epoch = self.epochs.open
        epoch.ongoing += 1
        self._occupied[context.key_json] = context
        context.owns_key = True

    def on_non_record(self, trigger: Callable[[Epoch], None], final: Callable[[], None]) -> None:
        """Take in a watermark: see `EpochManager.on_non_record`. Strictly ordered, it is done on return."""
        self.on_event(trigger, final, strict=self._strict)

    def on_event(self, trigger: Callable[[Epoch], None], final: Callable[[], None], *, strict: bool = True) -> None:
        """Take in another event than a record. By default all records before it are done first, and it before the next."""
        self.epochs.on_non_record(trigger, final)
        if strict:
            self.drain()
        elif self.epochs.can_advance:
            self.epochs.advance()

    def drain(self) -> None:
        """Finish everything that was taken in (FLIP-425, "Checkpoint Trigger")."""
        while not self.is_idle:
            self.yield_()

    def drain_fast(self, may_wait: Callable[[Any], bool]) -> list[Any]:
        """Finish only what has begun (FLIP-425, "Faster Checkpoint Drain"); the contexts that were withdrawn.

        `may_wait` is asked for contexts that have not begun, and for those with a request that is not being executed: whether
        they can be resumed from there. Watermarks that had to wait are forgotten.
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
        """Whether nothing is in flight."""
        return not (self.in_flight or self._mails or not self.epochs.is_idle)

    # ------------------------------------------------------------------------------------------------- loop

    def poll(self) -> None:
        """Run the callbacks that are ready, and start a batch that is full or has waited long enough."""
        for request in self._executor.completed(wait=False):
            self._answer(request)
        self.run_mails()
        if self.epochs.can_advance:
            self.epochs.advance()
        while self.buffer.active and self.batches.fires_by_itself and self._batch_is_due():
            self.batches.fire()

    def yield_(self) -> None:
        """Get on by one step: run callbacks, or else start a batch, or else wait for one."""
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
        """Run what is in the mailbox, also what comes in meanwhile."""
        mails = self._mails
        while mails:
            function, context, argument = mails.popleft()
            function(context, argument)

    @property
    def has_work(self) -> bool:
        """Whether a callback is ready, or an epoch."""
        return bool(self._mails) or self.epochs.can_advance

    def close(self) -> None:
        """Let go of the executor."""
        self._executor.close()

    # ---------------------------------------------------------------------------------------------- requests

    def request(self, context: RecordContext, action: Any, answered: Callable[[Any], None], /) -> None:
        """Take in a request of a record: it joins the next batch, once its record owns the key.

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
        """See `CallbackTask.register`."""
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
        except Exception as error:
            raise self._work.failed(context, error) from error
        if context.callbacks or context.call is not None:
            self._mails.append((self._go_on, context, None))
        self.release(context)

    # ---------------------------------------------------------------------------------------------- user code

    def _start(self, context: RecordContext, request: AsyncRequest | None) -> None:
        """Of a context that owns its key now: run what is due before it, then the context, or its request."""
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
            self._mails.append((self._run, earlier, None))  # the code that made the request is running

    def _run(self, context: RecordContext, _: None) -> None:
        context.references = 1
        self.context = context
        try:
            call = self._call(context)
        except Exception as error:
            raise self._work.failed(context, error) from error
        if call is None:
            self.release(context)
        else:
            self._step(context, call)
        if context.callbacks or context.call is not None:
            self._go_on(context, None)

    def _step(self, context: RecordContext, call: Call) -> None:
        """Let a coroutine run until it awaits an answer that is not there, or ends."""
        self.context = context
        try:
            awaited = call.send(None)
        except StopIteration:
            self.release(context)
        except Exception as error:
            raise self._work.failed(context, error) from error
        else:
            self._suspend(context, call, awaited)

    def _suspend(self, context: RecordContext, call: Call, awaited: object) -> None:
        if not isinstance(awaited, StateFuture) or not awaited.belongs_to(context):
            raise self._work.failed(context, foreign_await(call))
        context.call, context.awaited = call, awaited

    def _go_on(self, context: RecordContext, _: None) -> None:
        """Run the record's callbacks whose turn it is; when all have run, the code that waits."""
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
        except Exception as error:
            raise self._work.failed(context, error) from error
        self.release(context)

    def release(self, context: RecordContext) -> None:
        """One thing less is going on for the context; at 0 it is finished, and its key goes on."""
        context.references -= 1
        if context.references:
            return
        follower = self._after(context) if context.overdue else None
        epoch = context.epoch
        if follower is not None:
            self._count_in(follower, epoch or self.epochs.open)
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
        # By mail, not by a call: a thousand records of one key would nest a thousand calls deep.
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
        assert context.epoch is not None  # noqa: S101 - set when it was taken in
        return context.epoch

    def _stuck(self, context: Any) -> Exception:
        return self._work.failed(context, RuntimeError("it awaits a future that nothing will complete"))

    def statistics(self) -> ControllerStatistics:
        """What is going on, as numbers."""
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
