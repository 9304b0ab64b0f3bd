"""Rules by which stored numbers and texts become values of fields: the same for all formats and sources. Pure, without Arrow.

- A field of whole numbers takes any number that is whole and fits into 64 bits, however it is written: `5`, `5.0`, `5e0`.
- A field of floats takes a number if the nearest float shows all of its digits, so that nothing is lost.
- A time is a whole number of milliseconds, or a text of ISO 8601.

A format without types, as CSV, has texts alone. The kind of a column says how they are parsed; a text that cannot be parsed stays a
text, which the rules above refuse.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import msgspec

FIRST_TIME: Final = -62_135_596_800_000
LAST_TIME: Final = 253_402_300_799_999
"""Milliseconds of the years 1 and 9999: `datetime` and SQL have no others."""

OUTSIDE: Final = "which is outside the years 1 to 9999"
INEXACT: Final = ", of which a float loses digits"
"""Reason why a number does not fit a field of floats, after the value."""
TOO_FINE: Final = (
    ", which is finer than a millisecond, and a Timestamp keeps whole milliseconds: declare the field TimestampMicros or datetime to "
    "keep microseconds, or FlooredTimestamp to drop the rest on purpose (rounded down)"
)
"""Reason why a time does not fit a field of milliseconds, after the value."""
FINER_THAN_MICROSECOND: Final = ", which is finer than a microsecond, and the field keeps whole microseconds: round the values where they are written"
"""Reason why a time does not fit a field of microseconds, after the value."""

EXACT_DIGITS: Final = 15
"""Number of decimal digits that every float keeps."""
EXACT_SCALE: Final = 22
"""Largest power of ten that is exactly a float."""

_EXACT_INTEGERS: Final = 2**53
_SHORT: Final = EXACT_DIGITS + 1
_SAFE: Final = (1e-290, 1e290)
"""Bounds of absolute values between which each float keeps all its digits."""
_INT64: Final = range(-(2**63), 2**63)
_WIDEST_WHOLE: Final = 40
"""Exponent from which on no number fits into 64 bits; larger ones would be written out at length."""
_EXPANDED: Final = Context(prec=1_100)
"""Context with enough digits to write any float in full."""

_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ]((?!24)\d\d:\d\d)(:\d\d)?(?:[.,](\d+))?(?: ?([Zz]|UTC|GMT|([+-]\d\d)(?::?(\d\d))?))?)?",
    re.ASCII,
)
"""A time of ISO 8601. 24:00 is none: Python 3.14 would take it for the next midnight, and others refuse it."""

_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME_OF_DAY: Final = re.compile(r"((?!24)\d\d:\d\d(?::\d\d)?)(?:(?<=:\d\d:\d\d)\.(\d+))?", re.ASCII)
_FINER_DURATION: Final = re.compile(r"[.,](?!\d{1,6}0*[Ss]$)", re.ASCII)
"""Begin of a fraction of a duration that may not be whole microseconds."""
_MICROSECONDS: Final = 1_000_000
"""Number of them in a second."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FIRST_SECONDS: Final = 946_684_800
LAST_SECONDS: Final = 4_102_444_799
"""Seconds of the years 2000 to 2099: as milliseconds they are days of January and February 1970."""
FIRST_DAY_DIGITS: Final = 19_000_101
LAST_DAY_DIGITS: Final = 20_991_231
"""Days of the years 1900 to 2099 as digits: as milliseconds they are minutes of 1 January 1970."""
_DAY_DIGITS: Final = re.compile(r"\d{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", re.ASCII)


