"""Limits of a service: its circuit breaker, its opening, calls at once and per second, and deadlines.

While a service is down, one probe tests it instead of a call for each record. One timer serves all deadlines, since a
timer for each costs more than a quick call.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from operator import attrgetter
from typing import Any

from headrace import clock
from headrace.api.services import CircuitBreaker
from headrace.async_io.executor import looked_at
from headrace.async_io.pending_call import PendingCall

_deadline_of = attrgetter("deadline")

_REMEMBERED = 64
"""Number of failures that are kept to recognise a shared one."""


class BreakerState(enum.Enum):
    """State of a breaker."""

    CLOSED = "closed"
    """Calls are made."""

    OPEN = "open"
    """No calls are made until the next probe."""

    HALF_OPEN = "half_open"
    """One call is in flight: the probe."""


CLOSED = BreakerState.CLOSED  # Python 3.11 makes a call for each look at an enum's member


class Breaker:
    """Breaker of one operator in one task.

    closed ──failures in a row──> open ──time for a probe──> half open ──success──> closed
                                    ^────────failure, twice the time────────┘
    """

    def __init__(self, policy: CircuitBreaker, open_until: int | None = None) -> None:
        """Start closed; or open with the next probe at `open_until` (ms), as an earlier micro-batch left it."""
        self._policy = policy
        self._failures = 0
        self._counted: deque[BaseException] = deque(maxlen=_REMEMBERED)
        self._interval = policy.probe_after
        self._changed = asyncio.Event()
        self.state = BreakerState.CLOSED if open_until is None else BreakerState.OPEN
        # A clock that was set back must not keep the breaker open for longer than its longest wait.
        longest = clock.now() + round(policy.longest.total_seconds() * 1000)
        self.open_until = None if open_until is None else min(open_until, longest)
        """When the next probe is due (ms); None while closed."""
        self.opened = 0
        """Number of times that it opened."""

    @property
    def is_open(self) -> bool:
        """Return whether it is not closed: callers must then ask `admits`."""
        return self.state is not BreakerState.CLOSED

    def admits(self) -> bool:
        """Return whether a call may begin now. After a probe, call `succeeded`, `failed` or `probe_cancelled`."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and clock.now() >= (self.open_until or 0):
            self.state = BreakerState.HALF_OPEN
            return True
        return False

    def seconds_to_probe(self) -> float:
        """Return the seconds until the next probe is due; 0 while one is in flight."""
        return max(0.0, ((self.open_until or 0) - clock.now()) / 1000)

    async def change(self) -> None:
        """Wait for the outcome of the probe."""
        await self._changed.wait()

    def succeeded(self) -> None:
        """Count an answered call, and close the breaker."""
        self._failures = 0
        if self.state is not CLOSED:
            self._interval = self._policy.probe_after
            self.open_until = None
            self._become(BreakerState.CLOSED)

    def failed(self, error: BaseException, *, is_probe: bool) -> None:
        """Count a failed call that is worth a retry; open the breaker after too many in a row.

        Records that share a call share its failure, the same exception object: fifty of them count as one failure.
        """
        if not is_probe and any(error is counted for counted in self._counted):
            return
        self._counted.append(error)
        self._failures += 1
        if is_probe:
            self._interval = min(2 * self._interval, self._policy.longest)
            self._open()
        elif self.state is BreakerState.CLOSED and self._failures >= self._policy.failures:
            self.opened += 1
            self._open()

    def probe_cancelled(self) -> None:
        """Admit another probe: the current one was interrupted. Does nothing after other calls."""
        if self.state is BreakerState.HALF_OPEN:
            self._become(BreakerState.OPEN)

    def _open(self) -> None:
        self.open_until = clock.now() + round(self._interval.total_seconds() * 1000)
        self._become(BreakerState.OPEN)

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()


AsyncCall = Callable[[Any], Awaitable[Any]]


class RefusedError(Exception):
    """A function could not be opened, for a `reason` that is worth a retry."""

    def __init__(self, reason: Exception) -> None:
        """Keep the reason unchanged: calls fail with it."""
        super().__init__(str(reason))
        self.reason = reason


