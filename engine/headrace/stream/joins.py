"""Functions of joins: of two keyed streams, of records with versions by event time, of records with values of a service."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, Union, get_args, get_origin

import msgspec

from headrace.api.changelog_inference import may_retract
from headrace.api.column_reads import Declared, Kind, Reads, declared_reads, read_by_user, results_of_user
from headrace.api.functions import TimeDomain
from headrace.api.graph import KeyBy, name_of
from headrace.api.options import JoinFunction, JoinType, NullKeys, check_how, kept_null_keys
from headrace.api.services import LookupFunction, inner_lookup
from headrace.api.ttl import AnyTtl, StateTtl, ttl_of, ttls_of_sides
from headrace.api.types import check_function, check_plain, check_record, hints_of, signature_of
from headrace.stream.base import StreamBase, check_time, in_time

if TYPE_CHECKING:
    from headrace.operators._joined_rows import RowForm

Joined = tuple[JoinFunction[Any, Any, Any], type[Any]]
"""The function of a join, and the type of its results."""

_WITH_LEFT = (JoinType.INNER, JoinType.LEFT)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_500)

S = TypeVar("S", bound=msgspec.Struct)


def join_function(
    stream: StreamBase[Any],
    name: str,
    other: StreamBase[Any],
    *,
    emit: Callable[..., Any],
    record: type[Any] | None,
    how: JoinType,
    within: tuple[timedelta, timedelta] | None,
    on: Callable[[Any, Any], object] | None,
    time: TimeDomain,
    state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None,
    null_keys: NullKeys,
    reads: Declared | None,
) -> Joined:
    """Return the function of `Stream.join`."""
    join = f"join '{name}'"
    check_time(join, time)
    stream._check_joined(join, other)
    check_how(join, how)
    sides = (stream.record_type(), other.record_type())
    gives = emitted_type(join, emit, record, sides=sides, may_be_missing=(how.keeps_right, how.keeps_left))
    _check_condition(join, on, sides)
    with_null = kept_null_keys(join, null_keys, how)
    try:
        if within is None:
            forms = _row_forms((stream, other), with_null)
            function = _regular(
                (stream, other), gives, emit=emit, how=how, forms=forms, on=on, time=time, state_ttl=state_ttl
            )
        else:
            function = _interval(
                (stream, other), gives, emit=emit, how=how, within=within, on=on, time=time, state_ttl=state_ttl
            )
    except (TypeError, ValueError) as error:
        raise type(error)(f"{join}: {error}") from None
    function.takes_null_keys = with_null
    function.pair_reads = pair_reads(join, emit, sides, gives, reads)
    return function, gives


def pair_reads(
    join: str, emit: Callable[..., Any], sides: tuple[type, type], gives: type[Any], reads: Declared | None
) -> dict[str, Reads]:
    """Return what the columns of a join's results read of both sides. A record of two fields holds both records as they are."""
    declared = declared_reads(join, reads, sides, gives)
    if declared is None and isinstance(emit, type):
        of_sides = [read_by_user("", Kind.TRANSFORMATION, [side]) for side in sides]
        of_sides[1] = frozenset(reader._replace(input=1) for reader in of_sides[1])
        return dict(zip(gives.__struct_fields__, of_sides, strict=False))
    return results_of_user(name_of(emit), sides, gives, declared)


def match_function(
    stream: StreamBase[Any],
    join: str,
    other: StreamBase[Any],
    *,
    is_anti: bool,
    on: Callable[[Any, Any], object] | None,
    state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None,
    null_keys: NullKeys = NullKeys.QUARANTINE,
) -> JoinFunction[Any, Any, Any]:
    """Return the function of `Stream.semi_join` and `anti_join`."""
    from headrace.operators._semi_join import semi_join

    stream._check_joined(join, other)
    sides = (stream.record_type(), other.record_type())
    _check_condition(join, on, sides)
    with_null = kept_null_keys(join, null_keys, JoinType.LEFT)
    try:
        lifetimes = _lifetimes(state_ttl)
        forms = _row_forms((stream, other), with_null)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{join}: {error}") from None
    retracting = may_retract(stream._use()) or may_retract(other._use())
    function = semi_join(sides, is_anti=is_anti, forms=forms, lifetimes=lifetimes, on=on, retracting=retracting)
    function.takes_null_keys = with_null
    return function


