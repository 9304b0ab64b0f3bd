"""Aggregates of each key: without windows, and in windows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.graph import Emit
from headrace.api.options import (
    GroupOptions,
    JoinType,
    Ranks,
    Results,
    WindowJoin,
    WindowOptions,
    Windows,
    check_how,
    matched,
    pairs,
    unmatched,
)
from headrace.api.ttl import Life, ttl_of
from headrace.api.types import check_record
from headrace.stream.base import StreamBase
from headrace.stream.joins import emitted_type
from headrace.stream.library import operator_library

if TYPE_CHECKING:
    from headrace.stream.stream import AggregatedStream, OperatorStream, Stream


R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)


class GroupedStream(StreamBase[R]):
    """Methods of `Stream` that aggregate the records of each key."""

    def aggregate(
        self,
        name: str,
        result: type[S],
        /,
        *,
        emit: Emit = Emit.EVERY_CHANGE,
        retract: bool = True,
        retracting: bool | None = None,
        state_ttl: Life | None = None,
    ) -> OperatorStream[S]:
        """Aggregate all records of each key, and emit each change of the result (SQL: `GROUP BY`); needs `key_by` before it.

        `result` is a record type. Its annotations define each field:

            class Spent(Struct, frozen=True):
                customer: str                          # a field of key_by
                orders: Annotated[int, Count()]        # an aggregate of headrace.operators, or an AggregateFunction
                cents: Annotated[int, Sum("cents")]

        Every field may be left out. After a `key_by` with a function, the field `key` holds the key. The first result of
        a key is an insert (`+I`). Later ones replace it: `-U` with the old result and its event time, then `+U` with the
        new one and the event time of the record. A record that changes nothing emits nothing. When all records of a key
        are retracted, its result is deleted (`-D`). A retraction of a key without records, or one that some aggregate
        knows it never took, changes nothing and goes to the quarantine.

        `emit=Emit.NET_CHANGE` emits one change for each key and micro-batch, from the last result before it to the one
        at its end (Flink: mini-batch aggregation). State and tables are the same, but a log of the results is shorter,
        and depends on the micro-batches. `retract=False` leaves `-U` out, for a sink that is merged by the key, or
        for a log of results; other operators would count each result again.

        `retracting` says whether the stream has `-U` and `-D`; None: taken from the graph, which does not know what your
        own process functions emit. `state_ttl` bounds the state: a duration or `StateTtl` after which a key without
        records is forgotten (nothing is emitted then), or `Lifetime.FOREVER`.

        Raises `ValueError` without a key or `state_ttl`, for `Emit.NET_CHANGE` with a TTL, for a field that the record
        lacks, and for a stream that retracts records where an aggregate cannot; `TypeError` for a field whose
        annotation does not define it, or has another type than its aggregate gives.
        """
        taker = f"aggregate '{name}'"
        self._check_keyed(taker)
        check_record(taker, result)
        assert self._key is not None  # noqa: S101 - checked above
        takes_back = may_retract(self._use()) if retracting is None else retracting
        try:
            ttl = ttl_of(state_ttl, kept="the aggregates of each key", after="a key without records is forgotten")
            options = GroupOptions(key=self._key, emit=emit, retract=retract, retracting=takes_back, ttl=ttl)
            function: Any = operator_library().group_aggregation(self._record, result, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{taker}: {error}") from None
        return self._operated(name, function, result)


T = TypeVar("T", bound=msgspec.Struct)


class WindowedStream(Generic[R]):
    """A keyed stream and its windows: `aggregate`, `top` or a join must follow."""

    def __init__(self, stream: Stream[R], windows: Windows) -> None:
        """Hold the stream and its windows; `Stream.window` calls this."""
        self._stream = stream
        self._windows = windows

    def aggregate(
        self,
        name: str,
        result: type[S],
        /,
        *,
        allowed_lateness: timedelta = timedelta(0),
        early: timedelta | None = None,
    ) -> AggregatedStream[S]:
        """Emit one `result` for each key and window that has records, when the watermark reaches the window's end.

        `result` is a record type. Its annotations define each field:

            class Revenue(Struct, frozen=True):
                customer: str                          # a field of key_by
                window_start: Timestamp                # the first moment of the window
                window_end: Timestamp                  # the first moment after it
                orders: Annotated[int, Count()]        # an aggregate of headrace.operators, or an AggregateFunction
                cents: Annotated[int, Sum("cents")]

        Every field may be left out. After a `key_by` with a function, the field `key` holds the key. Results have the
        event time `window_end - 1 ms`, and the first one of a window is an insert (`+I`).

        A record that arrives after its window has fired, but before the watermark passes the window's end by
        `allowed_lateness`, corrects the result: `-U` with the old one, `+U` with the new one. A later record is
        dropped, or goes to the side output `late` of the result, if you declare it: `.side("late", Order)` or
        `.side_output("late", Order, sink=...)`. State is freed at the same moment.

        `early` is a step of event time, counted from the window's start: when the watermark reaches the end of a step,
        the window emits its result so far, and corrects it after the next step or at its end. If a session has grown
        since its early result, that result is deleted, and a new one inserted; where several sessions merge, their
        early results are deleted at once.

        Raises `TypeError` for a field whose annotation does not define it, or has another type than its aggregate
        gives; `ValueError` for a negative lateness, an early step below 1 ms, a field that the record lacks, and a
        stream that retracts records where an aggregate cannot.
        """
        check_record(f"aggregate '{name}'", result)
        stream, options = self._stream, self._options(allowed_lateness, early)
        try:
            function = self._windows.aggregation(stream.record_type(), result, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"aggregate '{name}': {error}") from None
        return stream._aggregated(name, function, result)

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        ties: bool = ...,
        result: None = ...,
        allowed_lateness: timedelta = ...,
        early: timedelta | None = ...,
    ) -> AggregatedStream[R]: ...

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        ties: bool = ...,
        result: type[S],
        allowed_lateness: timedelta = ...,
        early: timedelta | None = ...,
    ) -> AggregatedStream[S]: ...

    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = True,
        ties: bool = False,
        result: type[Any] | None = None,
        allowed_lateness: timedelta = timedelta(0),
        early: timedelta | None = None,
    ) -> AggregatedStream[Any]:
        """Emit the first `n` records of each key and window by `by`, when the watermark reaches the window's end.

        `by`, `descending` and `result` are as for `Stream.top`; the fields `window_start` and `window_end` of `result`
        hold those of the window, unless the record has such fields. Results come in the order of their ranks, with the
        event time `window_end - 1 ms`, as inserts. `allowed_lateness`, `early`, late records and the freeing of state
        are as for `aggregate`; a correction updates each rank whose record changes.

        With `ties`, all records whose value equals that of the n-th one are emitted, too, as by `RANK() <= n` of SQL.
        Records with equal values have the same rank, as in 1, 1, 3. A rank may then have several results, so a
        correction deletes those that are no longer right, and inserts new ones. All these records are stored.

        Raises the errors of `aggregate` and `Stream.top`.
        """
        if result is not None:
            check_record(f"top '{name}'", result)
        stream, options = self._stream, self._options(allowed_lateness, early)
        try:
            function = self._windows.ranking(stream.record_type(), Ranks(n, by, descending, result, ties), options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"top '{name}': {error}") from None
        return stream._aggregated(name, function, result or stream.record_type())

    def join(
        self,
        name: str,
        other: WindowedStream[T],
        /,
        *,
        emit: Callable[[Any, Any], S],
        how: JoinType = JoinType.INNER,
        record: type[S] | None = None,
    ) -> OperatorStream[S]:
        """Join the records of two streams that have the same key and lie in the same window.

        When the watermark reaches the window's end, `emit(left, right)` is emitted for each pair, with the event time
        `window_end - 1 ms`, in the order of their slices and of arrival. Where a key has records on one side alone,
        `how` decides: `JoinType.LEFT` and `FULL` emit `emit(left, None)`, `RIGHT` and `FULL` `emit(None, right)`.
        `emit` is plain; `record` is the type of its result, by default the one in its annotation. A `-U` or `-D`
        removes a record from its windows.

        A record that arrives after its windows have fired is dropped, or goes to the side output `late_left` or
        `late_right`. State is freed when the watermark passes the end of the last window.

        Raises `ValueError` where the other side has other windows, and for sessions; `TypeError` where the keys' types
        differ, and for an `emit` that does not fit.
        """
        join = f"join '{name}'"
        self._check_joined(join, other)
        check_how(join, how)
        sides = (self._stream.record_type(), other._stream.record_type())
        gives = emitted_type(join, emit, record, sides=sides, may_be_missing=(how.keeps_right, how.keeps_left))
        return self._joined(name, join, other, gives=gives, kind=how.value, results=pairs(emit, how))

    def semi_join(self, name: str, other: WindowedStream[T], /) -> OperatorStream[R]:
        """Keep the records whose key has records of `other` in the same window: `IN` and `EXISTS` of Flink SQL's window joins.

        When the watermark reaches the window's end, each such record is emitted once, however many match, with the event time
        `window_end - 1 ms`; a record that is in several windows, once for each. Late records, state and errors are as for `join`.
        """
        join = f"semi_join '{name}'"
        self._check_joined(join, other)
        return self._joined(name, join, other, gives=self._stream.record_type(), kind="semi", results=matched)

    def anti_join(self, name: str, other: WindowedStream[T], /) -> OperatorStream[R]:
        """Keep the records whose key has no record of `other` in the same window: `NOT IN` and `NOT EXISTS` of Flink SQL's window joins.

        Everything else is as for `semi_join`.
        """
        join = f"anti_join '{name}'"
        self._check_joined(join, other)
        return self._joined(name, join, other, gives=self._stream.record_type(), kind="anti", results=unmatched)

    def _check_joined(self, join: str, other: WindowedStream[Any]) -> None:
        if not isinstance(cast("object", other), WindowedStream):
            msg = f"{join} takes a stream with windows, as in other.key_by(...).window(...), not {other!r:.60}"
            raise TypeError(msg)
        self._stream._check_joined(join, other._stream)
        if other._windows != self._windows:
            msg = f"{join}: the windows are {self._windows} and {other._windows}: both sides need the same"
            raise ValueError(msg)

    def _joined(
        self, name: str, join: str, other: WindowedStream[Any], *, gives: type[S], kind: str, results: Results
    ) -> OperatorStream[S]:
        left, right = self._stream, other._stream
        joined = WindowJoin(left=left.record_type(), right=right.record_type(), gives=gives, kind=kind, results=results)
        try:
            function = self._windows.joining(joined)
        except ValueError as error:
            msg = f"{join}: {error}"
            raise ValueError(msg) from None
        return left._operated(name, function, gives, right)

    def _options(self, allowed_lateness: timedelta, early: timedelta | None) -> WindowOptions:
        key = self._stream._key
        assert key is not None  # noqa: S101 - Stream.window has looked
        return WindowOptions(
            key=key, retracting=may_retract(self._stream._use()), allowed_lateness=allowed_lateness, early=early
        )
