"""Output of commands: a `Report` as JSON for machines, or as text as wide as the terminal for people; times in UTC.

A table breaks no line inside a word or a number. A table that is too wide for its terminal gets narrower step by step:

1. columns of text are wrapped between words, the widest first;
2. ids of runs are shortened in the middle;
3. timestamps are wrapped between date and time;
4. a narrower table takes its place, if it has one: mostly the same without some columns, which a line below it names;
5. each row becomes a block of lines, a column a line.

A word longer than the terminal's width stays whole in any case: the terminal breaks it, and copying it gives the whole
word.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import logs
from headrace.names import counted
from headrace.report import Block, Drawing, Fact, Facts, Note, Report, Stored, Table, Time, time_text

if TYPE_CHECKING:
    from rich.tree import Tree

    from headrace.readers.query import Rows


_log = logging.getLogger(__name__)
_NO_LIMIT = 1_000_000
_RUN_IDS = frozenset({"run", "run_id", "attempt_id", "held by"})
_STORED = frozenset({"value", "row", "element", "record", "result", "raw"})
"""Columns with stored JSON, except keys."""
_KEYS = frozenset({"key", "user_key"})


def print_document(report: Report) -> None:
    """Print the facts and tables of a report as one JSON document on stdout."""
    _print_warnings(report)
    print_json(plain_report(report))


def print_text(report: Report) -> None:
    """Print a report for people on stdout: as wide as the terminal, or $COLUMNS. In a pipe or file, no line is wrapped or cut."""
    _print_warnings(report)
    width = terminal_width()
    for _, blocks in groupby(report.blocks, _kind_of):
        print("".join(f"{line}\n" for line in _lines([*blocks], width)), end="")


def _print_warnings(report: Report) -> None:
    """Print the warnings of a report on stderr."""
    for block in report.blocks:
        if isinstance(block, Note) and block.kind == "warning":
            logs.write(_log, block.text, level=logging.WARNING, kind="note")


def plain_report(report: Report) -> dict[str, Any]:
    """Return what machines read of a report."""
    document: dict[str, Any] = {}
    for block in report.blocks:
        if isinstance(block, Facts):
            document |= {name: plain(value) for name, value in block.values().items()}
        elif isinstance(block, Fact | Table) and block.key is not None:
            document[block.key] = plain(block.value if isinstance(block, Fact) else block.rows)
    return document


def plain(value: Any) -> Any:
    """Return a value as JSON has it, with stored JSON as JSON."""
    if isinstance(value, Time):
        return value.utc
    if isinstance(value, Stored):
        import msgspec

        return value.text if value.is_raw or not _is_json(value.text) else msgspec.Raw(value.text.encode())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [plain(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print one JSON document on stdout. Timestamps are UTC ISO 8601, as in `2013-01-31T05:00:00Z`."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON for people and machines."""
    import msgspec

    encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")
    return msgspec.json.format(encoder.encode(value), indent=2).decode()


def write_document(file: Path, content: Mapping[str, Any]) -> bool:
    """Write one JSON document, whole or not at all; return whether it was written. If not, a line on stderr has the reason."""
    import msgspec

    if not file.name:
        logs.write(_log, f"--report: {file} is no file", level=logging.ERROR)
        return False
    unfinished = file.with_name(f"{file.name}.part")
    try:
        unfinished.write_bytes(msgspec.json.encode(content, enc_hook=str))
        os.replace(unfinished, file)  # noqa: PTH105  Path.replace returns a path that nobody needs
    except OSError as error:
        logs.write(_log, f"--report: {file} cannot be written: {error}", level=logging.ERROR)
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


def _kind_of(block: Block) -> str:
    """Return what blocks have in common that are shown as one: facts, next commands, or texts."""
    return block.kind if isinstance(block, Note) else type(block).__name__


def _lines(blocks: Sequence[Block], width: int) -> Iterator[str]:
    """Yield the lines of blocks of one kind."""
    pairs: list[tuple[str, Any]] = []
    for block in blocks:
        if isinstance(block, Drawing):
            yield from block.lines(width)
        elif isinstance(block, Table):
            yield from _table_lines(block, width)
        elif isinstance(block, Fact):
            if block.label is not None:
                pairs.append((block.label, block.value))
        elif isinstance(block, Note) and block.kind == "next":
            pairs.append((block.command, block.text))
        elif isinstance(block, Note) and block.kind == "plain":
            yield from wrapped(block.text, width)
    yield from _pair_lines(pairs, width, are_commands=isinstance(blocks[0], Note)) if pairs else ()


