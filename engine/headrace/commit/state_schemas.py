"""Recorded schemas of a job's states: their kinds, and the types of stored values.

A row of a state table stays as it was written until its entry changes, or a migration rewrites the state. So the declared type must
fit all types that stored values may still have, not only the last one:

    version 1   Leg(at: int)                   stored: Leg(at: int)
    version 2   Leg(at: int, gate: str = "")   stored: both of them; fits, since `gate` has a default
    version 3   Leg(at: int, gate: str)        refused: what version 1 has written has no `gate`
"""

from __future__ import annotations

import msgspec

from headrace.state.type_schema import TypeSchema

HISTORY_STATE = "history"
"""Kind of a materializer's history, and its name among the states of the operator."""


class StateSchema(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Schema of one state of an operator."""

    kind: str
    """One of value, list, map, reducing, aggregating; history for a materializer."""

    types: tuple[TypeSchema, ...] = ()
    """All types that stored values, elements or accumulators may have, the newest last. None if unknown."""

    key_type: TypeSchema | None = None
    """Type of a map's keys."""

    version: int = 0
    """Number of the last applied migration."""

    removed: bool = False
    """True if the code no longer declares the state. Its stored values stay."""

    kept: bool = True
    """False for the history of a materializer that stored none, at least for a time: it misses rows that its sink has."""

    def __str__(self) -> str:
        """Return the newest type, as `state list` shows it."""
        type_ = str(self.types[-1]) if self.types else "?"
        return type_ if self.key_type is None else f"{self.key_type} -> {type_}"


StateSchemas = dict[str, dict[str, StateSchema]]
"""Schemas, by operator and state."""
