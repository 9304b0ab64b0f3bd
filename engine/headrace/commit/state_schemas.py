"""What a job's checkpoints remember of its states: their kinds and the types of what is stored.

A row of a state table stays as it was written until its entry changes, or a migration rewrites the state. So what is declared
must fit all types that values may still be stored as, not only the last one:

    version 1   Leg(at: int)                   stored: Leg(at: int)
    version 2   Leg(at: int, gate: str = "")   stored: both of them; fits, since `gate` has a default
    version 3   Leg(at: int, gate: str)        refused: what version 1 has written has no `gate`
"""

from __future__ import annotations

import msgspec

from headrace.state.type_schema import TypeSchema

HISTORY_STATE = "history"
"""The kind of a materializer's history, and the name that it has as if it were a state of the operator."""


class StateSchema(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One state of an operator."""

    kind: str
    """value, list, map, reducing, aggregating; or history, of a materializer."""

    types: tuple[TypeSchema, ...] = ()
    """All types as which values, elements or accumulators may be stored, the last one newest. None where nobody knows."""

    key_type: TypeSchema | None = None
    """Of a map's keys."""

    version: int = 0
    """The number of the last migration that was applied."""

    removed: bool = False
    """Whether the code does not declare it any more. What is stored stays."""

    def __str__(self) -> str:
        """Its newest type, as `state list` shows it."""
        type_ = str(self.types[-1]) if self.types else "?"
        return type_ if self.key_type is None else f"{self.key_type} -> {type_}"


StateSchemas = dict[str, dict[str, StateSchema]]
"""The schemas by operator and state."""
