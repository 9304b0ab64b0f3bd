"""Results of user functions, as values of the types that they declare to return: as fields of these types hold them.

For type checkers an `int` is a `float`, a truth value an `int` and a `datetime` a `date`. Their texts differ, and so equal keys would.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from headrace.api.records import Float32, digits_of, is_naive, nearest_float32, with_digits
from headrace.api.types import hints_of

Form = Callable[[Any], Any]
"""Function that gives a value a form. None stays None. Raises `TypeError` or `ValueError` for a value that does not fit."""


_UNIONS: Final = frozenset({Union, types.UnionType})


class Ends(NamedTuple):
    """Last steps: what is done to a value of its declared type or of any type, and to the parts of a declared tuple."""

    single: Form
    whole: Callable[[list[Any]], Any]


def form_of_results(function: Callable[..., Any], ends: Ends) -> Form:
    """Return what gives results of a function the type that it declares to return. Without such a type, results of any type fit."""
    return form_of_type(hints_of(function, with_metadata=True).get("return", Any), ends)


def form_of_type(annotation: Any, ends: Ends) -> Form:
    """Return what gives values a declared type."""
    return _declared(annotation, ends).form


def scaled(digits: tuple[int, int], value: Any) -> Decimal:
    """Return a number as a decimal of a declared number of digits. Raises `ValueError` for one that has more."""
    number = Decimal(value)
    scaled = with_digits(number, *digits) if number.is_finite() else None
    if scaled is None:
        msg = f"a key cannot be {value}: its type has {digits[0]} digits, {digits[1]} of them behind the point"
        raise ValueError(msg)
    return scaled


class _Type(NamedTuple):
    """A declared type: whether a value has it or passes for it, and what gives the value its form."""

    fits: Callable[[Any], bool]
    form: Form


def _declared(annotation: Any, ends: Ends) -> _Type:
    members = _members(annotation)
    if len(members) == 1:
        return _member(members[0], ends)
    # A number stays what it is where its own type is a member, too.
    own = [_member(member, ends) for member in sorted(members, key=_takes_whole_numbers)]
    return _checked(annotation, lambda value: any(member.fits(value) for member in own), partial(_of_first, own))


def _members(annotation: Any) -> list[Any]:
    """Return the members of a union without None, each with the metadata of the union; of any other type itself."""
    annotation = _meant(annotation)
    if get_origin(annotation) in _UNIONS:
        return [member for part in get_args(annotation) if part is not type(None) for member in _members(part)]
    if get_origin(annotation) is not Annotated:
        return [annotation]
    return [Annotated[(member, *annotation.__metadata__)] for member in _members(annotation.__origin__)]


def _takes_whole_numbers(annotation: Any) -> bool:
    bare = _bare(annotation)
    return bare is float or bare is Decimal


def _of_first(members: Iterable[_Type], value: Any) -> Any:
    return next(member.form(value) for member in members if member.fits(value))


def _member(annotation: Any, ends: Ends) -> _Type:
    bare = _bare(annotation)
    if get_origin(bare) is tuple:
        return _tuple(annotation, get_args(bare), ends)
    if isinstance(bare, type) and issubclass(bare, tuple) and hasattr(bare, "_fields"):
        hints = get_type_hints(bare, include_extras=True)
        return _tuple(annotation, [hints.get(name, Any) for name in bare._fields], ends)
    kind = _KINDS.get(bare) if isinstance(bare, type) else None
    if kind is None:
        return _Type(lambda _: True, ends.single)
    if bare is Decimal and (digits := digits_of(annotation)) is not None:
        return _checked(annotation, _is_exact, partial(scaled, digits))
    if bare is datetime:
        return _checked(annotation, _is_naive if is_naive(annotation) else _is_instant, ends.single)
    if annotation == Float32:
        return _checked(annotation, _is_number, lambda value: ends.single(nearest_float32(_float(value))))
    checked = _checked(annotation, kind.fits, lambda value: ends.single(kind.form(value)))
    return _Type(checked.fits, _quick(bare, ends.single, checked.form))


def _quick(kind: type, end: Form, other: Form) -> Form:
    """Return the form of a type, which takes less time for values that have exactly this type."""
    if kind in _ONE_FORM:
        return lambda value: value if type(value) is kind else other(value)
    return lambda value: end(value) if type(value) is kind else other(value)


def _tuple(annotation: Any, parts: Sequence[Any], ends: Ends) -> _Type:
    if len(parts) == 2 and parts[1] is Ellipsis:  # noqa: PLR2004 - tuple[str, ...]
        every = _declared(parts[0], ends).form
        return _checked(annotation, _is(tuple), lambda value: ends.whole([*map(every, value)]))
    forms, whole = [_declared(part, ends).form for part in parts], ends.whole
    number = len(forms)

    def form(value: Any) -> Any:
        return whole([form(part) for form, part in zip(forms, value, strict=True)])

    return _checked(annotation, lambda value: isinstance(value, tuple) and len(value) == number, form)


def _checked(annotation: Any, fits: Callable[[Any], bool], form: Form) -> _Type:
    def checked(value: Any) -> Any:
        if fits(value):
            return form(value)
        if value is None:
            return None
        msg = (
            f"it returned {value!r:.100} ({type(value).__name__}), and declares to return {_shown(annotation)}: let it return a value "
            "of this type, or declare the type that it returns"
        )
        raise TypeError(msg)

    return _Type(fits, checked)


def _bare(annotation: Any) -> Any:
    """Return a type without metadata."""
    annotation = _meant(annotation)
    return _bare(annotation.__origin__) if get_origin(annotation) is Annotated else annotation


def _meant(annotation: Any) -> Any:
    """Return what a `NewType` or an alias stands for; any other type as it is."""
    meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    return annotation if meant is None else _meant(meant)


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _is_exact(value: Any) -> bool:
    return isinstance(value, Decimal | int) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _is_instant(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_naive(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is None


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _float(value: float) -> float:
    number = float(value)
    if isinstance(value, int) and number != value:
        raise ValueError(f"it returned {value}, of which a float loses digits")
    return number


def _itself(value: Any) -> Any:
    return value


_KINDS: Final = {
    int: _Type(_is_whole, int.__int__),
    str: _Type(_is(str), str.__str__),
    float: _Type(_is_number, _float),
    bool: _Type(_is(bool), _itself),
    bytes: _Type(_is(bytes), _itself),
    Decimal: _Type(_is(Decimal), _itself),
    date: _Type(_is_day, _itself),
    datetime: _Type(_is_instant, _itself),
    time: _Type(_is(time), _itself),
    timedelta: _Type(_is(timedelta), _itself),
    UUID: _Type(_is(UUID), _itself),
}
"""Types that results are checked for, each with what makes a plain value of it. Other types are as they are."""

_ONE_FORM: Final = frozenset({int, str, bool})
"""Types whose values have one form, and need no end."""
