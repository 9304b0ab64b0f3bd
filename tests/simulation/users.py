"""Users who change a job's folder and its sinks as no run does: between two steps, all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headrace.log.checkpoint import Checkpoint
from headrace.log.log import CheckpointLog
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError
from headrace.tables.folder import JobFolder
from headrace.testing._memory_disk import MemoryFile
from tests.simulation.world import World
from tests.unit.support.memory_job import MemoryJob, unsynced

DAY = 24 * 3_600_000
STATE, SINKS = "state/", "lake/"
"""What is below the job's folder, and below those of its sinks."""


@dataclass(frozen=True)
class Copy:
    """A copy of what is on the disk below a job's folder and its sinks, at one timestamp."""

    files: dict[str, MemoryFile]
    tables: dict[str, list[object]]
    last: int
    """The last checkpoint that the copy has."""

    reported: dict[int, Checkpoint]
    """The checkpoints that drivers had been told of by then."""

    life: int
    """Which life of the job it is of."""


class Users:
    """The users of one simulated job."""

    def __init__(
        self, job: MemoryJob, world: World, reported: dict[int, Checkpoint], stop_all: Callable[[], None]
    ) -> None:
        """`reported` has the checkpoints that must be in the log; restoring an older log removes some of them."""
        self._job, self._world, self._reported, self._stop_all = job, world, reported, stop_all
        self._copy: Copy | None = None
        self._lifetime = 0
        self._is_life_confused = self._is_mixed = False

    @property
    def have_meddled(self) -> bool:
        """Whether a user has deleted or replaced files that a sink or the job needs."""
        return self._world.counts["old files deleted"] + self._world.counts["copies brought back"] > 0

    def act(self) -> None:
        """Do one randomly drawn action."""
        self._world.chance.choice(
            [self.vacuum_sinks, self.commit_by_hand, self.copy_all, self.bring_back, self.begin_anew]
        )()

    def vacuum_sinks(self) -> None:
        """Delete files that no sink needs and that are older than a week, as VACUUM does."""
        files, youngest = self._job.disk.files, self._world.time - 7 * DAY
        for path in [path for path, file in files.items() if path.startswith(SINKS) and file.written_at < youngest]:
            folder, _, name = path.rpartition("/")
            versions = self._job.disk.tables.get(folder, [])
            if versions and name not in versions[-1].files:
                del files[path]
                self._world.counts["old files deleted"] += 1

    def commit_by_hand(self) -> None:
        """Commit to the sinks without changing rows, as a change of their settings does."""
        for sink in self._job.config.sinks.values():
            with self.at_once(), unsynced(self._job.disk), suppress(TableMissingError):
                store = Storage(sink.path).table()
                latest = store.latest()
                store.append(latest.version, latest.schema, [])
                self._world.counts["commits by hand"] += 1

    def copy_all(self) -> None:
        """Copy the job's folder and its sinks, at one timestamp; not when they disagree already."""
        if self._is_mixed:
            return
        with self.at_once():
            log = CheckpointLog(JobFolder(self._job.config.job_folder))
        if log.last is not None:
            disk = self._job.disk
            tables = {path: [*versions] for path, versions in disk.tables.items()}
            self._copy = Copy(dict(disk.files), tables, log.last.checkpoint_id, dict(self._reported), self._lifetime)

    def bring_back(self, parts: Sequence[str] | None = None) -> None:
        """Stop all, and bring back the copy: of the job's folder, of its sinks, or of both."""
        if self._copy is None:
            return
        self._stop_all()
        if parts is None:
            parts = self._world.chance.choice([(STATE,), (SINKS,), (STATE, SINKS)])
        disk = self._job.disk
        tables = {path: [*versions] for path, versions in self._copy.tables.items()}
        for now, before in ((disk.files, self._copy.files), (disk.tables, tables)):
            for path in [path for path in now if path.startswith(tuple(parts))]:
                del now[path]
            now.update({path: of for path, of in before.items() if path.startswith(tuple(parts))})
        disk.sync()
        self._is_mixed = len(parts) == 1
        if STATE in parts:
            self._reported.clear()
            self._reported.update(self._copy.reported)
            self._lifetime = self._copy.life
        self._world.counts["copies brought back"] += 1

    def begin_anew(self) -> None:
        """Stop all, and move the job's folder and its sinks away: the next run begins another incarnation of the job."""
        if self._copy is None or self._copy.life < self._lifetime:
            return
        self._stop_all()
        disk = self._job.disk
        disk.files.clear()
        disk.tables.clear()
        disk.sync()
        self._reported.clear()
        self._is_mixed = False
        self._lifetime += 1
        self._world.counts["lives begun"] += 1

    def confuse_lifetimes(self) -> None:
        """Add another difficulty: the sinks of a former incarnation are there, when the checkpoints' ids fit."""
        copy, chance = self._copy, self._world.chance
        newest = max(self._reported, default=-1)
        if self._is_life_confused:
            return
        if copy is None or copy.life == self._lifetime:
            if newest >= 3 and chance.random() < 0.01:
                self.copy_all()
                self.begin_anew()
        elif copy.last == newest:
            self.bring_back((SINKS,))
            self._is_life_confused = True
            self._world.counts["lives confused"] += 1

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Act between two steps, completely and without failure."""
        disk = self._job.disk
        before, disk.fault, disk.acknowledge = (disk.fault, disk.acknowledge), _nothing, _nothing
        try:
            yield
        finally:
            disk.fault, disk.acknowledge = before


def _nothing(step: str, path: str) -> None:
    del step, path
