"""The joins of two keyed streams: the method `join` of `Stream`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from headrace.api.join_types import check_emit, emitted_type
from headrace.api.joins import JoinFunction, JoinType, Life, lives_of
from headrace.api.state_ttl import StateTtl
from headrace.api.stream_base import StreamBase
from headrace.api.windows import may_retract

if TYPE_CHECKING:
    from headrace.api.stream import JoinedStream, Stream

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_500)


class JoinableStream(StreamBase[R]):
    """The method of `Stream` that joins it with another one."""

    def join(
        self,
        name: str,
        other: Stream[S],
        /,
        *,
        emit: Callable[..., T],
        record: type[T] | None = None,
        how: JoinType = JoinType.INNER,
        within: tuple[timedelta, timedelta] | None = None,
        state_ttl: Life | tuple[Life, Life] | None = None,
    ) -> JoinedStream[T]:
        """Join the records of two keyed streams whose keys are equal; this stream is the left side.

        `emit(left, right)` makes the result of a pair. It is a plain function, or a record type of two fields; its annotation, or
        `record`, says what it makes. It must depend on its arguments alone: it is called again to take a result back.

        **With `within`**, an interval join: `other.time - this.time` lies from `low` to `high`, both included. Both sides only
        add records, and so does the result. State is freed by the watermark. A record that comes behind the watermark is dropped, or goes
        to the side output `late_left` or `late_right`, if you declare it: `.side("late_left", Order)`.

        **Without it**, a regular join: every record of one side with every record of the other, for as long as both are kept. Sides
        may take records back, and the result then does, too. `how` says whether records without a match are in the result;
        `emit` then gets None for the side that is missing. `state_ttl` bounds the state: a duration or `StateTtl` after which a
        record is forgotten, `Lifetime.FOREVER`, or two of them, for left and right.

        Raises `ValueError` for a stream that is not keyed or comes from another pipeline, a regular join without `state_ttl`, and
        an interval join with `state_ttl`, with `how` other than INNER, or of a stream that may take records back; `TypeError`
        where the keys' types differ, and for an `emit` that does not fit.
        """
        join = f"join '{name}'"
        self._check_joined(join, other)
        check_how(join, how)
        gives = emitted_type(join, emit, record)
        sides = (self._record, other.record_type())
        check_emit(join, emit, sides, (how.keeps_right, how.keeps_left))
        try:
            if within is None:
                lives = _lives(state_ttl)
                retracting = may_retract(self._use()) or may_retract(other._use())
                function = _regular(sides, gives, emit=emit, how=how, lives=lives, retracting=retracting)
            else:
                low, high = _bounds(within)
                self._check_interval(other, how, state_ttl)
                function = _interval(sides, gives, emit=emit, low=low, high=high)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{join}: {error}") from None
        return self._joined(name, other, function, gives)

    def _joined(
        self, name: str, other: Stream[S], function: JoinFunction[Any, Any, Any], record: type[T]
    ) -> JoinedStream[T]:
        """Return the stream behind a join."""
        raise NotImplementedError

    def _check_joined(self, join: str, other: StreamBase[Any]) -> None:
        if not isinstance(cast("object", other), StreamBase):
            msg = f"{join} takes a stream, not {other!r:.60}"
            raise TypeError(msg)
        self._check_same_pipeline(join, other)
        if other._is_broadcast:
            msg = f"{join}: '{other._origin}' is a broadcast(), which connect() takes: call key_by() on it instead"
            raise ValueError(msg)
        self._check_connected(other, join)

    def _check_interval(self, other: StreamBase[Any], how: JoinType, state_ttl: object) -> None:
        if how is not JoinType.INNER:
            msg = (
                f"within=... joins what is near in event time, and gives pairs alone, so `how` must be INNER, not {how.name}; a "
                "regular join (state_ttl=... in place of within) keeps records without a match"
            )
            raise ValueError(msg)
        if state_ttl is not None:
            raise ValueError("with within=... the watermark frees the state: leave state_ttl out")
        for stream in (self, other):
            if may_retract(stream._use()):
                msg = (
                    f"'{stream._origin}' may take records back (-U, -D), and an interval join cannot: use a regular join "
                    "(state_ttl=... in place of within), or a stream that only adds records"
                )
                raise ValueError(msg)


def check_how(join: str, how: object) -> None:
    """Raise `TypeError` unless `how` is a kind of join."""
    if not isinstance(how, JoinType):
        msg = f"{join}: how must be a JoinType, such as JoinType.LEFT, not {how!r:.60}"
        raise TypeError(msg)


def _lives(state_ttl: Life | tuple[Life, Life] | None) -> tuple[StateTtl | None, StateTtl | None]:
    if state_ttl is None:
        raise ValueError(
            "nothing bounds the state, so both sides would be kept for good: give state_ttl=timedelta(...), the time after which "
            "a record needs no partner and is not taken back any more; or within=(low, high), if partners are near each other in event "
            "time; or state_ttl=Lifetime.FOREVER, if both sides stay small"
        )
    return lives_of(state_ttl)


def _bounds(within: object) -> tuple[int, int]:
    """Return both bounds of an interval in ms."""
    pair = within if isinstance(within, tuple) else ()
    if len(pair) != len(("low", "high")) or not all(isinstance(bound, timedelta) for bound in pair):
        msg = f"within must be two timedeltas, (low, high), not {within!r:.80}"
        raise TypeError(msg)
    low, high = pair
    if low > high:
        msg = f"within must begin with the smaller bound: ({low}, {high}) holds nothing"
        raise ValueError(msg)
    for bound in pair:
        if bound % _MILLISECOND or abs(bound) > _LONGEST:
            msg = f"within must have whole milliseconds, and at most 36,500 days, not {bound}"
            raise ValueError(msg)
    return low // _MILLISECOND, high // _MILLISECOND


# Operators are built on this layer, which so can't import them; it only has to know their names when somebody joins.


class _Operators(Protocol):
    def regular_join(self, *arguments: Any, **options: Any) -> JoinFunction[Any, Any, Any]: ...

    def interval_join(self, *arguments: Any, **options: Any) -> JoinFunction[Any, Any, Any]: ...


def _regular(*arguments: Any, **options: Any) -> JoinFunction[Any, Any, Any]:
    operators = cast("_Operators", import_module("headrace.operators._regular_join"))
    return operators.regular_join(*arguments, **options)


def _interval(*arguments: Any, **options: Any) -> JoinFunction[Any, Any, Any]:
    operators = cast("_Operators", import_module("headrace.operators._interval_join"))
    return operators.interval_join(*arguments, **options)
