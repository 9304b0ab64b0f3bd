"""Sequence of a run's micro-batches: make and commit one after the other, within limits of time and number, until a signal."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from headrace import clock, crash_points, logs
from headrace.commit.protocol import OpenJob
from headrace.commit.verify import refuse_damaged_state
from headrace.config import JobConfig
from headrace.edits.requeue import requeue_again
from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import NO_ROW_TIMES
from headrace.log.intervals import acknowledged_since_fork, commit_times_of, generations_of, taken_in
from headrace.plan.stages import Plan
from headrace.run.due_timers import any_timer_due
from headrace.run.events import RunEvents
from headrace.run.followed import FollowedLineage
from headrace.run.micro_batch import MicroBatch
from headrace.run.options import RunOptions, StoppedBecause
from headrace.run.output import transit_folder
from headrace.run.services import LiveResponses
from headrace.run.tasks import StageTasks
from headrace.run.trace import NO_TRACE, Trace
from headrace.run.watch import NO_WATCH, Watch, stop_file
from headrace.sinks.sink import OUTPUTS
from headrace.sources.intake import Intake, end_of_input
from headrace.sources.interval import Interval
from headrace.sources.position import SourceFacts, TakenFile
from headrace.sources.slices import NO_INPUT, JobPosition, Slice
from headrace.sources.source import TakenIn
from headrace.tables.folder import JobFolder


@dataclass(slots=True)
class BatchSequence:
    """Micro-batches of a run that began at `begun` (s, monotonic). `committed` has their checkpoints.

    On a branch, `responses` are those of the live lineage.
    """

    tasks: StageTasks
    job: OpenJob
    plan: Plan
    config: JobConfig
    options: RunOptions
    events: RunEvents
    begun: float
    followed: FollowedLineage
    watch: Watch = NO_WATCH
    responses: LiveResponses | None = None
    trace: Trace = NO_TRACE
    stopping: threading.Event = field(default_factory=threading.Event)
    committed: list[Checkpoint] = field(default_factory=list)
    touched: dict[str, Sequence[TakenFile]] = field(default_factory=dict)
    """New records of files that were touched since the job took them in, by source: the next checkpoint gets them."""

    def total(self, metric: str) -> int:
        """Return the sum of a metric over all checkpoints of the run."""
        return sum(checkpoint.metrics.get(metric, 0) for checkpoint in self.committed)

    def stop(self) -> None:
        """End the run soon: tasks hold elements not begun yet, and the micro-batch is committed."""
        self.stopping.set()
        with suppress(StorageError):  # without the file, tasks finish their micro-batch
            JobFolder.of(self.config).write(self._stop_file(), b"")

    def clean_up(self) -> None:
        """Remove the file that told tasks to stop, if there is one."""
        if self.stopping.is_set():
            with self._warned("the file that told tasks to stop"):
                JobFolder.of(self.config).remove_file(self._stop_file())

    def _stop_file(self) -> str:
        return stop_file(self.job.attempt_id)

    def limit(self) -> StoppedBecause | None:
        """Return the reason why no further micro-batch may begin; None if one may."""
        if self.stopping.is_set():
            return "terminated"
        batches = self.options.max_batches
        made_batches = sum(checkpoint.kind is Kind.BATCH for checkpoint in self.committed)
        if batches is not None and made_batches >= batches:
            return "max_batches"
        return "budget" if self.seconds_left() <= 0 else None

    def seconds_left(self) -> float:
        """Return how long the run may still last (s)."""
        configured = self.config.run.budget.total_seconds()
        budget = configured if self.options.budget is None else self.options.budget
        return budget - (clock.monotonic() - self.begun)

    def stop_at(self) -> int:
        """Return when the tasks of a micro-batch that begins now have to stop (ms)."""
        # The stop file of an earlier micro-batch was removed with it.
        return 0 if self.stopping.is_set() else clock.now() + round(self.seconds_left() * 1000)

    def position(self, follows: Checkpoint | None = None) -> JobPosition:
        """Return the job's position, to plan the next slice: its own position, or on a branch a position that `follows` a checkpoint of the job."""
        last = self.job.last
        return JobPosition(
            sources=last.sources,
            timelines=last.timelines,
            taken_in=self.taken_in(),
            now=self._began(follows),
            since=self.job.checkpoints[0].committed_at,
            transit=JobFolder.of(self.config).below(transit_folder(self.job.attempt_id)),
        )

    def _began(self, follows: Checkpoint | None) -> int:
        """Return the processing time of a micro-batch that begins now (ms): the time of the one that it `follows`, if it follows one."""
        return self.followed.now() if follows is None else self.followed.began(follows)

    def taken_in(self) -> dict[str, TakenIn]:
        """Return the files that the job has taken in of each source.

        On a branch, also what its job has recorded: generations, commit times, and acknowledgements since the fork.
        """
        lineage, job = self.job.lineage.checkpoints, self.followed.live
        known = [*self.job.checkpoints, *([] if job is None else job.checkpoints)]
        names = [source.name for source in self.plan.sources]
        return {
            name: replace(
                taken_in(lineage, name).with_acknowledged(self._acknowledged(name)),
                generations=generations_of(known, name),
                commit_times=commit_times_of(known, name),
            )
            for name in names
        }

    def last_interval(self) -> Interval | None:
        """Return the interval of the last checkpoint; None if it has none."""
        return self.job.last.interval

    def make_without_input(self, *, finishes: bool = False, follows: Checkpoint | None = None) -> None:
        """Make a micro-batch without new input, for waiting elements, held records and timers."""
        self.make(NO_INPUT, self.last_interval(), finishes=finishes, follows=follows)

    def make_requeued(self, intake: Intake) -> None:
        """Make a micro-batch of requeued rows if there are any. Raises the errors of `Intake.requeued`.

        On a branch, it gets the time of the job's next micro-batch if that took in no new input either.
        """
        live = self.followed.next()
        follows = None if live is None or self.followed.takes_input() else live
        taken = intake.requeued(self.position(follows))
        if taken is not None:
            self.events.requeued(taken)
            self.make(taken, self.last_interval(), follows=follows)

    def repeat(self, requeue: Checkpoint) -> None:
        """Repeat, on a branch, a requeue of the job."""
        self.events.repeats_requeue(requeue.checkpoint_id)
        self.committed.append(requeue_again(self.job, self.plan, requeue))

    def fire_timers(self, follows: Checkpoint | None = None) -> None:
        """Make a micro-batch if timers of processing time are due; on a branch, at the time of the one that it `follows`."""
        if not any_timer_due(self.job, self._began(follows)):
            return
        if follows is None:
            self.events.timers_due()
        self.make_without_input(follows=follows)

    def end_input(self) -> None:
        """Make the micro-batch that declares the end of the input."""
        self.events.ending()
        last = self.job.last
        self.make(end_of_input(self.plan, last.sources, last.timelines), self.last_interval())

    def make(
        self, taken: Slice, interval: Interval | None, *, finishes: bool = False, follows: Checkpoint | None = None
    ) -> None:
        """Make a micro-batch of a slice and commit it. With `finishes`, services are called for the last time.

        The time of the slice is that of the micro-batch. On a branch, `follows` is a micro-batch of the job: the new one gets its time.
        """
        with self.trace.span("micro-batch", checkpoint=self.job.next_id, rows=taken.rows) as span:
            checkpoint = self._made(taken, interval, finishes=finishes, follows=follows)
            span.set(watermark=checkpoint.watermark)

    def _made(
        self, taken: Slice, interval: Interval | None, *, finishes: bool, follows: Checkpoint | None
    ) -> Checkpoint:
        if not self.committed:
            refuse_damaged_state(self.config, self.job.versions)
        self.tasks.start()
        logs.move(checkpoint=self.job.next_id)
        started = clock.monotonic()
        processing_time = self._began(follows) if taken.began_at is None else taken.began_at
        if behind := self.followed.clock_behind():
            self.events.clock_behind(behind)
        ended_at = self.followed.ended(follows)
        batch = MicroBatch(
            self.tasks,
            self.job,
            self.plan,
            parallelism=self._parallelism(),
            backend=self.options.backend or self.config.state.backend,
            processing_time=processing_time,
            async_state=self.options.async_state,
            stop_at=self.stop_at(),
            finishes=finishes,
            watch=self.watch,
            trace=self.trace,
            responses=self.responses,
        )
        self.events.batch(self.job.next_id, taken)
        self.events.ttl(self.job.last.state_ttl, batch.state_ttl)
        result = batch.run(taken)
        crash_points.reached("run.after")
        result.seconds["run"] = clock.monotonic() - started
        with self.trace.span("stage", stage="commit"):
            checkpoint = self.job.commit(
                Kind.BATCH,
                files=result.files,
                outputs=result.outputs,
                sources=self._with_touched(result.sources_after(self.job.last.sources, taken)),
                timelines=result.timelines_after(self.job.last.timelines),
                work=result.work,
                operators=batch.operators_after(result),
                edges=self.plan.edges(),
                pauses=batch.state_ttl.gaps,
                declared=self.job.last.declared.with_ttls(batch.state_ttl.declared),
                watermark=result.watermark,
                interval_start=interval.start if interval else None,
                interval_end=interval.end if interval else None,
                processing_time=processing_time,
                ended_at=ended_at,
                follows=None if follows is None else follows.checkpoint_id,
                metrics=dict(sorted(result.metrics.items())),
                seconds={phase: round(seconds, 3) for phase, seconds in result.seconds.items()},
                services={name: metrics.summary() for name, metrics in result.services.items()},
                row_times={name: counts for name, counts in result.row_times.items() if counts != NO_ROW_TIMES},
                watermark_steps=tuple(batch.open_steps(result)),
            )
        self.committed.append(checkpoint)
        self.trace.committed(checkpoint)
        self.touched.clear()
        self._remove_handed_on(checkpoint)
        self.events.long_histories(result.metrics["long_histories"])
        self.events.committed(checkpoint.checkpoint_id, taken.rows, clock.monotonic() - started)
        return checkpoint

    def _with_touched(self, facts: Mapping[str, SourceFacts]) -> dict[str, SourceFacts]:
        """Return facts of sources with the records of touched files that the job has taken in, and on a branch of acknowledged ones."""
        if not any(self.touched.values()) and self.followed.live is None:
            return dict(facts)
        taken = self.taken_in()
        return {
            name: own.with_records(self._touched_among(name, taken.get(name, TakenIn()))) for name, own in facts.items()
        }

    def _touched_among(self, source: str, taken: TakenIn) -> list[TakenFile]:
        touched = [record for record in self.touched.get(source, ()) if record.name in (taken.names or ())]
        return [*touched, *self._acknowledged(source)]

    def _acknowledged(self, source: str) -> Sequence[TakenFile]:
        """Return, on a branch, the records of its job's acknowledgements that it has to make."""
        job = self.followed.live
        lineage = self.job.lineage.checkpoints
        return () if job is None else acknowledged_since_fork(job.lineage.checkpoints, lineage, source)

    def _parallelism(self) -> int:
        wanted = self.options.parallelism or self.config.tasks
        return min(wanted, self.config.max_parallelism)

    def _remove_handed_on(self, checkpoint: Checkpoint) -> None:
        """Remove files that only this micro-batch needed: published outputs, and rows between stages."""
        folder = JobFolder.of(self.config)
        with self._warned(f"files that only the micro-batch of checkpoint {checkpoint.checkpoint_id} needed"):
            folder.remove_folder(transit_folder(checkpoint.attempt_id))
            for files in checkpoint.outputs.values():
                for file in files:
                    if file.path.startswith(f"{OUTPUTS}/"):
                        folder.remove_file(file.path)

    @contextmanager
    def _warned(self, what: str) -> Iterator[None]:
        """Warn if the block cannot remove files. The commit counts all the same, and nothing reads these files again."""
        try:
            yield
        except StorageError as error:
            self.events.not_removed(what, self.config.job_folder, error)
