"""Joins of two keyed streams: the method `join` of `Stream`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.join_emit import emitted_type
from headrace.api.join_type import JoinType, check_how
from headrace.api.lifetime import Life, ttls_of_sides
from headrace.api.operator_library import operator_library
from headrace.api.state_ttl import StateTtl
from headrace.api.stream_base import StreamBase

if TYPE_CHECKING:
    from headrace.api.stream import OperatorStream, Stream

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_500)


class JoinableStream(StreamBase[R]):
    """Method of `Stream` that joins it with another one."""

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
    ) -> OperatorStream[T]:
        """Join the records of two keyed streams whose keys are equal; this stream is the left side.

        `emit(left, right)` makes the result of a pair. It is a plain function, or a record type of two fields; its
        annotation, or `record`, names the type of its result. It must depend on its arguments alone: it is called again
        to retract a result.

        `how` says whether records without a match are in the result; `emit` then gets None for the side that is
        missing.

        **With `within`**, an interval join: `other.time - this.time` lies from `low` to `high`, both included. Both
        sides only add records, and so does the result. A record without a match is emitted once the watermark has
        passed its interval. The watermark frees the state. A record behind the watermark is dropped, or goes to the
        side output `late_left` or `late_right`, if you declare it: `.side("late_left", Order)`.

        **Without it**, a regular join: every record of one side with every record of the other, for as long as both are
        kept. Sides may retract records, and the result then does, too. `state_ttl` bounds the state: a duration or
        `StateTtl` after which a record expires, `Lifetime.FOREVER`, or two of them, for left and right.

        Raises `ValueError` for a stream that is not keyed or belongs to another pipeline, a regular join without
        `state_ttl`, and an interval join with `state_ttl`, or of a stream that may retract records; `TypeError` where
        the keys' types differ, and for an `emit` that does not fit.
        """
        join = f"join '{name}'"
        self._check_joined(join, other)
        check_how(join, how)
        sides = (self._record, other.record_type())
        gives = emitted_type(join, emit, record, sides=sides, may_be_missing=(how.keeps_right, how.keeps_left))
        try:
            if within is None:
                lives = _lives(state_ttl)
                retracting = may_retract(self._use()) or may_retract(other._use())
                function = operator_library().regular_join(
                    sides, gives, emit=emit, how=how, lives=lives, retracting=retracting
                )
            else:
                bounds = _bounds(within)
                self._check_interval(other, state_ttl)
                function = operator_library().interval_join(sides, gives, emit=emit, how=how, bounds=bounds)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{join}: {error}") from None
        return self._operated(name, function, gives, other)

    def _check_interval(self, other: StreamBase[Any], state_ttl: object) -> None:
        if state_ttl is not None:
            raise ValueError("with within=... the watermark frees the state: leave state_ttl out")
        for stream in (self, other):
            if may_retract(stream._use()):
                msg = (
                    f"'{stream._origin}' may take records back (-U, -D), and an interval join cannot: use a regular join "
                    "(state_ttl=... in place of within), or a stream that only adds records"
                )
                raise ValueError(msg)


def _lives(state_ttl: Life | tuple[Life, Life] | None) -> tuple[StateTtl | None, StateTtl | None]:
    if state_ttl is None:
        raise ValueError(
            "nothing bounds the state, so both sides would be kept for good: give state_ttl=timedelta(...), the time after which "
            "a record needs no partner and is not taken back any more; or within=(low, high), if partners are near each other in event "
            "time; or state_ttl=Lifetime.FOREVER, if both sides stay small"
        )
    return ttls_of_sides(state_ttl)


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
