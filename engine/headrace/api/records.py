"""Records, their event time and their row kind."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

Struct = msgspec.Struct
"""Base class of records and state values. Declare them `frozen=True`: the engine caches decoded
values, so a value changed in place would change state without a write."""

TIMESTAMP = "timestamp"
FLOORED = "floored"

Timestamp = Annotated[int, msgspec.Meta(extra={"arrow": TIMESTAMP})]
"""Milliseconds since the epoch, UTC. An `int` in Python; a timestamp column in sources and sinks.

A file with a time that is finer than a millisecond is refused."""

FlooredTimestamp = Annotated[int, msgspec.Meta(extra={"arrow": TIMESTAMP, "finer": FLOORED})]
"""`Timestamp` for sources whose times are finer than a millisecond: the rest is dropped (rounded down, also before 1970)."""


class RowKind(enum.IntEnum):
    """Change that a row makes to the table that its changelog describes (FLIP-544, "Changelog Mode")."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def symbol(self) -> str:
        """Return the short form: `+I`, `-U`, `+U` or `-D`."""
        return _SYMBOLS[self]

    @property
    def is_retraction(self) -> bool:
        """Return whether the row retracts an earlier one."""
        return self in {RowKind.UPDATE_BEFORE, RowKind.DELETE}

    @classmethod
    def parse(cls, symbol: str) -> RowKind:
        """Turn `+I`, `-U`, `+U` or `-D` into a kind.

        Raises `KeyError` for anything else.
        """
        return _KIND_OF_SYMBOL[symbol]


_SYMBOLS = {
    RowKind.INSERT: "+I",
    RowKind.UPDATE_BEFORE: "-U",
    RowKind.UPDATE_AFTER: "+U",
    RowKind.DELETE: "-D",
}
_KIND_OF_SYMBOL = {symbol: kind for kind, symbol in _SYMBOLS.items()}
