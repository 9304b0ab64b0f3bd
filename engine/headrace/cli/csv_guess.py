"""How a CSV file writes numbers, days and times, guessed from its first rows for `headrace new --from`.

An option is guessed only where all rows fit it, and no other reading of them fits. Where two fit, as 01.02.2025 is a day in February or in
January, nothing is chosen, and a doubt names both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.config import TimePattern, time_pattern
from headrace.records.value_rules import iso_day, iso_time
from headrace.sources.folder.csv_notation import Numbers

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
"""A number as CSV has it without options; 007 is a text."""

Columns = Mapping[str, Sequence[str]]
"""Texts of the first rows by their columns, without nulls."""


class Writing(NamedTuple):
    """One way to write the values of a column: the options that say so, and the function that reads a text, or returns None."""

    options: Mapping[str, str]
    read: Callable[[str], str | None]

    def __str__(self) -> str:
        """Return the options as a job's file has them."""
        return ", ".join(f'{key}: "{value}"' for key, value in self.options.items()) or "ISO 8601"


class _Choice(NamedTuple):
    """Chosen way to write; or ways between which nothing was chosen, and why."""

    chosen: Writing | None = None
    open: Sequence[Writing] = ()
    doubt: str | None = None


class CsvGuess(NamedTuple):
    """How the values of a file are written."""

    options: Mapping[str, str]
    """Options of the job's file, without those that have their defaults."""
    doubts: Sequence[str]
    """What could be read in more than one way."""

    @property
    def numbers(self) -> Numbers:
        """Return the rule of numbers."""
        return Numbers(self.options.get("decimal", "."), self.options.get("thousands"))

    def pattern(self, key: str) -> TimePattern | None:
        """Return the pattern of days or times; None for ISO 8601."""
        return time_pattern(self.options[key]) if key in self.options else None


def csv_guess(columns: Columns) -> CsvGuess:
    """Return how numbers, days and times in these columns are written."""
    numbers = _choice(columns, _number_writings, is_same=True)
    days = _choice(columns, _day_writings)
    times = _choice(columns, _time_writings)
    choices = [numbers, _in_the_order_of(times, days), _in_the_order_of(days, times)]
    options = {key: value for choice in choices if choice.chosen for key, value in choice.chosen.options.items()}
    if _DAY_KEY in options and times == _Choice():
        options[_TIME_KEY] = options[
            _DAY_KEY
        ]  # so that a field of a day may be declared as a time, such as the event time
    is_default = options.get("decimal") == "."
    options = {key: value for key, value in options.items() if key != "decimal" or not is_default}
    return CsvGuess(options, [choice.doubt for choice in choices if choice.doubt is not None])


def _choice(columns: Columns, writings: Callable[[str], Iterable[Writing]], *, is_same: bool = False) -> _Choice:
    """Choose the way in which all columns of a kind are written. With `is_same`, ways that give the same values are one.

    `writings` returns the ways in which a text may be written; a column that none of them reads is of another kind.
    """
    fitting = {
        name: ways
        for name, texts in columns.items()
        if (ways := [way for way in _ways(texts, writings) if all(way.read(text) is not None for text in texts)])
    }
    if not fitting:
        return _Choice()
    first, *others = fitting.values()
    common = [way for way in first if all(way.options in [other.options for other in ways] for ways in others)]
    if not common:
        return _Choice(doubt=_contradiction(columns, fitting))
    texts = [text for name in fitting for text in columns[name]]
    distinct: dict[Hashable, Writing] = {}
    for way in common:
        distinct.setdefault(tuple(map(way.read, texts)) if is_same else str(way), way)
    if len(distinct) == 1:
        return _Choice(common[0])
    return _Choice(open=[*distinct.values()], doubt=_ambiguity(columns, fitting, [*distinct.values()]))


def _ways(texts: Sequence[str], writings: Callable[[str], Iterable[Writing]]) -> Iterable[Writing]:
    """Return the ways in which the first text that tells any may be written."""
    return next((ways for text in texts if (ways := [*writings(text)])), [])


def _contradiction(columns: Columns, fitting: Mapping[str, Sequence[Writing]]) -> str:
    shown = ", ".join(f"{name} {columns[name][0]!r} ({ways[0]})" for name, ways in fitting.items())
    return f"columns are written in several ways, and an option is for all of them, so none was chosen: {shown}"


def _ambiguity(columns: Columns, fitting: Mapping[str, Sequence[Writing]], ways: Sequence[Writing]) -> str:
    places = ((name, text) for name in fitting for text in columns[name])
    differing = ((name, text) for name, text in places if len({way.read(text) for way in ways}) > 1)
    name, text = next(differing, (next(iter(fitting)), columns[next(iter(fitting))][0]))
    meanings = " or ".join(f"{way.read(text)} ({way})" for way in ways)
    plain = next((way.read(text) for way in ways if way.options == _PLAIN), None)
    taken = "a text" if plain is None else plain
    return f"{name}: {text!r} may mean {meanings}; nothing was chosen, so it is {taken} until you write the option"


