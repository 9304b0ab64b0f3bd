"""Notation of values in CSV: how the texts of a job's files write numbers, truth values, days and times.

A text in another notation is first written as Headrace writes it: with a decimal point, as `true` or `false`, in ISO 8601. Then the
kind of the column parses it, as it parses a text of any file. So each rule of a kind is in one place, whatever the notation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from headrace.config import CsvOptions, time_pattern
from headrace.records.column_kinds.kind import ColumnKind, ValueNotation
from headrace.records.value_rules import OtherType

_COMMA: Final = re.compile(r"-?(?:[0-9]+,[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DIGITS: Final = re.compile(r"[-+0-9.,eE]+", re.ASCII)


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
    if options.decimal == ",":
        yield "number", _Writing('decimal: ","', _with_point)
        yield "time", _Writing('decimal: ","', lambda text: _with_point(text) if _DIGITS.fullmatch(text) else text)
    if options.writes_truth:
        texts = {text.lower(): "true" for text in options.true_values}
        texts |= {text.lower(): "false" for text in options.false_values}
        option = f"true_values: {', '.join(options.true_values)}; false_values: {', '.join(options.false_values)}"
        yield "truth", _Writing(option, lambda text: texts.get(text.lower()))
    if options.day_pattern is not None:
        yield "day", _Writing(f"day_pattern: {options.day_pattern}", time_pattern(options.day_pattern).iso_day)
    if options.time_pattern is not None:
        yield "time", _Writing(f"time_pattern: {options.time_pattern}", time_pattern(options.time_pattern).iso_time)


def _with_point(text: str) -> str | None:
    """Return a number with a point in place of its comma; None for one with a point: it may stand between thousands."""
    if "," not in text:
        return None if "." in text else text
    return text.replace(",", ".") if _COMMA.fullmatch(text) else None
