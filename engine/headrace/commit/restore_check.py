"""Check before a restore: all files of the target versions exist, and stay.

A restore is committed first; the sinks follow. A sink that cannot follow would block every later run, since each publishes that restore
first. So the check looks for all files before the commit. `headrace maintain` deletes files of a state table; the owner of a sink's
table deletes its files and old entries of its Delta log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.config import JobConfig
from headrace.errors import SinkMismatchError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.log.marks import open_intents
from headrace.log.sink_history import ShortHistoryError, SinkHistory
from headrace.names import counted
from headrace.storage.damage import FileDamage
from headrace.storage.refusals import reason_of
from headrace.storage.table import TableMissingError
from headrace.storage.table_files import LoggedFile, location_of, logged_files, missized_files, unreadable_files
from headrace.tables.folder import JobFolder

_LOOKS_BACK = 100
"""Number of checkpoints before a damaged one that are looked at for one that can be restored."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """Version of a table that a restore goes back to; `table` is its name in messages."""

    table: str
    uri: str
    version: int

    def __str__(self) -> str:
        """Return the version as a clause."""
        return f"version {self.version} of {self.table} at {self.uri}"


class RestoreCheck:
    """Versions of all tables, and existing files, as of construction. Lists each folder once."""

    def __init__(self, config: JobConfig, checkpoints: Sequence[Checkpoint], sinks: Collection[str]) -> None:
        """Read the open vacuum intents, whose files are as good as deleted, and the histories of `sinks`.

        `checkpoints` has all checkpoints of the job, at least one. A sink that is gone counts as an empty one. Raises
        `StorageError` when a sink cannot be read.
        """
        self._config, self._checkpoints = config, checkpoints
        self._folder = JobFolder.of(config)
        # This must precede any listing of a folder: an intent that is completed meanwhile leaves no files to find.
        folder = config.job_folder
        self._doomed = {f"{folder}/{file}" for i in open_intents(config, checkpoints) for file in i.files}
        self._files: dict[str, dict[str, int]] = {}
        self._losses: dict[TableVersion, str | None] = {}
        self._content: dict[str, FileDamage | None] = {}
        self.histories = {name: self._history(name) for name in sorted(sinks)}
        """Publications of the job to each sink."""

    def refuse_unless_restorable(self, target: Checkpoint) -> None:
        """Raise an error if a table cannot go back to `target`.

        Raises `StorageError` with the table, the version and the missing files, and `SinkMismatchError` when a sink
        never had the publication that belongs to `target`.
        """
        problem = self.problem(target) or self._damage(target)
        if problem is not None:
            msg = (
                f"checkpoint {target.checkpoint_id} cannot be restored: {problem}. Nothing was changed. "
                f"{self._alternative(target)}'headrace checkpoints {self._config.job}' lists all."
            )
            raise StorageError(msg)

    def problem(self, target: Checkpoint) -> str | None:
        """Return a clause on the loss of the first table that cannot go back to `target`; None if all can.

        Raises `SinkMismatchError` when a sink never had the publication that belongs to `target`, and `StorageError`
        when its history does not reach back that far.
        """
        return next((problem for version in self._versions(target) if (problem := self._loss(version))), None)

    def _damage(self, target: Checkpoint) -> str | None:
        """Return a clause on the first file that was overwritten, in versions that a restore goes back to; None if each has its rows."""
        for wanted in self._versions(target):
            files = self._logged(wanted)
            unread = {location: file for location, file in files.items() if location not in self._content}
            self._content |= dict.fromkeys(unread)
            self._content |= {fault.uri: fault for fault in unreadable_files(self._folder, unread)}
            if (fault := next(filter(None, map(self._content.get, sorted(files))), None)) is not None:
                return f"{fault} of {wanted}"
        return None

    def _logged(self, wanted: TableVersion) -> dict[str, LoggedFile]:
        """Return the files of a version by location, as the table's log has them."""
        files = logged_files(self._folder.at(wanted.uri).table().at(wanted.version))
        return {location_of(wanted.uri, path): file for path, file in files.items()}

    def lost(self, listed: Sequence[Checkpoint], forks: Collection[int] = ()) -> list[int]:
        """Return the ids of the listed checkpoints that can no longer be restored, the oldest first. Looks at no content of files.

        Vacuums delete old files first, so a binary search finds the first that can; except the beginning, which needs no file, and what
        savepoints, and the `forks` of branches, keep. Those before it are looked at one by one.
        """
        kinds = {Kind.INITIAL, Kind.FORK, Kind.SAVEPOINT}
        keepers = [c.versions for c in self._checkpoints if c.kind in kinds or c.checkpoint_id in forks]
        candidates = [c for c in listed if c.has_state and c is not self._checkpoints[-1]]
        others = [c for c in candidates if c.versions not in keepers]
        position = 0 if others and self._is_complete(others[0]) else bisect_left(others, True, key=self._is_complete)
        complete = {c.checkpoint_id for c in others[position:]}
        return [c.checkpoint_id for c in candidates if c.checkpoint_id not in complete and not self._is_complete(c)]

    def _is_complete(self, checkpoint: Checkpoint) -> bool:
        try:
            return self.problem(checkpoint) is None
        except SinkMismatchError:  # the sink never had the checkpoint
            return False
        except StorageError as error:
            if isinstance(error, ShortHistoryError) or error.is_missing:
                return False
            raise

    def _versions(self, target: Checkpoint) -> Iterator[TableVersion]:
        """Yield the target versions of the state tables, whose present versions may be damaged too, and of sinks that a restore changes."""
        for name, version in target.versions.items():
            yield TableVersion(f"state table {name}", f"{self._config.job_folder}/{name}", version)
        lineage = Lineage(self._checkpoints, target.checkpoint_id)
        for name, history in self.histories.items():
            version = history.version_of(lineage)
            if history.table is not None and version != history.table.version:
                yield TableVersion(f"sink '{name}'", history.table.uri, version)

    def _history(self, name: str) -> SinkHistory:
        path = self._config.sinks[name].table_path
        try:
            table = self._folder.at(path).table().latest()
        except TableMissingError:
            table = None
        return SinkHistory(table, name, Lineage(self._checkpoints))

    def _loss(self, wanted: TableVersion) -> str | None:
        """Return a clause on files or log entries that a version has lost; None if it is complete."""
        if wanted not in self._losses:
            self._losses[wanted] = self._look_for_loss(wanted)
        return self._losses[wanted]

    def _look_for_loss(self, wanted: TableVersion) -> str | None:
        try:
            files = self._logged(wanted)
        except (StorageError, TableMissingError) as error:
            if isinstance(error, StorageError) and not error.is_missing:
                raise
            return f"{wanted} cannot be read, since its Delta log no longer reaches back that far ({reason_of(error)})"
        present = {location: self._size(wanted.uri, location) for location in sorted(files)}
        lost = [location for location, size in present.items() if size is None]
        if lost:
            return (
                f"{len(lost):,} of {counted(len(files), 'file')} of {wanted} are gone or being deleted, such as "
                f"{lost[0].removeprefix(f'{wanted.uri}/')}"
            )
        if (fault := next(iter(missized_files(files, present)), None)) is not None:
            return f"{fault} of {wanted}"
        doomed = {uri.removeprefix(f"{wanted.uri}/") for uri in self._doomed}
        if wanted.version not in self._folder.at(wanted.uri).table().log_as_of(0).versions_without(doomed):
            return f"{wanted} cannot be read for long, since its Delta log is being cut off behind it"
        return None

    def _size(self, uri: str, location: str) -> int | None:
        """Return the size of a file of a table; None if it is gone, or does not stay. A branch's table has files of its base, elsewhere."""
        folder = uri if location.startswith(f"{uri}/") else location.rpartition("/")[0]
        return self._available(folder).get(location.removeprefix(f"{folder}/"))

    def _available(self, uri: str) -> dict[str, int]:
        if uri not in self._files:
            files = self._folder.at(uri).sizes()
            self._files[uri] = {file: size for file, size in files.items() if f"{uri}/{file}" not in self._doomed}
        return self._files[uri]

    def _alternative(self, target: Checkpoint) -> str:
        """Return a clause that names a later checkpoint which can be restored, or the last earlier one; empty if none can.

        Vacuums delete old files first, so a binary search finds the first complete checkpoint, except savepoints before it. What
        damages files has no such order, so earlier checkpoints are looked at one by one.
        """

        def is_whole(checkpoint: Checkpoint) -> bool:
            try:
                return self._is_complete(checkpoint) and self._damage(checkpoint) is None
            except StorageError:
                return False

        later = [c for c in self._checkpoints[:-1] if c.checkpoint_id > target.checkpoint_id and c.has_state]
        position = bisect_left(later, True, key=is_whole)
        if position < len(later):
            return f"Checkpoint {later[position].checkpoint_id} can be restored; "
        before = (c for c in reversed(self._checkpoints) if c.checkpoint_id < target.checkpoint_id and c.has_state)
        earlier = next(filter(is_whole, islice(before, _LOOKS_BACK)), None)
        if earlier is None:
            return ""
        again = "all input" if earlier is self._checkpoints[0] else "what came since"
        return f"Checkpoint {earlier.checkpoint_id} can be restored, and the next run takes in {again} again; "
