"""The dimension tables of Spark's step over a source: which version of each a micro-batch sees, and its rows.

The version is fixed when the micro-batch makes its first rows, and each file of rows that were made says it. So a micro-batch that
is tried again after a crash sees the same version; one that is replayed sees that of the checkpoint that recorded it.
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
"""By the name that the pipeline gives a table."""


@dataclass(slots=True)
class DimensionTables:
    """The tables of one source's step, by name; `paths` says where they are."""

    source: str
    paths: Mapping[str, str]
    storage: Storage = None
    place: str = ""
    """Where the micro-batch begins, as text: another try of it begins at the same one."""
    _recorded: Versions = field(default_factory=dict)
    _fixed: dict[str, int] | None = None

    def begin(self, offset: SourceOffset, recorded: Sequence[TableVersion] = ()) -> None:
        """Begin a micro-batch at the offset of the last checkpoint. `recorded` are the versions of the one that it repeats, if it does."""
        self.place = blake2b(msgspec.json.encode(offset), digest_size=8).hexdigest()
        self._recorded, self._fixed = {one.name: one.version for one in recorded}, None

    def fix(self, landed: Versions | None = None) -> Versions:
        """Return the versions of this micro-batch: those of rows that an earlier try has `landed`, those recorded, or the latest.

        Raises `ConfigError` where there is no table, `SourceError` where its log cannot be read.
        """
        if self._fixed is None:
            known = {**self._recorded, **(landed or {})}
            self._fixed = {name: known[name] if name in known else self._latest(name) for name in self.paths}
        return self._fixed

    def latest(self) -> Versions:
        """Return the latest versions. Raises as `fix` does."""
        return {name: self._latest(name) for name in self.paths}

    def read(self, name: str, version: int) -> pa.Table:
        """Return the rows of a version, in an order that they alone decide.

        Raises `SourceError` for a version that is not there any more, or cannot be read.
        """
        try:
            snapshot = table_store(self.paths[name], self.storage).at(version)
            rows = snapshot.read(pa.schema([pa.field(each.name, each.type) for each in snapshot.schema]))
        except (StoreError, StorageError, TableMissingError) as error:
            why = str(error).partition("\n")[0]
            raise SourceError(
                f"source '{self.source}': cannot read version {version} of its table '{name}' ({self.paths[name]}): {why:.300}. Nothing "
                "was taken in. A micro-batch that is tried again, or replayed, reads the version that it read first. If VACUUM has "
                "removed that, bring its files back; docs/spark-steps.md says how to go on with the latest one."
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
    names = [each.name for each in rows.schema if not pa.types.is_nested(each.type)]
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in names])) if names else rows
