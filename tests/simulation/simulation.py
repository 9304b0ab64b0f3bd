"""A job in a simulated world: drivers, maintenance and readers at once, on a disk that fails; users; and an end in which all is well.

The end stops all faults and processes. Then one run takes in the rest, and the oracle compares: sinks, state and quarantine are
those of a loop over the records, and every checkpoint that a driver was told of is in the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace import clock, faults, threads
from headrace.commit import lease
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.compaction import compact
from headrace.commit.log import CheckpointLog
from headrace.commit.protocol import open_job
from headrace.commit.restore import restore, savepoint
from headrace.commit.vacuum import vacuum
from headrace.commit.verify import verify
from headrace.errors import ConfigError, EngineBug, FencedError, SinkMismatchError, StorageError
from headrace.tables.memory_disk import MemoryFile, PostponedError, forget_disk
from headrace.tables.store import TableMissingError, VersionTakenError
from headrace.tables.stores import table_store
from tests.simulation.purchases import Content, MicroBatch, position_of
from tests.simulation.world import World
from tests.unit.support.memory_job import BOARD, REMINDERS, MemoryJob

RECORDS = 40
HOUR = 3_600_000
DAY = 24 * HOUR


@dataclass(frozen=True)
class Weather:
    """How often what happens, of a thousand steps. A seed draws one."""

    failing: int = 0
    """A step of the disk is refused."""

    unheard: int = 0
    """A commit lands, and its writer gets an error, or hears that another writer was first."""

    late: int = 0
    """A commit is refused, and lands later."""

    kills: int = 0
    power: int = 0
    """All processes die, and what was not synced is lost."""

    suspensions: int = 0
    """A process sleeps, for seconds or for days."""

    days: int = 0
    """A day passes."""

    users: int = 0
    """Somebody vacuums or brings back a sink, or brings back a copy of the job's folder."""

    @classmethod
    def drawn(cls, world: World) -> Weather:
        """Draw one: each kind of trouble is there in half of the seeds."""
        chance = world.chance

        def often(most: int) -> int:
            return chance.randrange(1, most + 1) if chance.random() < 0.5 else 0

        return cls(
            failing=often(10),
            unheard=often(60),
            late=often(60),
            kills=often(8),
            power=often(2),
            suspensions=often(4),
            days=often(4),
            users=often(3),
        )


class FoundError(AssertionError):
    """The simulation has found something wrong."""


@dataclass(frozen=True)
class Copy:
    """A copy of what is on the disk below a job's folder and its sinks, at one moment."""

    files: dict[str, MemoryFile]
    tables: dict[str, list[Any]]
    last: int
    """The last checkpoint that the copy has."""

    life: int
    """Which life of the job it is of."""


