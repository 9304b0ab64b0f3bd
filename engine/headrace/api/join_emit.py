"""Checks of `emit`, the function that makes a result of two records, when the pipeline is built."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Self, Union, get_args, get_origin

import msgspec

from headrace.api.graph import name_of
from headrace.api.stream_types import check_plain, check_record, hints_of


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
