"""What commands print: JSON for machines, tables of 100 columns for people, times in UTC."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headrace.readers.query import Rows

WIDTH = 100


def print_json(value: Any) -> None:
    """Print one JSON document on stdout. Moments are UTC ISO 8601, as in `2013-01-31T05:00:00Z`."""
    import msgspec

    encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")
    print(msgspec.json.format(encoder.encode(value), indent=2).decode())


def console() -> Console:
    """Standard output for people: as wide as the terminal, or 100 columns where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, soft_wrap=False)


def show(*parts: RenderableType) -> None:
    """Print texts, tables and trees, one below the other."""
    target = console()
    for part in parts:
        target.print(part, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> RenderableType:
    """A table whose cells are shown as they are: no markup, moments in UTC, numbers to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for at, name in enumerate(columns):
        numeric = any(_is_number(row[at]) for row in cells)
        whole = numeric or any(isinstance(row[at], datetime) for row in cells)
        made.add_column(Text(name), justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for row in cells:
        made.add_row(*(Text(shown(value)) for value in row))
    return made


def records(rows: Rows, *, drop: Sequence[str] = ()) -> RenderableType:
    """The rows of a query as a table, without columns that say nothing: dropped ones, and all-empty ones."""
    keep = [
        at
        for at, name in enumerate(rows.columns)
        if name not in drop and (not rows.rows or any(row[at] is not None for row in rows.rows))
    ]
    return table([rows.columns[at] for at in keep], [[row[at] for at in keep] for row in rows.rows])


def cards(rows: Rows, body: str, *, drop: Sequence[str] = ()) -> RenderableType:
    """Rows whose column `body` is long: the other columns in one line, the long one below it."""
    from rich.text import Text

    lines = []
    for row in rows.dicts():
        head = [
            f"{name}={shown(value)}"
            for name, value in row.items()
            if name not in {body, *drop} and value is not None and value is not False
        ]
        lines.append("  ".join(head))
        lines.append(f"    {shown(row[body])}\n" if row[body] is not None else "    (nothing)\n")
    return Text("\n".join(lines))


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

        return msgspec.json.encode(value, enc_hook=str).decode()
    return str(value)


def shown_moment(value: datetime) -> str:
    """A moment in UTC, with a fraction only where there is one."""
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    precision = "milliseconds" if value.microsecond else "seconds"
    return value.isoformat(timespec=precision) + "Z"


def at_time(milliseconds: int | None) -> datetime | None:
    """Milliseconds since the epoch as a moment in UTC; the first or last one that can be shown for those before or after."""
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(max(_FIRST_SHOWN, min(milliseconds, _LAST_SHOWN)) / 1000, UTC)


_FIRST_SHOWN, _LAST_SHOWN = -62_135_596_800_000, 253_402_300_799_000


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def decoded(rows: Rows) -> list[dict[str, Any]]:
    """Rows as mappings, with stored JSON (keys, values, rows) as JSON rather than text."""
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