class Simulation:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.weather = Weather.drawn(self.world)
        self.job = MemoryJob(f"seed-{seed}")
        self.told: dict[int, Checkpoint] = {}
        """The checkpoints that drivers were told to be committed."""

        self.checkpoints = 0
        """How many the log has in the end."""

        self.is_calm = False
        self.errors: Counter[str] = Counter()
        self._drivers = 0
        self._names: list[str] = []
        self._copy: Copy | None = None
        self._life = 0

    def run(self) -> None:
        """Play it, and check. Raises `FoundError`, or what the job has raised that it should not, with the seed."""
        try:
            with self._in_place():
                self._play()
                self._end_well()
        except BaseException as error:
            error.add_note(f"seed {self.seed}, {self.world.steps} steps, {self.weather}, {dict(self.world.counts)}")
            raise
        finally:
            forget_disk(f"seed-{self.seed}")

    # Trouble

    def _play(self) -> None:
        for _ in range(self.world.chance.randrange(1, 4)):
            self._start_driver()
        for _ in range(self.world.chance.randrange(0, 3)):
            self._start(self.world.chance.choice([self._maintain, self._read, self._go_back]))
        self.world.run(self._make_trouble)

    def _start_driver(self) -> None:
        self._drivers += 1
        self._start(self._drive)

    def _start(self, work: Callable[[str], None]) -> None:
        chance = self.world.chance
        name = f"{work.__name__.strip('_')}-{len(self.world.processes)}"
        host = chance.choice(["here", "here", "there", "elsewhere"])
        wrong_by = chance.randrange(-60_000, 60_000) if chance.random() < 0.2 else 0
        self.world.start(name, lambda: work(name), host=host, wrong_by=wrong_by)

    def _make_trouble(self) -> None:
        """Between two steps: kill, suspend, restart, let time pass."""
        alive = [process for process in self.world.processes if process.is_alive]
        if alive and self._happens(self.weather.kills):
            self.world.kill(self.world.chance.choice(alive))
        if self._happens(self.weather.power):
            self._lose_power()
        if alive and self._happens(self.weather.suspensions):
            process = self.world.chance.choice(alive)
            process.suspended_until = self.world.time + self.world.chance.choice([2_000, 60_000, 600_000, 9 * DAY])
            self.world.counts["suspensions"] += 1
        if self._happens(self.weather.days):
            self.world.time += DAY * self.world.chance.randrange(1, 6)
            self.world.counts["days"] += 1
        postponed = self.job.disk.postponed
        if postponed and self.world.chance.random() < 0.05:
            postponed.pop(self.world.chance.randrange(len(postponed)))()
        if self._happens(self.weather.users):
            users = [self._vacuum_sinks, self._commit_by_hand, self._copy_all, self._bring_back, self._begin_anew]
            self.world.chance.choice(users)()
        if self.weather.users and self.world.chance.random() < 0.1:
            self._confuse_lives()
        if len(alive) < 4 and self._drivers < 9 and self._happens(6):
            self._start_driver()
            self._start(self.world.chance.choice([self._maintain, self._read, self._go_back]))

    def _lose_power(self) -> None:
        self.world.counts["power failures"] += 1
        self._kill_all()
        self.job.disk.lose_power()

    def _kill_all(self) -> None:
        for process in self.world.processes:
            if process.is_alive:
                self.world.kill(process)
        self.job.disk.postponed.clear()

    def _happens(self, in_thousand: int) -> bool:
        return not self.is_calm and self.world.chance.randrange(1000) < in_thousand

    def _before_step(self, step: str, path: str) -> None:
        """Be the disk: let others go on, then refuse, or not."""
        self.world.step()
        if self.world.process is None:
            return
        if self._happens(self.weather.failing):
            self.world.counts[f"failed {step}"] += 1
            msg = f"the storage refuses to {step} {path}"
            raise OSError(msg)
        if step == "commit" and self._happens(self.weather.late):
            self.world.counts["late commits"] += 1
            raise PostponedError(path)

    def _after_commit(self, step: str, path: str) -> None:
        if self.world.process is None:
            return
        if self._happens(self.weather.unheard):
            self.world.counts["unheard commits"] += 1
            raise self.world.chance.choice([OSError, VersionTakenError])(f"no answer to {step} {path}")
        self.world.step()

    # Processes

    def _drive(self, name: str) -> None:
        """Run the job, some micro-batches at a time, until all is taken in, or this driver has had enough."""
        chance = self.world.chance
        for attempt in range(6):
            with self._documented_errors():
                self._run_batches(f"{name}.{attempt}", force=chance.random() < 0.1)
            clock.sleep(chance.randrange(20))

    def _run_batches(self, run_id: str, *, force: bool = False, until_done: bool = False) -> None:
        chance = self.world.chance
        with open_job(self.job.config, run_id, create=True, force=force) as job:
            for _ in range(chance.randrange(4) if not until_done else 10 * RECORDS):
                batch = MicroBatch(job, lambda: self.is_calm or chance.random() < 0.6)
                checkpoint = batch.commit(chance.randrange(1, 9), RECORDS)
                self.told[checkpoint.checkpoint_id] = checkpoint
                if until_done and position_of(checkpoint) == RECORDS and not checkpoint.pending:
                    return

    def _maintain(self, name: str) -> None:
        chance, config = self.world.chance, self.job.config
        for number in range(3):
            clock.sleep(chance.randrange(60))
            with self._documented_errors():
                act = chance.randrange(4)
                if act == 0:
                    compact(config, name)
                elif act == 1:
                    vacuum(config, name, dry_run=chance.random() < 0.2)
                elif act == 2:
                    point = f"s{name.replace('-', '_')}_{number}"
                    savepoint(config, point, "", name)
                    self._names.append(point)
                else:
                    verify(config)

    def _go_back(self, name: str) -> None:
        chance = self.world.chance
        clock.sleep(chance.randrange(120))
        with self._documented_errors():
            log = CheckpointLog(self.job.config.job_folder)
            if log.checkpoints:
                target: int | str = chance.choice(log.checkpoints).checkpoint_id
                if self._names and chance.random() < 0.5:
                    target = chance.choice(self._names)
                made = restore(self.job.config, target, "", name)
                self.told[made.checkpoint_id] = made

    def _read(self, name: str) -> None:
        """Read the last checkpoint: what a reader gets is whole."""
        del name
        for _ in range(4):
            clock.sleep(self.world.chance.randrange(30))
            with self._documented_errors():
                log = CheckpointLog(self.job.config.job_folder)
                if log.last is not None:
                    self._check_content(log.last)

    @contextmanager
    def _documented_errors(self) -> Iterator[None]:
        """Count errors that say what to do. All others are findings."""
        try:
            yield
        except EngineBug:
            raise
        except (FencedError, StorageError, ConfigError, SinkMismatchError) as error:
            self.errors[type(error).__name__] += 1
            if isinstance(error, SinkMismatchError) and not self._is_mismatch_expected(error):
                raise

    def _is_mismatch_expected(self, error: SinkMismatchError) -> bool:
        """Tell whether users have made job and sinks disagree, or a restore asks for what a sink never had."""
        return (
            "never reached sink" in str(error)
            or self.world.counts["old files deleted"] + self.world.counts["copies brought back"] > 0
        )

    # Users

    def _vacuum_sinks(self) -> None:
        """Delete what no sink needs and is older than a week, as VACUUM does."""
        files, youngest = self.job.disk.files, self.world.time - 7 * DAY
        for path in [path for path, file in files.items() if path.startswith("lake/") and file.written_at < youngest]:
            folder, _, name = path.rpartition("/")
            versions = self.job.disk.tables.get(folder, [])
            if versions and name not in versions[-1].files:
                del files[path]
                self.world.counts["old files deleted"] += 1

    def _commit_by_hand(self) -> None:
        """Commit to the sinks what changes no row, as a change of their settings does."""
        for sink in self.job.config.sinks.values():
            with self._outside(), suppress(TableMissingError):
                store = table_store(sink.path)
                latest = store.latest()
                store.append(latest.version, latest.schema, [])
                self.world.counts["commits by hand"] += 1

    def _copy_all(self) -> None:
        """Copy the job's folder and its sinks, at one moment."""
        with self._outside():
            log = CheckpointLog(self.job.config.job_folder)
        if log.last is not None:
            disk = self.job.disk
            self._copy = Copy(
                dict(disk.files),
                {path: [*tables] for path, tables in disk.tables.items()},
                len(log.checkpoints) - 1,
                self._life,
            )

    def _confuse_lives(self) -> None:
        """Bring back the sinks of a former life, at a moment at which the ids of the checkpoints fit."""
        copy = self._copy
        if copy is not None and copy.life < self._life and copy.last == max(self.told, default=-1):
            self._bring_back(("lake/",))
            self._copy = replace(copy, life=self._life)  # once is enough
            self.world.counts["lives confused"] += 1

    def _bring_back(self, parts: Sequence[str] | None = None) -> None:
        """Stop all, and bring back the copy: of the job's folder, of its sinks, or of both."""
        if self._copy is None:
            return
        self._kill_all()
        if parts is None:
            parts = self.world.chance.choice([("state/",), ("lake/",), ("state/", "lake/")])
        tables = {path: [*versions] for path, versions in self._copy.tables.items()}
        for now, before in ((self.job.disk.files, self._copy.files), (self.job.disk.tables, tables)):
            for path in [path for path in now if path.startswith(tuple(parts))]:
                del now[path]
            now.update({path: of for path, of in before.items() if path.startswith(tuple(parts))})
        self.job.disk.sync()
        if "state/" in parts:
            self.told = {number: told for number, told in self.told.items() if number <= self._copy.last}
        self.world.counts["copies brought back"] += 1

    def _begin_anew(self) -> None:
        """Stop all, and move the job's folder and its sinks away: the next run begins another life of the job."""
        if self._copy is None or self.world.chance.random() < 0.5:
            return
        self._kill_all()
        self.job.disk.files.clear()
        self.job.disk.tables.clear()
        self.job.disk.sync()
        self.told.clear()
        self._life += 1
        self.world.counts["lives begun"] += 1

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Do something between two steps: all of it, and nothing fails."""
        disk = self.job.disk
        before, disk.fault, disk.acknowledge = (disk.fault, disk.acknowledge), _nothing, _nothing
        try:
            yield
        finally:
            disk.fault, disk.acknowledge = before

    # The end

    def _end_well(self) -> None:
        self.is_calm = True
        disk = self.job.disk
        for postponed in disk.postponed:
            if self.world.chance.random() < 0.5:
                postponed()
        disk.postponed.clear()
        self._finish()
        log = CheckpointLog(self.job.config.job_folder)
        self.checkpoints = len(log.checkpoints)
        self._check_log(log.checkpoints)
        kept = [c for c in log.checkpoints if c.kind is Kind.SAVEPOINT or c.committed_at > self.world.time - DAY]
        for checkpoint in [*kept, log.checkpoints[-1]]:
            self._check_content(checkpoint)
        self._check_sinks(Content(self.job.config.job_folder, log.checkpoints[-1]))
        if wrong := [finding for finding in verify(self.job.config) if not finding.ok]:
            raise FoundError(f"verify finds {wrong}")

    def _finish(self) -> None:
        """Take in the rest. Where users have made job and sinks disagree, do first what the error says."""
        try:
            self._run_batches("the last", until_done=True)
        except SinkMismatchError as error:
            if not self._is_mismatch_expected(error):
                raise
            self.world.counts["remedies"] += 1
            remedy = re.search(r"--to (\d+) ", str(error))
            if remedy and "another life" not in str(error):
                restore(self.job.config, int(remedy[1]), "the sink is older", "operator")
            else:
                self._bring_back(("state/", "lake/"))
            self._run_batches("the very last", until_done=True)

    def _check_content(self, checkpoint: Checkpoint) -> None:
        if problem := Content(self.job.config.job_folder, checkpoint).problem():
            raise FoundError(f"checkpoint {checkpoint.checkpoint_id}: {problem}")

    def _check_log(self, checkpoints: list[Checkpoint]) -> None:
        ids = [checkpoint.checkpoint_id for checkpoint in checkpoints]
        if ids != list(range(len(ids))):
            raise FoundError(f"the log has the checkpoints {ids}")
        for number, told in self.told.items():
            if number >= len(ids) or checkpoints[number].attempt_id != told.attempt_id:
                raise FoundError(
                    f"checkpoint {number} of {told.run_id} was told to be committed, and is not in the log"
                )

    def _check_sinks(self, content: Content) -> None:
        reminded = self.job.sink_rows(REMINDERS, "customer")
        if reminded != sorted(map(str, content.counted)):
            twice = [record for record, count in Counter(reminded).items() if count > 1]
            lost = sorted({*map(str, content.counted)} - {*reminded})
            raise FoundError(f"the sink '{REMINDERS}' has {twice} twice, and not {lost}")
        if content.position != RECORDS or content.waiting:
            raise FoundError(f"the job ends at record {content.position}, with {content.waiting} waiting")
        rows = self.job.sink(BOARD)
        board = {row["item"]: row["bought"] for row in rows.read(rows.schema).to_pylist()}
        if board != content.board():
            raise FoundError(f"the sink '{BOARD}' has {board}, not {content.board()}")

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Put the world in the place of clock, threads, hosts and places."""
        clock_before, threads_before = clock.use(self.world), threads.use(self.world)
        holder_before, alive_before = lease.this_process, lease.is_alive
        lease.this_process, lease.is_alive = self._holder, self._is_alive
        disk = self.job.disk
        disk.fault, disk.acknowledge = self._before_step, self._after_commit
        try:
            with faults.observed(lambda _: self.world.step()):
                yield
        finally:
            self.is_calm = True
            self._kill_all()
            lease.this_process, lease.is_alive = holder_before, alive_before
            clock.use(clock_before)
            threads.use(threads_before)

    def _holder(self) -> str:
        process = self.world.process
        return f"{process.host}:{self.world.processes.index(process)}:0.00" if process else "operator:0:0.00"

    def _is_alive(self, holder: str) -> bool | None:
        host, number, _ = holder.rsplit(":", 2)
        process = self.world.process
        if host != (process.host if process else "operator"):
            return None
        return self.world.processes[int(number)].is_alive if process else True


def _nothing(step: str, path: str) -> None:
    del step, path
