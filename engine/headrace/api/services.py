"""Policies of calls to services: failures, breakers, caches, bulk calls, retries, look-ups and threads.

Many records of a look-up share one response, which a look-up cache remembers. A `BlockingFunction` makes each call in a
thread (Flink Async I/O, synchronous clients in a thread pool).
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from headrace import clock
from headrace.api.functions import AsyncFunction, function_types


class RecoveryOption(enum.Enum):
    """How much of its timeout an element has left when a later micro-batch resumes it (FLIP-232, "retry state").

    `LATENCY_FIRST` and `COST_TIME` keep the element's count of attempts. In all three cases the element resumes when
    its next attempt is due: a new run never calls a service earlier than the back-off says. The remaining time is never
    less than `timeout / (max_retries + 1)`, whereas the FLIP's formula can give a negative one.
    """

    RESTART = "restart"
    """Start over: the whole timeout and all attempts. An element that each run parks before its retries are used up waits for ever."""

    LATENCY_FIRST = "latency_first"
    """Keep the timeout minus all time since the first attempt, including the time between runs."""

    COST_TIME = "cost_time"
    """Keep the timeout minus the time that runs spent on the element; time in the table does not count."""


class OnFailure(enum.Enum):
    """Fate of an element that fails for good: no retries left, no time left, or an error that is not retried."""

    FAIL = "fail"
    """Fail the run with the error; commit nothing of the micro-batch."""

    QUARANTINE = "quarantine"
    """Write it to the table `quarantine` with its last error; `headrace quarantine JOB --requeue` brings it back."""

    DEFAULT = "default"
    """Emit the records of `AsyncFunction.default` in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """When a service counts as down, and how it is probed. Each task has its own breaker.

    No call is made while the breaker is open. An element that is due waits for the next probe: in the task if the probe
    is nearer than `park_after`, else in the table `async_requests`. One element is the probe, and its success closes
    the breaker. A probe has the operator's whole timeout. A probe that fails or times out costs its element neither an
    attempt nor time.

    Raises `ValueError` for `failures` below 1, and unless `probe_after` is positive and at most `longest`.
    """

    failures: int = 20
    """Failed calls in a row that open the breaker. Only failures that the retry strategy retries count."""

    probe_after: timedelta = timedelta(seconds=30)
    """Time from opening to the first probe."""

    longest: timedelta = timedelta(minutes=10)
    """Upper limit of the time between probes, which doubles with each failed probe."""

    def __post_init__(self) -> None:
        """Refuse a breaker that never opens, or never closes again."""
        if self.failures < 1:
            msg = f"failures must be at least 1, not {self.failures}"
            raise ValueError(msg)
        if not timedelta(0) < self.probe_after <= self.longest:
            msg = f"probe_after must be positive and at most longest ({self.longest}), not {self.probe_after}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCache:
    """Responses that a task remembers by `AsyncFunction.cache_key`. Equal calls in flight become one call.

    The cache remembers neither failures nor responses that the retry strategy's result predicate rejects.

    Raises `ValueError` for a `size` below 1, a `ttl` that is not positive, and a negative `negative_ttl`.
    """

    size: int = 10_000
    """Largest number of responses; the least recently used one is dropped first."""

    ttl: timedelta | None = None
    """How long a response may be used after it arrived; None: as long as the task lives."""

    negative_ttl: timedelta | None = None
    """`ttl` of a response without records; None: as `ttl`. Zero: such responses are not remembered."""

    def __post_init__(self) -> None:
        """Refuse a cache that can hold nothing."""
        if self.size < 1:
            msg = f"size must be at least 1, not {self.size}"
            raise ValueError(msg)
        if self.ttl is not None and self.ttl <= timedelta(0):
            msg = f"ttl must be positive, not {self.ttl}"
            raise ValueError(msg)
        if self.negative_ttl is not None and self.negative_ttl < timedelta(0):
            msg = f"negative_ttl must not be negative, not {self.negative_ttl}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How records are grouped for `AsyncFunction.invoke_many`.

    Raises `ValueError` for a `size` below 1 and a negative `wait`.
    """

    size: int = 100
    """Largest number of records in a call."""

    wait: timedelta = timedelta(milliseconds=5)
    """Longest time that the first record of a call waits for others."""

    def __post_init__(self) -> None:
        """Refuse empty groups and negative waits."""
        if self.size < 1:
            msg = f"size must be at least 1, not {self.size}"
            raise ValueError(msg)
        if self.wait < timedelta(0):
            msg = f"wait must not be negative, not {self.wait}"
            raise ValueError(msg)


def check_limits(name: str, capacity: int, timeout: timedelta | None, park_after: timedelta | None) -> None:
    """Check limits of `async_wait`. Raises `ValueError` for a value out of range, `TypeError` for one that is no duration."""
    spans: dict[str, object] = {"timeout": timeout, "park_after": park_after}
    for option, span in spans.items():
        if span is not None and not isinstance(span, timedelta):
            msg = f"{option} of '{name}' must be a timedelta, or None for no {option}, not {span!r:.200}"
            raise TypeError(msg)
    if capacity < 1:
        msg = f"capacity of '{name}' must be at least 1, not {capacity}"
        raise ValueError(msg)
    if timeout is not None and timeout <= timedelta(0):
        msg = f"timeout of '{name}' must be positive, or None for no timeout, not {timeout}"
        raise ValueError(msg)
    if park_after is not None and park_after < timedelta(0):
        msg = f"park_after of '{name}' must not be negative, not {park_after}"
        raise ValueError(msg)


class AsyncRetryStrategy(Protocol):
    """When to retry a call that failed, or that returned an incomplete response.

    One strategy serves all records of a task, so it holds no state about any of them: the number of retries is kept
    with the record, and given to each method. Any object with these methods is a strategy.
    """

    def can_retry(self, retries: int, /) -> bool:
        """Return whether another call may follow after `retries` retries (0 after the first call)."""
        ...

    def backoff(self, retries: int, /) -> timedelta:
        """Return the time to wait before the next call, after `retries` retries (0 after the first call)."""
        ...

    def retries_exception(self, error: Exception, /) -> bool:
        """Return whether to retry after `error` (FLIP-232, `exceptionPredicate`)."""
        ...

    def retries_result(self, results: Sequence[Any], /) -> bool:
        """Return whether to retry after this response (FLIP-232, `resultPredicate`).

        Without retries left, such a response is emitted as it is.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    max_retries: int
    """Calls after the first one: 3 allows four calls."""

    exceptions: tuple[type[Exception], ...] = (Exception,)
    """Exceptions that are retried; any other fails at once."""

    results: Callable[[Sequence[Any]], bool] | None = None
    """Predicate of a response (a list of records) that is retried; None: every response is final."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            msg = f"max_retries must not be negative, not {self.max_retries}"
            raise ValueError(msg)

    def can_retry(self, retries: int, /) -> bool:
        """Return whether fewer than `max_retries` retries were made."""
        return retries < self.max_retries

    def retries_exception(self, error: Exception, /) -> bool:
        """Return whether `error` is one of `exceptions`."""
        return isinstance(error, self.exceptions)

    def retries_result(self, results: Sequence[Any], /) -> bool:
        """Return whether the predicate `results` holds for the response."""
        return self.results is not None and self.results(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(_Limited):
    """Constant delay before each retry (FLIP-232, "FixedDelayRetryStrategy").

    Raises `ValueError` for a negative `max_retries` or `delay`.
    """

    delay: timedelta

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("delay", self.delay)

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """Return `delay`."""
        return self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff(_Limited):
    """Delays that grow by `multiplier` up to `max_delay` (FLIP-232, "ExponentialBackoffDelay").

    Raises `ValueError` for a negative `max_retries` or delay, a `multiplier` below 1, and a `jitter` outside of 0 to 1.
    """

    initial_delay: timedelta
    max_delay: timedelta
    multiplier: float = 2.0

    jitter: float = 0.0
    """Random part of each delay, from 0 to 1. With 0.5 a delay of 10 s takes 5 to 10 s.

    It spreads the retries of records that failed together.
    """

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("initial_delay", self.initial_delay)
        _check_delay("max_delay", self.max_delay)
        if not self.multiplier >= 1:  # so that NaN is refused as well
            msg = f"multiplier must be at least 1, not {self.multiplier}"
            raise ValueError(msg)
        if not 0 <= self.jitter <= 1:
            msg = f"jitter must be from 0 to 1, not {self.jitter}"
            raise ValueError(msg)

    def backoff(self, retries: int, /) -> timedelta:
        """Return the time to wait before the next call. Retry 0 waits `initial_delay`, less the jitter."""
        delay = self._grown(retries)
        return delay * (1 - self.jitter * clock.jitter()) if self.jitter else delay

    def _grown(self, retries: int) -> timedelta:
        try:
            grown = self.initial_delay * self.multiplier**retries
        except OverflowError:  # a long outage: 0.1 s doubled 50 times is more than a timedelta holds
            return self.max_delay
        return min(grown, self.max_delay)


def _check_delay(name: str, delay: timedelta) -> None:
    if delay < timedelta(0):
        msg = f"{name} must not be negative, not {delay}"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class NoRetry:
    """No retries: the first failure is final."""

    def can_retry(self, retries: int, /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """Return no delay."""
        return timedelta(0)

    def retries_exception(self, error: Exception, /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False

    def retries_result(self, results: Sequence[Any], /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False


In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class LookupFunction(AsyncFunction[In, Out]):
    """An `AsyncFunction` in three steps: make the key of a record, ask the service for the key, join the record with the response.

    With `cache=LookupCache(...)` only a call that is not in the cache reaches the service.
    """

    @abc.abstractmethod
    def cache_key(self, record: In, /) -> Hashable:
        """Return the key to look up for a record."""

    @abc.abstractmethod
    async def look_up(self, key: Any, /) -> Any:
        """Ask the service. A false response, such as None, is negative; an exception is a failure."""

    @abc.abstractmethod
    def join(self, record: In, response: Any, /) -> list[Out]:
        """Return the records to emit for `record`, given the response for its key."""

    async def invoke(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`: none, one or many. Called for each attempt."""
        return self.join(record, await self.look_up(self.cache_key(record)))


