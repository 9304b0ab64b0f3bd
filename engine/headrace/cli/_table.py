"""Tables for people: no line breaks inside a word or a number.

A table that is too wide for its terminal gets narrower step by step:

1. columns of text are wrapped between words, the widest first;
2. ids of runs are shortened in the middle;
3. moments are wrapped between date and time;
4. each row becomes a block of lines, a column a line.

A word longer than the terminal's width stays whole in any case: the terminal breaks it, and copying it gives the whole word.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

_GAP = "  "
_EDGE = " "
_ID_HEAD, _ID_TAIL = 21, 3
"""Numbers of characters kept at both ends of a run's id: `scheduled__2013-01-31` and `:00`."""
_FEW_WORDS, _SENTENCE = 2, 24
"""Least width of a cell with more words than this."""
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T([\d:.]+Z)")


class RunIdText(str):
    """Id of a run, or of an attempt, in a cell."""

    __slots__ = ()


class Table:
    """Table of text cells."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[bool] = (),
        title: str | None = None,
    ) -> None:
        """Store the cells. `numeric` columns are aligned to the right. A cell may have several lines."""
        self._columns, self._rows, self._title = columns, rows, title
        self._numeric = numeric or [False] * len(columns)

    def lines(self, width: int) -> list[str]:
        """Return the table in lines of at most `width` columns, unless a single word is longer."""
        short = self._with_short_ids()
        spread = [[_MOMENT.sub(r"\1 \2", cell) if _MOMENT.fullmatch(cell) else cell for cell in row] for row in short]
        for rows in (self._rows, short, spread):
            if (widths := self._widths(rows, width)) is not None:
                return self._as_table(rows, widths)
        return self._as_blocks(short, width)

    def _block_cells(self, short: Sequence[Sequence[str]], space: int) -> Sequence[Sequence[str]]:
        """Return the rows for blocks whose cells may take `space` columns, with whole ids of runs if they fit."""
        ids = (cell for row in self._rows for cell in row if isinstance(cell, RunIdText))
        return self._rows if all(cell_width(cell) <= space for cell in ids) else short

    def _widths(self, rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
        """Return the width of each column; None if the words do not fit beside each other."""
        cells = [[name, *(row[at] for row in rows)] for at, name in enumerate(self._columns)]
        longest = [max(cell_width(line) for cell in column for line in cell.split("\n")) for column in cells]
        least = [max(map(_least_width, column)) for column in cells]
        space = width - len(_EDGE) - len(_GAP) * (len(cells) - 1)
        return _shared(least, longest, space)

    def _with_short_ids(self) -> list[list[str]]:
        """Return the rows with shortened ids of runs that stay distinct."""
        ids = {cell for row in self._rows for cell in row if isinstance(cell, RunIdText)}
        short = {full: short_run_id(full) for full in ids}
        if len({*short.values()}) < len(ids):
            short = {}
        return [[short.get(cell, cell) if isinstance(cell, RunIdText) else cell for cell in row] for row in self._rows]

    def _as_table(self, rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
        rule = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
        head = [] if self._title is None else [self._title]
        body = [line for row in rows for line in self._row(row, widths)]
        return [*head, "", *self._row(self._columns, widths), f"{_EDGE}{rule}", *body, ""]

    def _row(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        columns = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        return [
            _EDGE + _GAP.join(map(_aligned, line, widths, self._numeric)).rstrip()
            for line in zip_longest(*columns, fillvalue="")
        ]

    def _as_blocks(self, short: Sequence[Sequence[str]], width: int) -> list[str]:
        """Return a block for each row: names of columns with cells beside them, without empty cells."""
        names = max((cell_width(name) for name in self._columns), default=0)
        lines = [] if self._title is None else [self._title]
        space = max(1, width - len(_EDGE) - names - len(_GAP))
        for row in self._block_cells(short, space):
            lines.append("")
            for name, cell in zip(self._columns, row, strict=True):
                if cell:
                    first = f"{_EDGE}{_aligned(name, names)}{_GAP}"
                    beside = wrapped(cell, space)
                    lines += [
                        f"{first if at == 0 else ' ' * cell_width(first)}{part}" for at, part in enumerate(beside)
                    ]
        return [*lines, ""]


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines that end between words. Lines keep their indentation."""
    return [part for line in text.split("\n") for part in _wrapped_line(line, width)]


def wrapped_branch(line: str, width: int) -> list[str]:
    """Return a line of a tree in lines that end between words, with the tree's guides before each."""
    text = line.lstrip("│├└─ \N{NO-BREAK SPACE}")
    guides = line[: len(line) - len(text)]
    below = guides.replace("├", "│").replace("└", " ").replace("─", " ")
    first, *others = wrapped(text, max(1, width - len(guides)))
    return [f"{guides}{first}", *(f"{below}{other}" for other in others)]


def short_run_id(run_id: str) -> str:
    """Return the id of a run; a long one without its middle."""
    if len(run_id) <= _ID_HEAD + _ID_TAIL + 1:
        return run_id
    return f"{run_id[:_ID_HEAD]}…{run_id[-_ID_TAIL:]}"


def cell_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def _least_width(cell: str) -> int:
    """Return the least width of a cell: sentences must not wrap after each word."""
    words = cell.split()
    longest = max(map(cell_width, words), default=0)
    return longest if len(words) <= _FEW_WORDS else max(longest, min(cell_width(cell), _SENTENCE))


def _wrapped_line(line: str, width: int) -> Iterable[str]:
    if cell_width(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if line.isascii():
        wrapped_lines = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        return wrapped_lines or [""]
    return _wrapped_wide(line.split(), indent, width)


def _wrapped_wide(words: Sequence[str], indent: str, width: int) -> Iterable[str]:
    """Return lines of words that have letters two columns wide."""
    lines = [indent]
    for word in words:
        is_first = lines[-1] == indent
        longer = f"{lines[-1]}{'' if is_first else ' '}{word}"
        if is_first or cell_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"{indent}{word}")
    return lines


def _aligned(text: str, width: int, right: bool = False) -> str:
    blanks = " " * (width - cell_width(text))
    return f"{blanks}{text}" if right else f"{text}{blanks}"


def _shared(least: Sequence[int], longest: Sequence[int], space: int) -> list[int] | None:
    """Share `space` among columns: each gets at least `least` and at most `longest`; the widest shrink first."""
    if sum(least) > space:
        return None
    widths = list(least)
    left = space - sum(least)
    while left > 0 and (growing := [at for at, width in enumerate(widths) if width < longest[at]]):
        narrowest = min(growing, key=lambda at: widths[at])
        widths[narrowest] += 1
        left -= 1
    return widths
