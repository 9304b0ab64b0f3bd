"""Form of a table that others may have made: what decides how rows are written to it.

deltalake writes tables with the writer features that it knows. Spark, which comes with Delta's own library, writes all others
(Delta protocol, "Table Features").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from deltalake import DeltaTable

from headrace.storage.delta_schema import VARIANT
from headrace.storage.table import TableForm

_BY_DELTALAKE: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "columnMapping", "deletionVectors"),
        *("timestampNtz", "v2Checkpoint"),
    }
)
"""Writer features of tables whose rows deltalake writes: each was tried, and the rows read by Spark. It takes tables with variants,
too, but writes rows there that Spark cannot read."""

_OF_NO_WRITER: Final = frozenset({"generatedColumns", "identityColumns", "variantType", "variantType-preview"})
"""Features that ask something of a writer only where a column has them. The columns say so themselves."""

_BEYOND: Final = {
    "typeWidening": "its files may have narrower columns, which deltalake cannot read",
    "typeWidening-preview": "its files may have narrower columns, which deltalake cannot read",
    "catalogManaged": "only its catalog commits to it",
    "catalogOwned-preview": "only its catalog commits to it",
}
"""Features of tables that no sink can be, with the reasons."""

_GENERATED: Final = "delta.generationExpression"
_IDENTITY: Final = "delta.identity.start"
_DEFAULT: Final = "CURRENT_DEFAULT"
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"


def form_of(table: DeltaTable) -> TableForm:
    """Return the form of a table at the version that is open."""
    fields = msgspec.json.decode(table.schema().to_json())["fields"]
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    variants = frozenset(column["name"] for column in fields if column["type"] == VARIANT)
    identities = frozenset(column["name"] for column in fields if _IDENTITY in _metadata(column))
    generated = frozenset(column["name"] for column in fields if _GENERATED in _metadata(column))
    defaults = frozenset(column["name"] for column in fields if _DEFAULT in _metadata(column))
    times = {column["name"] for column in fields if column["type"] == "timestamp"}
    of_columns = {
        "VARIANT": variants,
        "identity": identities,
        "CHAR or VARCHAR": {column["name"] for column in fields if _LENGTH in _metadata(column)},
        # deltalake writes their values without a zone, and Spark reads them in that of the session.
        "partitions by times": times & {*table.metadata().partition_columns},
    }
    others = features - _BY_DELTALAKE - _OF_NO_WRITER - _BEYOND.keys()
    return TableForm(
        takes_commits=not (others or identities or features & _BEYOND.keys()),
        needs_spark=(
            *sorted(others),
            *(f"{kind} ({', '.join(sorted(names))})" for kind, names in of_columns.items() if names),
        ),
        beyond=tuple(f"{name}: {_BEYOND[name]}" for name in sorted(features & _BEYOND.keys())),
        maps_columns=table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none",
        has_vectors="deletionVectors" in features,
        filled=generated | identities | defaults,
        identities=frozenset(_always(fields)),
        variants=variants,
    )


def _metadata(column: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = column.get("metadata") or {}
    return metadata


def _always(fields: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the identity columns whose values nobody may give."""
    for column in fields:
        if _IDENTITY in _metadata(column) and not _metadata(column).get("delta.identity.allowExplicitInsert"):
            yield column["name"]
