"""Edits: changes of a job without input, each one checkpoint.

An edit looks at what is stored: an error is a reason not to change it. Then it says which rows of which state tables are written anew, and
what the next checkpoint says of the job. `preview` only looks. `apply` looks again while it holds the job, stages the rows, and commits.

Rows are read range by range of key groups, so an edit never holds a whole table in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace import crash_points
from headrace.commit.protocol import OpenJob, initial_checkpoint, open_job
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.log.log import CheckpointLog
from headrace.sinks.sink import OutputFile
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.files import StagedFile
from headrace.tables.changelog import Changelog, parts
from headrace.tables.folder import JobFolder
from headrace.tables.view import TableView

Effect = TypeVar("Effect")


class JobView(Protocol):
    """What an edit looks at: the last checkpoint of a job, and the state tables at it."""

    @property
    def config(self) -> JobConfig:
        """The job's configuration."""
        ...

    @property
    def last(self) -> Checkpoint:
        """The last checkpoint."""
        ...

    @property
    def lineage(self) -> Lineage:
        """The lineage that leads to it."""
        ...

    def view(self, table: str) -> TableView:
        """Return the rows of a state table at the last checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class LastState:
    """Last checkpoint of a job that nobody has to hold."""

    config: JobConfig
    last: Checkpoint
    lineage: Lineage

    @classmethod
    def of(cls, config: JobConfig, *, new: bool = False) -> LastState:
        """Read a job's log. Raises `ConfigError` when the job was never run, unless it may be a `new` one."""
        log = CheckpointLog(JobFolder.of(config))
        if new and log.last is None:
            return cls(config, initial_checkpoint(config, "", "", {}, {}), log.lineage)
        return cls(config, log.resolve(config), log.lineage)

    def view(self, table: str) -> TableView:
        """Return the rows of a state table."""
        return JobFolder.of(self.config).view(table, self.last.versions[table])


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rows of a state table that an edit writes anew."""

    table: str
    label: str
    """Part of the names of the files."""

    view: TableView
    change: Callable[[pa.Table], pa.Table]
    """Returns the new rows for some of the old ones. It gets all rows of an entry at once."""

    of_changes: bool = False
    """Take each change of an entry; else the last one of each entry that is alive."""

    replaces: bool = False
    """The new rows are the whole content of the table; else they are added."""

    is_worthwhile: Callable[[Sequence[StagedFile]], bool] | None = None
    """Returns whether files take the place of the table's; None: they do."""

    def staged(self, job: OpenJob, max_parallelism: int | None = None) -> list[StagedFile]:
        """Stage the new rows as files that no commit names yet. The rows have `max_parallelism` key groups, by default as many as the job."""
        return [*self._staged(job, KeyGroupRange.all_of(max_parallelism or job.last.max_parallelism))]

    def _staged(self, job: OpenJob, key_groups: KeyGroupRange) -> Iterator[StagedFile]:
        for number, part in enumerate(self.view.ranges(key_groups)):
            rows = self.change(part.changes() if self.of_changes else part.live())
            for place, file in enumerate(parts(self.table, rows)):
                yield job.stage(self.table, f"{self.label}-{number}-{place}", file)


class StateEdit(Generic[Effect]):
    """Change of a job without input."""

    __slots__ = ()

    kind: ClassVar[Kind]
    crash_point: ClassVar[str]
    """Place of a crash behind the last staged file."""
    makes_job: ClassVar[bool] = False
    """Whether the edit may be the first change of a job."""

    def opened(self, config: JobConfig) -> JobConfig:
        """Return the configuration with which the job is opened, by default the job's own. May raise what needs no look at the state."""
        return config

    @abstractmethod
    def look(self, job: JobView) -> Effect:
        """Return what is to be changed. Raises the error for a reason not to. Asked by `preview`, and again while the job is held."""

    def rewrites(self, job: OpenJob, effect: Effect) -> Iterable[Rewrite]:  # noqa: ARG002 - for those that rewrite
        """Yield the rows that are written anew, table by table; by default none."""
        return ()

    def additions(self, job: OpenJob, effect: Effect) -> Iterable[tuple[str, pa.Table]]:  # noqa: ARG002 - for those that add
        """Yield rows to add, each with the name of its table; by default none."""
        return ()

    def outputs(self, job: OpenJob, effect: Effect) -> Mapping[str, Sequence[OutputFile]]:  # noqa: ARG002 - for those that have some
        """Stage rows for sinks, which the checkpoint publishes; return the files by sink, by default none."""
        return {}

    @abstractmethod
    def facts(self, job: OpenJob, effect: Effect, rows: int) -> dict[str, Any] | None:
        """Return fields of the checkpoint, as `OpenJob.commit` takes them; `rows` were staged. None: there is nothing to commit."""

    def committed(self, job: OpenJob, checkpoint: Checkpoint) -> None:
        """Look at what others did meanwhile, now that the checkpoint is committed. May raise an error that says so."""


