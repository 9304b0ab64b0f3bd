"""Records, their event time, their row kind, and namespaces of state."""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import msgspec

Struct = msgspec.Struct
"""Base class of records and state values. Declare them `frozen=True`: the engine caches decoded
values, so a value changed in place would change state without a write."""

MARK = "arrow"
"""Name under which an annotation has the mark of a column's kind."""
TIMESTAMP, FLOORED, MICROSECONDS, JSON = "timestamp", "floored", "microseconds", "json"

field = msgspec.field
"""Settings of a field: `name`, under which files, tables and state have it, `default` and `default_factory`."""


def _mark(mark: str) -> msgspec.Meta:
    return msgspec.Meta(extra={MARK: mark})


Timestamp = Annotated[int, _mark(TIMESTAMP)]
"""Milliseconds since the epoch, UTC. An `int` in Python; a timestamp column in sources and sinks.

A file with a time that is finer than a millisecond is refused."""

FlooredTimestamp = Annotated[int, _mark(FLOORED)]
"""`Timestamp` for sources whose times are finer than a millisecond: the rest is dropped (rounded down, also before 1970)."""

TimestampMicros = Annotated[int, _mark(MICROSECONDS)]
"""Microseconds since the epoch, UTC. An `int` in Python; a timestamp column in sources and sinks.

A number in a file is a number of microseconds. A file with a time that is finer is refused."""

NaiveDatetime = Annotated[datetime, msgspec.Meta(tz=False)]
"""A `datetime` without a zone: TIMESTAMP_NTZ of SQL. A plain `datetime` has a zone, and is an instant; the two never mix."""

Json = Annotated[Any, _mark(JSON)]
"""Any value of JSON: a dict, list, text, number, truth value or None. Columns hold its text, null for None."""

Int8 = Annotated[int, _mark("int8")]
"""Whole number of 8 bits: TINYINT of SQL. A number beyond them is refused."""
Int16 = Annotated[int, _mark("int16")]
"""Whole number of 16 bits: SMALLINT of SQL. A number beyond them is refused."""
Int32 = Annotated[int, _mark("int32")]
"""Whole number of 32 bits: INT of SQL. A number beyond them is refused."""
Int64 = Annotated[int, _mark("int64")]
"""Whole number of 64 bits, as a plain `int` is: BIGINT of SQL."""
Float32 = Annotated[float, _mark("float32")]
"""Float of 32 bits: FLOAT of SQL. Computed values are rounded to the nearest one; a value of a file must show all its digits."""

DIGITS = "digits"
MOST_DIGITS = 38
"""Most digits of a decimal: those of DECIMAL in Spark and Delta, and of Arrow's decimals of 128 bits."""


def Digits(precision: int, scale: int) -> msgspec.Meta:  # noqa: N802 - it reads as a type in an annotation
    """Declare how many digits a field of decimals has.

    A field `Annotated[Decimal, Digits(12, 2)]` is a DECIMAL(12, 2) of SQL. `precision` is the number of all digits, from 1 to 38; `scale` the number of those behind the point, from 0 to
    `precision`. Values are exact: one with more digits is refused and never rounded. Equal numbers are equal keys, `1.0`
    and `1.00` as well. Raises `ValueError` for other numbers.
    """
    if not 1 <= precision <= MOST_DIGITS or not 0 <= scale <= precision:
        msg = f"Digits({precision}, {scale}): precision is from 1 to {MOST_DIGITS}, and scale from 0 to precision"
        raise ValueError(msg)
    return msgspec.Meta(extra={DIGITS: (precision, scale)})


def digits_of(annotation: object) -> tuple[int, int] | None:
    """Return the digits that an annotation declares: all, and those behind the point. None without any."""
    if isinstance(annotation, msgspec.Meta):
        digits: tuple[int, int] | None = (annotation.extra or {}).get(DIGITS)
        return digits
    # The last metadata holds, as for columns: a field may narrow what an alias declares.
    return next(filter(None, map(digits_of, reversed(get_args(annotation)))), None)


def unit_of(annotation: object) -> str | None:
    """Return the unit of instants that an annotation declares, "ms" or "us"; None for other values, plain numbers as well."""
    if isinstance(annotation, msgspec.Meta):
        return _UNITS.get((annotation.extra or {}).get(MARK, ""))
    return next(filter(None, map(unit_of, get_args(annotation))), None)


_UNITS = {TIMESTAMP: "ms", FLOORED: "ms", MICROSECONDS: "us"}


def is_naive(annotation: object) -> bool:
    """Return whether an annotation declares times without a zone, as `NaiveDatetime` does."""
    if isinstance(annotation, msgspec.Meta):
        return annotation.tz is False
    return any(map(is_naive, get_args(annotation)))


