"""Run of a job, on Spark or in local processes.

Handling of SIGTERM: end a run in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final

from headrace import clock
from headrace.commit.branch_code import check_forked, record_run, refuse_effects
from headrace.commit.input_report import input_warnings, refuse_changed_files, touched_input
from headrace.commit.protocol import open_job
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint
from headrace.log.warnings import row_time_warnings, row_times_of, watermark_waits
from headrace.run.batch_sequence import BatchSequence
from headrace.run.branch_replay import BranchReplay
from headrace.run.caught_up_run import CaughtUpRun
from headrace.run.events import OnEvent, RunEvents, sink_reports
from headrace.run.followed import FollowedLine
from headrace.run.interval_run import IntervalRun
from headrace.run.options import RunOptions, RunReport
from headrace.run.remaining_work import RemainingWork
from headrace.run.services import live_answers
from headrace.run.tasks import StageTasks
from headrace.run.unanswered_calls import UnansweredCalls
from headrace.run.watch import NO_WATCH, watched
from headrace.sinks.sink import NO_WRITERS, SparkWriters
from headrace.sources.intake import Intake
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


_KINDS: Final[Mapping[str, type[CaughtUpRun | IntervalRun | BranchReplay]]] = {
    "caught_up": CaughtUpRun,
    "interval": IntervalRun,
    "backfill": BranchReplay,
}


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
) -> RunReport:
    """Run a job once. `tasks` runs its tasks; `writers` has the writers of sinks that need Spark.

    Sources of the format kafka read `topics`, by name of the source. `steps` run Spark's steps over sources; without them, the files
    of such a source must have rows of the step's result. With `shows_progress`, sends events within micro-batches.
    """
    begun = clock.monotonic() if started is None else started
    events = RunEvents(config.job, on_event)
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
        record_run(config, options.run_id)
        refuse_changed_files(config, job.lineage.line)
        events.opened(job.last)
        followed = FollowedLine(config, job, [source.name for source in plan.sources])
        answers = live_answers(config, allow_effects=options.allow_effects)
        batches = BatchSequence(tasks, job, plan, config, options, events, begun, followed, watch, answers)
        batches.touched = touched_input(config, job.lineage.line)
        intake = Intake(plan, config, topics=topics, steps=steps)
        remaining = RemainingWork(batches)
        this_run, calls = _KINDS[mode](batches, intake, remaining), UnansweredCalls(batches)
        try:
            with ended_by_sigterm(batches.stop):
                reason = this_run.run()
                if options.end_of_input and not batches.limit():
                    reason = remaining.end()
                elif options.finish and not batches.limit():
                    reason = remaining.finish()
            calls.refuse(reason)
            events.answers_taken(batches.total("answers_taken"))
            events.waiting(remaining.waiting, job.last.work.due)
            waits = watermark_waits(job.lineage, job.last, job.view)
            events.watermark_waits(waits)
            row_times = row_times_of([*job.unreported, *batches.committed])
            for warning in row_time_warnings(config.job, row_times):
                events.degrade(warning)
        finally:
            batches.clean_up()
        for warning in input_warnings(config, job.lineage.line):
            events.degrade(warning)
        last, sinks = job.last, sink_reports(job)
        interval = _interval_of(options, mode, last)
    return RunReport(
        job=config.job,
        run_id=options.run_id,
        checkpoints=[checkpoint.checkpoint_id for checkpoint in batches.committed],
        rows_in=batches.total("rows_in"),
        rows_out=batches.total("rows_out"),
        seconds=round(clock.monotonic() - begun, 3),
        stopped_because=reason,
        quarantined=batches.total("quarantined"),
        answers_taken=batches.total("answers_taken"),
        waiting=remaining.waiting,
        checkpoint=last.checkpoint_id,
        watermark=last.watermark,
        interval_start=interval[0],
        interval_end=interval[1],
        sinks=sinks,
        row_times=row_times,
        watermark_waits=tuple(waits),
        warnings=tuple(events.warnings),
    )


def _interval_of(options: RunOptions, mode: str, last: Checkpoint) -> tuple[int | None, int | None]:
    """Return the interval of a report: the one that the run was for, else the one that the job has taken in last."""
    if mode == "interval":
        return options.interval_start, options.interval_end
    return last.interval_start, last.interval_end


def _mode(config: JobConfig, options: RunOptions) -> str:
    mode = (config.mode if options.mode == "auto" else options.mode).replace("-", "_")  # as the command spells it
    if options.end_of_input and mode == "interval":
        msg = "--end-of-input takes in all there is: it needs --mode caught-up (in Airflow: the param mode)"
        raise ConfigError(msg)
    return mode
