"""Output of commands: JSON for machines, tables as wide as the terminal for people, times in UTC.

A table breaks no line inside a word or a number. A table that is too wide for its terminal gets narrower step by step:

1. columns of text are wrapped between words, the widest first;
2. ids of runs are shortened in the middle;
3. timestamps are wrapped between date and time;
4. each row becomes a block of lines, a column a line.

A word longer than the terminal's width stays whole in any case: the terminal breaks it, and copying it gives the whole
word.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from headrace.names import counted

if TYPE_CHECKING:
    from rich.tree import Tree

    from headrace.readers.query import Rows


_NO_LIMIT = 1_000_000
_RUN_IDS = frozenset({"run", "run_id", "attempt_id", "held by"})
_STORED = frozenset({"value", "row", "element", "record", "result", "raw"})
"""Columns with stored JSON, except keys."""


def print_json(value: Any) -> None:
    """Print one JSON document on stdout. Moments are UTC ISO 8601, as in `2013-01-31T05:00:00Z`."""
    import msgspec

    encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")
    print(msgspec.json.format(encoder.encode(value), indent=2).decode())


def show(*parts: str | Table | Tree) -> None:
    """Print texts, tables and trees, one below the other.

    The output is as wide as the terminal, or $COLUMNS. In a pipe or file, no line is wrapped or cut.
    """
    width = terminal_width()
    for part in parts:
        if isinstance(part, Table):
            print("\n".join(part.lines(width)))
        elif isinstance(part, str):
            print("\n".join(wrapped(part, width)))
        else:
            print("\n".join(line for full in _tree_lines(part) for line in wrapped_branch(full, width)))


def _tree_lines(tree: Tree) -> list[str]:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=_NO_LIMIT, highlight=False)
    with console.capture() as captured:
        console.print(tree, markup=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def terminal_width() -> int:
    """Return the number of columns of the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _NO_LIMIT


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """Return a table: moments in UTC, numbers aligned to the right, ids of runs shortened if needed."""
    cells = [list(row) for row in rows]
    numeric = [any(_is_number(row[at]) for row in cells) for at in range(len(columns))]
    rendered_rows = [
        [
            RunIdText(shown(value)) if name in _RUN_IDS and value is not None else shown(value)
            for name, value in zip(columns, row, strict=True)
        ]
        for row in cells
    ]
    return Table(columns, rendered_rows, numeric=numeric, title=title)


def records(rows: Rows, *, drop: Sequence[str] = ()) -> Table:
    """Return the rows of a query as a table, without columns in `drop` and empty columns."""
    keep = [
        at
        for at, name in enumerate(rows.columns)
        if name not in drop and (not rows.rows or any(row[at] is not None for row in rows.rows))
    ]
    names = [rows.columns[at] for at in keep]
    cells = [[shown_stored(row[at]) if rows.columns[at] in _STORED else row[at] for at in keep] for row in rows.rows]
    return table(names, cells)


def cards(rows: Rows, body: str, *, drop: Sequence[str] = ()) -> str:
    """Return rows with a long column `body` as text: the other columns in one line, the long one below it."""
    lines = []
    for row in rows.dicts():
        head = [
            f"{name}={shown(value)}"
            for name, value in row.items()
            if name not in {body, *drop} and value is not None and value is not False
        ]
        lines.append("  ".join(head))
        lines.append(f"    {shown_stored(row[body])}\n" if row[body] is not None else "    (nothing)\n")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """Return a cell's text: empty for nothing, `2013-01-31T05:00:00Z` for moments, `1,234` for numbers, JSON for lists."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return shown_moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | Decimal | float):
        return f"{value:,}"
    if isinstance(value, list | dict):
        import msgspec

        return spaced_json(msgspec.json.encode(_with_moments(value), enc_hook=str).decode())
    return str(value).translate(_CONTROLS)


def shown_stored(value: Any) -> Any:
    """Return stored JSON for people: with blanks between its parts, and with the time after a number that may be one.

    Times in states and records are numbers of milliseconds, and nothing marks them as times. So numbers stay, and those between the
    years 2000 and 2050 get their time: `{"at": 1359608400000 (2013-01-31T05:00:00Z)}`. Text that is not JSON stays as it is.
    """
    import msgspec

    if not isinstance(value, str):
        return value
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    return spaced_json(value, times=True)


def cut(text: str, longest: int) -> str:
    """Return a text; if it is longer than `longest`, its beginning and its length."""
    return (
        text if len(text) <= longest else f"{text[:longest]}... ({counted(len(text), 'character')}: --json tells all)"
    )


def spaced_json(text: str, *, times: bool = False) -> str:
    """Return JSON with a blank after each comma and colon, where a line may break. With `times`, see `shown_stored`."""

    def spaced(match: re.Match[str]) -> str:
        part = match[0]
        if part in {",", ":"}:
            return f"{part} "
        if times and part.isdecimal() and _FIRST_TIME <= int(part) < _FIRST_NO_TIME:
            return f"{part} ({shown(at_time(int(part)))})"
        return part

    return _JSON_PART.sub(spaced, text)


def _with_moments(value: Any) -> Any:
    """Return a nested value with moments as texts."""
    if isinstance(value, datetime):
        return shown_moment(value)
    if isinstance(value, list | tuple):
        return [_with_moments(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_moments(item) for key, item in value.items()}
    return value


_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|[,:]')
_FIRST_TIME, _FIRST_NO_TIME = 946_684_800_000, 2_524_608_000_000
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code not in {9, 10}} | {9: " "}
"""Control characters, removed from data: data must not control the terminal."""


def shown_moment(value: datetime) -> str:
    """Return a moment in UTC as text, with a fraction of a second only if it has one."""
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    precision = "milliseconds" if value.microsecond else "seconds"
    return value.isoformat(timespec=precision) + "Z"


def at_time(milliseconds: int | None) -> datetime | None:
    """Return milliseconds since the epoch as a moment in UTC; out of range, the first or last moment possible."""
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(max(_FIRST_SHOWN, min(milliseconds, _LAST_SHOWN)) / 1000, UTC)


_FIRST_SHOWN, _LAST_SHOWN = -62_135_596_800_000, 253_402_300_799_000


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def decoded(rows: Rows) -> list[dict[str, Any]]:
    """Return rows as mappings, with stored JSON (keys, values, rows) as JSON rather than text."""
    return [decoded_row(row) for row in rows.dicts()]


def decoded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row with stored JSON (keys, values, rows) as JSON rather than text."""
    return {name: _decoded(name, value) for name, value in row.items()}


def _decoded(name: str, value: Any) -> Any:
    import msgspec

    if name not in {"key", "user_key", "value", "row", "element", "record", "result"} or not isinstance(value, str):
        return value
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    return msgspec.Raw(value.encode())


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
