"""Errors for Delta tables that cannot be read further. They name the versions, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.config import SourceConfig
from headrace.errors import HeadraceError, SourceError, StorageError
from headrace.names import counted
from headrace.sources.delta.policy import is_rewrite
from headrace.sources.folder.format import is_tried_again
from headrace.sources.source import TakenIn
from headrace.storage.deletion_vectors import MissingVectorError
from headrace.storage.delta_log import CHANGE_FEED, DeltaCommit, LoggedFile, TableState
from headrace.storage.refusals import storage_advice
from headrace.storage.schemes import place_of


@dataclass(frozen=True, slots=True)
class DeltaErrors:
    """Maker of the errors of one source's table."""

    source: str
    config: SourceConfig
    job: str = "JOB"

    def of_commit(self, commit: DeltaCommit, state: TableState, taken_in: TakenIn) -> SourceError | None:
        """Return the error for a commit whose changes cannot be taken in; None if they can. `taken_in` says where a way back leads to."""
        if not (commit.appended or commit.dropped or commit.changes):
            return None
        if state.unreadable is not None:
            return self._unreadable(commit.version, state.unreadable)
        if self.config.change_feed and not state.has_change_feed:
            return self._no_feed(commit.version)
        if not self.config.gives_changes and is_rewrite(commit):
            return self._rewrite(commit, taken_in)
        read = commit.changes if self.config.change_feed and commit.changes else (*commit.appended, *commit.dropped)
        if self.config.gives_changes and state.partition_columns and any(file.partition is None for file in read):
            return self.without_partition(commit.version)
        return self._files(commit.version, read)

    def of_snapshot(self, version: int, state: TableState, files: tuple[LoggedFile, ...]) -> SourceError | None:
        """Return the error for a version that cannot be taken in as a whole; None if it can."""
        if state.unreadable is not None:
            return self._unreadable(version, state.unreadable)
        if self.config.change_feed and not state.has_change_feed:
            return self._no_feed(version)
        return self._files(version, files)

    def _rewrite(self, commit: DeltaCommit, taken_in: TakenIn) -> SourceError:
        if commit.restored is not None:
            return self._restored(commit.version, commit.restored, taken_in)
        key = f"sources.{self.source}"
        deletion = f"passes over commits that only delete rows ({key}.on_change: skip_deletes), "
        return SourceError(
            f"source '{self.source}': version {commit.version} of {self.config.path} ({commit.operation or 'unknown'}) removes or "
            f"rewrites rows ({counted(len(commit.dropped) or len(commit.appended), 'file')}), and this source takes in appended rows only. All versions before it "
            f"were taken in, and nothing of it. A job can take in what such commits changed ({key}.on_change: as_changes, or "
            f"{key}.change_feed: true, in a new job whose pipeline reads changes). This job goes on if it "
            f"{deletion if self.config.on_change == 'fail' else ''}passes over all such commits ({key}.on_change: skip), or only "
            f"this version: {key}.skip_versions: {self._skipping(commit.version)}"
        )

    def _restored(self, version: int, target: int, taken_in: TakenIn) -> SourceError:
        undone = f"{target + 1}-{version}" if target + 1 < version else str(version)
        return SourceError(
            f"source '{self.source}': version {version} of {self.config.path} is a RESTORE to version {target}: it takes back rows "
            "that this job has taken in, and this source takes in appended rows only. Nothing of it was taken in. To take them back "
            f"here as well: {self._restore(taken_in.checkpoint_at(target))} takes this job back to the last checkpoint that has read no "
            f"version above {target}; set sources.{self.source}.skip_versions: {undone}, and run again. To keep "
            f"them: set sources.{self.source}.skip_versions: {self._skipping(version)}"
        )

    def without_partition(self, version: int) -> SourceError:
        """Return the error for a commit that removes files whose partition the log does not tell."""
        return SourceError(
            f"source '{self.source}': version {version} of {self.config.path} removes files, and the log does not "
            f"have their partition values. Nothing of it was taken in. {self.way_out(version)}"
        )

    def without_columns(self, version: int, error: Exception) -> SourceError:
        """Return the error for a commit that removes rows and describes the table anew, where the log does not have the version before."""
        return SourceError(
            f"source '{self.source}': version {version} of {self.config.path} removes rows and changes the table's columns, and which columns "
            f"these rows have is not in the log any more: it does not give version {version - 1} ({error}). Nothing of version {version} was taken in. Bring "
            f"the log's files back from a backup. {self.way_out(version)}"
        )

    def not_compared(self, version: int, error: Exception) -> HeadraceError:
        """Return the error for a commit whose removed and added rows cannot be read, and so not be compared."""
        if is_tried_again(error):
            return StorageError(
                f"source '{self.source}': cannot read the files of version {version} of {self.config.path}: {error}. Nothing of it was taken in; "
                f"{storage_advice(error)}."
            )
        return SourceError(
            f"source '{self.source}': the removed and added rows of version {version} of {self.config.path} cannot be compared: "
            f"{str(error).rstrip('.')}. Nothing of it was taken in. Repair the file. {self.way_out(version)}"
        )

    def _no_feed(self, version: int) -> SourceError:
        table = f"delta.`{self.config.path}`"
        return SourceError(
            f"source '{self.source}': the change data feed of {self.config.path} is not enabled at version {version}. Nothing of it was "
            f"taken in. Enable it: ALTER TABLE {table} SET TBLPROPERTIES ({CHANGE_FEED} = true), which counts from then on. A job "
            f"that has read nothing of the table begins there with sources.{self.source}.start: snapshot (all rows of the table, "
            f"then its changes). Any other job can skip the versions written without it: sources.{self.source}.skip_versions: "
            f"{self._skipping(version)}"
        )

    def _files(self, version: int, files: tuple[LoggedFile, ...]) -> SourceError | None:
        paths = (path for file in files for path in file.paths)
        outside = next((path for path in paths if place_of(path, self.config.path) is None), None)
        if outside is not None:
            return self._unreadable(version, f"files of a scheme that is not supported ({outside})")
        return None

    def _unreadable(self, version: int, what: str) -> SourceError:
        return SourceError(
            f"source '{self.source}': version {version} of {self.config.path} uses {what}, which Headrace cannot read. Nothing of it was "
            f"taken in. Write the table without it. {self.way_out(version)}"
        )

    def expired(self, first: int, last: int) -> SourceError:
        """Return the error for versions that are no longer in the log."""
        versions = str(first) if first == last else f"{first}-{last}"
        return SourceError(
            f"source '{self.source}': the log of {self.config.path} does not have version {versions} any more (cleaned up, see "
            "delta.logRetentionDuration), and not all rows of it were taken in. Nothing was taken in. Bring the log's files back "
            "from a backup. If this job can do without their changes, skip them: "
            f"sources.{self.source}.skip_versions: {versions}; a new job can begin with sources.{self.source}.start: snapshot"
        )

    def missing(self, version: int, path: str, error: OSError | None = None) -> SourceError:
        """Return the error for a file of a commit that no longer exists, or for the file of its deletion vector, as `error` says."""
        if isinstance(error, MissingVectorError):
            what = f"{error}: it says which rows of {path} are deleted, and version {version} of the table needs both"
            return SourceError(
                f"source '{self.source}': {what}. Nothing was taken in. Bring the file of deletion vectors back from a backup. "
                f"{self.way_out(version)}"
            )
        return SourceError(
            f"source '{self.source}': {path} is gone. Version {version} of the table needs it; a VACUUM has removed it before its rows "
            f"were taken in. Nothing was taken in. Bring the file back from a backup. {self.way_out(version)}"
        )

    def replaced(self, table_id: str, known: str, version: int, taken_in: TakenIn) -> SourceError:
        """Return the error for a path that has another table now."""
        return SourceError(
            f"source '{self.source}': {self.config.path} is another table than the one that was read (its id is {table_id} at version "
            f"{version}, and was {known}): it was replaced. Nothing was taken in. Bring the former table back, or read the new "
            f"one in a new job. To let this job begin with the new one, take it back to before it read anything of the former one: "
            f"{self._restore(taken_in.checkpoint_at(-1))}."
        )

    def behind(self, latest: int, read: int, taken_in: TakenIn) -> SourceError:
        """Return the error for a table that ends before version `read`."""
        return SourceError(
            f"source '{self.source}': {self.config.path} is at version {latest}, and version {read} of it was read: it was brought back "
            "from an older copy. Nothing was taken in. Bring the table back as it was, or take this job back to the last checkpoint that "
            f"has read no version above {latest}: {self._restore(taken_in.checkpoint_at(latest))}."
        )

    def committed_ahead(self, version: int, time: str) -> SourceError:
        """Return the error for a commit whose time lies ahead of the clock: the versions behind it would lie ahead as well."""
        return SourceError(
            f"source '{self.source}': version {version} of {self.config.path} was committed at {time} by its log, which is still to come: a clock was "
            "wrong, here or where it was written. Nothing was taken in. Correct this machine's clock if it is behind; else the version, and "
            f"those behind it, belong to intervals of that time. {self.way_out(version)}"
        )

    def no_partition_column(self, version: int, column: str, others: Sequence[str]) -> SourceError:
        """Return the error for a table that is not partitioned by the column of the source's intervals."""
        by = f"by {', '.join(others)}" if others else "by no column"
        return SourceError(
            f"source '{self.source}': its intervals are by partition, column '{column}', and {self.config.path} is partitioned {by} at version "
            f"{version}. Nothing was taken in. Correct sources.{self.source}.interval.column, or write interval: {{by: committed}}."
        )

    def no_column_of_times(self, version: int, column: str, kind: str | None) -> SourceError:
        """Return the error for a table without the column of the source's intervals, or whose column has no times."""
        what = "has no such column" if kind is None else f"has {kind} values there, where DATE or TIMESTAMP is needed,"
        return SourceError(
            f"source '{self.source}': its intervals are by column '{column}', and {self.config.path} {what} at version {version}. Nothing was taken in. Correct sources.{self.source}.interval.column."
        )

    def no_interval(self, version: int, path: str, why: str) -> SourceError:
        """Return the error for a file whose partition value names no interval."""
        key = f"sources.{self.source}"
        return SourceError(
            f"source '{self.source}': {path} of version {version} of {self.config.path} has no interval: {why}. Nothing was taken in. Correct "
            f"{key}.interval.pattern if all values are like this one, or let such files go to the quarantine: {key}.on_bad_file: quarantine. "
            f"{self.way_out(version)}"
        )

    def late(self, name: str, files: int, interval: str) -> SourceError:
        """Return the error for files of intervals that were taken in before they came."""
        return SourceError(
            f"source '{self.source}': {counted(files, 'file')} of {self.config.path} came to intervals that were taken in already, the first is {name}, of "
            f"{interval}. Nothing was taken in (on_changed_file: fail). Compute the interval again ('headrace backfill'), leave such files "
            f"out ('headrace input {self.job} --acknowledge FILE'), or let runs go on and report them: sources.{self.source}.on_changed_file: warn."
        )

    def _restore(self, checkpoint: int | None) -> str:
        if checkpoint is None:
            return f"'headrace restore {self.job} --to ID --why ...' ('headrace checkpoints {self.job}' lists them)"
        return f"'headrace restore {self.job} --to {checkpoint} --why ...'"

    def way_out(self, version: int) -> str:
        """Return the way on for a job that can do without a version."""
        return (
            "If this job can do without its changes, skip the version: "
            f"sources.{self.source}.skip_versions: {self._skipping(version)}"
        )

    def _skipping(self, version: int) -> str:
        """Return the value of `skip_versions` with one more version."""
        return f"{self.config.skip_versions}, {version}" if self.config.skip_versions else str(version)
