"""Joins of two streams, as of a time too, and checks of their `emit` functions.

Joins of two keyed streams: the method `join` of `Stream`.

Joins of a stream with data about its keys: versions by event time, and answers of a service.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, Union, cast, get_args, get_origin

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.graph import OutputMode, name_of
from headrace.api.options import JoinType, check_how
from headrace.api.services import (
    AsyncRetryStrategy,
    CircuitBreaker,
    LookupCache,
    LookupFunction,
    OnFailure,
    inner_lookup,
)
from headrace.api.ttl import Life, StateTtl, ttl_of, ttls_of_sides
from headrace.api.types import check_function, check_plain, check_record, hints_of
from headrace.stream.base import StreamBase
from headrace.stream.library import operator_library

if TYPE_CHECKING:
    from headrace.stream.stream import OperatorStream, Stream


def emitted_type(
    join: str,
    emit: Callable[..., Any],
    record: type[Any] | None,
    *,
    sides: tuple[type, type],
    may_be_missing: tuple[bool, bool],
) -> type[Any]:
    """Return the type of the records that `emit` makes: `record`, or the type in its annotation.

    `join` names the join in errors. `sides` are the types of left and right records. `may_be_missing` says for each
    side whether `emit` gets None for it. Both are compared with the annotations of the parameters, where there are any.

    Raises `TypeError` unless `emit` is a plain function of two arguments, without a type of records, and for a
    parameter that does not accept its side.
    """
    check_plain(join, emit)
    returned = _returned(emit) if record is None else record
    if record is not None or (isinstance(returned, type) and issubclass(returned, msgspec.Struct)):
        check_record(join, returned)
        _check_parameters(join, emit, sides, may_be_missing)
        return returned
    msg = (
        f"{join}: the type of the results is not known, because {name_of(emit)} does not say that it returns a record: annotate it "
        "with '-> Row', where Row is derived from Struct, or give record=Row"
    )
    raise TypeError(msg)


def _check_parameters(
    join: str, emit: Callable[..., Any], sides: tuple[type, type], may_be_missing: tuple[bool, bool]
) -> None:
    parameters = _parameters(join, emit)
    hints = hints_of(emit)
    for place, (side, record, is_missing) in enumerate(zip(("left", "right"), sides, may_be_missing, strict=True)):
        if place >= len(parameters):
            return
        name = parameters[place]
        wanted = _members(hints[name]) if name in hints else ()
        classes = [cls for cls in wanted if isinstance(cls, type)]
        if not wanted or len(classes) < len(wanted):
            continue  # no annotation, or an annotation that only type checkers understand
        if not any(issubclass(record, cls) for cls in classes):
            msg = (
                f"{join}: parameter '{name}' of {name_of(emit)} is {_shown(wanted)}, but the {side} side gives {record.__name__}: "
                "correct the annotation, or exchange the parameters"
            )
            raise TypeError(msg)
        if is_missing and not any(issubclass(type(None), cls) for cls in classes):
            msg = (
                f"{join}: parameter '{name}' of {name_of(emit)} is {_shown(wanted)}, but it gets None where the {side} side has no "
                f"match: write '{_shown(wanted)} | None', or choose another join with how="
            )
            raise TypeError(msg)


def _parameters(join: str, emit: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that take the two records; fewer where `*args` takes them."""
    try:
        signature = inspect.signature(emit)
    except ValueError:  # a function written in C has no signature
        return []
    try:
        bound = signature.bind(None, None)
    except TypeError as error:
        msg = f"{join}: {name_of(emit)} must take two records, left and right: {error}"
        raise TypeError(msg) from None
    taking = [signature.parameters[name] for name in bound.arguments]
    return [parameter.name for parameter in taking if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]


def _returned(emit: Callable[..., Any]) -> Any:
    if isinstance(emit, type):
        return emit
    returned = hints_of(emit).get("return")
    owner = getattr(emit, "__self__", None)
    return owner if returned is Self and isinstance(owner, type) else returned


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows, without metadata."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return (object if annotation is Any else annotation,)


def _shown(wanted: tuple[Any, ...]) -> str:
    return " | ".join("None" if member is type(None) else member.__name__ for member in wanted)


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
