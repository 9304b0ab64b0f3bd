"""Joins of a stream with data about its keys: versions by event time, and answers of a service."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from headrace.api.async_io import CircuitBreaker, LookupCache, OnFailure
from headrace.api.changelog_inference import may_retract
from headrace.api.graph import OutputMode
from headrace.api.join_emit import emitted_type
from headrace.api.join_type import JoinType, check_how
from headrace.api.lifetime import Life, ttl_of
from headrace.api.lookup_function import LookupFunction, inner_lookup
from headrace.api.operator_library import operator_library
from headrace.api.retry_strategies import AsyncRetryStrategy
from headrace.api.stream_base import StreamBase
from headrace.api.stream_types import check_function

if TYPE_CHECKING:
    from headrace.api.stream import OperatorStream, Stream

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)

_WITH_LEFT = (JoinType.INNER, JoinType.LEFT)


class TemporalStream(StreamBase[R]):
    """Methods of `Stream` that join records with versions and answers."""

    def join_as_of(
        self,
        name: str,
        versions: Stream[S],
        /,
        *,
        emit: Callable[[R, Any], T],
        how: JoinType = JoinType.INNER,
        record: type[T] | None = None,
        state_ttl: Life | None = None,
    ) -> OperatorStream[T]:
        """Join each record with the one of `versions` that is valid at its event time; both are keyed by the same type.

        A record of `versions` is valid from its event time until the next one of its key. A `-D` ends the version
        before it, from its own event time on; a `-U` changes nothing. Of several versions of one moment, the last to
        arrive is valid.

        A record waits until the watermark reaches its event time, and is then emitted as `emit(record, version)`, with
        its own event time and row kind. Without a valid version, `JoinType.INNER` emits nothing, `JoinType.LEFT` emits
        `emit(record, None)`. `emit` is plain; `record` is the type of its result, by default the one in its annotation.
        A late record is dropped, or goes to the side output `late`. A late version holds for the records that still
        wait.

        A version is freed when the watermark reaches the next one. `state_ttl` bounds how long the last version of a
        key is kept after it was written: a duration, a `StateTtl` or `Lifetime.FOREVER`.

        Raises `ValueError` without a key on both sides, for a `how` other than INNER or LEFT, and without `state_ttl`;
        `TypeError` where the keys' types differ, and for an `emit` that does not fit.
        """
        join = f"join_as_of '{name}'"
        self._check_joined(join, versions)
        check_how(join, how, _WITH_LEFT)
        sides = (self._record, versions.record_type())
        gives = emitted_type(join, emit, record, sides=sides, may_be_missing=(False, how.keeps_left))
        try:
            ttl = ttl_of(state_ttl, kept="the last version of each key", after="a version is not valid any more")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{join}: {error}") from None
        function = operator_library().as_of_join(
            sides, gives, emit=emit, how=how, retracting=may_retract(self._use()), ttl=ttl
        )
        return self._operated(name, function, gives, versions)

    def lookup(
        self,
        name: str,
        function: LookupFunction[Any, S],
        /,
        *,
        timeout: timedelta | None,
        how: JoinType = JoinType.INNER,
        cache: LookupCache | None = None,
        mode: OutputMode = OutputMode.UNORDERED,
        capacity: int = 100,
        retry: AsyncRetryStrategy | None = None,
        park_after: timedelta | None = None,
        on_failure: OnFailure = OnFailure.FAIL,
        breaker: CircuitBreaker | None = None,
        service: str | None = None,
    ) -> Stream[S]:
        """Join each record with a service's answer for its key: `async_wait` with a `LookupFunction` and a cache.

        `JoinType.INNER` emits nothing for a record whose answer is negative (None, or anything else that is false), and
        does not call `join` for it; `JoinType.LEFT` calls `join(record, answer)` for all. `cache` is by default
        `LookupCache()`: 10,000 answers for each task, for as long as it lives. The other arguments are those of
        `async_wait`.

        Raises `ValueError` for a `how` other than INNER or LEFT, `TypeError` for another kind of function; else as
        `async_wait`.
        """
        taker = f"lookup '{name}'"
        check_function(taker, function, LookupFunction)
        check_how(taker, how, _WITH_LEFT)
        return cast("Stream[R]", self).async_wait(
            name,
            inner_lookup(function) if how is JoinType.INNER else function,
            timeout=timeout,
            cache=LookupCache() if cache is None else cache,
            mode=mode,
            capacity=capacity,
            retry=retry,
            park_after=park_after,
            on_failure=on_failure,
            breaker=breaker,
            service=service,
        )
