"""All calls for one element, and their recovery in a later run (FLIP-232).

accepted ──> breaker ──> call ──response──> completed
               ^          │ fails, or the response is rejected
               │          v
               └── wait ──┴── next attempt far off ──> parked (left to a later micro-batch)
                          └── no retry left ────────> fails for good: error, quarantine or default
the timeout ends each of these: the hook `timeout()`, or failure for good

A breaker's probe does not count as a call of its element: it has the operator's whole timeout, and an unanswered probe
leaves no trace. It tests the service, and only borrows the element's record.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Awaitable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

import msgspec

from headrace import clock
from headrace.api.graph import AsyncWait
from headrace.api.services import AsyncRetryStrategy, OnFailure, RecoveryOption
from headrace.api.types import input_type, output_type
from headrace.async_io.executor import MisuseError, cancelled, continued, own_cancellation, raised, returned
from headrace.async_io.invocation import Invocation
from headrace.async_io.limits import CLOSED, Breaker, BreakerState, Deadlines
from headrace.async_io.metrics import ServiceMetrics
from headrace.async_io.pending_call import COMPLETED, PENDING, PendingCall, Status
from headrace.async_io.traced_calls import ATTEMPT
from headrace.errors import HeadraceError, ServiceError, UserFunctionError
from headrace.execution.record_copies import copied, is_immutable
from headrace.interrupts import is_interrupt
from headrace.names import counted

_LIMIT = 1000


class _Unwanted(NamedTuple):
    """Results that the retry strategy has judged as worth another call: it is asked once for each response."""

    results: list[msgspec.Struct]


def recovered(element: PendingCall, option: RecoveryOption) -> PendingCall:
    """Return an element as a later micro-batch resumes it; `RESTART` clears its past."""
    if option is RecoveryOption.RESTART and not element.is_done:
        element.attempts, element.first_attempt_at, element.cost_ms = 0, None, 0.0
        element.status = Status.PENDING
    return element


def whole_timeout(wait: AsyncWait) -> float:
    """Return the operator's timeout (s); infinity without one."""
    return math.inf if wait.timeout is None else wait.timeout.total_seconds()


def seconds_left(element: PendingCall, wait: AsyncWait) -> float:
    """Return the remaining timeout (s) of an element whose next call is about to begin.

    An element that was called before has at least `timeout / (max_retries + 1)`: the fair share of one call. With a
    timeout of 60 s and 5 retries, resumed after an hour, that is 10 s in place of the -3,540 s of the formula.
    """
    whole = whole_timeout(wait)
    if element.first_attempt_at is None:
        return whole
    spent = element.cost_ms if wait.recovery is RecoveryOption.COST_TIME else clock.now() - element.first_attempt_at
    # A clock that was set back makes `spent` negative: no element has more than the whole timeout.
    return min(whole, max(whole - spent / 1000, whole / (allowed_retries(wait.retry) + 1)))


def allowed_retries(retry: AsyncRetryStrategy) -> int:
    """Return the strategy's `max_retries`; for a user's own strategy, count with `can_retry`, up to 1,000."""
    known = getattr(retry, "max_retries", None)
    if isinstance(known, int):
        return known
    return next((retries for retries in range(_LIMIT) if not retry.can_retry(retries)), _LIMIT)


_LATEST = 253_402_300_799_000
"""End of the year 9999 (ms): the last timestamp that all readers of the tables can represent."""
_SET_ASIDE = (
    " With on_failure=OnFailure.QUARANTINE the record goes to the quarantine instead, from where 'headrace quarantine {job} --requeue' "
    "brings it back."
)