def doubt_of_moments(name: str, texts: Sequence[str | None], *, is_iso: bool = False) -> str | None:
    """Return the doubt that a column is a text only because of some rows, and the first of these: most others are days or times.

    `is_iso`: only ISO 8601 counts. None where few texts are moments, or all.
    """
    present = [(row, text) for row, text in enumerate(texts, 1) if text is not None]
    ways = [way for _, text in present for way in (*_day_writings(text), *_time_writings(text))]
    odd = [
        [(row, text) for row, text in present if way.read(text) is None]
        for way in {(str(way), way.read): way for way in ways if not (is_iso and way.options)}.values()
    ]
    fewest = min(odd, key=len, default=[])
    if not fewest or 2 * len(fewest) >= len(present):
        return None
    row, text = fewest[0]
    return f"{name} is a text, since row {row} has {text[:_SHOWN]!r}: {len(present) - len(fewest)} of {len(present)} values are days or times"


_SHOWN: Final = 60
"""Most characters of a value in a doubt."""


# -------------------------------------------------------------------------------------------------------------- numbers

_PLAIN: Final = {"decimal": "."}
"""Options by which numbers are read where nothing is chosen."""
_MARK: Final = re.compile(r"[.,' \u00a0\u202f]")


def _number_writings(text: str) -> Iterable[Writing]:
    """Yield the ways to write numbers, the plainest first, for a text that has a mark."""
    return _NUMBERS if _MARK.search(text) else ()


def _number(decimal: str, thousands: str | None) -> Writing:
    numbers = Numbers(decimal, thousands)

    def read(text: str) -> str | None:
        plain = numbers.plain(text)
        return plain if plain is not None and NUMBER.fullmatch(plain) else None

    return Writing({"decimal": decimal, **({} if thousands is None else {"thousands": thousands})}, read)


_NUMBERS: Final = tuple(
    _number(decimal, thousands)
    for thousands in (None, ".", ",", "'", " ", "\u00a0", "\u202f")
    for decimal in ".,"
    if decimal != thousands
)


# -------------------------------------------------------------------------------------------------------- days and times

_DAY_KEY: Final = "day_pattern"
_TIME_KEY: Final = "time_pattern"
_DAY: Final = re.compile(r"([0-9]{1,4})([./-])[0-9]{1,2}\2[0-9]{1,4}", re.ASCII)
_CLOCK: Final = re.compile(
    r"(?P<before>[ T]|, )[0-9]{1,2}:[0-9]{2}(?P<second>:[0-9]{2}(?:(?P<mark>[.,])[0-9]{1,6})?)?"
    r"(?P<half> ?[ap]m)?(?P<gap> ?)(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.ASCII | re.IGNORECASE,
)
_ORDERS: Final = ("%d %m %Y", "%m %d %Y", "%Y %m %d", "%d %m %y", "%m %d %y", "%y %m %d")
_DAY_LENGTH: Final = len(_ORDERS[0])


def _day_writings(text: str) -> Iterable[Writing]:
    """Yield the ways in which a day may be written."""
    match = _DAY.fullmatch(text)
    if iso_day(text) is not None:
        yield Writing({}, _iso_day)
    elif match is not None:
        for day in _days(match):
            yield Writing({_DAY_KEY: day}, time_pattern(day).iso_day)


def _time_writings(text: str) -> Iterable[Writing]:
    """Yield the ways in which a day with a time of day may be written."""
    match = _DAY.match(text)
    clock = None if match is None else _CLOCK.fullmatch(text, match.end())
    if _iso_time(text) is not None:
        yield Writing({}, _iso_time)
    elif match is not None and clock is not None:
        for day in _days(match):
            pattern = day + _clock_pattern(clock)
            yield Writing({_TIME_KEY: pattern}, time_pattern(pattern).iso_time)


def _iso_day(text: str) -> str | None:
    return None if iso_day(text) is None else text


def _iso_time(text: str) -> str | None:
    return None if iso_time(text) is None or iso_day(text) is not None else text


def _days(match: re.Match[str]) -> list[str]:
    """Return patterns of days with the separator of a text."""
    return [order.replace(" ", match[2]) for order in _ORDERS]


def _clock_pattern(clock: re.Match[str]) -> str:
    """Return the pattern of a time of day."""
    half, zone = clock["half"], clock["zone"]
    second = "" if clock["second"] is None else ":%S" + (f"{clock['mark']}%f" if clock["mark"] else "")
    noon = "" if half is None else half[:-2] + "%p"
    offset = "" if zone is None else clock["gap"] + "%z"
    return f"{clock['before']}%{'H' if half is None else 'I'}:%M{second}{noon}{offset}"


def _in_the_order_of(choice: _Choice, other: _Choice) -> _Choice:
    """Choose among patterns the one whose day has the pattern that the other columns of the file have for certain."""
    if other.chosen is None or not other.chosen.options:
        return choice
    (pattern,) = other.chosen.options.values()
    like = [way for way in choice.open for text in way.options.values() if text[:_DAY_LENGTH] == pattern[:_DAY_LENGTH]]
    return _Choice(like[0]) if like else choice
