"""Rules for the options of CSV files: with options that break one, no file could be read, or a text could be read in two ways."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config._formats import Problem
from headrace.config._sections import CsvOptions
from headrace.config._time_pattern import time_pattern

_LINE_ENDS = ("\n", "\r")


def csv_problems(options: CsvOptions) -> Iterator[Problem]:
    """Yield options that cannot be, with the reasons."""
    yield from _problems_of_characters(options)
    yield from _problems_of_thousands(options)
    yield from _problems_of_columns(options)
    yield from _problems_of_truth(options)
    yield from _problems_of_patterns(options)


def _problems_of_characters(options: CsvOptions) -> Iterator[Problem]:
    """Yield characters that are none, or that have another meaning already."""
    delimiter, quote, escape, comment = options.delimiter, options.quote, options.escape, options.comment
    if len(delimiter) != 1 or delimiter in {quote, *_LINE_ENDS}:
        yield (
            "csv.delimiter",
            f"{delimiter!r} cannot stand between fields: expected one character, such as ',' or \"\\t\", and no quote or line break",
        )
    if quote is not None and (len(quote) != 1 or quote in _LINE_ENDS):
        yield (
            "csv.quote",
            f'{quote!r} cannot stand around fields: expected one character, such as "\'", and no line break',
        )
    if escape is not None and quote is None:
        yield "csv.escape", "an escape is read in quotes alone, and csv.quote is null: leave one of the two out"
    elif escape is not None and (len(escape) != 1 or escape in {quote, delimiter, *_LINE_ENDS}):
        yield (
            "csv.escape",
            f"{escape!r} cannot escape quotes: expected one character, such as '\\', and no quote, line break or delimiter",
        )
    if comment is not None and (len(comment) != 1 or comment in {quote, delimiter, *_LINE_ENDS}):
        yield (
            "csv.comment",
            f"{comment!r} cannot begin comments: expected one character, such as '#', and no quote, line break or delimiter",
        )


def _problems_of_thousands(options: CsvOptions) -> Iterator[Problem]:
    thousands = options.thousands
    if thousands is None:
        return
    if len(thousands) != 1 or thousands.isalnum() or thousands in {"-", "+", options.quote, *_LINE_ENDS}:
        yield (
            "csv.thousands",
            f"{thousands!r} cannot stand between thousands: expected one character, such as '.', and no digit, letter, sign, quote or line break",
        )
    elif thousands == options.decimal:
        yield (
            "csv.thousands",
            f"{thousands!r} cannot stand between thousands: csv.decimal is {options.decimal!r}, too, so 1{thousands}028 would be two numbers",
        )
    elif thousands == options.delimiter and options.quote is None:
        yield (
            "csv.thousands",
            f"{thousands!r} cannot stand between thousands: csv.delimiter is {options.delimiter!r}, too, and no quote holds a field together",
        )


def _problems_of_columns(options: CsvOptions) -> Iterator[Problem]:
    if options.columns and options.header:
        yield (
            "csv.columns",
            "it names the columns of files without a header: write header: false beside it, or leave it out",
        )
    twice = sorted({name for name in options.columns if options.columns.count(name) > 1})
    if twice:
        yield "csv.columns", f"it has {', '.join(twice)} twice, and no file has two columns of one name"
    if not all(options.columns):
        yield "csv.columns", "it has an empty name: give each column one, also those that the record lacks"


def _problems_of_truth(options: CsvOptions) -> Iterator[Problem]:
    both = {text.lower() for text in options.true_values} & {text.lower() for text in options.false_values}
    if both:
        yield (
            "csv.true_values",
            f"{', '.join(map(repr, sorted(both)))} cannot mean true and, in csv.false_values, false",
        )


def _problems_of_patterns(options: CsvOptions) -> Iterator[Problem]:
    for key in ("day_pattern", "time_pattern"):
        text = getattr(options, key)
        try:
            pattern = None if text is None else time_pattern(text)
        except ValueError as error:
            yield f"csv.{key}", str(error)
            continue
        if key == "day_pattern" and pattern is not None and pattern.has_time:
            yield "csv.day_pattern", f"'{text}' has a time of day, and a day has none: write it as csv.time_pattern"