class Opening:
    """Opens one function in one task.

    A client that connects in `open` fails there when its service is down. If the retry strategy covers the failure, the
    first call opens the function instead, and a failure is that call's: it is retried, parked, and counted by the
    breaker.

        open refused ──> call: open again ──refused──> the call has failed
                                                                      └──────────> open: this call and all others continue
    """

    def __init__(self, open_: Callable[[], Awaitable[None]]) -> None:
        """Take `open_`, which raises `RefusedError` if another attempt is worth it."""
        self.is_open = False
        self._open = open_
        self._under_way: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Open the function, unless its service refuses for now. Raises any other error of `open`."""
        try:
            await self._open()
        except RefusedError:
            return
        self.is_open = True

    def before(self, call: AsyncCall) -> AsyncCall:
        """Return `call`, which first opens the function if that was refused. Calls that begin meanwhile share an attempt and its failure."""
        if self.is_open:
            return call

        async def opened_first(asked: Any) -> Any:
            if not self.is_open:
                await self._again()
            return await call(asked)

        return opened_first

    async def close(self) -> None:
        """Cancel an attempt that nothing waits for any more."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _again(self) -> None:
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._attempt())
            self._under_way.add_done_callback(looked_at)
        # A call that times out must not cancel the opening for the others that wait for it.
        await asyncio.shield(self._under_way)

    async def _attempt(self) -> None:
        try:
            await self._open()
        except RefusedError as error:
            raise error.reason from None
        finally:
            self._under_way = None
        self.is_open = True


class ServiceLimit:
    """Limits of calls per second and of calls at once. Waiting for either counts towards the element's timeout."""

    def __init__(self, rate: float | None = None, concurrency: int | None = None) -> None:
        """Take the limits; None means no limit. `rate` is calls per second, evenly spaced."""
        self._seconds_between = 1 / rate if rate is not None else 0.0
        self._next = 0.0
        self._room = asyncio.Semaphore(concurrency) if concurrency is not None else None

    def over(self, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """Return `call` within the limits."""
        if self._room is None and not self._seconds_between:
            return call

        async def limited(asked: Any) -> Any:
            if self._room is None:
                await self._turn()
                return await call(asked)
            async with self._room:
                await self._turn()
                return await call(asked)

        return limited

    async def _turn(self) -> None:
        if not self._seconds_between:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        mine = max(now, self._next)
        self._next = mine + self._seconds_between
        if mine > now:
            turn = loop.create_future()
            timer = loop.call_at(mine, _wake, turn)
            try:
                await turn
            finally:
                timer.cancel()


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


_HELD_UP = 0.5
"""Seconds that the timer may be late. If it is later, deadlines move by the delay, so that arrived responses are processed."""


class Deadlines:
    """Cancels the task of an expired element, and marks the element as expired.

    The timer is set for the element that expires first. When it rings, it looks at all elements that are under way: so an element that
    is answered in time costs no entry in a queue of deadlines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, under_way: Collection[PendingCall]) -> None:
        """Take the elements that are under way, each with its task; those with one deadline expire in their order."""
        self._loop = loop
        self._under_way = under_way
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def watch(self, element: PendingCall) -> None:
        """Watch `element.deadline` while the element is under way; an element without a timeout never expires."""
        if element.deadline < self._rings_at:
            self._set_timer(element.deadline)

    def close(self) -> None:
        """Stop watching."""
        self._set_timer(math.inf)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._ring) if at < math.inf else None
        self._rings_at = at

    def _ring(self) -> None:
        now = self._loop.time()
        late = now - self._rings_at
        waiting = sorted((element for element in self._under_way if not element.is_expired), key=_deadline_of)
        if late > _HELD_UP:
            # The loop did not run for a time: an overloaded machine, or a function that blocks. Responses may have arrived meanwhile
            # that are not processed yet, so that time does not count.
            for element in waiting:
                element.deadline += late + _HELD_UP
        for element in waiting:
            if element.deadline <= now and element.task is not None:
                element.is_expired = True
                element.task.cancel()
        self._set_timer(min((element.deadline for element in waiting if not element.is_expired), default=math.inf))