def canonical_encoder(order: Literal["deterministic", "sorted"]) -> Callable[[Any], bytes]:
    """Return the function that makes JSON in which equal values have equal texts, whatever the order of their maps.

    With "sorted", the fields of records are in order of their names, too.
    """
    encode = msgspec.json.Encoder(decimal_format="string", order=order).encode

    def canonical(value: Any) -> bytes:
        try:
            return encode(value)
        except TypeError:  # msgspec sorts only maps whose keys are texts
            return encode_plain(msgspec.to_builtins(value, str_keys=True, order=order))

    encode_plain = msgspec.json.Encoder(decimal_format="string").encode
    return canonical


def shortest(number: Decimal) -> Decimal:
    """Return a finite decimal without zeros at its end: equal numbers have one text. Raises `ValueError` beyond 1,100 digits."""
    try:
        short = _EXACT.plus(number.normalize(_EXACT))
        exponent = short.as_tuple().exponent
        return short.quantize(Decimal(1), context=_EXACT) if isinstance(exponent, int) and exponent > 0 else short
    except (InvalidOperation, Inexact):
        msg = f"{number!s:.60} has too many digits for a key"
        raise ValueError(msg) from None


def with_digits(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return a number with `scale` digits behind the point; None if it has more, or more than `precision` digits in all."""
    if number.adjusted() >= precision - scale and number:
        return None
    scaled = number.quantize(Decimal(1).scaleb(-scale), context=_ANY_DIGITS)
    return _ANY_DIGITS.plus(scaled) if scaled == number else None  # plus: -0 is 0


_ANY_DIGITS = Context(prec=1_100)
_EXACT = Context(prec=1_100, traps=[InvalidOperation, Inexact])


def nearest_float32(number: float) -> float:
    """Return the float of 32 bits that is nearest to a number; infinity beyond the largest one."""
    try:
        nearest: float
        (nearest,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return math.copysign(math.inf, number)
    return nearest


class RowKind(enum.IntEnum):
    """Change that a row makes to the table that its changelog describes (FLIP-544, "Changelog Mode")."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def symbol(self) -> str:
        """Return the short form: `+I`, `-U`, `+U` or `-D`."""
        return _SYMBOLS[self]

    @property
    def is_retraction(self) -> bool:
        """Return whether the row retracts an earlier one."""
        return self in {RowKind.UPDATE_BEFORE, RowKind.DELETE}

    @classmethod
    def parse(cls, symbol: str) -> RowKind:
        """Turn `+I`, `-U`, `+U` or `-D` into a kind.

        Raises `KeyError` for anything else.
        """
        return _KIND_OF_SYMBOL[symbol]


_SYMBOLS = {
    RowKind.INSERT: "+I",
    RowKind.UPDATE_BEFORE: "-U",
    RowKind.UPDATE_AFTER: "+U",
    RowKind.DELETE: "-D",
}
_KIND_OF_SYMBOL = {symbol: kind for kind, symbol in _SYMBOLS.items()}


def check_namespace(namespace: object) -> None:
    """Check a namespace: any text without a zero character that UTF-8 can encode. The empty text means no namespace.

    Raises `TypeError` unless it is text, and `ValueError` for text that cannot be stored.
    """
    if not isinstance(namespace, str):
        msg = f"a namespace is a text, not {namespace!r:.100}"
        raise TypeError(msg)
    if not namespace.isascii() or "\x00" in namespace:
        _check_text(namespace)


def checked_namespaces(namespaces: Iterable[str]) -> dict[str, None]:
    """Return namespaces without repetitions, in order. Raises the errors of `check_namespace`.

    Those of a tuple are remembered: operators read the same ones for many records. Do not change the returned ones.
    """
    return _checked_again(namespaces) if type(namespaces) is tuple else _checked(namespaces)


def _checked(namespaces: Iterable[str]) -> dict[str, None]:
    checked = dict.fromkeys(namespaces)
    if not all(type(namespace) is str for namespace in checked) or not _is_plain("".join(checked)):
        for namespace in checked:
            check_namespace(namespace)
    return checked


_checked_again = lru_cache(maxsize=1000)(_checked)


def _is_plain(text: str) -> bool:
    return text.isascii() and "\x00" not in text


def _check_text(namespace: str) -> None:
    try:
        namespace.encode()
    except UnicodeEncodeError as error:
        msg = f"a namespace must be text that UTF-8 can hold, not {namespace!r:.100}"
        raise ValueError(msg) from error
    if "\x00" in namespace:
        msg = f"a namespace must have no zero character, as {namespace!r:.100} has"
        raise ValueError(msg)
