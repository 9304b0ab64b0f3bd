"""Functions of operators that keep some records of each key: the first by a value, or by event time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.api.changelog import StreamChanges
from headrace.api.changelog_inference import may_retract
from headrace.api.functions import KeyedProcessFunction, TimeDomain
from headrace.api.options import Ranks
from headrace.api.ttl import AnyTtl, StateTtl, ttl_of
from headrace.api.types import check_record
from headrace.stream.base import StreamBase, check_time, in_time

Function = KeyedProcessFunction[Any, Any]


def top_function(
    stream: StreamBase[Any],
    name: str,
    make_ranks: Callable[[], Ranks],
    result: type | None,
    *,
    retracting: bool | None,
    state_ttl: AnyTtl | None,
) -> Function:
    """Return the function of `Stream.top`."""
    from headrace.operators._first_records import top_n

    taker = f"top '{name}'"
    stream._check_keyed(taker)
    if result is not None:
        check_record(taker, result)
    changes = stream._changes
    takes_back = changes.may_retract if retracting is None else retracting
    try:
        upsert_key = _upsert_key(changes, () if stream._key is None else stream._key.fields)
        ranks = make_ranks()
        ttl = ttl_of(state_ttl, kept="the first records of each key", after="what got no new record is forgotten")
        return top_n(stream.record_type(), ranks, retracting=takes_back, ttl=ttl, upsert_key=upsert_key)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None


def _upsert_key(changes: StreamChanges, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the unique key of a stream of upserts that is keyed by `fields`; no field for other streams.

    Raises `ValueError` where the row that an update replaces may be at another key.
    """
    if not changes.mode.is_upsert:
        return ()
    key = changes.mode.key
    if not fields or not {*fields} <= {*key}:
        msg = (
            f"the stream is {changes.mode}, and an update could leave the old row at another key: key_by fields of its own key, or "
            "call normalize() before it, which makes whole updates of them"
        )
        raise ValueError(msg)
    return key


def first_by_time_function(
    stream: StreamBase[Any], name: str, *, at_watermark: bool, time: TimeDomain, state_ttl: AnyTtl | None
) -> Function:
    """Return the function of `Stream.first_by_time`."""
    from headrace.operators._first_records import first_by_time, first_to_arrive

    taker = f"first_by_time '{name}'"
    ttl = _ttl_by_time(stream, taker, time, state_ttl)
    if time is TimeDomain.EVENT_TIME:
        return first_by_time(stream.record_type(), ttl=ttl, at_watermark=at_watermark)
    if at_watermark:
        msg = f"{taker}: by processing time the first record is final at once: leave at_watermark out"
        raise ValueError(msg)
    return first_to_arrive(stream.record_type(), ttl=ttl)


def last_by_time_function(
    stream: StreamBase[Any], name: str, *, time: TimeDomain, state_ttl: AnyTtl | None
) -> Function:
    """Return the function of `Stream.last_by_time`."""
    from headrace.operators._first_records import last_by_time, last_to_arrive

    ttl = _ttl_by_time(stream, f"last_by_time '{name}'", time, state_ttl)
    by_time = last_by_time if time is TimeDomain.EVENT_TIME else last_to_arrive
    return by_time(stream.record_type(), ttl=ttl)


def _ttl_by_time(stream: StreamBase[Any], taker: str, time: TimeDomain, state_ttl: AnyTtl | None) -> StateTtl | None:
    """Check the stream and the clock, and return the TTL of its state. Raises `ValueError` and `TypeError` as `first_by_time` does."""
    stream._check_keyed(taker)
    check_time(taker, time)
    if may_retract(stream._use()):
        msg = f"{taker}: the stream may take records back, and this keeps one record of a key alone: use top() with n=1"
        raise ValueError(msg)
    try:
        return ttl_of(in_time(state_ttl, time), kept="a record of each key", after="a key is new again")
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None
