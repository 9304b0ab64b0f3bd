"""Dimension tables of a Spark step over a source: the version of each that a micro-batch sees, and its rows.

A micro-batch fixes the versions when it makes its first rows, and each file of these rows records them. So a micro-batch that
is repeated after a crash sees the same versions. A replayed one sees the versions that its checkpoint recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError, SourceError, StorageError
from headrace.sources.offset import SourceOffset, TableVersion
from headrace.tables.files import Storage
from headrace.tables.store import StoreError, TableMissingError
from headrace.tables.stores import table_store

Versions = Mapping[str, int]
"""Version of each table, by the table's name in the pipeline."""


@dataclass(slots=True)
class DimensionTables:
    """Dimension tables of one source's step; `paths` has their locations by name."""

    source: str
    paths: Mapping[str, str]
    storage: Storage = None
    place: str = ""
    """Digest of the offset at which the micro-batch begins: the same for each attempt."""
    _recorded: Versions = field(default_factory=dict)
    _fixed: dict[str, int] | None = None

    def begin(self, offset: SourceOffset, recorded: Sequence[TableVersion] = ()) -> None:
        """Begin a micro-batch at the offset of the last checkpoint. A repeated one has the versions `recorded` for it."""
        self.place = blake2b(msgspec.json.encode(offset), digest_size=8).hexdigest()
        self._recorded, self._fixed = {table.name: table.version for table in recorded}, None

    def fix(self, landed: Versions | None = None) -> Versions:
        """Return the versions of this micro-batch: the recorded ones, else those that an earlier attempt has `landed`, else the latest.

        Raises `ConfigError` where there is no table, `SourceError` where its log cannot be read.
        """
        if self._fixed is None:
            known = {**(landed or {}), **self._recorded}
            self._fixed = {name: known[name] if name in known else self._latest(name) for name in self.paths}
        return self._fixed

    def latest(self) -> Versions:
        """Return the latest versions. Raises the errors of `fix`."""
        return {name: self._latest(name) for name in self.paths}

    def read(self, name: str, version: int) -> pa.Table:
        """Return the rows of a version, sorted by all plain columns, so that their order does not depend on files.

        Raises `SourceError` for a version that no longer exists, or cannot be read.
        """
        try:
            snapshot = table_store(self.paths[name], self.storage).at(version)
            rows = snapshot.read(pa.schema([pa.field(field.name, field.type) for field in snapshot.schema]))
        except (StoreError, StorageError, TableMissingError) as error:
            why = str(error).partition("\n")[0]
            raise SourceError(
                f"source '{self.source}': cannot read version {version} of its table '{name}' ({self.paths[name]}): {why:.300}. Nothing "
                "was taken in. A repeated or replayed micro-batch reads the version that it read first. If VACUUM has removed that "
                "version, bring its files back. On a branch, 'replay.tables: latest' in the job's file reads the present version instead; "
                "docs/spark-steps.md says how the job itself goes on with that."
            ) from error
        return _sorted(rows)

    def _latest(self, name: str) -> int:
        try:
            return table_store(self.paths[name], self.storage).latest().version
        except TableMissingError as error:
            msg = (
                f"source '{self.source}': there is no Delta table {self.paths[name]}, its table '{name}'. Nothing was taken in. Mend "
                f"sources.{self.source}.tables.{name}, or write the table first."
            )
            raise ConfigError(msg) from error
        except StoreError as error:
            msg = f"source '{self.source}': cannot read its table '{name}' ({self.paths[name]}): {error}. Nothing was taken in."
            raise SourceError(msg) from error


def _sorted(rows: pa.Table) -> pa.Table:
    names = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in names])) if names else rows
