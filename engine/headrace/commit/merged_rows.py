"""Rows of a merge sink: one for each key, unless another program has added rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.log.log import CheckpointLog
from headrace.log.sink_history import SinkHistory
from headrace.names import counted
from headrace.storage.table import Snapshot, TableMissingError, TableStore
from headrace.tables.folder import JobFolder

_NAMED: Final = 3
"""Number of keys with several rows that are named."""

_LOOKS_BACK: Final = 20
"""Number of versions that are read to find one with one row a key."""

_COUNT: Final = "count_all"


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Rows of the merge sink `sink`; `key` has the columns of its primary key."""

    config: JobConfig
    log: CheckpointLog
    sink: str
    key: pa.Schema

    def described(self) -> tuple[bool, str]:
        """Return whether the latest version has one row a key, and what it has; if not, with the way back."""
        latest = self._store.latest()
        counts = self._counts(latest)
        several = counts.filter(pc.greater(counts[_COUNT], 1))
        rows = pc.sum(counts[_COUNT]).as_py() or 0
        numbers = f"{counted(rows, 'row')}, {counted(counts.num_rows, 'key')}"
        if not several.num_rows:
            return True, numbers
        return False, f"{numbers}: several rows have {_named(several.drop([_COUNT]))}. {self._way_back(latest)}"

    @property
    def _store(self) -> TableStore:
        return JobFolder.of(self.config).at(self.config.sinks[self.sink].table_path).table()

    def _counts(self, table: Snapshot) -> pa.Table:
        """Return the number of rows of each key."""
        rows = table.read(self.key)
        return rows.group_by(self.key.names, use_threads=False).aggregate([([], _COUNT)])

    def _way_back(self, latest: Snapshot) -> str:
        """Return how to get to the last checkpoint whose version of the sink has one row a key."""
        lineage = self.log.lineage
        versions = SinkHistory(latest, self.sink, lineage).versions(lineage)
        last = max(versions, default=None)
        number = self._last_whole(versions)
        if number is None:
            return (
                "No checkpoint is known whose rows are without them. To fill the sink anew, move its table away, then: headrace "
                f'reconcile {self.config.job} --apply --why "..."'
            )
        of_branch = "" if self.config.branch is None else f" --branch {self.config.branch}"
        again = "" if number == last else "; the next run takes in what came since again"
        return (
            f"Another program has written to the table since checkpoint {number}. This takes the sink back to what the job had published "
            f'by then{again}: headrace restore {self.config.job}{of_branch} --to {number} --why "..."'
        )

    def _last_whole(self, versions: dict[int, int]) -> int | None:
        """Return the last checkpoint whose version of the sink has one row a key; None if a VACUUM has removed it, or none is near."""
        newest_first = dict.fromkeys(version for _, version in sorted(versions.items(), reverse=True))
        for version in [*newest_first][:_LOOKS_BACK]:
            try:
                counts = self._counts(self._store.at(version))
            except (StorageError, TableMissingError):
                return None
            if (pc.max(counts[_COUNT]).as_py() or 0) <= 1:
                return max(number for number, own in versions.items() if own == version)
        return None


def _named(keys: pa.Table) -> str:
    first = keys.slice(0, _NAMED).to_pylist()
    texts = [" ".join(f"{column}={value}" for column, value in row.items()) for row in first]
    return ", ".join(
        [*texts, *([f"and {counted(keys.num_rows - _NAMED, 'more key')}"] if keys.num_rows > _NAMED else [])]
    )
