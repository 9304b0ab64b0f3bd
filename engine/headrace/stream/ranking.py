"""Operators that keep some records of each key: the first by a value, or by event time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.options import Ranks
from headrace.api.ttl import Life, StateTtl, ttl_of
from headrace.api.types import check_record
from headrace.stream.base import StreamBase
from headrace.stream.library import operator_library

if TYPE_CHECKING:
    from headrace.stream.stream import OperatorStream


R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)


class RankedStream(StreamBase[R]):
    """Methods of `Stream` that rank the records of each key."""

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        result: None = ...,
        retracting: bool | None = ...,
        state_ttl: Life | None = ...,
    ) -> OperatorStream[R]: ...

    @overload
    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = ...,
        result: type[S],
        retracting: bool | None = ...,
        state_ttl: Life | None = ...,
    ) -> OperatorStream[S]: ...

    def top(
        self,
        name: str,
        n: int,
        /,
        *,
        by: str | Callable[[R], Any],
        descending: bool = True,
        result: type[Any] | None = None,
        retracting: bool | None = None,
        state_ttl: Life | None = None,
    ) -> OperatorStream[Any]:
        """Keep the first `n` records of each key by `by`, and emit each change of them; needs `key_by` before it.

        `by` is a field or a plain function of the record. Its value is text, a number, a truth value, bytes, or a tuple
        of them. The largest comes first, or with `descending=False` the smallest; None is smaller than any value. Of
        records with equal values, the earliest by event time comes first, and of those the first to arrive. `result` is
        the type of the emitted records: it takes fields of the record by their names, and the rank in a field annotated
        with `Rank()`.

            class Best(Struct, frozen=True):
                game: str
                player: str
                rank: Annotated[int, Rank()]           # 1 for the first

        With a rank, each rank whose record changes is updated (`-U`, `+U`). Without `result`, or without a rank in it,
        the records are emitted, and those that leave the first `n` are deleted (`-D`). An emitted row has the event
        time of its record, also when it is retracted.

        `retracting` says whether the stream has `-U` and `-D`. If so, all records of a key are stored, and a retraction
        of a record that is not stored goes to the side output `unmatched`, or else to the quarantine. None: taken from the graph, which does not
        know what your own process functions emit. `state_ttl` bounds the state: a duration or `StateTtl` after which an
        entry without a write expires (nothing is emitted then), or `Lifetime.FOREVER`.

        Raises `ValueError` without a key or `state_ttl`, for `n` below 1, and for a field that the record lacks;
        `TypeError` for values that cannot be compared, and for a `result` with a field that is neither a field of the
        record nor a rank.
        """
        taker = f"top '{name}'"
        self._check_keyed(taker)
        if result is not None:
            check_record(taker, result)
        takes_back = may_retract(self._use()) if retracting is None else retracting
        try:
            ranks = Ranks(n, by, descending, result)
            ttl = ttl_of(state_ttl, kept="the first records of each key", after="what got no new record is forgotten")
            function = operator_library().top_n(self._record, ranks, retracting=takes_back, ttl=ttl)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{taker}: {error}") from None
        return self._operated(name, function, result or self._record)

    def first_by_time(
        self, name: str, /, *, at_watermark: bool = False, state_ttl: Life | None = None
    ) -> OperatorStream[R]:
        """Keep the first record of each key by event time; needs `key_by` before it. Of one moment, the first to arrive stays.

        It is emitted at once (`+I`); an earlier one that arrives later replaces it (`-U`, `+U`). With `at_watermark` it
        is emitted when the watermark reaches its event time, as a final insert; records that arrive behind the
        watermark are dropped. `state_ttl` bounds the state: a key counts as new again when this time (a duration or
        `StateTtl`) has passed since its row was written, or never (`Lifetime.FOREVER`).

        Raises `ValueError` without a key or `state_ttl`, and for a stream that may retract records: use `top` with
        `n=1` there.
        """
        ttl = self._ttl_by_time("first_by_time", name, state_ttl)
        function = operator_library().first_by_time(self._record, ttl=ttl, at_watermark=at_watermark)
        return self._operated(name, function, self._record)

    def last_by_time(self, name: str, /, *, state_ttl: Life | None = None) -> OperatorStream[R]:
        """Keep the last record of each key by event time; needs `key_by` before it. Of one moment, the last to arrive stays.

        It is emitted at once; each later one replaces it (`-U`, `+U`). `state_ttl` and errors are as for `first_by_time`.
        """
        ttl = self._ttl_by_time("last_by_time", name, state_ttl)
        return self._operated(name, operator_library().last_by_time(self._record, ttl=ttl), self._record)

    def _ttl_by_time(self, method: str, name: str, state_ttl: Life | None) -> StateTtl | None:
        """Check the stream, and return the TTL of its state. Raises `ValueError` and `TypeError` as `first_by_time` does."""
        taker = f"{method} '{name}'"
        self._check_keyed(taker)
        if may_retract(self._use()):
            msg = f"{taker}: the stream may take records back, and this keeps one record of a key alone: use top() with n=1"
            raise ValueError(msg)
        try:
            return ttl_of(state_ttl, kept="a record of each key", after="a key is new again")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{taker}: {error}") from None
