"""Output of commands: JSON for machines, tables as wide as the terminal for people, times in UTC."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace.names import counted

if TYPE_CHECKING:
    from rich.tree import Tree

    from headrace.cli._table import Table
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
    from headrace.cli._table import Table, wrapped, wrapped_branch

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
    from headrace.cli._table import RunIdText, Table

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
