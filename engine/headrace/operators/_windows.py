"""Windows of event time, with the bounds of Flink SQL's window functions.

Windows are half open: a record at `window_end` is in the next one. Those of a calendar follow a time zone; the others
have fixed lengths, and all but sessions are aligned to 1970-01-01 00:00 UTC.
"""

from __future__ import annotations

import math
from calendar import MONDAY
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from headrace.api.functions import TimeDomain
from headrace.api.options import JoinFunction, Ranks, Trigger, WindowFunction, WindowJoin, WindowOptions, Windows
from headrace.api.records import Struct
from headrace.operators._calendar import WEEKDAYS, CalendarUnit, Periods, check_calendar, periods_of, zone_word
from headrace.operators._event_time import shown_length
from headrace.operators._processing_time import check_takes_nothing_back
from headrace.operators._result_record import ResultRecord
from headrace.operators._session_changes import changed_sessions
from headrace.operators._sessions import session_aggregation
from headrace.operators._sliced_windows import sliced_aggregation
from headrace.operators._triggers import Early, purges
from headrace.operators._window_join import window_join
from headrace.operators._window_results import RankedWindow, WindowResult
from headrace.options import LONGEST

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

_MILLISECOND = timedelta(milliseconds=1)
_ZERO = timedelta(0)


class _SlicedWindows(Windows):
    """Base class of tumbling, hopping, cumulative and calendar windows."""

    __slots__ = ()

    def aggregation(self, takes: type[In], gives: type[Out], options: WindowOptions, /) -> WindowFunction[In, Out]:
        """Return the function that makes a record `gives` of the records of each key and window."""
        result = ResultRecord(takes, gives, options.key, retracting=options.retracting, in_pieces=True)
        return self._function(result, options)

    def ranking(self, takes: type[In], ranks: Ranks, options: WindowOptions, /) -> WindowFunction[In, Any]:
        """Return the function that emits the first records of each key and window."""
        return self._function(RankedWindow(takes, ranks, retracting=options.retracting), options)

    def joining(self: Any, join: WindowJoin, /) -> JoinFunction[Any, Any, Any]:
        """Return the function that joins the records of two streams in each window."""
        return window_join(self, join)

    def _function(self: Any, result: WindowResult, options: WindowOptions) -> WindowFunction[Any, Any]:
        lateness, early = _lateness(options), _early(options)
        if purges(early) and len(self.ends_of(self.slice_of(0))) > 1:
            raise ValueError(
                f"windows that overlap share their records, and purging=True would take them out of all: leave it out, or use {_NOT_OVERLAPPING}"
            )
        return sliced_aggregation(
            self, result, lateness=lateness, early=early, retracting=options.retracting, time=options.time
        )


class _EqualSlices(_SlicedWindows):
    """Base class of windows whose slices all have the same length. The number of a slice is its start."""

    __slots__ = ()

    def slicer(self: Any) -> Callable[[int], int]:
        """Return `slice_of` as a function that takes less time."""
        length, first = self.slice_length, self.slice_of(0)
        return lambda at: at - (at - first) % length

    def slices_at(self, times: Any, /) -> Any:
        """Return the slices that contain timestamps, an array of NumPy."""
        return self.slicer()(times)

    def slices_of(self: Any, end: int) -> Sequence[int]:
        """Return the slices of the window that ends at `end`, in order of time."""
        return range(self.start_of(end), end, self.slice_length)


