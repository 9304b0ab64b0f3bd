"""Kinds of columns: instants, local times, days and durations.

Instants are numbers of milliseconds or microseconds since 1970 between stages, and timestamps in sinks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from headrace.api.records import FLOORED, MICROSECONDS, TIMESTAMP
from headrace.records.array_rules import PER_SECOND, between_units, floored_units, outside_calendar, whole_units
from headrace.records.column_kinds.kind import Misfits, PythonType, ScalarKind
from headrace.records.column_kinds.numbers import Integer
from headrace.records.foreign_values import is_number, is_text, shown, shown_plain, shown_value
from headrace.records.problems import Problem, Problems, UnfitValue, refuse, utf8
from headrace.records.value_rules import (
    FINER_THAN_MICROSECOND,
    FIRST_TIME,
    LAST_TIME,
    OUTSIDE,
    TOO_FINE,
    Instant,
    IsoTime,
    iso_day,
    iso_duration,
    iso_time,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1)
_SECONDS_OF_DAY: Final = 86_400
_MICROSECOND: Final = timedelta(microseconds=1)
_MAY_BE_FINER: Final = re.compile(r"[.,]\d{4}")
"""Part of each text of a time that is finer than a millisecond. Looking for it costs a seventh of reading the text (timeit)."""
_INSTANTS_OF_DAYS: Final = {pa.date32(): pa.timestamp("s"), pa.date64(): pa.timestamp("ms")}


class Time(Integer):
    """Numbers of milliseconds or microseconds since 1970; in a sink they are timestamps.

    A foreign time is an instant, a day, a number or a text of ISO 8601, as in JSON and CSV.
    """

    sink_type = pa.timestamp("us", tz="UTC")
    notation = "time"

    def __init__(self, unit: str = "ms", *, floors: bool = False) -> None:
        """Make the kind for a unit, "ms" or "us": it rounds times that are finer down, or refuses them."""
        self.unit, self.floors = unit, floors
        self.through = pa.timestamp(unit, tz="UTC")
        self.has_file_problems = not floors
        self.per_second = self._per_second = PER_SECOND[unit]
        self._finer_why = TOO_FINE if unit == "ms" else FINER_THAN_MICROSECOND

    def __str__(self) -> str:
        """Return what an error calls a time."""
        return "a timestamp"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds instants, days, texts or numbers."""
        return pa.types.is_timestamp(kind) or pa.types.is_date(kind) or is_text(kind) or is_number(kind)

    def problem(self, array: pa.Array, *, sink: bool) -> Misfits | None:
        """Return which times no sink can hold."""
        return self._outside_years(array) if sink else None

    def read(self, value: Any) -> Any:
        """Return a time in units."""
        if type(value) is date:
            return (value - _EPOCH_DAY).days * _SECONDS_OF_DAY * self._per_second
        timestamp = iso_time(value) if isinstance(value, str) else value
        if not isinstance(timestamp, IsoTime | Instant):
            return super().read(value)
        number, is_finer = timestamp.in_units(self._per_second)
        if is_finer and not self.floors:
            raise UnfitValue(f"is {shown_plain(value)}{self._finer_why}", of_file=True)
        if number not in _INT64:  # Arrow has none such; `fit` refuses others outside the calendar
            raise UnfitValue(f"is {timestamp.in_units(1_000)[0]} ms since 1970, {OUTSIDE}")
        return number

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return times in units."""
        if is_text(array.type):
            array = self._written(utf8(array, problems), problems)
        if pa.types.is_date(array.type):
            array = array.cast(_INSTANTS_OF_DAYS[array.type])
        if pa.types.is_timestamp(array.type):
            return self._units(array, problems)
        array = self._cast(array, problems)
        problem = self._outside_years(array)
        return array if problem is None else refuse(array, problem[0], problems, problem[1])

    def file_problem(self, array: pa.Array) -> str | None:
        """Return why a file with the first time that is finer than a unit is refused."""
        value = self._finer(array)
        return None if value is None else f"holds {shown_value(value)}{self._finer_why}"

    def _written(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return texts of ISO 8601 in units; those between units rounded down where the kind says so."""
        times = self._parsed(array, array.to_pylist(), iso_time, problems)
        units = [None if time is None else time.in_units(self._per_second) for time in times]
        is_finer = pa.array([unit is not None and unit[1] and not self.floors for unit in units], pa.bool_())
        refuse(array, is_finer, problems, self._finer_why)
        return pa.array([None if unit is None else unit[0] for unit in units], pa.int64())

    def _units(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return timestamps in units; those between units rounded down where the kind says so."""
        array = refuse(array, outside_calendar(array), problems, f", {OUTSIDE}")
        whole = whole_units(array, self.unit)
        if whole is not None:
            return whole
        if not self.floors:
            array = refuse(array, between_units(array, self.unit), problems, self._finer_why)
        return floored_units(array, self.unit)

    def _finer(self, array: pa.Array) -> pa.Scalar | None:
        if self.floors:
            return None
        if is_text(array.type):
            texts = utf8(array, {}).to_pylist()
            times = [iso_time(text) if text is not None and _MAY_BE_FINER.search(text) else None for text in texts]
            finer = (at for at, time in enumerate(times) if time is not None and time.in_units(self._per_second)[1])
            return next((array[at] for at in finer), None)
        if not pa.types.is_timestamp(array.type) or whole_units(array, self.unit) is not None:
            return None
        at = pc.index(between_units(array, self.unit), True).as_py()
        return None if at < 0 else array[at]

    def _outside_years(self, times: pa.Array) -> Misfits | None:
        per_millisecond = self._per_second // 1_000
        first, last = FIRST_TIME * per_millisecond, (LAST_TIME + 1) * per_millisecond - 1
        ends = pc.min_max(times).as_py()
        if ends["min"] is None or (ends["min"] >= first and ends["max"] <= last):
            return None
        return pc.or_(pc.less(times, first), pc.greater(times, last)), f" {self.unit} since 1970, {OUTSIDE}"


TIMES: Final[Mapping[str, ScalarKind]] = {
    TIMESTAMP: Time(),
    FLOORED: Time(floors=True),
    MICROSECONDS: Time("us"),
}
"""Kinds of instants that records hold as numbers, by the marks of their annotations."""


class ZonedDatetime(ScalarKind):
    """Instants that records hold as `datetime` with a zone: microseconds since 1970 between stages.

    A foreign one is an instant, a day or a text of ISO 8601. A number is none: nobody could tell its unit.
    """

    type = pa.int64()
    through = sink_type = pa.timestamp("us", tz="UTC")
    python: PythonType = datetime
    is_plain = False
    annotation = None  # msgspec would take texts
    contentless = 0
    notation = "time"
    has_file_problems = True
    per_second: int | None = PER_SECOND["us"]
    _time: Final = Time("us")

    @property
    def read_type(self) -> pa.DataType:
        """Return the type of instants: a foreign column of integers is none of this kind."""
        return self.sink_type

    def __str__(self) -> str:
        """Return what an error calls it."""
        return "a timestamp"

    def declared(self, info: inspect.Type) -> ScalarKind | None:
        """Return the kind for a `datetime`; that of local times if its annotation says that it has no zone."""
        return LocalDatetime() if getattr(info, "tz", None) is False else self

    def exact(self, value: Any) -> Any:
        """Return the microseconds since 1970 of a datetime with a zone. Raises `UnfitValue` for one without."""
        if type(value) is not datetime:
            return super().exact(value)
        if value.tzinfo is None or value.utcoffset() is None:
            why = f"is {shown(value)}, which has no zone: add one, as in .replace(tzinfo=UTC), or declare the field NaiveDatetime"
            raise UnfitValue(why)
        return self._counted(value - _EPOCH, value)

    def _counted(self, since: timedelta, value: datetime) -> int:
        """Return microseconds. Raises `UnfitValue` for an instant that UTC has outside the years 1 to 9999."""
        microseconds = since // _MICROSECOND
        if not FIRST_TIME * 1_000 <= microseconds < (LAST_TIME + 1) * 1_000:
            why = f"is {shown(value)}, {OUTSIDE} in UTC"
            raise UnfitValue(why)
        return microseconds

    def as_key(self, array: pa.Array) -> pa.Array:
        """Return the texts that JSON has for datetimes."""
        return _json_texts(self, array)

    def values(self, array: pa.Array) -> list[Any]:
        """Return datetimes in UTC."""
        local = array.cast(pa.timestamp("us")).to_pylist()
        return [None if value is None else value.replace(tzinfo=UTC) for value in local]

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds instants, days or texts."""
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind)) or is_text(kind)

    def read(self, value: Any) -> Any:
        """Return the microseconds since 1970 of an instant, a day or a text."""
        is_instant = isinstance(value, str | Instant) or type(value) is date
        return self._time.read(value) if is_instant and self._is_of_kind(value) else self._refuse(value)

    def _is_of_kind(self, value: Any) -> bool:
        """Return whether a value may be an instant: also one that is written without a zone, which is UTC."""
        return not isinstance(value, str) or iso_time(value) is not None

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return microseconds since 1970."""
        return self._time.fit(array, problems)

    def file_problem(self, array: pa.Array) -> str | None:
        """Return why a file with the first time that is finer than a microsecond is refused."""
        return self._time.file_problem(array)


def _json_texts(kind: ScalarKind, array: pa.Array) -> pa.Array:
    distinct = array.dictionary_encode()
    texts = [None if value is None else msgspec.to_builtins(value) for value in kind.values(distinct.dictionary)]
    return pa.array(texts, pa.string()).take(distinct.indices)


class LocalDatetime(ZonedDatetime):
    """Days with a time of day and without a zone, which records hold as `datetime`: no instants, and never mixed with them."""

    through = sink_type = pa.timestamp("us")
    per_second = None

    def __str__(self) -> str:
        """Return what an error calls it."""
        return "a time without a zone such as 2026-01-31T23:59:59"

    def exact(self, value: Any) -> Any:
        """Return a datetime without a zone as microseconds. Raises `UnfitValue` for one with a zone."""
        if type(value) is not datetime:
            return super().exact(value)
        if value.tzinfo is not None:
            why = f"is {shown(value)}, which has a zone, and the field is a NaiveDatetime: declare it datetime"
            raise UnfitValue(why)
        return self._counted(value.replace(tzinfo=UTC) - _EPOCH, value)

    def values(self, array: pa.Array) -> list[Any]:
        """Return datetimes without a zone."""
        values: list[Any] = array.cast(pa.timestamp("us")).to_pylist()
        return values

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds local times, days or texts. A timestamp with a zone is none: its local time depends on the zone."""
        return super().takes(kind) and getattr(kind, "tz", None) is None

    def _is_of_kind(self, value: Any) -> bool:
        if isinstance(value, Instant):
            return value.is_local
        if not isinstance(value, str):
            return True
        time = iso_time(value)
        return time is not None and not time.has_zone

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return local times as microseconds."""
        if is_text(array.type):
            texts = utf8(array, problems)
            times = [None if text is None else iso_time(text) for text in texts.to_pylist()]
            zoned = pa.array([time is not None and time.has_zone for time in times], pa.bool_())
            array = refuse(texts, zoned, problems, ", which has a zone")
        return super().fit(array, problems)


class Duration(ScalarKind):
    """Durations: microseconds between stages and in sinks, since Delta has no type for them.

    A foreign one is a duration, a text of ISO 8601 such as PT1H30M, or, in a column of integers, a number of microseconds.
    """

    type = sink_type = pa.int64()
    through = pa.duration("us")
    python: PythonType = timedelta
    is_plain = False
    annotation = None  # msgspec would take texts
    contentless = 0

    def __str__(self) -> str:
        """Return what an error calls a duration."""
        return "a duration such as PT1H30M"

    def exact(self, value: Any) -> Any:
        """Return the microseconds of a duration."""
        return value // _MICROSECOND if type(value) is timedelta else super().exact(value)

    def as_key(self, array: pa.Array) -> pa.Array:
        """Return the texts that JSON has for durations."""
        return _json_texts(self, array)

    def values(self, array: pa.Array) -> list[Any]:
        """Return durations."""
        values: list[Any] = array.cast(pa.duration("us")).to_pylist()
        return values

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds durations, integers or texts."""
        return bool(pa.types.is_duration(kind) or pa.types.is_integer(kind)) or is_text(kind)

    def read(self, value: Any) -> Any:
        """Return the microseconds of a duration, or of its text. A number is none: nobody could tell its unit."""
        duration = iso_duration(value) if isinstance(value, str) else value
        number = _microseconds(duration) if type(duration) is timedelta else None
        return self._refuse(value) if number is None else number

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return microseconds."""
        if is_text(array.type):
            texts = utf8(array, problems)
            numbers = self._parsed(texts, texts.to_pylist(), _written_microseconds, problems)
            array = pa.array(numbers, pa.int64())
        if not pa.types.is_duration(array.type):
            return self._cast(array, problems)
        numbers, per_second = array.cast(pa.int64()), PER_SECOND[array.type.unit]
        exact = [
            None if number is None else divmod(number * PER_SECOND["us"], per_second) for number in numbers.to_pylist()
        ]
        finer = pa.array([parts is not None and parts[1] > 0 for parts in exact], pa.bool_())
        refuse(array, finer, problems, FINER_THAN_MICROSECOND)
        microseconds = [None if parts is None or parts[1] else parts[0] for parts in exact]
        return pa.array(self._within_64_bits(microseconds, array, problems), self.type)

    def _within_64_bits(self, numbers: Sequence[int | None], array: pa.Array, problems: Problems) -> list[int | None]:
        for position, number in enumerate(numbers):
            if number is not None and number not in _INT64:
                problems.setdefault(
                    position,
                    Problem("", f"is {array.cast(pa.int64())[position]} {array.type.unit}, which is not {self}"),
                )
        return [number if number is not None and number in _INT64 else None for number in numbers]


_INT64: Final = range(-(1 << 63), 1 << 63)


def _microseconds(duration: timedelta) -> int | None:
    """Return the microseconds of a duration; None beyond 64 bits."""
    number = duration // _MICROSECOND
    return number if number in _INT64 else None


def _written_microseconds(text: str) -> int | None:
    """Return the microseconds of a text of ISO 8601; None for another text, and beyond 64 bits."""
    duration = iso_duration(text)
    return None if duration is None else _microseconds(duration)


class Day(ScalarKind):
    """Days of the calendar, without a time of day and a zone."""

    type = sink_type = through = pa.date32()
    python: PythonType = date
    annotation = None  # msgspec would take text for a day, and a datetime is a date in Python
    contentless = date(1970, 1, 1)
    notation = "day"

    def __str__(self) -> str:
        """Return what an error calls a day."""
        return "a day such as 2026-01-31"

    def values(self, array: pa.Array) -> list[Any]:
        """Return days. With those remembered this takes a ninth of the time of `to_pylist` (timeit)."""
        return [None if number is None else _day(number) for number in array.cast(pa.int32()).to_pylist()]

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds days or texts. A timestamp is none: its day depends on a time zone."""
        return bool(pa.types.is_date(kind) or is_text(kind))

    def read(self, value: Any) -> Any:
        """Return a day, also for its text in ISO 8601."""
        day = iso_day(value) if isinstance(value, str) else value
        return day if type(day) is date else self._refuse(value)

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return days within the calendar."""
        if is_text(array.type):
            return self._written(utf8(array, problems), problems)
        array = self._cast(array, problems)
        days = array.cast(pa.int32())
        outside = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
        return refuse(days, outside, problems, f" days since 1970, {OUTSIDE}").cast(self.type)

    def _written(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return the days of texts of ISO 8601."""
        return pa.array(self._parsed(array, array.to_pylist(), iso_day, problems), self.type)


@lru_cache(maxsize=10_000)
def _day(number: int) -> date:
    """Return the day with this number since 1970."""
    return date.fromordinal(number + _EPOCH_ORDINAL)


_EPOCH_ORDINAL: Final = _EPOCH_DAY.toordinal()
_FIRST_DAY: Final = (date.min - _EPOCH_DAY).days
_LAST_DAY: Final = (date.max - _EPOCH_DAY).days