def inner_lookup(function: LookupFunction[In, Out]) -> LookupFunction[In, Out]:
    """Return the same look-up, which emits nothing for a record with a negative response."""
    (takes,), gives = function_types(function)

    class InnerLookup(LookupFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        async def open(self, services: dict[str, str], /) -> None:
            await function.open(services)

        async def close(self) -> None:
            await function.close()

        def cache_key(self, record: Any, /) -> Hashable:
            return function.cache_key(record)

        async def look_up(self, key: Any, /) -> Any:
            return await function.look_up(key)

        def join(self, record: Any, response: Any, /) -> list[Any]:
            return function.join(record, response) if response else []

        async def timeout(self, record: Any, /) -> list[Any]:
            return await function.timeout(record)

        def default(self, record: Any, error: Exception, /) -> list[Any]:
            return function.default(record, error)

        def deleted(self, record: Any, /) -> Any:
            return function.deleted(record)

    InnerLookup.deterministic = function.deterministic
    InnerLookup.__name__ = type(function).__name__
    return InnerLookup()


_SECONDS_BETWEEN_LOOKS = 0.02


class BlockingFunction(AsyncFunction[In, Out]):
    """An `AsyncFunction` over a client that blocks.

    Implement `call` in place of `invoke`. It runs in one of `threads` threads, so everything it shares must be
    thread-safe. A thread cannot be interrupted: a call that exceeds the timeout is abandoned, but keeps its thread
    until it returns.
    """

    threads: ClassVar[int] = 16
    """Calls at once; further calls wait for a thread while their timeout runs."""

    patience: ClassVar[timedelta] = timedelta(seconds=5)
    """Longest time that `close` waits for abandoned calls, so that a call that hangs cannot block the run."""

    _pool: ThreadPoolExecutor | None = None

    @abc.abstractmethod
    def call(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`; as `AsyncFunction.invoke`, but blocking. Called in a thread."""

    async def open(self, services: dict[str, str], /) -> None:
        """Start the threads. A method that overrides this one must call it."""
        await super().open(services)
        self._calls: set[object] = set()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix=type(self).__name__)

    async def close(self) -> None:
        """Stop the threads after their calls end, at most `patience` later. A method that overrides this one must call it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            until = clock.monotonic() + self.patience.total_seconds()
            while self._calls and clock.monotonic() < until:
                await clock.sleep_async(_SECONDS_BETWEEN_LOOKS)
        await super().close()

    async def invoke(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`: none, one or many. Raises `RuntimeError` before `open`."""
        if self._pool is None:
            raise RuntimeError(
                f"{type(self).__name__} was called before open(); does its open() have 'await super().open(services)'?"
            )
        import asyncio  # commands that read state run no function; with ssl and logging, asyncio takes 15 ms to import

        return await asyncio.get_running_loop().run_in_executor(self._pool, self._called, record)

    def _called(self, record: In) -> list[Out]:
        self._calls.add(call := object())
        try:
            return self.call(record)
        except StopIteration as error:
            # A future cannot carry StopIteration: code that waits for the response would wait for ever.
            raise RuntimeError(f"{type(self).__name__}.call() raised StopIteration") from error
        finally:
            self._calls.discard(call)