class IsoTime(NamedTuple):
    """Time of a text: whole microseconds since 1970, rounded down; whether the text is finer than that; and whether it names a zone."""

    microseconds: int
    is_finer: bool
    has_zone: bool

    def in_units(self, per_second: int) -> tuple[int, bool]:
        """Return the whole units since 1970, rounded down, of which there are up to a million in a second; and whether the time is finer."""
        number, rest = divmod(self.microseconds, _MICROSECONDS // per_second)
        return number, self.is_finer or rest > 0


class Instant(NamedTuple):
    """A timestamp that a format marks as one: a number since 1970, how many of its units are a second, and whether it has no zone."""

    number: int
    per_second: int
    is_local: bool = False

    def __str__(self) -> str:
        """Return the timestamp in milliseconds."""
        return f"{self.number * 1_000 / self.per_second} ms since 1970"

    def in_units(self, per_second: int) -> tuple[int, bool]:
        """Return the whole units since 1970, rounded down, of which there are `per_second` in a second; and whether the time is finer."""
        number, rest = divmod(self.number * per_second, self.per_second)
        return number, rest > 0

    @property
    def milliseconds(self) -> int:
        """Return the milliseconds since 1970, rounded down."""
        return self.in_units(1_000)[0]


class OtherType(NamedTuple):
    """A value of a type that no field of a record has, as errors show it."""

    text: str

    def __repr__(self) -> str:
        """Return the text."""
        return self.text


def written_number(text: str) -> float | Decimal:
    """Return the number that a text of JSON writes with a point or an exponent: a float if it shows all digits, else a decimal.

    A decimal that is no number stands for an exponent that not even decimals have.
    """
    number = float(text)
    if len(text) <= _SHORT:
        if _SAFE[0] < number < _SAFE[1] or _SAFE[0] < -number < _SAFE[1] or not text.strip("-0."):
            return number
    elif repr(number) == text:
        return number
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def whole_number(value: float | Decimal) -> int | None:
    """Return the integer of 64 bits that a number is; None for any other number."""
    if isinstance(value, Decimal):
        is_small = value.is_finite() and value.adjusted() <= _WIDEST_WHOLE
        is_whole = is_small and value == value.to_integral_value()
    else:
        is_whole = isinstance(value, int) or value.is_integer()
    if not is_whole:
        return None
    number = int(value)
    return number if number in _INT64 else None


def nearest_float(value: int | Decimal) -> float | None:
    """Return the float nearest to a number; None where it does not show all digits of the number.

    It shows them if its shortest form, or its full form rounded to as many places as the number has, is the number.
    """
    try:
        number = float(value)
    except OverflowError:
        return None
    if isinstance(value, int) and abs(value) <= _EXACT_INTEGERS:
        return number
    exact = Decimal(value)
    if number in {float("inf"), float("-inf")}:
        return None
    if Decimal(repr(number)) == exact:
        return number
    try:
        rounded = Decimal(number).quantize(exact, context=_EXPANDED)
    except InvalidOperation:
        return None
    return number if rounded == exact else None


def exact_decimal(value: float | Decimal | str) -> Decimal | None:
    """Return the decimal that a number shows, or a text of one; None for NaN, infinity and other texts."""
    if isinstance(value, str):
        number = parsed_decimal(value)
        return None if isinstance(number, str) else number
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return number if number.is_finite() else None


def iso_day(text: str) -> date | None:
    """Return the day of a text such as 2026-01-31; None for any other text, a time of day as well."""
    try:
        return date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        return None


def iso_time_of_day(text: str) -> time | None:
    """Return the time of day of a text such as 23:59:59.5; None for any other text, one with a zone or with parts of a microsecond as well."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return None
    clock, fraction = match[1], match[2] or ""
    try:
        return (
            None if fraction[6:].strip("0") else time.fromisoformat(f"{clock}.{fraction:0<6.6}" if fraction else clock)
        )
    except ValueError:
        return None


def iso_duration(text: str) -> timedelta | None:
    """Return the duration of a text of ISO 8601 such as P1DT2H30M; None for any other text, one of months or years as well."""
    try:
        return None if _FINER_DURATION.search(text) else msgspec.convert(text, timedelta)
    except msgspec.ValidationError:
        return None


def iso_time(text: str) -> IsoTime | None:
    """Return the time of a text of ISO 8601: a day, or a day and a time of day. None for any other text.

    The zone is `Z`, `UTC`, `GMT` or an offset; without one it is UTC. A fraction of a second may have any number of digits.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    day, minute, second, fraction, zone, hours, minutes = match.groups()
    if fraction and not second:
        return None
    try:
        timestamp = datetime.fromisoformat(
            f"{day}T{minute or '00:00'}{second or ':00'}{hours or '+00'}:{minutes or '00'}"
        )
        seconds = round((timestamp - _EPOCH).total_seconds())
    except (ValueError, OverflowError):
        return None
    digits = fraction or ""
    fraction_of_second = int(digits[:6].ljust(6, "0"))
    return IsoTime(seconds * _MICROSECONDS + fraction_of_second, bool(digits[6:].strip("0")), zone is not None)


def are_day_digits(number: int) -> bool:
    """Return whether a number has the digits of a day, as 20260131."""
    return _DAY_DIGITS.fullmatch(str(number)) is not None


_NUMBER: Final = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,4000}", re.ASCII)
_NO_NUMBERS: Final = {text: float(text) for text in ("nan", "inf", "-inf", "infinity", "-infinity")}
_TRUTH: Final = {"true": True, "false": False}
_decode_json: Final = msgspec.json.Decoder(float_hook=written_number).decode


def parsed_number(text: str) -> int | float | Decimal | str:
    """Parse a number."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return written_number(text) if _NUMBER.fullmatch(text) else text


def parsed_decimal(text: str) -> Decimal | str:
    """Parse a number with all its digits."""
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else text
    except InvalidOperation:  # an exponent that not even decimals have
        return text


def parsed_float(text: str) -> float | Decimal | str:
    """Parse a number, or a word for NaN or infinity."""
    return written_number(text) if _NUMBER.fullmatch(text) else _NO_NUMBERS.get(text.lower(), text)


def parsed_truth(text: str) -> bool | str:
    """Parse a word for a truth value, in any case."""
    return _TRUTH.get(text.lower(), text)


def parsed_json(text: str) -> Any:
    """Parse JSON; a text that is none becomes an `OtherType`."""
    try:
        return _decode_json(text)
    except (msgspec.DecodeError, RecursionError):
        return OtherType(repr(text))
