"""All calls for one element, until it has its answer, is given up on, or is left to a later micro-batch (FLIP-232).

accepted ──> breaker ──> call ──answer──> completed
               ^          │ fails, or the answer is refused
               │          v
               └── wait ──┴── next attempt far off ──> parked (left to a later micro-batch)
                          └── no retry left ────────> given up: fails, quarantine or default
the timeout ends any of it: the hook `timeout()`, or given up

A call that is a breaker's probe is no part of this: it has the operator's timeout to itself, and unless it is answered, it was
never made. It asks how the service is, and the element only lends its record to that.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from headrace import clock
from headrace.api import AsyncWait, OnFailure
from headrace.api.stream_types import output_type
from headrace.async_io.circuit_breaker import Breaker, BreakerState
from headrace.async_io.deadlines import Deadlines
from headrace.async_io.element import AsyncElement, Status
from headrace.async_io.invocation import Invocation
from headrace.async_io.misuse import MisuseError
from headrace.async_io.recovery import seconds_left
from headrace.async_io.service_metrics import ServiceMetrics
from headrace.errors import HeadraceError, ServiceError, UserFunctionError

_LATEST = 253_402_300_799_000
"""The end of the year 9999 (ms): the last moment that everything which reads the tables can say."""


class Attempts:
    """Settles elements of one operator, many at a time, on one loop."""

    def __init__(
        self, wait: AsyncWait, invocation: Invocation, metrics: ServiceMetrics, breaker: Breaker | None
    ) -> None:
        """Within the loop."""
        self.under_way: set[AsyncElement] = set()
        self.retrying: dict[AsyncElement, asyncio.Future[None]] = {}
        """The in-flight retry set: elements that wait for their next call."""
        self.is_stopping = False
        self._wait = wait
        self._invocation = invocation
        self._ask = invocation.ask
        self._metrics = metrics
        self._breaker = breaker
        self._out = output_type(wait.function)
        self._seconds = wait.timeout.total_seconds()
        self._park_after = None if wait.park_after is None else wait.park_after.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._is_finishing = False

    async def settle(self, element: AsyncElement, task: asyncio.Task[None] | None = None) -> AsyncElement:
        """Call for an element until nothing is left to do for it now: it is done, or parked, or was told to stop.

        Returns the element, so that whoever has asked for many knows which one it is. `task` is the one that runs this: whoever
        settles many elements in one task need not have it looked up for each.

        Raises `ServiceError` when it is given up on and the operator says `FAIL`; `UserFunctionError` for an exception that
        the retry strategy does not cover, an answer that is no list of the function's output type, and whatever else user
        code does wrong: a strategy that raises, SystemExit.
        """
        if self.is_stopping:
            return element
        element.task = task = task or asyncio.current_task()
        began = element.began = self._loop.time()
        self._metrics.elements += 1
        has_past = element.first_attempt_at is not None
        if element.is_parked or element.is_expired:
            element.is_parked, element.is_expired = False, False
        element.deadline = began + (seconds_left(element, self._wait) if has_past else self._seconds)
        self.under_way.add(element)
        self._deadlines.watch(element)
        assert task is not None  # noqa: S101 - this is a coroutine of a task
        try:
            try:
                await self._attempt(element)
            except asyncio.CancelledError:
                if not element.is_expired:
                    raise
                task.uncancel()
                await self._timed_out(element)
        except asyncio.CancelledError as error:
            self._cancelled(element, task, error)
        except HeadraceError:
            raise
        except BaseException as error:
            # Of the strategy, of a hook, or one that would end the task, or its whole process, in silence: SystemExit.
            raise self._user_error(element, error) from error
        finally:
            element.task = None
            self.under_way.discard(element)
            element.cost_ms += (self._loop.time() - element.began) * 1000
        return element

    def so_far(self, element: AsyncElement) -> tuple[int, float]:
        """The calls of an element that have ended, and what it has cost (ms), while it may be under way."""
        if element.task is None:
            return element.attempts, element.cost_ms
        until = self._loop.time() if element.held_since is None else element.held_since
        spent = until - element.began
        return element.attempts - element.is_calling, element.cost_ms + spent * 1000

    def finish(self) -> None:
        """The input has ended: waiting retries are made at once, with none after them (FLIP-232, `endInput`)."""
        self._is_finishing = True
        for woken in self.retrying.values():
            _wake(woken)

    def stop(self) -> None:
        """Interrupt everything: elements under way stay pending."""
        self.is_stopping = True
        for element in self.under_way:
            if element.task is not None:
                element.task.cancel()

    def close(self) -> None:
        """Let go of timers."""
        self._deadlines.close()

    async def _attempt(self, element: AsyncElement) -> None:
        breaker = self._breaker
        while True:
            if breaker is not None and breaker.is_open and not await self._admitted(element, breaker):
                return
            self._note_call(element)
            try:
                results = await self._ask(element.emitted.record)
            except asyncio.CancelledError as error:
                pause = self._interrupted(element, error)
            except (UserFunctionError, MisuseError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it goes through the retry strategy
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

    def _note_call(self, element: AsyncElement) -> None:
        if element.first_attempt_at is None:
            element.first_attempt_at = clock.now()
        element.attempts += 1
        element.is_changed = True
        element.is_calling = True
        self._metrics.attempts += 1
        if element.attempts > 1:
            self._metrics.retries += 1

    # ------------------------------------------------------------------------------------------ outcomes of a call

    def _answered(self, element: AsyncElement, results: Any) -> float | None:
        checked = self._checked(element, results)
        if self._breaker is not None:
            self._breaker.succeeded()
        if self._wait.retry.retries_result(checked):
            self._invocation.forget(element.emitted.record)
            element.last_error = f"the answer is worth another call: {checked!r:.300}"
            if not self._is_last(element) and self._wait.retry.can_retry(element.attempts - 1):
                return self._again(element)
        element.complete(checked)
        return None

    def _failed(self, element: AsyncElement, error: Exception) -> float | None:
        """How long to wait before the next call (s); None if there is none now."""
        element.last_error = text_of(error)
        retry = self._wait.retry
        is_covered = retry.retries_exception(error)
        if self._breaker is not None:
            if is_covered:
                self._breaker.failed(error, is_probe=element.is_probe)
                if element.is_probe and not self._is_last(element):
                    return self._probed_in_vain(element, self._breaker)
            elif element.is_probe:
                self._breaker.gave_way()
        if is_covered and not self._is_last(element) and retry.can_retry(element.attempts - 1):
            return self._again(element)
        self._give_up(element, error, self._given_up(element, error) if is_covered else None)
        return None

    def _again(self, element: AsyncElement) -> float | None:
        wait = self._wait.retry.backoff(element.attempts - 1)
        if not isinstance(wait, timedelta):
            raise TypeError(f"backoff() of the retry strategy must answer with a timedelta, not {wait!r:.200}")
        pause = max(0.0, wait.total_seconds())
        element.status = Status.WAITING_FOR_RETRY
        element.next_attempt_at = min(clock.now() + round(pause * 1000), _LATEST)
        return None if self._parks(element, pause) else pause

    def _probed_in_vain(self, element: AsyncElement, breaker: Breaker) -> float | None:
        """The service is still down, which nobody doubted: that costs the element no attempt, however long it takes."""
        element.attempts -= 1
        if not element.attempts:
            element.first_attempt_at = None
        element.status, element.next_attempt_at = Status.WAITING_FOR_RETRY, breaker.open_until
        pause = breaker.seconds_to_probe()
        return None if self._parks(element, pause) else pause

    def _begin_probe(self, element: AsyncElement) -> None:
        """It has the operator's whole timeout for its call, however little is left of its own.

        With that, it would be given up on by a call that only tells what the open breaker knew.
        """
        element.is_probe = True
        self._hold_time(element, self._loop.time() + self._seconds)

    def _end_probe(self, element: AsyncElement) -> None:
        element.is_probe = False
        self._resume_time(element)

    def _hold_time(self, element: AsyncElement, deadline: float = math.inf) -> None:
        """Let its own time stand still until `_resume_time`; it has up to `deadline` for that."""
        element.held_since, element.own_deadline, element.deadline = self._loop.time(), element.deadline, deadline
        if deadline < math.inf:
            self._deadlines.watch(element)

    def _resume_time(self, element: AsyncElement) -> None:
        assert element.held_since is not None  # noqa: S101 - by `_hold_time`
        held = self._loop.time() - element.held_since
        element.held_since = None
        element.began += held
        element.deadline = element.own_deadline + held
        self._deadlines.watch(element)

    def _is_last(self, element: AsyncElement) -> bool:
        return self._is_finishing or element.is_last

    def _parks(self, element: AsyncElement, pause: float) -> bool:
        element.is_parked = self._park_after is not None and pause >= self._park_after
        self._metrics.parked += element.is_parked
        return element.is_parked

    def _interrupted(self, element: AsyncElement, error: asyncio.CancelledError) -> float | None:
        """As `_failed`, for a call that was cancelled. Raises what ends the element's task, unless it was a probe in vain."""
        if self._breaker is not None:
            # A call that never answers says as much about the service as one that fails.
            if element.is_expired:
                self._breaker.failed(error, is_probe=element.is_probe)
            elif element.is_probe:
                self._breaker.gave_way()
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise error  # the function's own doing
        if not element.is_expired:
            element.attempts -= 1  # it has not failed: somebody else has
        elif self._breaker is not None and element.is_probe and not self._is_last(element):
            element.is_expired = False
            self._metrics.timeouts += 1
            element.last_error = f"no answer within {self._seconds:g} s"
            pause = self._probed_in_vain(element, self._breaker)
            if not task.uncancel():
                return pause
            # Something else wants this task to end as well: the run, or a failure elsewhere.
        raise error

    def _cancelled(self, element: AsyncElement, task: asyncio.Task[None], error: asyncio.CancelledError) -> None:
        """Tell the end of the run, after which an element stays pending, from a failure elsewhere and from the function's own doing.

        Let through, the latter would end this task in silence: a lost record.
        """
        if self.is_stopping:
            if task.uncancel():
                raise error  # the failure came on top
        elif task.cancelling():
            raise error
        else:
            raise self._user_error(element, error) from error

    async def _timed_out(self, element: AsyncElement) -> None:
        self._metrics.timeouts += 1
        last = f" (last error: {element.last_error})" if element.last_error else ""
        record = element.emitted.record
        try:
            results = await self._wait.function.timeout(record)
        except TimeoutError as error:
            seconds = self._seconds
            msg = (
                f"operator '{self._wait.name}' had no answer within {seconds:g} s for {record!r:.300}{last}. "
                "Nothing was committed; check the service, then run again."
            )
            element.last_error = f"no answer within {seconds:g} s{last}"
            self._give_up(element, error, ServiceError(msg))
        except Exception as error:  # noqa: BLE001 - the user's hook: it goes on as its outcome
            element.last_error = text_of(error)
            self._give_up(element, error, None)
        else:
            element.complete(self._checked(element, results, "timeout"))

    def _give_up(self, element: AsyncElement, error: Exception, told: ServiceError | None) -> None:
        """`told` is what the run fails with; None if the error is the function's own fault."""
        match self._wait.on_failure:
            case OnFailure.FAIL:
                raise (told or self._user_error(element, error)) from error
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

    async def _admitted(self, element: AsyncElement, breaker: Breaker) -> bool:
        """Wait until the breaker admits a call, as a probe or because it is closed; False if the element is parked instead."""
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

    async def _hear_of_probe(self, element: AsyncElement, breaker: Breaker) -> None:
        self._hold_time(element)
        try:
            await breaker.change()
        finally:
            self._resume_time(element)

    async def _sleep(self, element: AsyncElement, seconds: float) -> None:
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

    def _checked(self, element: AsyncElement, results: Any, method: str = "invoke") -> Sequence[msgspec.Struct]:
        out = self._out
        if isinstance(results, list | tuple):
            if len(results) == 1 and type(results[0]) is out:
                return results
            if all(isinstance(result, out) for result in results):
                return results
        msg = f"{method}() must answer with a list of {out.__name__}, not {results!r:.200}"
        raise UserFunctionError(self._wait.name, None, f"{element.emitted.record!r:.500}", msg)

    def _given_up(self, element: AsyncElement, error: Exception) -> ServiceError:
        return ServiceError(
            f"operator '{self._wait.name}' gave up after {element.attempts} calls for "
            f"{element.emitted.record!r:.300}: {text_of(error)}. Nothing was committed; check the service, then run again."
        )

    def _user_error(self, element: AsyncElement, error: BaseException) -> UserFunctionError:
        if isinstance(error, UserFunctionError):
            return error
        return user_error(self._wait.name, repr(element.emitted.record), error)


def user_error(operator: str, what: str, error: BaseException) -> UserFunctionError:
    """An exception of user code, with the place and the traceback."""
    return UserFunctionError(operator, None, what[:500], "".join(traceback.format_exception(error)))


def text_of(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
