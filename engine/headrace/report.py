"""Result of a command: blocks in the order of display, which have keys for machines.

A command makes one `Report`. `headrace.cli.output` shows its blocks as text, as wide as the terminal, or prints its facts and
tables as one JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SHOWN, _LAST_SHOWN = -62_135_596_800_000, 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Time:
    """Timestamp in milliseconds since 1970, or none; people and machines read it as `2013-01-31T05:00:00Z`."""

    ms: int | None

    @property
    def utc(self) -> datetime | None:
        """The timestamp in UTC; out of range, the first or last one possible."""
        if self.ms is None:
            return None
        return _EPOCH + timedelta(milliseconds=max(_FIRST_SHOWN, min(self.ms, _LAST_SHOWN)))

    def __str__(self) -> str:
        """Return the timestamp as text, with a fraction of a second only if it has one; empty for none."""
        return "" if self.utc is None else time_text(self.utc)


def time_text(value: datetime) -> str:
    """Return a timestamp as text, in UTC unless it has no zone, with a fraction of a second only if it has one."""
    zone = "" if value.tzinfo is None else "Z"
    if zone:
        value = value.astimezone(UTC).replace(tzinfo=None)
    fraction = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.isoformat(timespec=fraction if value.microsecond else "seconds") + zone


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored JSON. People read it with the times of its numbers, machines as JSON rather than as text."""

    text: Any
    """The JSON; any other value is shown as it is."""
    is_key: bool = False
    """People have to type keys, so they read them as they are stored, with the times of their numbers."""
    is_raw: bool = False
    """Machines read input that was set aside as the text that it is."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value."""

    key: str | None
    """Key of the JSON document; None: only for people."""
    value: Any
    label: str | None = None
    """Words before the value; None: only for machines."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Values for machines alone, by keys of the JSON document. A function makes them, where a machine reads them."""

    values: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values."""

    key: str | None
    """Key of the JSON document; None: only for people."""
    columns: Mapping[str, str] | Sequence[str]
    """Columns that people read, with other headings than their names in a mapping; none: only for machines."""
    rows: Sequence[Mapping[str, Any]]
    narrower: Table | None = None
    """Table that people read where this one is too wide for their terminal."""

    @classmethod
    def shown(cls, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, narrower: Table | None = None) -> Table:
        """Return a table for people alone. Columns may have the same heading."""
        places = [str(at) for at in range(len(columns))]
        headings = dict(zip(places, columns, strict=True))
        return cls(None, headings, [dict(zip(places, row, strict=True)) for row in rows], narrower)

    @property
    def headings(self) -> list[str]:
        """Headings of the columns that people read."""
        return [*(self.columns.values() if isinstance(self.columns, Mapping) else self.columns)]


@dataclass(frozen=True, slots=True)
class Note:
    """Text for people: a sentence, a warning on stderr, or a command to run next with its effect as text."""

    text: str
    kind: Literal["plain", "warning", "next"] = "plain"
    command: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines for people that no rule for sentences may wrap. A function of the terminal's width makes them."""

    lines: Callable[[int], Iterable[str]]


Block = Fact | Facts | Table | Note | Drawing


class Report:
    """Result of a command."""

    __slots__ = ("blocks", "error", "exit_code")

    def __init__(self, *blocks: Block | str | None, exit_code: int = 0, error: Exception | None = None) -> None:
        """Store the blocks, without None; a text is a note. `error` ends the command after people have read them."""
        given = (Note(block) if isinstance(block, str) else block for block in blocks)
        self.blocks: tuple[Block, ...] = tuple(block for block in given if block is not None)
        self.exit_code = exit_code
        self.error = error


def facts(**values: Any) -> list[Fact]:
    """Return facts for machines."""
    return [Fact(key, value) for key, value in values.items()]
