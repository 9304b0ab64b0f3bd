"""A job in a simulated world: concurrent drivers, maintenance and readers, on a disk that fails; users.

And an end without faults.

The end stops all faults and processes. Then one run takes in the rest, and the oracle compares: sinks, state and
quarantine equal a loop over the records, and every checkpoint that a driver committed is in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

from headrace import clock, crash_points, threads
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.reconcile import reconcile
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, EngineBug, FencedError, SinkMismatchError, StorageError
from headrace.log import lease as processes
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.storage.table import VersionTakenError
from headrace.tables.folder import JobFolder
from headrace.testing._memory_disk import PostponedError, forget_disk
from tests.simulation.purchases import Content, MicroBatch, position_of
from tests.simulation.users import DAY, SINKS, STATE, Users
from tests.simulation.weather import Weather
from tests.simulation.world import Killed, Process, World
from tests.unit.support.memory_job import BOARD, REMINDERS, MemoryJob

RECORDS = 40

Work = Callable[[str], None]
"""What a process of a name does."""

_RARE = {
    "vacuum": 20,
    "restore": 5,
    "compaction": 5,
    "promotion": 10,
    "fork.": 3,
    "backfill": 3,
    "branch": 5,
}
"""Operations whose places are reached rarely, and how many times more trouble there is at each."""


class FoundError(AssertionError):
    """The simulation has found a fault."""


class Simulation:
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.weather = Weather.drawn(self.world.chance)
        self.job = MemoryJob(f"seed-{seed}", retention_hours=self.weather.retention_hours)
        self.reported: dict[int, Checkpoint] = {}
        """The checkpoints that drivers were told to be committed."""

        self.corrections: Counter[int] = Counter()
        """How often the record at each place of the input was corrected."""

        self.checkpoints = 0
        """How many the log has in the end."""

        self.is_calm = False
        self.errors: Counter[str] = Counter()
        self._drivers = 0
        self._names: list[str] = []
        self._doomed: list[Process] = []
        """Processes that are to be killed at the step that they are at."""

        self._rivals: list[Work] = [self._drive, self._go_back]
        """What others do while a process sleeps at a place of the protocol."""

        self._others: list[Work] = [self._maintain, self._read, self._go_back]
        """What there is beside drivers."""

        self.users = Users(self.job, self.world, self.reported, self._kill_all)

    def run(self) -> None:
        """Run the simulation, and check the job.

        Raises `FoundError`, or an unexpected error of the job, with the seed.
        """
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
        for _ in range(self.world.chance.randrange(0, 2)):
            self._start(self._maintain)
        for _ in range(self.world.chance.randrange(0, 3)):
            self._start(self.world.chance.choice(self._others))
        self.world.run(self._make_trouble)

    def _start_driver(self) -> None:
        self._drivers += 1
        self._start(self._drive)

    def _start(self, work: Work, *, host: str | None = None) -> None:
        chance = self.world.chance
        name = f"{work.__name__.strip('_')}-{len(self.world.processes)}"
        host = host or chance.choice(["here", "here", "there", "elsewhere"])
        wrong_by = chance.randrange(-60_000, 60_000) if chance.random() < 0.2 else 0
        self.world.start(name, lambda: work(name), host=host, wrong_by=wrong_by)

    def _make_trouble(self) -> None:
        """Between two steps: kill, suspend, restart, let time pass."""
        while self._doomed:
            self.world.kill(self._doomed.pop())
        alive = self.world.alive
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
            self.users.act()
        if self.weather.has_lifetimes:
            self.users.confuse_lifetimes()
        is_idle = not self.world.alive  # somebody has stopped all processes
        if self._drivers < 9 and (is_idle or (len(alive) < 4 and self._happens(6))):
            self._start_driver()
            self._start(self.world.chance.choice(self._others))

    def _lose_power(self) -> None:
        self.world.counts["power failures"] += 1
        self._kill_all()
        self.job.disk.lose_power()

    def _kill_all(self) -> None:
        for process in self.world.alive:
            self.world.kill(process)
        self.job.disk.postponed.clear()

    def _happens(self, in_thousand: int) -> bool:
        return not self.is_calm and self.world.chance.randrange(1000) < in_thousand

    def _before_step(self, step: str, path: str) -> None:
        """Act as the disk: let other processes run, then refuse the step or not."""
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
            raise self.world.chance.choice([OSError, VersionTakenError])(f"no response to {step} {path}")
        self.world.step()

    def _at_place(self, place: str) -> None:
        """Act at a named place of the protocol: die there, sleep for days while other processes run, or continue."""
        process = self.world.process
        if process is not None and place == "vacuum.listed" and self.weather.has_regrets and self._happens(700):
            self._fall_asleep(process, place)
            self._start(self._regret, host="at home")
            self.world.step()
            return
        rarity = next((times for name, times in _RARE.items() if place.startswith(name)), 1)
        if process is not None and self._happens(rarity * self.weather.places):
            if self.world.chance.random() < 0.5:
                self._doomed.append(process)
                self.world.counts[f"killed at {place}"] += 1
            else:
                self._fall_asleep(process, place)
                self._start(self.world.chance.choice(self._rivals))
        self.world.step()

    def _fall_asleep(self, process: Process, place: str) -> None:
        process.suspended_until = self.world.time + 9 * DAY
        self.world.counts[f"asleep at {place}"] += 1

    # Processes

    def _drive(self, name: str) -> None:
        """Run the job, some micro-batches at a time, until all input is taken in or this driver stops."""
        chance = self.world.chance
        for attempt in range(6):
            with self._documented_errors():
                self._run_batches(f"{name}.{attempt}", force=chance.random() < 0.1)
            clock.sleep(chance.randrange(chance.choice([20, 20, DAY // 1000])))

    def _run_batches(self, run_id: str, *, force: bool = False, until_done: bool = False) -> None:
        chance = self.world.chance
        with open_job(self.job.config, run_id, create=True, force=force) as job:
            for _ in range(chance.randrange(4) if not until_done else 10 * RECORDS):
                batch = MicroBatch(job, lambda: self.is_calm or chance.random() < 0.6, self.corrections)
                checkpoint = batch.commit(chance.randrange(1, 9), RECORDS)
                self.reported[checkpoint.checkpoint_id] = checkpoint
                if until_done and position_of(checkpoint) == RECORDS and not checkpoint.work.pending:
                    return

    def _maintain(self, name: str) -> None:
        chance, config = self.world.chance, self.job.config
        pause = chance.choice([60, 2 * DAY // 1000])  # by hand, or every second night
        acts = chance.choices(["compact", "vacuum", "savepoint", "verify"], [1, 2, 1, 1], k=chance.randrange(2, 7))
        if self.weather.has_regrets:
            pause, acts = 2 * DAY // 1000, ["compact", "vacuum"] * 3
        for number, act in enumerate(acts):
            clock.sleep(chance.randrange(pause))
            with self._documented_errors():
                if act == "compact":
                    compact(config, name)
                elif act == "vacuum":
                    vacuum(config, name, dry_run=chance.random() < 0.2)
                elif act == "savepoint":
                    point = f"s{name.replace('-', '_')}_{number}"
                    savepoint(config, point, "", name)
                    self._names.append(point)
                else:
                    verify(config)

    def _go_back(self, name: str, target: int | str | None = None) -> None:
        """Restore a checkpoint; try again while another run holds the job."""
        chance = self.world.chance
        for _ in range(4):
            clock.sleep(chance.randrange(120))
            with self._documented_errors():
                target = self._target() if target is None else target
                if target is not None:
                    checkpoint = restore(self.job.config, target, "", name)
                    self.reported[checkpoint.checkpoint_id] = checkpoint
                    self.world.counts["restores"] += 1
                    return

    def _regret(self, name: str) -> None:
        """Restore a checkpoint from before the last compaction."""
        with self._documented_errors():
            log = CheckpointLog(JobFolder(self.job.config.job_folder))
            compacted = max((c.checkpoint_id for c in log.checkpoints if c.kind is Kind.COMPACTION), default=0)
            if before := [
                c.checkpoint_id for c in log.checkpoints if c.kind is Kind.BATCH and c.checkpoint_id < compacted
            ]:
                self._go_back(name, self.world.chance.choice(before))

    def _target(self) -> int | str | None:
        """Draw the target of a restore: a savepoint, an old checkpoint, or any."""
        chance = self.world.chance
        if self._names and chance.random() < 0.3:
            return chance.choice(self._names)
        ids = [
            checkpoint.checkpoint_id for checkpoint in CheckpointLog(JobFolder(self.job.config.job_folder)).checkpoints
        ]
        oldest = ids[: 1 + len(ids) // 2]
        return chance.choice(oldest if chance.random() < 0.5 else ids) if ids else None

    def _read(self, name: str) -> None:
        """Read the last checkpoint; readers always see complete rows."""
        del name
        for _ in range(4):
            clock.sleep(self.world.chance.randrange(30))
            with self._documented_errors():
                log = CheckpointLog(JobFolder(self.job.config.job_folder))
                if log.last is not None:
                    self._check_content(log.checkpoints, log.last)

    @contextmanager
    def _documented_errors(self) -> Iterator[None]:
        """Count errors that are documented. All others are findings."""
        try:
            yield
        except EngineBug:
            raise
        except (FencedError, StorageError, ConfigError, SinkMismatchError) as error:
            self.errors[type(error).__name__] += 1
            if isinstance(error, SinkMismatchError) and not self._is_mismatch_expected(error):
                raise

    def _is_mismatch_expected(self, error: SinkMismatchError) -> bool:
        """Return whether users have made job and sinks disagree, or a restore asks for a version that a sink never had."""
        return "never reached sink" in str(error) or self.users.have_meddled

    # The end

    def _end_well(self) -> None:
        self.is_calm = True
        disk = self.job.disk
        for postponed in disk.postponed:
            if self.world.chance.random() < 0.5:
                postponed()
        disk.postponed.clear()
        self._finish()
        log = CheckpointLog(JobFolder(self.job.config.job_folder))
        self.checkpoints = len(log.checkpoints)
        self._check_log(log.checkpoints)
        kept = [c for c in log.checkpoints if c.kind is Kind.SAVEPOINT or c.committed_at > self.world.time - DAY]
        for checkpoint in [*kept, log.checkpoints[-1]]:
            if checkpoint.has_state:
                self._check_content(log.checkpoints, checkpoint)
        self._check_sinks(Content(self.job.config.job_folder, log.checkpoints, log.checkpoints[-1]))
        if wrong := [finding for finding in verify(self.job.config) if not finding.ok]:
            raise FoundError(f"verify finds {wrong}")

    def _finish(self) -> None:
        """Process the rest of the input.

        If users have made job and sinks disagree, reconcile them first, as the error says.
        """
        try:
            self._run_batches("the last", until_done=True)
        except SinkMismatchError as error:
            if not self._is_mismatch_expected(error):
                raise
            self._reconcile()
            self._run_batches("the very last", until_done=True)

    def _reconcile(self) -> None:
        """Reconcile job and sinks; the first try may be killed.

        Sinks of another incarnation have to be restored from a copy instead.
        """
        self.world.counts["reconciliations"] += 1
        try:
            with self._killed_after(self.world.chance.randrange(80, 260)):
                reconcile(self.job.config, "operator", "copies were brought back")
            reconcile(self.job.config, "operator", "copies were brought back")
        except SinkMismatchError:
            self.world.counts["refused reconciliations"] += 1
            self.users.bring_back((STATE, SINKS))

    @contextmanager
    def _killed_after(self, steps: int) -> Iterator[None]:
        """Kill the block at a step of the disk, or at a place of the protocol."""

        def step(*_: str) -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise Killed

        with suppress(Killed), self.job.disk.failing(step), crash_points.observed(step):
            yield
        self.world.counts["killed reconciliations"] += steps < 0

    def _check_content(self, checkpoints: list[Checkpoint], checkpoint: Checkpoint) -> None:
        if problem := Content(self.job.config.job_folder, checkpoints, checkpoint).problem():
            raise FoundError(f"checkpoint {checkpoint.checkpoint_id}: {problem}")

    def _check_log(self, checkpoints: list[Checkpoint]) -> None:
        ids = [checkpoint.checkpoint_id for checkpoint in checkpoints]
        by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
        gaps = [
            after
            for before, after in pairwise(ids)
            if after != before + 1
            and by_id[after].kind not in {Kind.RESTORE, Kind.PROMOTION}
            and by_id[after].has_state
        ]
        if ids != sorted(by_id) or ids[0] or gaps:
            raise FoundError(f"the log has the checkpoints {ids}")
        for number, reported in self.reported.items():
            if number not in by_id or by_id[number].attempt_id != reported.attempt_id:
                raise FoundError(
                    f"checkpoint {number} of {reported.run_id} was told to be committed, and is not in the log"
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
        """Replace clock, threads, hosts and places by those of the world."""
        clock_before, threads_before = clock.use(self.world), threads.use(self.world)
        holder_before, alive_before = processes.this_process, processes.is_alive
        processes.this_process, processes.is_alive = self._holder, self._is_alive
        disk = self.job.disk
        disk.fault, disk.acknowledge = self._before_step, self._after_commit
        try:
            with crash_points.observed(self._at_place):
                yield
        finally:
            self.is_calm = True
            self._kill_all()
            processes.this_process, processes.is_alive = holder_before, alive_before
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