@dataclass(frozen=True, slots=True)
class Tumbling(_EqualSlices):
    """Windows of one `size`, one after the other: `Tumbling(timedelta(minutes=5))`.

    They begin at multiples of `size` since 1970-01-01 00:00 UTC, plus `offset`: days in Berlin's winter time are
    `Tumbling(timedelta(days=1), offset=timedelta(hours=-1))`. All windows have the same length: daylight saving time is
    ignored. Windows that follow it are those of a `Calendar`.

    Raises `ValueError` unless `size` is from 1 ms to 36,500 days, and `offset` shorter than it, both in whole
    milliseconds.
    """

    size: timedelta
    offset: timedelta = _ZERO

    def __post_init__(self) -> None:
        """Check the lengths."""
        _check_offset(self.offset, "size", _length("size", self.size))

    def __str__(self) -> str:
        """Return the windows as people write them."""
        return f"tumbling, {_shown(self.size)}{_shown_offset(self.offset)}"

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        return f"tumbling_{_shown(self.size)}{_named_offset(self.offset)}"

    @property
    def slice_length(self) -> int:
        """Return the length of a slice."""
        return self.size // _MILLISECOND

    def slice_of(self, at: int) -> int:
        """Return the start of the slice that contains a timestamp."""
        return _floor(at, self.slice_length, self.offset)

    def ends_of(self, start: int) -> list[int]:
        """Return the ends of the windows that contain a slice, the earliest first."""
        return [start + self.slice_length]

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`."""
        return end - self.slice_length


@dataclass(frozen=True, slots=True)
class Hopping(_EqualSlices):
    """Windows of one `size` that begin every `slide`, so that they overlap: `Hopping(timedelta(hours=1), timedelta(minutes=5))`.

    A record is in `size / slide` windows, but is stored once. For `offset` see `Tumbling`.

    Raises `ValueError` unless `size` is from 1 ms to 36,500 days, `slide` at most `size`, and `offset` shorter than
    `slide`, all in whole milliseconds.
    """

    size: timedelta
    slide: timedelta
    offset: timedelta = _ZERO

    def __post_init__(self) -> None:
        """Check the lengths."""
        size, slide = _length("size", self.size), _length("slide", self.slide)
        if slide > size:
            msg = (
                f"slide must be at most size ({self.size}), not {self.slide}: records between the windows would be lost"
            )
            raise ValueError(msg)
        _check_offset(self.offset, "slide", slide)

    def __str__(self) -> str:
        """Return the windows as people write them."""
        return f"hopping, {_shown(self.size)} every {_shown(self.slide)}{_shown_offset(self.offset)}"

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        return f"hopping_{_shown(self.size)}_by_{_shown(self.slide)}{_named_offset(self.offset)}"

    @property
    def slice_length(self) -> int:
        """Return the length of a slice."""
        return math.gcd(self.size // _MILLISECOND, self.slide // _MILLISECOND)

    def slice_of(self, at: int) -> int:
        """Return the start of the slice that contains a timestamp."""
        return _floor(at, self.slice_length, self.offset)

    def ends_of(self, start: int) -> list[int]:
        """Return the ends of the windows that contain a slice, the earliest first."""
        size, slide = self.size // _MILLISECOND, self.slide // _MILLISECOND
        last = _floor(start, slide, self.offset)
        first = last - (size - 1 - (start - last)) // slide * slide
        return list(range(first + size, last + size + 1, slide))

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`."""
        return end - self.size // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Cumulative(_EqualSlices):
    """Windows that begin together every `max_size`, and end `step` after `step`: `Cumulative(timedelta(days=1), timedelta(hours=1))`.

    The example gives the day so far, every hour. A record is stored once. For `offset` see `Tumbling`.

    Raises `ValueError` unless `max_size` is from 1 ms to 36,500 days and a multiple of `step`, and `offset` shorter
    than `max_size`, all in whole milliseconds.
    """

    max_size: timedelta
    step: timedelta
    offset: timedelta = _ZERO

    def __post_init__(self) -> None:
        """Check the lengths."""
        size, step = _length("max_size", self.max_size), _length("step", self.step)
        if size % step:
            msg = f"max_size must be a multiple of step ({self.step}), not {self.max_size}"
            raise ValueError(msg)
        _check_offset(self.offset, "max_size", size)

    def __str__(self) -> str:
        """Return the windows as people write them."""
        return f"cumulative, up to {_shown(self.max_size)} by {_shown(self.step)}{_shown_offset(self.offset)}"

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        return f"cumulative_{_shown(self.max_size)}_by_{_shown(self.step)}{_named_offset(self.offset)}"

    @property
    def slice_length(self) -> int:
        """Return the length of a slice."""
        return self.step // _MILLISECOND

    def slice_of(self, at: int) -> int:
        """Return the start of the slice that contains a timestamp."""
        return _floor(at, self.slice_length, self.offset)

    def ends_of(self, start: int) -> list[int]:
        """Return the ends of the windows that contain a slice, the earliest first."""
        last = self.start_of(start + 1) + self.max_size // _MILLISECOND
        return list(range(start + self.slice_length, last + 1, self.slice_length))

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`."""
        return _floor(end - 1, self.max_size // _MILLISECOND, self.offset)


@dataclass(frozen=True, slots=True)
class Calendar(_SlicedWindows):
    """Days, weeks, months, quarters or years of a time zone: `Calendar(CalendarUnit.DAY, zone="Europe/Berlin")`.

    They follow daylight saving time, so that a day has 23, 24 or 25 hours. `zone` is a name of the IANA database. A
    window begins with the first timestamp at which clocks of the zone show its first date. Weeks begin on
    `first_weekday`, by default on `calendar.MONDAY`.

    Raises `TypeError` for a unit that is no `CalendarUnit`, or a zone that is no text; `ValueError` for a zone that this
    machine does not know, and a `first_weekday` that is not from 0 (Monday) to 6, or that is given for other units than
    weeks.
    """

    unit: CalendarUnit
    _: KW_ONLY
    zone: str
    first_weekday: int = MONDAY

    def __post_init__(self) -> None:
        """Check the unit, the zone and the weekday."""
        check_calendar(self.unit, self.zone, self.first_weekday)

    def __str__(self) -> str:
        """Return the windows as people write them."""
        return f"calendar, {self.unit.value}s of {self.zone}{self._shown_weekday(', from ')}"

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        return f"{self.unit.value}{self._shown_weekday('_from_')[:9].lower()}_{zone_word(self.zone)}"

    @property
    def _periods(self) -> Periods:
        return periods_of(self.unit, self.zone, self.first_weekday)

    def slice_of(self, at: int) -> int:
        """Return the slice that contains a timestamp: the window's first date, as the ms of its midnight in UTC."""
        return self._periods.label_at(at)

    def slicer(self) -> Callable[[int], int]:
        """Return `slice_of` as a function that takes less time."""
        return self._periods.label_at

    def slices_at(self, times: Any, /) -> Any:
        """Return the slices that contain timestamps, an array of NumPy."""
        return list(map(self._periods.label_at, times.tolist()))

    def slices_of(self, end: int) -> Sequence[int]:
        """Return the only slice of the window that ends at `end`."""
        return (self._periods.ending_at(end).label,)

    def ends_of(self, label: int, /) -> list[int]:
        """Return the end of the window that consists of a slice."""
        return [self._periods.of(label).end]

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`."""
        return self._periods.ending_at(end).start

    def _shown_weekday(self, word: str) -> str:
        return "" if self.first_weekday == MONDAY else f"{word}{WEEKDAYS[self.first_weekday]}"


@dataclass(frozen=True, slots=True)
class Session(Windows):
    """Records of a key that follow each other in less than `gap`: `Session(timedelta(minutes=30))`.

    A session begins with its first record and ends `gap` after its last one; a record at exactly that timestamp begins the
    next one, as in Beam. In Flink (`TimeWindow.intersects`) it joins the session before it, if that has not fired:
    there, records that are not late are grouped by the progress of the watermark; here they are not. A record between
    two sessions merges them. A record that is taken back shortens its session, or divides it.

    Raises `ValueError` unless `gap` is from 1 ms to 36,500 days, in whole milliseconds.
    """

    gap: timedelta

    def __post_init__(self) -> None:
        """Check the length."""
        _length("gap", self.gap)

    def __str__(self) -> str:
        """Return the windows as people write them."""
        return f"sessions, gap {_shown(self.gap)}"

    @property
    def name(self) -> str:
        """Return the name of these sessions' state."""
        return f"session_{_shown(self.gap)}"

    def aggregation(self, takes: type[In], gives: type[Out], options: WindowOptions, /) -> WindowFunction[In, Out]:
        """Return the function that makes a record `gives` of the records of each key and window."""
        result = ResultRecord(takes, gives, options.key, retracting=False, in_pieces=not options.retracting)
        return self._function(result, options)

    def ranking(self, takes: type[In], ranks: Ranks, options: WindowOptions, /) -> WindowFunction[In, Any]:
        """Return the function that emits the first records of each key and window."""
        return self._function(RankedWindow(takes, ranks, retracting=False), options)

    def joining(self, join: WindowJoin, /) -> JoinFunction[Any, Any, Any]:
        """Refuse: sessions cannot be joined. Raises `ValueError` always."""
        del join
        msg = "sessions of two streams have no common windows: join Tumbling, Hopping, Cumulative or Calendar windows"
        raise ValueError(msg)

    def _function(self, result: WindowResult, options: WindowOptions) -> WindowFunction[Any, Any]:
        lateness, early = _lateness(options), _early(options)
        gap = self.gap // _MILLISECOND
        if not options.retracting:
            return session_aggregation(
                self.name, result, shown=str(self), gap=gap, lateness=lateness, early=early, time=options.time
            )
        if early is not None:
            msg = (
                "early results of sessions need a stream that takes nothing back, and this one may have -U or -D: leave early out, "
                "or use Tumbling, Hopping, Cumulative or Calendar windows"
            )
            raise ValueError(msg)
        return changed_sessions(self.name, result, shown=str(self), gap=gap, lateness=lateness)


def _floor(at: int, length: int, offset: timedelta) -> int:
    """Return the last multiple of `length`, shifted by `offset`, at or before `at`, which may be negative."""
    return at - (at - offset // _MILLISECOND) % length


def _length(what: str, given: object, least: timedelta = _MILLISECOND) -> int:
    """Return a length in ms. Raises `TypeError` unless it is a timedelta, `ValueError` out of range or with fractions of a ms."""
    if not isinstance(given, timedelta):
        msg = f"{what} must be a timedelta, not {given!r:.60}"
        raise TypeError(msg)
    if not least <= given <= LONGEST:
        shortest = "0" if least == _ZERO else "1 ms"
        msg = f"{what} must be from {shortest} to 36,500 days, not {given}"
        raise ValueError(msg)
    _check_whole(what, given)
    return given // _MILLISECOND


def _lateness(options: WindowOptions) -> int:
    """Return the allowed lateness in ms. Raises `ValueError` for windows of processing time that take late records, or retractions."""
    lateness = _length("allowed_lateness", options.allowed_lateness, least=_ZERO)
    if options.time is TimeDomain.PROCESSING_TIME:
        check_takes_nothing_back(retracting=options.retracting)
        if lateness:
            raise ValueError("no record is late in windows of processing time: leave allowed_lateness out")
    return lateness


def _early(options: WindowOptions) -> Early:
    """Return when early results are emitted. Raises `ValueError` where purging would lose what corrections need."""
    early: Any = options.early
    if early is not None and not isinstance(early, timedelta | Trigger):
        msg = f"early must be a timedelta, every(...) or after_rows(...), not {early!r:.60}"
        raise TypeError(msg)
    if not isinstance(early, Trigger):
        return None if early is None else _length("early", early)
    if early.purging and options.allowed_lateness:
        raise ValueError("purging=True keeps nothing that a late record could correct: leave allowed_lateness out")
    if early.purging and options.retracting:
        raise ValueError(
            "purging=True keeps nothing that -U and -D could take back, and this stream may have them: leave it out"
        )
    return early


_NOT_OVERLAPPING = "Tumbling, Calendar or Session windows"


def _check_offset(offset: object, of_what: str, length: int) -> None:
    if not isinstance(offset, timedelta):
        msg = f"offset must be a timedelta, not {offset!r:.60}"
        raise TypeError(msg)
    if not -length < offset / _MILLISECOND < length:
        msg = f"offset must be shorter than {of_what} ({_shown(length * _MILLISECOND)}), not {offset}"
        raise ValueError(msg)
    _check_whole("offset", offset)


def _check_whole(what: str, given: timedelta) -> None:
    if given % _MILLISECOND:
        msg = f"{what} must be whole milliseconds, not {given}"
        raise ValueError(msg)


def _shown(length: timedelta) -> str:
    """Return a length in its largest whole unit: `5m`."""
    return shown_length(length // _MILLISECOND)


def _shown_offset(offset: timedelta) -> str:
    return f", offset {_shown(offset)}" if offset else ""


def _named_offset(offset: timedelta) -> str:
    if not offset:
        return ""
    return f"_{'before' if offset < _ZERO else 'after'}_{_shown(abs(offset))}"