def as_of_join_function(
    stream: StreamBase[Any],
    name: str,
    versions: StreamBase[Any],
    *,
    emit: Callable[..., Any],
    how: JoinType,
    record: type[Any] | None,
    time: TimeDomain,
    state_ttl: AnyTtl | None,
    null_keys: NullKeys,
    reads: Declared | None,
) -> Joined:
    """Return the function of `Stream.join_as_of`."""
    from headrace.operators._as_of_join import as_of_join

    join = f"join_as_of '{name}'"
    check_time(join, time)
    stream._check_joined(join, versions)
    check_how(join, how, _WITH_LEFT)
    sides = (stream.record_type(), versions.record_type())
    gives = emitted_type(join, emit, record, sides=sides, may_be_missing=(False, how.keeps_left))
    try:
        ttl = ttl_of(
            in_time(state_ttl, time), kept="the last version of each key", after="a version is not valid any more"
        )
        retracting = may_retract(stream._use())
        function = as_of_join(sides, gives, emit=emit, how=how, retracting=retracting, ttl=ttl, time=time)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{join}: {error}") from None
    function.takes_null_keys = kept_null_keys(join, null_keys, how)
    function.pair_reads = pair_reads(join, emit, sides, gives, reads)
    return function, gives


def lookup_of(name: str, function: LookupFunction[Any, S], how: JoinType) -> LookupFunction[Any, S]:
    """Return the function that `Stream.lookup` calls for each record."""
    taker = f"lookup '{name}'"
    check_function(taker, function, LookupFunction)
    check_how(taker, how, _WITH_LEFT)
    return inner_lookup(function) if how is JoinType.INNER else function


def _regular(
    streams: tuple[StreamBase[Any], StreamBase[Any]],
    gives: type[Any],
    *,
    emit: Callable[..., Any],
    how: JoinType,
    forms: tuple[RowForm, RowForm],
    on: Callable[[Any, Any], object] | None,
    time: TimeDomain,
    state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None,
) -> JoinFunction[Any, Any, Any]:
    from headrace.operators._regular_join import regular_join

    if time is not TimeDomain.EVENT_TIME:
        raise ValueError("a regular join has no interval of time: leave time out, or give within=(low, high)")
    left, right = streams
    lifetimes = _lifetimes(state_ttl)
    retracting = may_retract(left._use()) or may_retract(right._use())
    sides = (left.record_type(), right.record_type())
    return regular_join(
        sides, gives, emit=emit, how=how, forms=forms, lifetimes=lifetimes, on=on, retracting=retracting
    )


def _row_forms(streams: tuple[StreamBase[Any], StreamBase[Any]], with_null: tuple[int, ...]) -> tuple[RowForm, RowForm]:
    """Return the forms in which the rows of both sides are stored. `with_null` are the numbers of sides that take null keys."""
    from headrace.operators._joined_rows import row_form

    left, right = (
        row_form(stream.record_type(), stream._key or KeyBy(), stream._changes, takes_null_keys=number in with_null)
        for number, stream in enumerate(streams)
    )
    return left, right


def _interval(
    streams: tuple[StreamBase[Any], StreamBase[Any]],
    gives: type[Any],
    *,
    emit: Callable[..., Any],
    how: JoinType,
    within: object,
    on: Callable[[Any, Any], object] | None,
    time: TimeDomain,
    state_ttl: object,
) -> JoinFunction[Any, Any, Any]:
    from headrace.operators._interval_join import interval_join

    bounds = _bounds(within)
    if state_ttl is not None:
        raise ValueError("with within=... time frees the state: leave state_ttl out")
    for stream in streams:
        if may_retract(stream._use()):
            msg = (
                f"'{stream._origin}' may take records back (-U, -D), and an interval join cannot: use a regular join "
                "(state_ttl=... in place of within), or additions(), which makes each version of a record a new one"
            )
            raise ValueError(msg)
    left, right = streams
    sides = (left.record_type(), right.record_type())
    return interval_join(sides, gives, emit=emit, how=how, bounds=bounds, on=on, time=time)


def _check_condition(join: str, on: Callable[[Any, Any], object] | None, sides: tuple[type, type]) -> None:
    if on is not None:
        check_plain(f"{join}, on", on)
        _check_parameters(f"{join}, on", on, sides, (False, False))


def _lifetimes(state_ttl: AnyTtl | tuple[AnyTtl, AnyTtl] | None) -> tuple[StateTtl | None, StateTtl | None]:
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
        signature = signature_of(emit)
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