def _pair_lines(pairs: Sequence[tuple[str, Any]], width: int, *, are_commands: bool) -> Iterator[str]:
    if are_commands and not _fits(pairs, width):
        for command, effect in pairs:  # a command that is broken in two cannot be pasted
            yield from (command, f"    {effect}")
    else:
        yield from "\n".join(table(("", ""), pairs).lines(width)).split("\n")


def _fits(pairs: Sequence[tuple[str, str]], width: int) -> bool:
    first, second = (max(map(cell_width, texts)) for texts in zip(*pairs, strict=True))
    return first + len(_GAP) + second <= width


def _table_lines(block: Table, width: int) -> list[str]:
    """Return the lines of a table, or of the first narrower one that fits; none for a table without rows or columns."""
    if not block.rows or not block.columns:
        return []
    own: Table | None = block
    while own is not None:
        cells = [[row[name] for name in own.columns] for row in own.rows]
        if (lines := table(own.headings, cells).fitting_lines(width)) is not None:
            return [*lines, *_left_out(block, own, width)]
        own = own.narrower
    return table(block.headings, [[row[name] for name in block.columns] for row in block.rows]).lines(width)


def _left_out(whole: Table, narrower: Table, width: int) -> list[str]:
    """Return a line that names the columns which a narrower table lacks; none where it tells them in another way."""
    if {*narrower.headings} - {*whole.headings}:
        return []
    names = [name for name in whole.headings if name not in narrower.headings]
    text = f"{_EDGE}(too narrow for {', '.join(names)}: see --json, or a wider terminal)"
    return [*wrapped(text, width), ""] if names else []


def tree_lines(tree: Tree, width: int) -> list[str]:
    """Return the lines of a tree, wrapped between its words."""
    return [line for full in _tree_lines(tree) for line in wrapped_branch(full, width)]


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


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TextTable:
    """Return a table: timestamps in UTC, numbers aligned to the right, ids of runs shortened if needed."""
    cells = [list(row) for row in rows]
    numeric = [any(_is_number(row[at]) for row in cells) for at in range(len(columns))]
    rendered_rows = [
        [
            RunIdText(shown(value)) if name in _RUN_IDS and value is not None else shown(value)
            for name, value in zip(columns, row, strict=True)
        ]
        for row in cells
    ]
    return TextTable(columns, rendered_rows, numeric=numeric)


def rows_table(rows: Rows, *, drop: Sequence[str] = (), spare: Sequence[str] = (), keep_empty: bool = False) -> Drawing:
    """Return the rows of a query as a table for people, without columns in `drop` and, unless `keep_empty`, empty ones.

    Where it is too wide, it does without those in `spare`, the first ones first.
    """
    return Drawing(lambda width: _table_lines(_shown_rows(rows, drop, spare, keep_empty=keep_empty), width))


def _shown_rows(rows: Rows, drop: Sequence[str], spare: Sequence[str], *, keep_empty: bool) -> Table:
    keep = [
        at
        for at, name in enumerate(rows.columns)
        if name not in drop and (keep_empty or any(row[at] is not None for row in rows.rows))
    ]
    names = [rows.columns[at] for at in keep]
    narrower = _shown_rows(rows, (*drop, spare[0]), spare[1:], keep_empty=keep_empty) if spare else None
    cells = [[_typed(rows.columns[at], row[at]) for at in keep] for row in rows.rows]
    return Table.shown(names, cells, narrower=narrower)


def typed_rows(rows: Rows) -> list[dict[str, Any]]:
    """Return rows as mappings, with stored JSON marked as such."""
    return [typed_row(row) for row in rows.dicts()]


def typed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row, with stored JSON marked as such."""
    return {name: _typed(name, value) for name, value in row.items()}


def _typed(name: str, value: Any) -> Any:
    if name not in _STORED | _KEYS or value is None:
        return value
    return Stored(value, is_key=name in _KEYS, is_raw=name == "raw")


def card_lines(rows: Rows, body: str, width: int, *, drop: Sequence[str] = ()) -> Iterator[str]:
    """Yield lines for rows with a long column `body`: the other columns in one line, the long one below it."""
    for row in rows.dicts():
        head = [
            f"{name}={shown(_typed(name, value))}"
            for name, value in row.items()
            if name not in {body, *drop} and value is not None and value is not False
        ]
        yield from wrapped("  ".join(head), width)
        yield from wrapped("    (nothing)" if row[body] is None else f"    {shown_stored(row[body])}", width)
        yield ""


def shown(value: Any) -> str:
    """Return a cell's text: empty for nothing, `2013-01-31T05:00:00Z` for timestamps, `1,234` for numbers, JSON for lists."""
    if value is None:
        return ""
    if isinstance(value, Stored):
        return shown(shown_key(value.text) if value.is_key else shown_stored(value.text))
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | Decimal | float):
        return f"{value:,}"
    if isinstance(value, list | dict):
        import msgspec

        return spaced_json(msgspec.json.encode(_with_timestamps(value), enc_hook=str).decode())
    return str(value).translate(_CONTROLS)


