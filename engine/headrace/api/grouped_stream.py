"""Aggregates of all records of each key, without windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.lifetime import Life, ttl_of
from headrace.api.operator_library import GroupOptions, operator_library
from headrace.api.stream_base import StreamBase
from headrace.api.stream_types import check_record
from headrace.api.upsert_materialize import Emit

if TYPE_CHECKING:
    from headrace.api.stream import OperatorStream

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
