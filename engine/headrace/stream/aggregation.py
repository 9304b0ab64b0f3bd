"""Functions of aggregates of each key: without windows, and in windows, with ranks and joins there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.column_reads import Declared
from headrace.api.functions import KeyedProcessFunction, TimeDomain
from headrace.api.graph import Emit
from headrace.api.options import (
    GroupOptions,
    JoinFunction,
    JoinType,
    NullKeys,
    Ranks,
    Results,
    Trigger,
    WindowFunction,
    WindowJoin,
    WindowOptions,
    Windows,
    check_how,
    kept_null_keys,
    pairs,
)
from headrace.api.ttl import AnyTtl, ttl_of
from headrace.api.types import check_record
from headrace.stream.base import StreamBase
from headrace.stream.joins import Joined, emitted_type, pair_reads

R = TypeVar("R", bound=msgspec.Struct)


class WindowedBase(Generic[R]):
    """A keyed stream and its windows."""

    _stream: StreamBase[R]
    _windows: Windows
    _time: TimeDomain


def aggregate_function(
    stream: StreamBase[Any],
    name: str,
    result: type[Any] | None,
    aggregates: Mapping[str, Any],
    *,
    emit: Emit,
    retract: bool,
    retracting: bool | None,
    state_ttl: AnyTtl | None,
) -> tuple[KeyedProcessFunction[Any, Any], type[Any]]:
    """Return the function of `Stream.aggregate`, and the type of its results."""
    from headrace.operators._group_aggregation import group_aggregation

    taker = f"aggregate '{name}'"
    stream._check_keyed(taker)
    gives = _result_type(taker, name, stream, result, aggregates, windowed=False)
    assert stream._key is not None  # noqa: S101 - checked above
    takes_back = may_retract(stream._use()) if retracting is None else retracting
    try:
        ttl = ttl_of(state_ttl, kept="the aggregates of each key", after="a key without records is forgotten")
        options = GroupOptions(key=stream._key, emit=emit, retract=retract, retracting=takes_back, ttl=ttl)
        return group_aggregation(stream.record_type(), gives, options), gives
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None


def window_aggregate_function(
    windowed: WindowedBase[Any],
    name: str,
    result: type[Any] | None,
    aggregates: Mapping[str, Any],
    *,
    allowed_lateness: timedelta,
    early: timedelta | Trigger | None,
) -> tuple[WindowFunction[Any, Any], type[Any]]:
    """Return the function of `WindowedStream.aggregate`, and the type of its results."""
    stream, options = windowed._stream, _options(windowed, allowed_lateness, early)
    has_bounds = windowed._windows.has_bounds
    gives = _result_type(f"aggregate '{name}'", name, stream, result, aggregates, windowed=has_bounds)
    try:
        return windowed._windows.aggregation(stream.record_type(), gives, options), gives
    except (TypeError, ValueError) as error:
        raise type(error)(f"aggregate '{name}': {error}") from None


def check_one_form(
    taker: str, name: str, result: type[Any] | None, aggregates: Mapping[str, Any], *, method: str
) -> None:
    """Raise `TypeError` unless there is a record type of results, or aggregates by the names of their fields; not both."""
    if result is not None and not aggregates:
        check_record(taker, result)
        return
    if result is None and aggregates:
        return
    msg = (
        f"{taker} takes a record type whose annotations define its fields, or aggregates by the names of their fields, as in "
        f'{method}("{name}", orders=Count()): {"neither is given" if result is None else "leave one of the two out"}'
    )
    raise TypeError(msg)


def _result_type(
    taker: str,
    name: str,
    stream: StreamBase[Any],
    result: type[Any] | None,
    aggregates: Mapping[str, Any],
    *,
    windowed: bool,
) -> type[Any]:
    """Return the type of the results: the given one, or one with a field for each of the `aggregates`.

    Raises `TypeError` for both, and for neither.
    """
    from headrace.operators._inferred_result import inferred_result

    check_one_form(taker, name, result, aggregates, method="aggregate")
    if result is not None:
        return result
    assert stream._key is not None  # noqa: S101 - both callers have looked
    try:
        return inferred_result(name, stream.record_type(), stream._key, aggregates, windowed=windowed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None


def window_top_function(
    windowed: WindowedBase[Any],
    name: str,
    make_ranks: Callable[[], Ranks],
    result: type[Any] | None,
    *,
    allowed_lateness: timedelta,
    early: timedelta | Trigger | None,
) -> WindowFunction[Any, Any]:
    """Return the function of `WindowedStream.top`."""
    if result is not None:
        check_record(f"top '{name}'", result)
    stream, options = windowed._stream, _options(windowed, allowed_lateness, early)
    try:
        return windowed._windows.ranking(stream.record_type(), make_ranks(), options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"top '{name}': {error}") from None


def window_join_function(
    windowed: WindowedBase[Any],
    name: str,
    other: WindowedBase[Any],
    *,
    emit: Callable[[Any, Any], Any],
    how: JoinType,
    record: type[Any] | None,
    null_keys: NullKeys,
    reads: Declared | None,
) -> Joined:
    """Return the function of `WindowedStream.join`."""
    join = f"join '{name}'"
    _check_joined(join, windowed, other)
    check_how(join, how)
    sides = (windowed._stream.record_type(), other._stream.record_type())
    gives = emitted_type(join, emit, record, sides=sides, may_be_missing=(how.keeps_right, how.keeps_left))
    kept = kept_null_keys(join, null_keys, how)
    joined = WindowJoin(
        left=sides[0],
        right=sides[1],
        gives=gives,
        kind=how.value,
        results=pairs(emit, how),
        takes_null_keys=kept,
        time=windowed._time,
        retracting=_may_retract(windowed, other),
    )
    function = _joining(join, windowed, joined)
    function.pair_reads = pair_reads(join, emit, sides, gives, reads)
    return function, gives


def window_match_function(
    windowed: WindowedBase[Any],
    join: str,
    other: WindowedBase[Any],
    *,
    kind: str,
    results: Results,
    null_keys: NullKeys = NullKeys.QUARANTINE,
) -> JoinFunction[Any, Any, Any]:
    """Return the function of `WindowedStream.semi_join` and `anti_join`."""
    _check_joined(join, windowed, other)
    left, right = windowed._stream.record_type(), other._stream.record_type()
    kept = kept_null_keys(join, null_keys, JoinType.LEFT)
    joined = WindowJoin(
        left=left,
        right=right,
        gives=left,
        kind=kind,
        results=results,
        takes_null_keys=kept,
        time=windowed._time,
        retracting=_may_retract(windowed, other),
    )
    return _joining(join, windowed, joined)


def _check_joined(join: str, windowed: WindowedBase[Any], other: WindowedBase[Any]) -> None:
    if not isinstance(cast("object", other), WindowedBase):
        msg = f"{join} takes a stream with windows, as in other.key_by(...).window(...), not {other!r:.60}"
        raise TypeError(msg)
    windowed._stream._check_joined(join, other._stream)
    if (other._windows, other._time) != (windowed._windows, windowed._time):
        msg = f"{join}: the windows are {_shown(windowed)} and {_shown(other)}: both sides need the same"
        raise ValueError(msg)


def _may_retract(*sides: WindowedBase[Any]) -> bool:
    return any(may_retract(side._stream._use()) for side in sides)


def _shown(windowed: WindowedBase[Any]) -> str:
    of_time = " of processing time" if windowed._time is TimeDomain.PROCESSING_TIME else ""
    return f"{windowed._windows}{of_time}"


def _joining(join: str, windowed: WindowedBase[Any], joined: WindowJoin) -> JoinFunction[Any, Any, Any]:
    try:
        return windowed._windows.joining(joined)
    except ValueError as error:
        msg = f"{join}: {error}"
        raise ValueError(msg) from None


def _options(
    windowed: WindowedBase[Any], allowed_lateness: timedelta, early: timedelta | Trigger | None
) -> WindowOptions:
    stream = windowed._stream
    assert stream._key is not None  # noqa: S101 - Stream.window has looked
    return WindowOptions(
        key=stream._key,
        retracting=may_retract(stream._use()),
        time=windowed._time,
        allowed_lateness=allowed_lateness,
        early=early,
    )
