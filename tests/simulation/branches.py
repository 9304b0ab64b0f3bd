"""The simulated job with branches: the input is corrected, and branches are forked, run, compared, promoted and dropped beside drivers.

All branches share two names, so that concurrent users collide. The log tells which records a line has taken in
(`taken_in`). At the end each version of the live sinks is checked: it belongs to a checkpoint, and equals a loop over
the records that this checkpoint's line had taken in. Finally all corrected records are backfilled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from headrace import clock
from headrace.commit.branch_code import check_forked, on_branch, record_run
from headrace.commit.protocol import open_job
from headrace.config import JobConfig, Promote
from headrace.edits.compact import compact
from headrace.edits.fork import drop_branch, fork
from headrace.edits.promote import promoting
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, SinkMismatchError, SourceError, StorageError
from headrace.log.branches import Branch, Branches
from headrace.log.checkpoint import Checkpoint
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.run.backfill import Backfill
from headrace.run.backfill_plan import BackfillPlan, Estimate
from headrace.run.options import RunOptions, RunReport
from headrace.sources.interval import Interval
from headrace.storage.storage import Storage
from headrace.storage.table import Commit, Snapshot
from headrace.tables.folder import JobFolder
from tests.simulation.purchases import CORRECTION, Content, MicroBatch, position_of, taken_in
from tests.simulation.simulation import RECORDS, FoundError, Simulation
from tests.unit.support.memory_job import BOARD, REMINDERS

NAMES = ("alpha", "beta")
_DAY = Interval(0, 86_400_000)
_MOST_TROUBLED_STEPS = 15_000


class BranchSimulation(Simulation):
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        drawn = self.weather  # milder, so that promotions get through
        mild = {
            name: getattr(drawn, name) // 2 for name in ("failing", "unheard", "late", "kills", "suspensions", "days")
        }
        self.weather = replace_fields(drawn, users=0, has_lifetimes=False, **mild)
        self._others += [self._branch_out] * 3
        self._rivals += [self._branch_out] * 2

    def _make_trouble(self) -> None:
        """Stop making trouble after `_MOST_TROUBLED_STEPS` steps: trouble can undo the work of drivers."""
        self.is_calm = self.is_calm or self.world.steps > _MOST_TROUBLED_STEPS
        super()._make_trouble()

    # Processes

    def _branch_out(self, name: str) -> None:
        """Correct input and use branches; try again while another run holds the job."""
        chance = self.world.chance
        self._correct()
        for number in range(6):
            act, branch = self._drawn()
            for attempt in range(3):
                clock.sleep(chance.randrange(chance.choice([10, 60, 600])))
                refused = self.errors["FencedError"]
                with self._documented_errors():
                    act(f"{name}.{number}.{attempt}", branch)
                if self.errors["FencedError"] == refused:
                    break
            if chance.random() < 0.1:
                self._correct()

    def _drawn(self) -> tuple[Callable[[str, str], None], str]:
        """Draw an action and a branch: mostly an existing branch."""
        chance = self.world.chance
        with self.users.at_once():
            there = [branch.name for branch in Branches(self.job.config).open]
        if not there or chance.random() < 0.2:
            return chance.choice([self._fork, self._backfill, self._backfill]), chance.choice(NAMES)
        acts = [self._backfill, self._run_branch, self._compact_branch, self._promote, self._drop, self._vacuum]
        return chance.choices(acts, [8, 4, 2, 8, 1, 1])[0], chance.choice(there)

    def _correct(self) -> None:
        for _ in range(self.world.chance.randrange(3)):
            self.corrections[self.world.chance.randrange(RECORDS)] += 1

    def _fork(self, run_id: str, branch: str) -> None:
        log = CheckpointLog(JobFolder(self.job.config.job_folder))
        ids = [checkpoint.checkpoint_id for checkpoint in log.checkpoints]
        fork(self.job.config, branch, self.world.chance.choice([None, *ids[-6:]]), run_id)
        self.world.counts["forks"] += 1

    def _run_branch(self, run_id: str, branch: str) -> None:
        self._catch_up(on_branch(self.job.config, branch), run_id, until_done=self.world.chance.random() < 0.7)

    def _compact_branch(self, run_id: str, branch: str) -> None:
        config = on_branch(self.job.config, branch)
        check_forked(config)
        compact(config, run_id)

    def _drop(self, run_id: str, branch: str) -> None:
        drop_branch(self.job.config, branch, run_id)
        self.world.counts["branches dropped"] += 1

    def _vacuum(self, run_id: str, _branch: str) -> None:
        vacuum(self.job.config, run_id, dry_run=False)

    def _promote(self, run_id: str, branch: str) -> None:
        with promoting(self.job.config, branch, run_id) as promotion:
            if promotion.is_behind and self.world.chance.random() < 0.8:
                self._catch_up(promotion.on_branch, run_id, until_done=True)
            try:
                result = promotion.promote("simulated")
            except (ConfigError, SinkMismatchError):
                self._check_refused(promotion.job.attempt_id)
                raise
        self.reported[result.checkpoint_id] = result
        self.world.counts["promotions"] += 1

    def _check_refused(self, attempt_id: str) -> None:
        log = CheckpointLog(JobFolder(self.job.config.job_folder))
        if checkpoints := [
            checkpoint.checkpoint_id for checkpoint in log.checkpoints if checkpoint.attempt_id == attempt_id
        ]:
            raise FoundError(f"a promotion was refused, and has committed checkpoint {checkpoints[0]}")

    def _backfill(self, run_id: str, branch: str) -> None:
        """Backfill the corrected records, or continue an interrupted backfill."""
        begun = next((candidate for candidate in Branches(self.job.config).open if candidate.name == branch), None)
        fork_id = self._fork_of_backfill() if begun is None else begun.fork_id
        if fork_id is not None:
            self._carry_out(run_id, branch, fork_id, begun)

    def _carry_out(self, run_id: str, branch: str, fork_id: int, begun: Branch | None) -> None:
        config, estimate = self.job.config, Estimate(0, 0, 0, {}, {}, ())
        plan = BackfillPlan(branch, _DAY, fork_id, None, begun, (), None, (), estimate)

        def run_branch(of_branch: JobConfig, _options: RunOptions) -> RunReport:
            done = self._catch_up(of_branch, run_id, until_done=self.is_calm or self.world.chance.random() < 0.8)
            return _report(run_id, is_through=done)

        backfill = _SimulatedBackfill(
            config=replace(config, replay=replace(config.replay, promote=Promote.AUTOMATIC)),
            code=plan_of(config.code),
            plan=plan,
            options=RunOptions(run_id=run_id, allow_effects=True),
            run_branch=run_branch,
            input_check=lambda: self._check_input(branch),
        )
        try:
            result = backfill.run()
        except SourceError:
            self.world.counts["input changed during a backfill"] += 1
            drop_branch(config, branch, run_id)
            return
        self.world.counts[f"backfills {result.outcome}"] += 1
        if result.promotion is not None:
            self.reported[result.promotion] = CheckpointLog(JobFolder(config.job_folder)).get(result.promotion)

    def _check_input(self, branch: str) -> None:
        log = CheckpointLog(JobFolder(self.job.config.on_branch(branch).job_folder))
        taken = [] if log.last is None else taken_in(log.checkpoints, log.last)
        if taken != [self._record_at(place) for place in range(len(taken))]:
            msg = f"the input of branch '{branch}' changed again"
            raise SourceError(msg)

    def _fork_of_backfill(self) -> int | None:
        """Return the last checkpoint of the line before the first record corrected since; None if there is none."""
        log = CheckpointLog(JobFolder(self.job.config.job_folder))
        if log.last is None:
            return None
        taken = taken_in(log.checkpoints, log.last)
        wrong = next((place for place, record in enumerate(taken) if record != self._record_at(place)), None)
        before = [
            checkpoint.checkpoint_id
            for checkpoint in log.lineage.checkpoints
            if checkpoint.has_state and wrong is not None and position_of(checkpoint) <= wrong
        ]
        return before[-1] if before else None

    def _record_at(self, place: int) -> int:
        return place + CORRECTION * self.corrections[place]

    def _catch_up(self, config: JobConfig, run_id: str, *, until_done: bool) -> bool:
        """Run a branch up to the job's position; return whether it arrived there."""
        chance = self.world.chance
        check_forked(config)
        with open_job(config, run_id) as job:
            record_run(config, run_id)
            for _ in range(10 * RECORDS if until_done else chance.randrange(3)):
                head = CheckpointLog(JobFolder(self.job.config.job_folder)).last
                if (
                    head is not None
                    and position_of(job.last) >= position_of(head)
                    and not (self.is_calm and job.last.work.pending)
                ):
                    return True
                batch = MicroBatch(job, lambda: self.is_calm or chance.random() < 0.6, self.corrections)
                batch.commit(chance.randrange(1, 9), RECORDS)
            return False

    # The end

    def _finish(self) -> None:
        super()._finish()
        with suppress(OutOfReachError):
            for attempt in range(10):
                fork_id = self._fork_of_backfill()
                if fork_id is None:
                    break
                self._carry_out_last(f"the last backfill.{attempt}", fork_id)
            else:
                raise FoundError("there is always something left to be computed again")
        self._check_versions()

    def _carry_out_last(self, run_id: str, fork_id: int) -> None:
        try:
            self._carry_out(run_id, "last", fork_id, None)
        except StorageError as error:
            if "no branch can begin at" not in str(error):
                raise
            self.world.counts["corrections out of reach"] += 1
            raise OutOfReachError from error

    def _check_versions(self) -> None:
        """Check each version of the live sinks: it changes no row, or equals the checkpoint that it names."""
        log = CheckpointLog(JobFolder(self.job.config.job_folder))
        by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in log.checkpoints}
        for name in (BOARD, REMINDERS):
            store = Storage(self.job.config.sinks[name].table_path).table()
            before: object = None
            for commit in store.latest().history()[::-1]:
                table = store.at(commit.version)
                rows = sorted(map(repr, table.read(table.schema).to_pylist()))
                if rows != before and (commit.version or rows):
                    self._check_version(name, commit.version, table, by_id.get(_number(commit)), log)
                before = rows

    def _check_version(
        self, name: str, version: int, table: Snapshot, checkpoint: Checkpoint | None, log: CheckpointLog
    ) -> None:
        if checkpoint is None or not checkpoint.has_state:
            raise FoundError(f"version {version} of sink '{name}' changes rows, and is of no checkpoint")
        self.world.counts["versions of sinks"] += 1
        try:
            content = Content(self.job.config.job_folder, log.checkpoints, checkpoint)
        except (FileNotFoundError, StorageError):  # a vacuum has deleted them
            self.world.counts["versions of sinks whose state is gone"] += 1
            return
        if problem := content.problem():
            raise FoundError(f"checkpoint {checkpoint.checkpoint_id}: {problem}")
        rows = table.read(table.schema).to_pylist()
        if name == BOARD:
            result, wanted = {row["item"]: row["bought"] for row in rows}, content.board()
        else:
            result, wanted = sorted(row["customer"] for row in rows), sorted(map(str, content.counted))
        if result != wanted:
            raise FoundError(
                f"version {version} of sink '{name}', of checkpoint {checkpoint.checkpoint_id}, has {result}, not {wanted}"
            )


class OutOfReachError(Exception):
    """The files at which a backfill would begin are gone."""


@dataclass(frozen=True, slots=True)
class _SimulatedBackfill(Backfill):
    """A backfill whose input does not consist of files."""

    input_check: Callable[[], None] = lambda: None

    def _check_input(self, _log: CheckpointLog) -> None:
        self.input_check()


def _number(commit: Commit) -> int:
    return -1 if commit.info.checkpoint_id is None else commit.info.checkpoint_id


def _report(run_id: str, *, is_through: bool) -> RunReport:
    return RunReport(
        job="purchases",
        run_id=run_id,
        checkpoints=[],
        rows_in=0,
        rows_out=0,
        seconds=0,
        stopped_because="interval" if is_through else "max_batches",
        quarantined=0,
    )
