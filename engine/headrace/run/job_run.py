"""Run of a job, on Spark or in local processes: ask the agenda for the next step, take it, commit.

Handling of SIGTERM: end a run in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from headrace import clock, logs
from headrace.commit.branch_code import check_forked, record_run, refuse_effects
from headrace.commit.input_changes import listed_input, refuse_renamed_sources, refuse_unless_done
from headrace.commit.input_report import pending_correction, refuse_changed_files, run_warnings, touched_input
from headrace.commit.protocol import open_job
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig
from headrace.edits.migrate import settle_schemas
from headrace.errors import ConfigError, HeadraceError, keep_committed
from headrace.log.branches import Branches
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import gap_before, interval_of, place_of
from headrace.log.warnings import (
    new_operator_warnings,
    passed_version_warnings,
    passed_versions,
    row_time_warnings,
    row_times_of,
    stateful,
    watermark_waits,
)
from headrace.run.agenda import (
    NO_PAST,
    Backfill,
    CaughtUp,
    Ending,
    EndInput,
    Finish,
    FireTimers,
    Now,
    OneInterval,
    PassOver,
    Past,
    ReadReplay,
    Repeat,
    Resume,
    Step,
    TakeIn,
    TakeRequeued,
    Wanted,
    next_step,
)
from headrace.run.backfill_branches import left_behind
from headrace.run.batch_sequence import BatchSequence
from headrace.run.events import OnEvent, RunEvents, sink_reports
from headrace.run.followed import FollowedLineage
from headrace.run.options import Intervals, RunOptions, RunReport, StoppedBecause
from headrace.run.replay import Replay, branch_replay, fork_of
from headrace.run.services import live_responses
from headrace.run.tasks import StageTasks
from headrace.run.trace import NO_TRACE, Trace
from headrace.run.unanswered_calls import UnansweredCalls
from headrace.run.watch import NO_WATCH, watched
from headrace.sinks.sink import NO_WRITERS, SparkWriters
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.sources.kafka.landed import Topic
from headrace.sources.transformed.source import Derivation


@contextmanager
def ended_by_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM within the block, instead of ending the process. Works only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@dataclass(slots=True)
class _Loop:
    """Loop of a run: ask for the next step, take it, and ask again."""

    batches: BatchSequence
    intake: Intake
    wanted: Wanted
    ending: Ending
    past: Past = NO_PAST
    replay: Replay | None = None

    def run(self) -> StoppedBecause:
        """Take steps until there is a reason to stop, and return that."""
        settle_schemas(self.batches.job, self.batches.plan)
        while not isinstance(step := next_step(self._now(), self.wanted, self.ending), str):
            waiting, committed = self.batches.job.last.work.pending, len(self.batches.committed)
            self._take(step)
            commits = len(self.batches.committed) > committed
            self.past = self.past.after(step, commits=commits, waiting=waiting)
        if self.replay is not None:
            self.batches.events.backfill_stopped(self.replay, step)
        return step

    def _now(self) -> Now:
        batches = self.batches
        return Now(batches.job.last, clock.now(), batches.limit(), batches.followed, self.past, self.replay)

    def _take(self, step: Step) -> None:
        batches = self.batches
        match step:
            case TakeRequeued():
                batches.make_requeued(self.intake)
            case Repeat():
                batches.repeat(step.requeue)
                self._tried()
            case TakeIn():
                self._take_in(step)
                self._tried()
            case Resume():
                batches.make_without_input(follows=step.follows)
            case FireTimers():
                batches.fire_timers(step.follows)
            case PassOver():
                batches.followed.pass_over()
            case ReadReplay():
                self.replay = self._read_replay()
            case Finish():
                batches.events.finishing(batches.job.last.work.pending)
                batches.make_without_input(finishes=True)
            case EndInput():
                batches.end_input()

    def _take_in(self, step: TakeIn) -> None:
        batches = self.batches
        taken = self.intake.next(batches.position(step.follows), step.wanted)
        if taken is not None:
            refuse_renamed_sources(
                batches.config.job, batches.job.lineage.checkpoints, self.intake.names, taken.sources
            )
            batches.make(taken, taken.interval, follows=step.follows)

    def _read_replay(self) -> Replay | None:
        """Return what the branch lacks of the interval and of all later input. The job may take in more meanwhile."""
        batches, config = self.batches, self.batches.config
        lineage, log = batches.job.lineage.checkpoints, batches.followed.live
        fork_id = fork_of(config.job, lineage)
        assert log is not None  # noqa: S101 - the lineage is a branch's
        log.refresh()
        live = log.lineage.checkpoints
        if all(checkpoint.checkpoint_id != fork_id for checkpoint in live):
            raise left_behind(config, config.branch or "", fork_id)
        requested = Interval.of(batches.options.interval_start, batches.options.interval_end)
        return branch_replay(requested, live, lineage, fork_id, is_corrected=bool(config.replay.sources))

    def _tried(self) -> None:
        """Leave out the first step of a replay: it was tried."""
        self.replay = None if self.replay is None else self.replay.rest


def _all_wanted(mode: str, batches: BatchSequence, intake: Intake) -> Iterator[Wanted]:
    """Yield what a run takes in, each when the one before is taken in: missing intervals first, if it fills gaps, and then the one asked for.

    Raises `IntervalError` for an interval that leaves a gap, or is taken in and not done.
    """
    options = batches.options
    if mode == "caught_up":
        yield CaughtUp(options.end_of_input)
        return
    intake.check_intervals({})
    if mode == "backfill":
        yield Backfill()
        return
    interval = Interval.of(options.interval_start, options.interval_end)
    if options.fill or batches.config.run.gaps == "fill":
        for missing in _missing(interval, batches, intake):
            batches.events.fills(missing, interval)
            yield OneInterval(missing, is_done=False)
    yield _one_interval(interval, batches, intake)


def _missing(wanted: Interval, batches: BatchSequence, intake: Intake) -> list[Interval]:
    """Return the intervals before the wanted one that are missing: as long as it is, or all in one where that cuts intervals of files."""
    gap = gap_before(wanted, batches.job.checkpoints)
    if gap is None:
        return []
    parts, known = gap.parts(wanted.end - wanted.start), batches.taken_in()
    try:
        for part in parts:  # a day of 23 hours, say
            intake.check_cut(part, known)
    except HeadraceError:
        parts = [gap]
    return parts


def _one_interval(interval: Interval, batches: BatchSequence, intake: Intake) -> OneInterval:
    options = batches.options
    is_done = place_of(interval, batches.job.checkpoints).restore_to is not None
    if is_done:
        refuse_unless_done(
            interval,
            batches.job.lineage.checkpoints,
            listed_input(intake, batches.job.lineage.checkpoints),
            batches.config,
            asked_at=options.recompute,
        )
        batches.events.interval_is_done(interval)
    else:
        intake.check_cut(interval, batches.taken_in())
    return OneInterval(interval, is_done)


def _run_all(mode: str, batches: BatchSequence, intake: Intake, ending: Ending) -> StoppedBecause:
    """Take in all that a run wants; return the reason to stop. An interval that was not taken in whole is the last one."""
    reason: StoppedBecause = "done"
    for wanted in _all_wanted(mode, batches, intake):
        is_last = not isinstance(wanted, OneInterval) or wanted.interval.end == batches.options.interval_end
        reason = _Loop(batches, intake, wanted, ending if is_last else None).run()
        if not is_last and reason != "interval":
            break
    return reason


def run_on(
    tasks: StageTasks,
    config: JobConfig,
    options: RunOptions,
    on_event: OnEvent,
    *,
    started: float | None = None,
    writers: SparkWriters = NO_WRITERS,
    topics: Mapping[str, Topic] | None = None,
    steps: Mapping[str, Derivation] | None = None,
    shows_progress: bool = False,
    trace: Trace = NO_TRACE,
) -> RunReport:
    """Run a job once. `tasks` runs its tasks; `writers` has the writers of sinks that need Spark.

    Sources of the format kafka read `topics`, by name of the source. `steps` run Spark's steps over sources; without them, the files
    of such a source must have rows of the step's result. With `shows_progress`, sends events within micro-batches.
    `trace` observes the parts of the run.
    """
    begun = clock.monotonic() if started is None else started
    events = _events(config, options, on_event)
    mode = _mode(config, options)
    plan = checked_plan(config)
    check_forked(config)
    if not options.allow_effects:
        refuse_effects(config, plan)
    with (
        open_job(
            config,
            options.run_id,
            create=True,
            plan=plan,
            force=options.force_fail_over,
            writers=writers,
            notify=events.tell,
        ) as job,
        watched(config, job.attempt_id, events.progress) if shows_progress else nullcontext(NO_WATCH) as watch,
    ):
        record_run(config, options.run_id, job.lineage.checkpoints)
        refuse_changed_files(config, job.lineage.checkpoints)
        events.opened(job.last)
        followed = FollowedLineage(config, job, [source.name for source in plan.sources])
        responses = live_responses(config, allow_effects=options.allow_effects)
        batches = BatchSequence(tasks, job, plan, config, options, events, begun, followed, watch, responses, trace)
        batches.touched = touched_input(config, job.lineage.checkpoints)
        intake = Intake(plan, config, topics=topics, steps=steps, corrected=_corrected(config, mode))
        ending: Ending = "end" if options.end_of_input else "finish" if options.finish else None
        calls = UnansweredCalls(batches)
        owed, before = _held(job.last), job.lineage.checkpoints
        with _ended(batches):
            with ended_by_sigterm(batches.stop):
                reason = _run_all(mode, batches, intake, ending)
            calls.refuse(reason)
            if mode == "caught_up" and not batches.limit():
                events.ahead(intake.waiting)
            events.responses_taken(batches.total("responses_taken"))
            events.waiting(job.last.work.pending, job.last.work.due)
            waits = watermark_waits(job.lineage, job.last, job.view)
            events.watermark_waits(waits)
            unreported = [*job.unreported, *batches.committed]
            row_times = row_times_of(unreported)
            passed = passed_versions(unreported)
            for warning in (
                *new_operator_warnings(config.job, before, stateful(job.last.state_schemas)),
                *row_time_warnings(config.job, row_times),
                *passed_version_warnings(passed),
            ):
                events.degrade(warning)
        for warning in run_warnings(config, job.lineage.checkpoints):
            events.of_input(warning)
        pending = None if config.branch is not None else pending_correction(config, job.lineage.checkpoints)
        last, sinks = job.last, sink_reports(job)
        interval = _interval_of(options, mode, last)
        wanted = Interval.of(*interval) if mode == "interval" else None
        intervals = () if wanted is None else _published(wanted, owed, batches, reason)
    return RunReport(
        job=config.job,
        run_id=options.run_id,
        checkpoints=[checkpoint.checkpoint_id for checkpoint in batches.committed],
        rows_in=batches.total("rows_in"),
        rows_out=batches.total("rows_out"),
        seconds=round(clock.monotonic() - begun, 3),
        stopped_because=reason,
        quarantined=batches.total("quarantined"),
        responses_taken=batches.total("responses_taken"),
        waiting=job.last.work.pending,
        checkpoint=last.checkpoint_id,
        watermark=last.watermark,
        interval_start=interval[0],
        interval_end=interval[1],
        intervals=intervals,
        sinks=sinks,
        row_times=row_times,
        watermark_waits=tuple(waits),
        warnings=tuple(events.warnings),
        pending=pending,
    )


def _events(config: JobConfig, options: RunOptions, on_event: OnEvent) -> RunEvents:
    """Return the events of a run. From now on, log lines of this process are of it."""
    logs.move_to(logs.Position(config.job, config.branch, options.run_id))
    return RunEvents(config.job, on_event)


def _corrected(config: JobConfig, mode: str) -> Interval | None:
    """Return the interval in which a run reads corrected input: that for which the branch of a backfill was made. None without such input."""
    if mode != "backfill" or config.branch is None or not config.replay.sources:
        return None
    return Branches(config.itself).get(config.branch).requested


@contextmanager
def _ended(batches: BatchSequence) -> Iterator[None]:
    """Clean up after a run. Its error says which of its checkpoints stay."""
    try:
        yield
    except HeadraceError as error:
        keep_committed(error, [checkpoint.checkpoint_id for checkpoint in batches.committed])
        raise
    finally:
        batches.clean_up()


def _interval_of(options: RunOptions, mode: str, last: Checkpoint) -> tuple[int | None, int | None]:
    """Return the interval of a report: the one that the run was for, else the one that the job has taken in last."""
    if mode == "interval":
        return options.interval_start, options.interval_end
    return last.interval_start, last.interval_end


def _published(wanted: Interval, owed: Interval | None, batches: BatchSequence, reason: StoppedBecause) -> Intervals:
    """Return the intervals whose rows an interval run has published whole, in order.

    `owed` is the one whose records an earlier run has held. Records that this run holds are published by the next one, with their interval.
    """
    committed = (interval_of(checkpoint) for checkpoint in batches.committed)
    intervals = {own for own in (owed, *committed) if own is not None}
    if reason not in _STOPPED_EARLY:
        intervals.add(wanted)
    if (held := _held(batches.job.last)) is not None:
        intervals.discard(held)
    return tuple(sorted((own.start, own.end) for own in intervals))


_STOPPED_EARLY: Final = frozenset({"budget", "max_batches", "terminated"})


def _held(last: Checkpoint) -> Interval | None:
    """Return the interval of records that a checkpoint holds; None if it holds none."""
    return last.interval if last.holds_records else None


def _mode(config: JobConfig, options: RunOptions) -> str:
    mode = (config.mode if options.mode == "auto" else options.mode).replace("-", "_")  # as the command spells it
    if options.end_of_input and mode == "interval":
        msg = "--end-of-input takes in all there is: it needs --mode caught-up (in Airflow: the param mode)"
        raise ConfigError(msg)
    return mode
