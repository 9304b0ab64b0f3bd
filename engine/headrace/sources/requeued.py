"""Rows that have left the quarantine and wait to be taken in again, as the offset of their source records them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from headrace.names import counted

Ranges = tuple[tuple[int, int], ...]
"""Ranges of row numbers: each from its start (inclusive) to its end (exclusive), in order, with gaps between them."""


class RequeuedRows(msgspec.Struct, frozen=True):
    """Rows of one file that wait to be taken in again.

    `ranges` are their row numbers in the stored file; None: all rows. `file_rows` is the file's number of rows when they were
    requeued; None if all rows are taken, so that it does not matter.
    """

    file: str
    ranges: Ranges | None = None
    file_rows: int | None = None

    @property
    def rows(self) -> int | None:
        """Count the rows; None for all rows of the file."""
        return None if self.ranges is None else count_rows(self.ranges)


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """Return row numbers, given in any order, as ranges."""
    places = enumerate(sorted({*numbers}))
    runs = ([number for _, number in run] for _, run in groupby(places, lambda pair: pair[1] - pair[0]))
    return tuple((run[0], run[-1] + 1) for run in runs)


def count_rows(ranges: Ranges) -> int:
    """Count the rows of ranges."""
    return sum(end - start for start, end in ranges)


def rows_in(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the row numbers of ranges."""
    for start, end in ranges:
        yield from range(start, end)


def with_more(waiting: Iterable[RequeuedRows], more: Iterable[RequeuedRows]) -> tuple[RequeuedRows, ...]:
    """Return the union of rows that wait and more rows, by file name."""
    by_file: dict[str, RequeuedRows] = {}
    for rows in (*waiting, *more):
        former = by_file.get(rows.file)
        by_file[rows.file] = rows if former is None else _union(former, rows)
    return tuple(by_file[name] for name in sorted(by_file))


def _union(one: RequeuedRows, other: RequeuedRows) -> RequeuedRows:
    if one.ranges is None or other.ranges is None:
        return RequeuedRows(one.file)
    return RequeuedRows(one.file, ranges_of((*rows_in(one.ranges), *rows_in(other.ranges))), other.file_rows)


def rows_text(rows: int, files: int) -> str:
    """Return text such as "3 rows and 1 whole file"; a count of 0 is left out."""
    parts = [counted(count, noun) for count, noun in ((rows, "row"), (files, "whole file")) if count]
    return " and ".join(parts)
