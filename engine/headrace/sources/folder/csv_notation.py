"""Notation of values in CSV: how the texts of a job's files write numbers, truth values, days and times.

A text in another notation is first written as Headrace writes it: with a decimal point, as `true` or `false`, in ISO 8601. Then the
kind of the column parses it, as it parses a text of any file. So each rule of a kind is in one place, whatever the notation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.config import CsvOptions, time_pattern
from headrace.records.column_kinds.kind import ColumnKind, ValueNotation
from headrace.records.value_rules import OtherType


class _Writing(NamedTuple):
    """One rule of a notation: the option that sets it, and the function that returns a text as Headrace writes it, or None."""

    option: str
    rewrite: Callable[[str], str | None]


class Notation:
    """Notation of the files of a source."""

    def __init__(self, options: CsvOptions) -> None:
        """Take what the job's file says of the texts."""
        self._writings = dict(_writings(options))

    def reader(self, kind: ColumnKind) -> Callable[[str], Any] | None:
        """Return the parser of the texts of a column; None where the text is the value.

        A text in another notation becomes an `OtherType`, which no field takes.
        """
        writing, parse = self._writings.get(kind.notation), kind.parse
        if writing is None:
            return parse

        def read(text: str) -> Any:
            rewritten = writing.rewrite(text)
            if rewritten is None:
                return OtherType(f"{text!r} ({writing.option})")
            return rewritten if parse is None else parse(rewritten)

        return read


def _writings(options: CsvOptions) -> Iterator[tuple[ValueNotation, _Writing]]:
    """Yield the rules by kinds of values; none for texts that Headrace writes alike."""
    if options.decimal == "," or options.thousands is not None:
        numbers = Numbers(options.decimal, options.thousands)
        yield "number", _Writing(numbers.option, numbers.plain)
        yield "time", _Writing(numbers.option, numbers.plain_time)
    if options.writes_truth:
        texts = {text.lower(): "true" for text in options.true_values}
        texts |= {text.lower(): "false" for text in options.false_values}
        option = f"true_values: {', '.join(options.true_values)}; false_values: {', '.join(options.false_values)}"
        yield "truth", _Writing(option, lambda text: texts.get(text.lower()))
    if options.day_pattern is not None:
        yield "day", _Writing(f"day_pattern: {options.day_pattern}", time_pattern(options.day_pattern).iso_day)
    if options.time_pattern is not None:
        yield "time", _Writing(f"time_pattern: {options.time_pattern}", time_pattern(options.time_pattern).iso_time)


class Numbers:
    """Rule of numbers in a file: the character before the decimals, and that between groups of three digits."""

    def __init__(self, decimal: str, thousands: str | None) -> None:
        """Take the two characters; None for nothing between thousands."""
        between = "" if thousands is None else re.escape(thousands)
        groups = rf"[1-9][0-9]{{0,2}}(?:{between}[0-9]{{3}})+" if between else r"(?!)"
        point, exponent = re.escape(decimal), r"(?:[eE][+-]?[0-9]+)?"
        digits = rf"-?(?:[0-9]+{point}[0-9]*|{point}[0-9]+){exponent}"
        self._decimal, self._thousands = decimal, thousands or ""
        self._marks = {".", ",", decimal, thousands or decimal}
        self._number = re.compile(rf"{digits}|-?{groups}(?:{point}[0-9]*)?", re.ASCII)
        self._digits = re.compile(rf"[-+0-9.,eE{between}]+", re.ASCII)
        mark = "" if thousands is None else f', thousands: "{thousands}"'
        self.option = f'decimal: "{decimal}"{mark}'

    def plain(self, text: str) -> str | None:
        """Return a number with a point and without thousands; None for one with wrong groups, or with a point of unknown meaning."""
        if self._marks.isdisjoint(text):
            return text
        if not self._number.fullmatch(text):
            return None
        whole = text.replace(self._thousands, "") if self._thousands else text
        return whole.replace(self._decimal, ".")

    def plain_time(self, text: str) -> str | None:
        """Return a time in milliseconds as a plain number, and any other time as it is."""
        return self.plain(text) if self._digits.fullmatch(text) else text