class HandEdit(StateEdit[Effect]):
    """Change of entries, timers or calls that somebody names."""

    __slots__ = ()

    kind: ClassVar[Kind] = Kind.EDIT
    crash_point: ClassVar[str] = "edit.staged"

    @staticmethod
    def changelog(job: OpenJob, operator: str) -> Changelog:
        """Return what makes rows of an operator for the next checkpoint."""
        return Changelog(operator, job.next_id, job.last.max_parallelism)


class BlindEdit(StateEdit[None]):
    """Change that nothing stands against, or whose caller has looked."""

    __slots__ = ()

    def look(self, job: JobView) -> None:
        """Look at nothing."""


def preview(config: JobConfig, edit: StateEdit[Effect]) -> Effect:
    """Return what an edit would change, as of the last checkpoint. Changes nothing, needs no lease. Raises as `apply` does."""
    return look(config, edit)[0]


def look(config: JobConfig, edit: StateEdit[Effect]) -> tuple[Effect, int]:
    """Return what `preview` does, and the id of the last checkpoint."""
    job = LastState.of(config, new=edit.makes_job)
    return edit.look(job), job.last.checkpoint_id


def apply(config: JobConfig, edit: StateEdit[Any], run_id: str, *, seen: int | None = None) -> Checkpoint:
    """Hold a job and change it; return the checkpoint. The edit is one that always commits. `seen` is the checkpoint that somebody looked at.

    Raises the errors of `StateEdit.look`, `FencedError` while a run holds the job, and `ConfigError` when it has gone on since; then nothing
    has changed.
    """
    if edit.makes_job and CheckpointLog(JobFolder.of(config)).last is None:
        preview(config, edit)  # a refused edit makes no job
    with open_job(edit.opened(config), run_id, create=edit.makes_job) as job:
        if seen not in {None, job.last.checkpoint_id}:
            msg = f"job '{config.job}' has gone on since you looked, to checkpoint {job.last.checkpoint_id}. Nothing was changed: look again."
            raise ConfigError(msg)
        checkpoint = carry_out(job, edit)
        assert checkpoint is not None  # noqa: S101 - it always commits
        return checkpoint


def carry_out(job: OpenJob, edit: StateEdit[Any]) -> Checkpoint | None:
    """Change a job that is open already, as `apply` does; return None if there was nothing to commit."""
    effect = edit.look(job)
    versions, added, rows = dict(job.versions), dict[str, list[StagedFile]](), 0
    for rewrite in edit.rewrites(job, effect):
        job.check_lease()
        staged = rewrite.staged(job)
        if rewrite.is_worthwhile is not None and not rewrite.is_worthwhile(staged):
            continue
        rows += sum(file.rows for file in staged)
        if rewrite.replaces:
            versions[rewrite.table] = job.replace_table(rewrite.table, staged)
        elif staged:
            added.setdefault(rewrite.table, []).extend(staged)
    for number, (table, more) in enumerate(edit.additions(job, effect)):
        files = [
            job.stage(table, f"{edit.kind.value}-{number}-{place}", file)
            for place, file in enumerate(parts(table, more))
        ]
        rows += sum(file.rows for file in files)
        if files:
            added.setdefault(table, []).extend(files)
    outputs = edit.outputs(job, effect)
    crash_points.reached(edit.crash_point)
    facts = edit.facts(job, effect, rows)
    if facts is None:
        return None
    if added:
        job.check_lease()
        versions = job.add_to_tables(added, versions)
    checkpoint = job.commit(edit.kind, versions=versions, outputs=outputs, **facts)
    if edit.kind is Kind.MIGRATION:
        job.notify("migrated", f"checkpoint {checkpoint.checkpoint_id}: {checkpoint.note}")
    edit.committed(job, checkpoint)
    return checkpoint
