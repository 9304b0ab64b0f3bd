"""Function of aggregates over a frame of rows: its arguments, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.api.changelog_inference import may_retract
from headrace.api.options import Late, OverOptions
from headrace.api.ttl import AnyTtl, Lifetime, ttl_of
from headrace.api.types import check_field
from headrace.stream.aggregation import check_one_form
from headrace.stream.base import StreamBase

if TYPE_CHECKING:
    from headrace.operators._over import OverFunction

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_500)


def over_function(
    stream: StreamBase[Any],
    name: str,
    result: type[Any] | None,
    functions: Mapping[str, Any],
    *,
    order_by: str | tuple[str, ...],
    rows: int | None,
    within: timedelta | None,
    late: Late,
    keep: timedelta | None,
    state_ttl: AnyTtl | None,
) -> tuple[OverFunction[Any, Any], type[Any]]:
    """Return the function of `Stream.over`, and the type of its results."""
    from headrace.operators._inferred_result import inferred_rows

    taker = f"over '{name}'"
    stream._check_keyed(taker)
    check_one_form(taker, name, result, functions, method="over")
    assert stream._key is not None  # noqa: S101 - checked above
    try:
        gives = inferred_rows(name, stream.record_type(), functions) if result is None else result
        _check_inserts(stream)
        options = OverOptions(
            key=stream._key,
            order_by=_fields(stream, order_by),
            rows=_rows(rows, within),
            within=None if within is None else _length("within", within, least=timedelta(0)),
            keep=_keep(late, keep),
        )
        return _function(stream, gives, options, state_ttl), gives
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None


def _function(
    stream: StreamBase[Any], result: type[Any], options: OverOptions, state_ttl: AnyTtl | None
) -> OverFunction[Any, Any]:
    """Return the function, with the lifetime of a key's state where it has one."""
    from headrace.operators._sliding_over import over

    function = over(stream.record_type(), result, options)
    if not function.keeps_keys:
        if state_ttl is not None:
            raise ValueError("the watermark frees the state: leave state_ttl out")
        return function
    ttl = ttl_of(state_ttl, kept="the last rows and sums of each key", after="a key begins anew")
    if function.waits_for_rows and not isinstance(state_ttl, timedelta | Lifetime):
        msg = f"a row waits for the rows behind it (Lead) for state_ttl: give a timedelta, or Lifetime.FOREVER, not {state_ttl!r:.60}"
        raise ValueError(msg)
    return over(stream.record_type(), result, replace(options, ttl=ttl))


def _check_inserts(stream: StreamBase[Any]) -> None:
    if may_retract(stream._use()):
        msg = (
            f"'{stream._origin}' may take records back (-U, -D), and over() cannot: call additions() before key_by(), which makes "
            "each version of a record a row of its own; or lag(), which pairs the rows of a changelog"
        )
        raise ValueError(msg)


def _fields(stream: StreamBase[Any], order_by: object) -> tuple[str, ...]:
    names = (order_by,) if isinstance(order_by, str) else order_by
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        msg = f"order_by takes a field, or a tuple of fields, not {order_by!r:.60}"
        raise TypeError(msg)
    for name in names:
        check_field(stream.record_type(), name)
    return names


def _rows(rows: object, within: object) -> int | None:
    if rows is None:
        return None
    if within is not None:
        raise ValueError("rows and within are two frames: give one of them, or none for all rows of the key so far")
    if type(rows) is not int or rows < 1:
        msg = f"rows must be a whole number of at least 1, the current row included, not {rows!r:.60}"
        raise ValueError(msg)
    return rows


def _keep(late: object, keep: timedelta | None) -> int:
    if not isinstance(late, Late):
        msg = f"late must be Late.DROP or Late.CORRECT, not {late!r:.60}"
        raise TypeError(msg)
    if late is Late.DROP:
        if keep is not None:
            raise ValueError("keep is the time for which late rows correct results: give late=Late.CORRECT beside it")
        return 0
    if keep is None:
        raise ValueError(
            "late=Late.CORRECT needs keep=timedelta(...): how long behind the watermark a late row corrects results"
        )
    return _length("keep", keep, least=_MILLISECOND)


def _length(what: str, given: object, *, least: timedelta) -> int:
    """Return a length in ms."""
    if not isinstance(given, timedelta):
        msg = f"{what} must be a timedelta, not {given!r:.60}"
        raise TypeError(msg)
    if not least <= given <= _LONGEST or given % _MILLISECOND:
        msg = f"{what} must be whole milliseconds, from {least // _MILLISECOND} to 36,500 days, not {given}"
        raise ValueError(msg)
    return given // _MILLISECOND