class Attempts:
    """Processes elements of one operator, many at a time, on one loop."""

    def __init__(
        self,
        wait: AsyncWait,
        invocation: Invocation,
        metrics: ServiceMetrics,
        breaker: Breaker | None,
        *,
        job: str = "JOB",
    ) -> None:
        """Take the operator's parts. Must be called within the loop."""
        self.under_way: dict[PendingCall, None] = {}
        """Elements with a task, in the order in which they were taken up."""
        self.retrying: dict[PendingCall, asyncio.Future[None]] = {}
        """In-flight retries: elements that wait for their next call."""
        self.is_stopping = False
        self.is_ending = False
        """Whether all calls are being cancelled: one has failed, or the operator is closed."""
        self._wait = wait
        self._set_aside = _SET_ASIDE.format(job=job)
        self._invocation = invocation
        self._ask = invocation.ask
        self._is_traced = invocation.is_traced
        self._metrics = metrics
        self._breaker = breaker
        self._out = output_type(wait.function)
        self._copies_results = not is_immutable(self._out)
        self._copies_records = not is_immutable(input_type(wait.function))
        self._seconds = whole_timeout(wait)
        self._park_after = None if wait.park_after is None else wait.park_after.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._deadlines = Deadlines(self._loop, self.under_way)
        self._is_finishing = False

    def answered_at_once(self, element: PendingCall) -> bool:
        """Begin the call for a new element; return whether it gave its response without a wait. If not, call `settle`.

        Most records find their response in the cache, or in one of the function's own. Such a response needs no deadline and no
        coroutines of `settle`, which take twice as long as the rest. Call it within the task that calls `settle`.
        """
        breaker = self._breaker
        if element.status is not PENDING or element.first_attempt_at is not None or self.is_stopping:
            return False
        if breaker is not None and breaker.state is not CLOSED:
            return False
        element.first_attempt_at = clock.now()
        element.attempts = 1
        self._metrics.attempts += 1
        if self._is_traced:
            ATTEMPT.set(1)
        results = self._results_at_once(element)
        if results is None:
            element.is_changed = element.is_calling = True
            return False
        try:
            is_final, results = self._judged(results)
        except BaseException as error:
            raise self._ended_by(element, error) from error
        if is_final:
            self._metrics.elements += 1
            self._complete(element, results)
            return True
        element.begun = returned(results)
        element.is_changed = element.is_calling = True
        return False

    def _results_at_once(self, element: PendingCall) -> Any:
        """Return the results of a call that does not wait; None if it waits or fails: `element.begun` is then the rest of the call."""
        record = self._record_of(element)
        try:
            known = self._invocation.known(record)
            if known is not None:
                return known
            call = cast("Coroutine[Any, Any, Any]", self._ask(record))  # `counted` makes one of every call
        except BaseException as error:  # noqa: BLE001 - `settle` raises it where it handles it
            element.begun = raised(error)
            return None
        try:
            element.begun = continued(call, call.send(None))
        except StopIteration as response:
            element.begun = None if response.value is not None else returned(None)
            return response.value
        except BaseException as error:  # noqa: BLE001 - as above
            element.begun = raised(error)
        return None

    async def settle(self, element: PendingCall, task: asyncio.Task[None] | None = None) -> PendingCall:
        """Call for an element until there is nothing left to do for it now: it is done, or parked, or stopped.

        Returns the element, so that a caller with many calls knows which one is done. `task` is the current task: a
        caller that settles many elements in one task passes it to save a look-up for each.

        Raises `ServiceError` when the element fails for good and the operator says `FAIL`; `UserFunctionError` for an
        exception that the retry strategy does not cover, a response that is not a list of the function's output type,
        and any other error of user code: a strategy that raises, SystemExit.
        """
        if self.is_stopping:
            return element
        element.task = task = task or asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine of a task
        self._take_up(element)
        try:
            try:
                # The first call of most elements is answered. To await it here saves them the coroutine of `_attempt` (0.6 us of CPU).
                if self._breaker is None or self._breaker.state is CLOSED:
                    try:
                        results = await self._begun(element)
                    except BaseException as error:  # noqa: BLE001 - `_attempt` raises it where it handles it
                        element.begun = raised(error)
                    else:
                        self._take_in(element, task, results)
                if element.status is not COMPLETED:
                    await self._attempt(element)
            except asyncio.CancelledError as error:
                await self._timed_out(element, task, error)
        except asyncio.CancelledError as error:
            self._cancelled(element, task, error)
        except HeadraceError:
            self.is_ending = True
            raise
        except BaseException as error:
            # The strategy or a hook raised it; or it would end the task, or the whole process, silently: SystemExit.
            raise self._ended_by(element, error) from error
        finally:
            element.task = None
            self.under_way.pop(element, None)
            element.cost_ms += (self._time() - element.began) * 1000
        return element

    def so_far(self, element: PendingCall) -> tuple[int, float]:
        """Return the ended calls of an element, and its cost so far (ms), while it may be in flight."""
        if element.task is None:
            return element.attempts, element.cost_ms
        until = self._loop.time() if element.held_since is None else element.held_since
        spent = until - element.began
        return element.attempts - element.is_calling, element.cost_ms + spent * 1000

    def finish(self) -> None:
        """Make waiting retries at once, without further ones: the input has ended (FLIP-232, `endInput`)."""
        self._is_finishing = True
        for woken in self.retrying.values():
            _wake(woken)

    def stop(self) -> None:
        """Interrupt all elements in flight; they stay pending."""
        self.is_stopping = True
        for element in self.under_way:
            if element.task is not None:
                element.task.cancel()

    def close(self) -> None:
        """Release timers."""
        self._deadlines.close()

    async def _attempt(self, element: PendingCall) -> None:
        breaker = self._breaker
        while True:
            is_new = element.begun is None
            if is_new and breaker is not None and breaker.is_open and not await self._admitted(element, breaker):
                return
            try:
                results = await self._begun(element)
                if element.task is not None and element.task.cancelling() and not self._ends(element):
                    await own_cancellation(element.task)
            except asyncio.CancelledError as error:
                pause = self._interrupted(element, error)
            except Exception as error:  # noqa: BLE001 - every failure goes through the retry strategy
                pause = self._failed(element, error)
            else:
                pause = self._answered(element, results)
            finally:
                element.is_calling = False
                if element.is_probe:
                    self._end_probe(element)
            if pause is None:
                return
            await self._sleep(element, pause)

    def _take_up(self, element: PendingCall) -> None:
        began = element.began = self._time()
        self._metrics.elements += 1
        has_past = element.first_attempt_at is not None and element.begun is None
        if element.is_parked or element.is_expired:
            element.is_parked, element.is_expired = False, False
        element.deadline = began + (seconds_left(element, self._wait) if has_past else self._seconds)
        self.under_way[element] = None
        self._deadlines.watch(element)

    def _take_in(self, element: PendingCall, task: asyncio.Task[None], results: Any) -> None:
        """Complete the element, or leave what came of its call to `_attempt`."""
        is_final, results = (False, results) if task.cancelling() else self._judged(results)
        if is_final:
            self._complete(element, results)
        else:
            element.begun = returned(results)

    def _begun(self, element: PendingCall) -> Awaitable[Any]:
        """Return the element's call: the one that has begun, or a new one."""
        begun, element.begun = element.begun, None
        if begun is not None:
            return begun
        self._note_call(element)
        return self._ask(self._record_of(element))

    def _note_call(self, element: PendingCall) -> None:
        if element.first_attempt_at is None:
            element.first_attempt_at = clock.now()
        element.attempts += 1
        element.is_changed = True
        element.is_calling = True
        self._metrics.attempts += 1
        if self._is_traced:
            ATTEMPT.set(element.attempts)
        if element.attempts > 1:
            self._metrics.retries += 1

    # ------------------------------------------------------------------------------------------ outcomes of a call

    def _judged(self, results: Any) -> tuple[bool, Any]:
        """Return whether results are one record, like most, and the retry strategy accepts them; and the results, marked if it does not."""
        if type(results) is not list or len(results) != 1 or type(results[0]) is not self._out:
            return False, results
        return (False, _Unwanted(results)) if self._wait.retry.retries_result(results) else (True, results)

    def _complete(self, element: PendingCall, results: Sequence[msgspec.Struct]) -> None:
        if self._breaker is not None:
            self._breaker.succeeded()
        element.is_calling = False
        element.complete(self._own(results))

    def _answered(self, element: PendingCall, results: Any) -> float | None:
        is_judged = type(results) is _Unwanted
        checked = self._checked(element, results.results if is_judged else results)
        if self._breaker is not None:
            self._breaker.succeeded()
        if is_judged or self._wait.retry.retries_result(checked):
            self._invocation.forget(element.emitted.record)
            element.last_error = f"the response is worth another call: {checked!r:.300}"
            if not self._is_last(element) and self._wait.retry.can_retry(element.attempts - 1):
                return self._again(element)
        element.complete(checked)
        return None

    def _failed(self, element: PendingCall, error: Exception) -> float | None:
        """Return the seconds to wait before the next call; None if there is none now. Raises an error that is no failure of the service."""
        if isinstance(error, UserFunctionError | MisuseError):
            raise error
        element.last_error = text_of(error)
        retry = self._wait.retry
        is_covered = retry.retries_exception(error)
        if self._breaker is not None:
            if is_covered:
                self._breaker.failed(error, is_probe=element.is_probe)
                if element.is_probe and not self._is_last(element):
                    return self._probe_failed(element, self._breaker)
            elif element.is_probe:
                self._breaker.probe_cancelled()
        if is_covered and not self._is_last(element) and retry.can_retry(element.attempts - 1):
            return self._again(element)
        self._give_up(element, error, self._given_up(element, error) if is_covered else None)
        return None

    def _again(self, element: PendingCall) -> float | None:
        wait = self._wait.retry.backoff(element.attempts - 1)
        if not isinstance(wait, timedelta):
            raise TypeError(f"backoff() of the retry strategy must return a timedelta, not {wait!r:.200}")
        pause = max(0.0, wait.total_seconds())
        element.status = Status.WAITING_FOR_RETRY
        element.next_attempt_at = min(clock.now() + round(pause * 1000), _LATEST)
        return None if self._parks(element, pause) else pause

    def _probe_failed(self, element: PendingCall, breaker: Breaker) -> float | None:
        """Undo an attempt that was a failed probe: the service is still down, which costs the element no attempt."""
        element.attempts -= 1
        if not element.attempts:
            element.first_attempt_at = None
        element.status, element.next_attempt_at = Status.WAITING_FOR_RETRY, breaker.open_until
        pause = breaker.seconds_to_probe()
        return None if self._parks(element, pause) else pause

    def _begin_probe(self, element: PendingCall) -> None:
        """Give the probe the operator's whole timeout, however little is left of the element's own.

        With its own, the element could fail for good by a call that only confirms what the open breaker says.
        """
        element.is_probe = True
        self._hold_time(element, self._loop.time() + self._seconds)

    def _end_probe(self, element: PendingCall) -> None:
        element.is_probe = False
        self._resume_time(element)

    def _hold_time(self, element: PendingCall, deadline: float = math.inf) -> None:
        """Stop the element's own clock until `_resume_time`, for up to `deadline`."""
        element.held_since, element.own_deadline, element.deadline = self._loop.time(), element.deadline, deadline
        if deadline < math.inf:
            self._deadlines.watch(element)

    def _resume_time(self, element: PendingCall) -> None:
        assert element.held_since is not None  # noqa: S101 - by `_hold_time`
        held = self._loop.time() - element.held_since
        element.held_since = None
        element.began += held
        element.deadline = element.own_deadline + held
        self._deadlines.watch(element)

    def _is_last(self, element: PendingCall) -> bool:
        return self._is_finishing or element.is_last

    def _parks(self, element: PendingCall, pause: float) -> bool:
        element.is_parked = self._park_after is not None and pause >= self._park_after
        self._metrics.parked += element.is_parked
        return element.is_parked

    def _interrupted(self, element: PendingCall, error: asyncio.CancelledError) -> float | None:
        """Handle a cancelled call. Raises the error that ends the element's task, except after a failed probe.

        If the function raised the error, or cancelled its own task, its call has failed like any other.
        """
        task = asyncio.current_task()
        if task is None or not self._ends(element):
            while task is not None and task.uncancel():
                pass
            return self._failed(element, cancelled(error))
        if self._breaker is not None:
            # A call without a response counts like a failed call: both show that the service is down.
            if element.is_expired:
                self._breaker.failed(error, is_probe=element.is_probe)
            elif element.is_probe:
                self._breaker.probe_cancelled()
        if not element.is_expired:
            element.attempts -= 1  # it has not failed: another record of its group has
        elif self._breaker is not None and element.is_probe and not self._is_last(element):
            element.is_expired = False
            self._metrics.timeouts += 1
            element.last_error = f"no response within {self._seconds:g} s"
            pause = self._probe_failed(element, self._breaker)
            if not task.uncancel():
                return pause
            # Something else also ends this task: the run, or a failure elsewhere.
        raise error

    def _ends(self, element: PendingCall) -> bool:
        """Return whether the engine has cancelled the element's task: for its timeout, at the end of the run, or since another one failed."""
        return element.is_expired or self.is_stopping or self.is_ending

    def _cancelled(self, element: PendingCall, task: asyncio.Task[None], error: asyncio.CancelledError) -> None:
        """Distinguish the end of the run, which leaves an element pending, a failure elsewhere, and a cancellation by a hook of the function.

        The last one would end this task silently and lose the record, so it becomes an error.
        """
        if self.is_stopping:
            if task.uncancel():
                raise error  # a failure elsewhere came in addition
        elif task.cancelling() and self.is_ending:
            raise error
        else:
            raise self._ended_by(element, error) from error

    async def _timed_out(
        self, element: PendingCall, task: asyncio.Task[None], cancellation: asyncio.CancelledError
    ) -> None:
        # The run's end, or a failure elsewhere, may have cancelled the task in addition.
        if not element.is_expired or task.uncancel():
            raise cancellation
        self._metrics.timeouts += 1
        last = f" (last error: {element.last_error})" if element.last_error else ""
        record = element.emitted.record
        try:
            results = await self._wait.function.timeout(record)
        except TimeoutError as error:
            seconds = self._seconds
            msg = (
                f"operator '{self._wait.name}' had no response within {seconds:g} s for {record!r:.300}{last}. "
                f"Nothing was committed; check the service, then run again.{self._set_aside}"
            )
            element.last_error = f"no response within {seconds:g} s{last}"
            self._give_up(element, error, ServiceError(msg))
        except Exception as error:  # noqa: BLE001 - the user's hook: its error is the element's outcome
            element.last_error = text_of(error)
            self._give_up(element, error, None)
        else:
            element.complete(self._checked(element, results, "timeout"))

    def _give_up(self, element: PendingCall, error: Exception, run_error: ServiceError | None) -> None:
        """Apply the failure policy. The run fails with `run_error`, or with a `UserFunctionError` if it is None."""
        match self._wait.on_failure:
            case OnFailure.FAIL:
                raise (run_error or self._user_error(element, error, self._set_aside.strip())) from error
            case OnFailure.QUARANTINE:
                element.status = Status.QUARANTINED
                self._metrics.quarantined += 1
            case OnFailure.DEFAULT:
                try:
                    results = self._wait.function.default(element.emitted.record, error)
                except Exception as raised:
                    raise self._user_error(element, raised) from raised
                self._metrics.defaulted += 1
                element.complete(self._checked(element, results, "default"))

    # ---------------------------------------------------------------------------------------------------- waiting

    async def _admitted(self, element: PendingCall, breaker: Breaker) -> bool:
        """Wait until the breaker admits a call, as a probe or because it is closed; return False if the element is parked instead."""
        while not self._is_last(element):
            if breaker.admits():
                if breaker.state is BreakerState.HALF_OPEN:
                    self._begin_probe(element)
                return True
            pause = breaker.seconds_to_probe()
            if pause <= 0:
                await self._hear_of_probe(element, breaker)
            elif self._parks(element, pause):
                element.next_attempt_at = max(element.next_attempt_at or 0, breaker.open_until or 0)
                return False
            else:
                await self._sleep(element, pause)
        return True

    async def _hear_of_probe(self, element: PendingCall, breaker: Breaker) -> None:
        self._hold_time(element)
        try:
            await breaker.change()
        finally:
            self._resume_time(element)

    async def _sleep(self, element: PendingCall, seconds: float) -> None:
        woken = self.retrying[element] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, woken)
        began = self._loop.time()
        try:
            await woken
        finally:
            timer.cancel()
            del self.retrying[element]
            self._metrics.retry_wait_ms += round((self._loop.time() - began) * 1000)

    # ----------------------------------------------------------------------------------------------------- errors

    def _checked(self, element: PendingCall, results: Any, method: str = "invoke") -> Sequence[msgspec.Struct]:
        out = self._out
        if isinstance(results, list | tuple):
            if len(results) == 1 and type(results[0]) is out:
                return self._own(results)
            if all(isinstance(result, out) for result in results):
                return self._own(results)
        msg = f"{method}() must return a list of {out.__name__}, not {results!r:.200}"
        raise UserFunctionError(self._wait.name, None, f"{element.emitted.record!r:.500}", msg)

    def _own(self, results: Sequence[msgspec.Struct]) -> Sequence[msgspec.Struct]:
        """Return a list of results that the function's code cannot change any more."""
        return [*map(copied, results)] if self._copies_results else [*results]

    def _record_of(self, element: PendingCall) -> Any:
        """Return what the function gets: a copy, if its code may change it. Another attempt, or a later run, gets the same."""
        record = element.emitted.record
        return copied(record) if self._copies_records else record

    def _given_up(self, element: PendingCall, error: Exception) -> ServiceError:
        return ServiceError(
            f"operator '{self._wait.name}' gave up after {counted(element.attempts, 'call')} for "
            f"{element.emitted.record!r:.300}: {text_of(error)}. Nothing was committed; check the service, then run again.{self._set_aside}"
        )

    def _ended_by(self, element: PendingCall, error: BaseException) -> BaseException:
        """Return the error that ends the operator's calls for an exception that is no failure of a call."""
        self.is_ending = True
        return error if is_interrupt(error) else self._user_error(element, error)

    def _user_error(self, element: PendingCall, error: BaseException, hint: str = "") -> UserFunctionError:
        if isinstance(error, UserFunctionError):
            return error
        return user_error(self._wait.name, repr(element.emitted.record), error, hint)


def user_error(operator: str, what: str, error: BaseException, hint: str = "") -> UserFunctionError:
    """Return the error for an exception of user code, with the operator, the record, the traceback and a hint."""
    return UserFunctionError(operator, None, what[:500], "".join(traceback.format_exception(error)) + hint)


def text_of(error: BaseException) -> str:
    """Return an error as one line of text."""
    return f"{type(error).__name__}: {error}"


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
