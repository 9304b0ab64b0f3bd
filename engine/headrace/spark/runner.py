"""A run: micro-batches until the source is drained, the budget is used up, or the interval is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import msgspec

from headrace import clock, faults
from headrace.checkpoint import any_timer_due, restore_in, settle_schemas
from headrace.checkpoint.checkpoint import Checkpoint, Kind, SourceOffset
from headrace.checkpoint.files import remove_file, remove_folder, touch
from headrace.checkpoint.open_job import OpenJob, metrics_of
from headrace.checkpoint.opening import open_job
from headrace.checkpoint.publish import SparkMerge
from headrace.checkpoint.run_check import checked_plan
from headrace.config import JobConfig
from headrace.errors import ConfigError, ReplayUnfinishedError
from headrace.materializer.upsert_materializer import LONG_HISTORY
from headrace.plan.stages import Plan
from headrace.sources.intake import Intake, end_of_input
from headrace.sources.interval import Interval, goes_back, line, place_of, refusal, replay_note
from headrace.sources.source import NO_INPUT, Slice, TakenIn
from headrace.sources.wanted import Standing, Wanted
from headrace.spark.micro_batch import BatchResult, MicroBatch, stop_file
from headrace.spark.options import Event, RunOptions, RunReport, StoppedBecause
from headrace.spark.replay import Replay, Step, open_replay, outage
from headrace.spark.sigterm import ended_by_sigterm
from headrace.spark.stage_tasks import StageTasks
from headrace.spark.task_output import OUTPUTS, transit_folder
from headrace.state.ttl import Gap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnEvent = Callable[[Event], None]


def run(config: JobConfig, options: RunOptions, on_event: OnEvent) -> RunReport:
    """Run a job once; return what it did.

    Raises a `HeadraceError` that says who has to act; whatever was committed before it stays.
    """
    started = clock.monotonic()
    checked_plan(config)
    on_event(Event("starting", "starting Spark"))
    from headrace.spark.session import session

    spark = session(config)
    return run_in(spark, config, options, on_event, started=started)


def run_in(
    spark: SparkSession,
    config: JobConfig,
    options: RunOptions,
    on_event: OnEvent,
    *,
    started: float | None = None,
) -> RunReport:
    """Run a job once in a session that is there already."""
    from headrace.spark.sinks import merge_through
    from headrace.spark.spark_tasks import SparkTasks

    return run_on(SparkTasks(spark), config, options, on_event, started=started, merge=merge_through(spark))


def run_on(
    tasks: StageTasks,
    config: JobConfig,
    options: RunOptions,
    on_event: OnEvent,
    *,
    started: float | None = None,
    merge: SparkMerge | None = None,
) -> RunReport:
    """Run a job once, its tasks wherever `tasks` runs them. `merge` writes large changes of sinks; without it deltalake does."""
    begun = clock.monotonic() if started is None else started
    mode = _mode(config, options)
    plan = checked_plan(config)
    with open_job(
        config,
        options.run_id,
        create=True,
        plan=plan,
        force=options.force_fail_over,
        spark_merge=merge,
        notify=lambda kind, message: on_event(Event(kind, message)),
    ) as job:
        on_event(Event("opened", f"continuing from checkpoint {job.last.checkpoint_id}"))
        this_run = _Run(tasks, job, plan, config, options, on_event, begun, Intake(plan, config))
        try:
            with ended_by_sigterm(this_run.stop):
                reason = this_run.interval() if mode == "interval" else this_run.caught_up()
                if options.end_of_input and not this_run.limit():
                    reason = this_run.end()
                elif options.finish and not this_run.limit():
                    reason = this_run.finish()
            this_run.tell_who_waits()
        finally:
            this_run.clean_up()
    return RunReport(
        job=config.job,
        run_id=options.run_id,
        checkpoints=[checkpoint.checkpoint_id for checkpoint in this_run.committed],
        rows_in=this_run.total("rows_in"),
        rows_out=this_run.total("rows_out"),
        seconds=round(clock.monotonic() - begun, 3),
        stopped_because=reason,
        quarantined=this_run.total("quarantined"),
        waiting=this_run.waiting,
    )


def _mode(config: JobConfig, options: RunOptions) -> str:
    mode = config.mode if options.mode == "auto" else options.mode
    if options.replay and mode != "interval":
        msg = "--replay runs an interval again: it needs --mode interval (in Airflow: the param mode), and its start and end"
        raise ConfigError(msg)
    if options.end_of_input and mode == "interval":
        msg = "--end-of-input takes in all there is: it needs --mode caught-up (in Airflow: the param mode)"
        raise ConfigError(msg)
    return mode


@dataclass(slots=True)
class _Run:
    tasks: StageTasks
    job: OpenJob
    plan: Plan
    config: JobConfig
    options: RunOptions
    on_event: OnEvent
    begun: float
    intake: Intake
    stopping: threading.Event = field(default_factory=threading.Event)
    committed: list[Checkpoint] = field(default_factory=list)
    has_fired_timers: bool = False
    left_before: int | None = None
    """Elements that waited for services before the last micro-batch that was made for them."""

    def total(self, metric: str) -> int:
        return sum(cast("int", checkpoint.metrics.get(metric, 0)) for checkpoint in self.committed)

    def stop(self) -> None:
        """End the run soon: tasks hold what has not begun, and the micro-batch is committed."""
        self.stopping.set()
        with suppress(OSError):  # without the file the run ends after this micro-batch
            touch(self._stop_file(), self.config.storage_options)

    def clean_up(self) -> None:
        """Remove the file that told tasks to stop, if there is one."""
        if self.stopping.is_set():
            remove_file(self._stop_file(), self.config.storage_options)

    def _stop_file(self) -> str:
        return stop_file(self.config.job_folder, self.job.lease.attempt_id)

    def caught_up(self) -> StoppedBecause:
        """Finish what a replay has left, then make micro-batches until the source is drained or a limit is reached."""
        replay = open_replay(self.job.log.checkpoints)
        if replay is not None and (stopped := self._resume(replay)):
            return stopped
        settle_schemas(self.job, self.plan)
        while True:
            if reason := self.limit():
                return reason
            if self.job.last.held and (not self.job.last.pending or self._takes_up()):
                self._batch_without_input()
                continue
            taken = self.intake.next(self._standing(), Wanted(ends=self.options.end_of_input))
            if taken is not None:
                self._batch(taken, taken.interval)
            elif self._takes_up():
                self._batch_without_input()
            elif not self._fire_timers():
                self._tell_what_waits()
                return "drained"

    def _tell_what_waits(self) -> None:
        """Say which rows are ahead of a source that has no more."""
        for rows, source, waits_for in self.intake.waiting:
            self.on_event(
                Event(
                    "ahead",
                    f"{rows:,} rows of '{source}' wait for '{waits_for}' (sources.{waits_for}.idle_after ends that)",
                    {"rows": rows, "source": source, "waits_for": waits_for},
                )
            )

    def _takes_up(self) -> bool:
        """Whether to make a micro-batch for elements that are due in `async_requests`, or for what was held behind them.

        Again only if the last one got on: while a service is down, a run does not wait for it, but leaves that to the next one.
        """
        last = self.job.last
        was_left = last.held and not self.committed  # a run that had to stop may have held it: it is tried once
        if not (was_left or self._is_due()) or (self.left_before is not None and last.pending >= self.left_before):
            return False
        self.left_before = last.pending
        return True

    def _is_due(self) -> bool:
        """Whether an element in `async_requests` is to be called for now."""
        due = self.job.last.due
        return due is not None and due <= clock.now()

    def _fire_timers(self) -> bool:
        """Make a micro-batch without input if timers of processing time are due; whether there was one.

        One in a run: timers that set themselves again would keep it from ever ending.
        """
        if self.has_fired_timers or self.stopping.is_set() or not any_timer_due(self.job, clock.now()):
            return False
        self.has_fired_timers = True
        self.on_event(Event("timers", "timers of processing time are due"))
        self._batch_without_input()
        return True

    def interval(self) -> StoppedBecause:
        """Finish what a replay has left, then take in one interval; one that was taken in before only as a replay."""
        wanted = Interval.of(self.options.interval_start, self.options.interval_end)
        self.intake.check_intervals({})
        if stopped := self._resume_before(wanted):
            return stopped
        checkpoints = self.job.log.checkpoints
        place = place_of(wanted, checkpoints, self.job.lease, replay=self.options.replay)
        if place.restore_to is not None:
            if not self.options.replay:
                raise refusal(wanted, checkpoints, finished_replay=bool(self.committed))
            stopped = self._replay(wanted, place.restore_to)
            return stopped or self._end_of_interval()
        settle_schemas(self.job, self.plan)
        if place.is_done:
            self.on_event(Event("done", f"this run has taken in {wanted} already: going on behind it"))
        elif self.stopping.is_set():
            return "terminated"
        else:
            self._interval(wanted)
        return self._end_of_interval()

    def _resume_before(self, wanted: Interval) -> StoppedBecause | None:
        """Go on with an open replay, unless a new one goes back behind what it has taken in; return what stopped it."""
        checkpoints = self.job.log.checkpoints
        replay = open_replay(checkpoints)
        if replay is None:
            return None
        is_retry = replay.run_id == self.options.run_id and replay.asked == wanted
        if self.options.replay and goes_back(wanted, checkpoints) and not is_retry:
            return None
        stopped = self._resume(replay)
        if stopped in {None, "terminated"} or replay.asked == wanted:
            return stopped
        msg = (
            f"interval {wanted} was not taken in: this run first went on with the replay of interval {replay.asked}, and "
            f"had to end before that was through ({stopped}). What it committed stays. Run the interval again: it goes on."
        )
        raise ReplayUnfinishedError(msg)

    def _resume(self, replay: Replay) -> StoppedBecause | None:
        """Go on with a replay that broke off; return what stopped it before it was through."""
        if not self.intake.has_intervals:
            return None
        self._warn(
            f"the replay of interval {replay.asked} broke off, and state and sinks lack {replay.missing}: going on with it"
        )
        return self._go_through(replay)

    def _replay(self, wanted: Interval, target: int) -> StoppedBecause | None:
        """Go back to a checkpoint and take in from there an interval and all that came later; return what stopped it."""
        before = self._taken_in(target)
        self.intake.check_intervals(before)
        if stopped := self.limit():
            self._warn(f"the replay of interval {wanted} was not begun ({stopped}): nothing was changed")
            return stopped
        self._warn(outage(wanted, self.job.log.checkpoints, target, self.config.sinks))
        if missing := self.intake.count_missing(before, self._taken_in()):
            self._warn(f"{missing:,} file(s) that were there before are gone: what they held does not come back")
        self.on_event(Event("restoring", f"replaying {wanted}: going back to checkpoint {target}"))
        self.committed.append(restore_in(self.job, target, replay_note(wanted)))
        replay = open_replay(self.job.log.checkpoints)
        return None if replay is None else self._go_through(replay)

    def _go_through(self, replay: Replay) -> StoppedBecause | None:
        """Take in what a replay has left, up to where the job stood; return what stopped it before."""
        settle_schemas(self.job, self.plan)
        for step in replay.steps:
            if (taken := self._plan(step)) is not None:
                if stopped := self.limit():
                    left = open_replay(self.job.log.checkpoints) or replay
                    self._warn(
                        f"the replay of interval {replay.asked} had to end before it was through ({stopped}): state and "
                        f"sinks lack {left.missing}. The next run goes on with it."
                    )
                    return stopped
                self._batch(taken, taken.interval)
        self.on_event(Event("replayed", f"the replay of interval {replay.asked} has come to where the job stood"))
        if self.job.last.held:
            self._warn("records of the replay are held: state and sinks are whole when they have gone through")
        return None

    def _plan(self, step: Step) -> Slice | None:
        return self.intake.next(self._standing(), Wanted(step.interval, step.offsets))

    def _interval(self, interval: Interval) -> None:
        taken = self._plan(Step(interval))
        assert taken is not None  # noqa: S101 - an interval always gives a slice, if an empty one
        self._batch(taken, taken.interval)

    def _end_of_interval(self) -> StoppedBecause:
        """Take up what waits and fire what is due behind an interval."""
        while not self.limit() and self._takes_up():
            self._batch_without_input()
        if self.job.last.held and (not self.waiting or self._is_due()):
            return "terminated" if self.stopping.is_set() else "budget"
        self._fire_timers()
        return "interval"

    def finish(self) -> StoppedBecause:
        """Micro-batches without input until nothing waits for services: FLIP-232's end of input, though more may come later.

        Each calls for the last time for what earlier ones have left. An element that comes to another wait by that is new
        there, with all its retries, so one micro-batch may not be enough; but none leaves what it found.
        """
        while self.waiting or self.job.last.held:
            if reason := self.limit():
                return reason
            self.on_event(
                Event("finishing", f"{self.waiting:,} elements wait for services: they are called for once more")
            )
            self._batch_without_input(finishes=True)
        return "finished"

    def end(self) -> StoppedBecause:
        """Declare the end of the input: nothing waits any more, and the watermark passes all timers of event time."""
        stopped = self.finish()
        if stopped != "finished":
            return stopped
        if not all(offset.ended for offset in self.job.last.offsets.values()) or not self.job.last.offsets:
            self.on_event(Event("ending", "the end of the input: the watermark passes all timers of event time"))
            taken = end_of_input(self.plan, self.job.last.offsets)
            self._batch(taken, self._last_interval())
            stopped = self.finish()
        return "ended" if stopped == "finished" else stopped

    @property
    def waiting(self) -> int:
        """Elements that wait for services, or for those that do."""
        return self.job.last.pending

    def _batch_without_input(self, *, finishes: bool = False) -> None:
        """A micro-batch for what is waiting already: held records, and timers."""
        self._batch(NO_INPUT, self._last_interval(), finishes=finishes)

    def _last_interval(self) -> Interval | None:
        start, end = self.job.last.interval_start, self.job.last.interval_end
        return None if start is None or end is None else Interval(start, end)

    def limit(self) -> StoppedBecause | None:
        """Why no further micro-batch may begin; None if one may."""
        if self.stopping.is_set():
            return "terminated"
        batches = self.options.max_batches
        made = sum(checkpoint.kind is Kind.BATCH for checkpoint in self.committed)
        if batches is not None and made >= batches:
            return "max_batches"
        return "budget" if self._seconds_left() <= 0 else None

    def _seconds_left(self) -> float:
        configured = self.config.run.budget.total_seconds()
        budget = configured if self.options.budget is None else self.options.budget
        return budget - (clock.monotonic() - self.begun)

    def _stop_at(self) -> int:
        # The stop file of a micro-batch before this one is gone with that.
        return 0 if self.stopping.is_set() else clock.now() + round(self._seconds_left() * 1000)

    def _standing(self) -> Standing:
        """Return where the job stands, for the plan of the next slice."""
        last = self.job.last
        return Standing(
            offsets=last.offsets,
            taken_in=self._taken_in(),
            now=clock.now(),
            since=self.job.log.checkpoints[0].committed_at,
            transit=transit_folder(self.config.job_folder, self.job.lease.attempt_id),
        )

    def _taken_in(self, at: int | None = None) -> dict[str, TakenIn]:
        """Return what the job has taken in of each source by a checkpoint, the last one unless given."""
        trail = line(self.job.log.checkpoints, at)
        return {source.name: TakenIn.by(trail, source.name) for source in self.plan.sources}

    def _batch(self, taken: Slice, interval: Interval | None, *, finishes: bool = False) -> None:
        started = clock.monotonic()
        batch = MicroBatch(
            self.tasks,
            self.job,
            self.plan,
            parallelism=self._parallelism(),
            backend=self.options.backend or self.config.state.backend,
            async_state=self.options.async_state,
            stop_at=self._stop_at(),
            finishes=finishes,
        )
        last_files = ", ".join(taken.last_files.values())
        last = f" up to {last_files}" if last_files else ""
        self.on_event(
            Event("batch", f"micro-batch {self.job.next_id}: {taken.rows:,} rows{last}", {"rows": taken.rows})
        )
        self._tell_of_ttl(batch)
        result = batch.run(taken)
        faults.reached("run.after")
        result.seconds["run"] = clock.monotonic() - started
        checkpoint = self.job.commit(
            Kind.BATCH,
            files=result.files,
            outputs=result.outputs,
            offsets=self._offsets(taken, result),
            numbers=self.plan.numbers(),
            watermark=result.watermark,
            lines=self.plan.lines(),
            local_copies=result.local_copies,
            timers_fired={**self.job.last.timers_fired, **result.timers_fired},
            state_ttl=batch.state_ttl,
            interval_start=interval.start if interval else None,
            interval_end=interval.end if interval else None,
            metrics={**metrics_of(result.metrics, result.seconds), **result.of_services()},
        )
        self.committed.append(checkpoint)
        self._clean_up(checkpoint)
        self._warn_of_long_histories(result.metrics["long_histories"])
        seconds = clock.monotonic() - started
        self.on_event(
            Event(
                "committed",
                f"checkpoint {checkpoint.checkpoint_id}: {taken.rows:,} rows in {seconds:.1f} s",
                {"checkpoint_id": checkpoint.checkpoint_id, "rows": taken.rows, "seconds": seconds},
            )
        )

    def _offsets(self, taken: Slice, result: BatchResult) -> dict[str, SourceOffset]:
        """Return the offsets behind a micro-batch. Each source says what holds of its line, and of the whole job."""
        held = result.held > 0 or any(line.repeated for line in result.lines.values())
        lines = {name: line for names, line in result.lines.items() for name in names}
        offsets: dict[str, SourceOffset] = {}
        for name, before in {**self.job.last.offsets, **taken.offsets}.items():
            moved = taken.offsets.get(name)
            offset = msgspec.structs.replace(
                before,
                held=held,
                repeated=(),
                pending=result.pending,
                due=result.due,
                names=None if moved is None else moved.names,
                idle=before.idle if moved is not None else False,
            )
            if (own := lines.get(name)) is not None:
                offset = msgspec.structs.replace(
                    offset, bucket=own.bucket, repeated=own.repeated, watermark=own.watermark, seen=own.seen
                )
            offsets[name] = offset
        return offsets

    def tell_who_waits(self) -> None:
        """Say at the end of a run what it leaves to the next one."""
        pending, due = self.waiting, self.job.last.due
        if pending:
            when = "" if due is None else f", the next attempt is due in {max(0, due - clock.now()) / 1000:.0f} s"
            message = f"{pending:,} elements wait for services{when} (headrace retries {self.config.job})"
            self.on_event(Event("waiting", message, {"pending": pending, "due": due}))

    def _tell_of_ttl(self, batch: MicroBatch) -> None:
        """Say what was found that lives of state depend on."""
        before = self.job.last.state_ttl
        for gap in batch.state_ttl.gaps[len(before.gaps) :]:
            self.on_event(Event("gap", _told_of_gap(gap)))
        for name in sorted(before.declared):
            was, now = before.declared[name], batch.state_ttl.declared.get(name)
            if now is not None and was != now:
                self.on_event(Event("ttl", f"TTL of {name}: {was} until now, from now on {now}"))

    def _warn(self, message: str) -> None:
        self.on_event(Event("warning", message))

    def _warn_of_long_histories(self, keys: int) -> None:
        if keys:
            text = f"{keys:,} keys in this micro-batch have histories of {LONG_HISTORY:,} rows or more; see "
            self.on_event(Event("warning", f"{text}'headrace history {self.config.job} --largest'", {"keys": keys}))

    def _parallelism(self) -> int:
        wanted = self.options.parallelism or self.config.tasks
        return min(wanted, self.config.max_parallelism)

    def _clean_up(self, checkpoint: Checkpoint) -> None:
        """Remove what only this micro-batch needed: published outputs, and rows between stages."""
        folder, storage = self.config.job_folder, self.config.storage_options
        remove_folder(transit_folder(folder, checkpoint.attempt_id), storage)
        for files in checkpoint.outputs.values():
            for file in files:
                if file.path.startswith(f"{OUTPUTS}/"):
                    remove_file(f"{folder}/{file.path}", storage)


def _told_of_gap(gap: Gap) -> str:
    start, end = gap.of_event_time
    pause, left = (timedelta(seconds=max(0, span) // 1000) for span in (gap.end - gap.start, end - start))
    text = f"the job was paused for {pause}: states that say so live longer by that"
    if left == pause:
        return text
    return f"{text}, and by {left} where they expire by the watermark, which had run ahead of the clock"
