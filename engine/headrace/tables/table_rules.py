"""Rules that a Delta table has for its rows: writers check them, and refuse rows that break one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from deltalake import DeltaTable

_CHECK: Final = "delta.constraints."
_APPEND_ONLY: Final = "delta.appendOnly"
APPEND_ONLY: Final = f"{_APPEND_ONLY} (no row may be updated or deleted)"
_REFUSALS: Final = ("failed validation check", "append-only", "nsupported table features")
"""Parts of the messages with which deltalake refuses rows, or any write."""


def rules_of(table: DeltaTable) -> tuple[str, ...]:
    """Return the rules of a table, each in words."""
    fields = msgspec.json.decode(table.schema().to_json())["fields"]
    return (*_of_properties(table.metadata().configuration), *(rule for field in fields for rule in _of_field(field)))


def is_refusal(message: str) -> bool:
    """Return whether deltalake refuses a write because of what the table is, and not because of the storage or of another writer."""
    return any(part in message for part in _REFUSALS)


def _of_properties(properties: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(properties.items()):
        if name.startswith(_CHECK):
            yield f"CHECK {name.removeprefix(_CHECK)} ({value})"
        elif name == _APPEND_ONLY and value.lower() == "true":
            yield APPEND_ONLY


def _of_field(field: Mapping[str, Any]) -> Iterator[str]:
    name, metadata = field["name"], field.get("metadata", {})
    if not field.get("nullable", True):
        yield not_null(name)
    if invariant := metadata.get("delta.invariants"):
        yield f"invariant of {name} ({invariant})"
    if expression := metadata.get("delta.generationExpression"):
        yield f"generated column {name} ({expression})"


def not_null(column: str) -> str:
    """Return the rule that a column allows no null, in words."""
    return f"NOT NULL {column}"
