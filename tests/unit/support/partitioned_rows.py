"""Rows with columns of all kinds that can partition a sink."""

from __future__ import annotations

from headrace import Struct, Timestamp


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    day: str | None = None
    hour: int = 0
    good: bool = True