def shown_stored(value: Any) -> Any:
    """Return stored JSON for people: with blanks between its parts, and with the time after a number that may be one.

    Times in states and records are numbers of milliseconds, and nothing marks them as times. So numbers stay, and those between the
    years 2000 and 2050 get their time: `{"at": 1359608400000 (2013-01-31T05:00:00Z)}`. Text that is not JSON stays as it is.
    """
    return spaced_json(value, times=True) if _is_json(value) else value


def shown_key(value: Any) -> Any:
    """Return a key for people: as it is stored, with the time after a number that may be one. Commands take it in this form, too."""
    return spaced_json(value, times=True, gap="") if _is_json(value) else value


def cut(text: str, longest: int) -> str:
    """Return a text; if it is longer than `longest`, its beginning and its length."""
    return (
        text if len(text) <= longest else f"{text[:longest]}... ({counted(len(text), 'character')}: --json tells all)"
    )


def spaced_json(text: str, *, times: bool = False, gap: str = " ") -> str:
    """Return JSON with a blank after each comma and colon, where a line may break. With `times`, see `shown_stored`."""

    def spaced(match: re.Match[str]) -> str:
        part = match[0]
        if part in {",", ":"}:
            return f"{part}{gap}"
        if times and part.isdecimal() and _FIRST_TIME <= int(part) < _FIRST_NO_TIME:
            return f"{part} ({Time(int(part))})"
        return part

    return _JSON_PART.sub(spaced, text)


def _with_timestamps(value: Any) -> Any:
    """Return a nested value with timestamps as texts."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, list | tuple):
        return [_with_timestamps(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_timestamps(item) for key, item in value.items()}
    return value


_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|[,:]')
_FIRST_TIME, _FIRST_NO_TIME = 946_684_800_000, 2_524_608_000_000
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code not in {9, 10}} | {9: " "}
"""Control characters, removed from data: data must not control the terminal."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_json(value: Any) -> bool:
    """Return whether a value is a text of JSON."""
    import msgspec

    if not isinstance(value, str):
        return False
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return False
    return True


_GAP = "  "
_EDGE = " "
_ID_HEAD, _ID_TAIL = 21, 3
"""Numbers of characters kept at both ends of a run's id: `scheduled__2013-01-31` and `:00`."""
_FEW_WORDS, _SENTENCE = 2, 24
"""Least width of a cell with more words than this."""
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)T([\d:.]+Z)")


class RunIdText(str):
    """Id of a run, or of an attempt, in a cell."""

    __slots__ = ()


class TextTable:
    """Table of text cells."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[bool] = (),
    ) -> None:
        """Store the cells. `numeric` columns are aligned to the right. A cell may have several lines."""
        self._columns, self._rows = columns, rows
        self._numeric = numeric or [False] * len(columns)

    def lines(self, width: int) -> list[str]:
        """Return the table in lines of at most `width` columns, unless a single word is longer."""
        fitting = self.fitting_lines(width)
        return self._as_blocks(self._with_short_ids(), width) if fitting is None else fitting

    def fitting_lines(self, width: int) -> list[str] | None:
        """Return the table in lines of at most `width` columns; None if its columns do not fit beside each other."""
        short = self._with_short_ids()
        spread = [
            [_TIMESTAMP.sub(r"\1 \2", cell) if _TIMESTAMP.fullmatch(cell) else cell for cell in row] for row in short
        ]
        for rows in (self._rows, short, spread):
            if (widths := self._widths(rows, width)) is not None:
                return self._as_table(rows, widths)
        return None

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
        body = [line for row in rows for line in self._row(row, widths)]
        return ["", *self._row(self._columns, widths), f"{_EDGE}{rule}", *body, ""]

    def _row(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        columns = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        return [
            _EDGE + _GAP.join(map(_aligned, line, widths, self._numeric)).rstrip()
            for line in zip_longest(*columns, fillvalue="")
        ]

    def _as_blocks(self, short: Sequence[Sequence[str]], width: int) -> list[str]:
        """Return a block for each row: names of columns with cells beside them, without empty cells."""
        names = max((cell_width(name) for name in self._columns), default=0)
        lines = []
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


def bytes_text(total: float) -> str:
    """Return a number of bytes in words, such as 12 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if total < 1000:  # noqa: PLR2004 - from one unit to the next
            return f"{total:.0f} {unit}"
        total /= 1000
    return f"{total:.0f} TB"


def span_text(milliseconds: int) -> str:
    """Return a time in words, in its largest unit of which there are two, such as 90 min."""
    seconds = milliseconds // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
