"""`headrace run`: its options, its progress on stderr, and its report.

Output of `headrace run` on stderr while it works: events and a progress bar on a terminal, else lines for a log.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, cast

import typer

from headrace import clock, logs
from headrace.cli.arguments import REPORT_FILE, Branch, Cluster, Job, check_word, load, new_run_id, parsed_milliseconds
from headrace.cli.backfill_result import Ended, followed
from headrace.cli.branch import OtherPipeline, OtherSource, Setting, with_options
from headrace.cli.lineage_events import datasets_of_run, with_events
from headrace.cli.run_steps import RunSteps
from headrace.errors import ConfigError, HeadraceError
from headrace.report import Block, Fact, Report, Time, facts

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.config import JobConfig
    from headrace.log.facts import RowTimes
    from headrace.run.backfill import RunBranch
    from headrace.run.events import OnEvent
    from headrace.run.options import Event, RunOptions, RunReport
    from headrace.telemetry.exported import RunJob


# Typer reads these at run time, and does not support `str | None` in an alias.
Mode = Annotated[str, typer.Option(metavar="auto|caught-up|interval", help="Take in all input, or one interval.")]
IntervalStart = Annotated[Optional[str], typer.Option(metavar="TIME", help="ISO 8601, inclusive.")]  # noqa: UP045
IntervalEnd = Annotated[Optional[str], typer.Option(metavar="TIME", help="ISO 8601, exclusive.")]  # noqa: UP045
Replay = Annotated[bool, typer.Option("--replay", hidden=True)]  # refused: `headrace backfill` does what it did
Recompute = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="TIME", help="Somebody asked at TIME to compute the interval again (ISO 8601)."),
]
Fill = Annotated[bool, typer.Option("--fill", help="Take in missing intervals first, from where the job stands.")]
RunId = Annotated[
    Optional[str], typer.Option(metavar="ID", help="Id of the run in checkpoints; a new one if left out.")  # noqa: UP045
]
Budget = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="30m", help="After this time, leave the rest to the next run."),
]
MaxBatches = Annotated[Optional[int], typer.Option(metavar="N", min=1, help="End after this many micro-batches.")]  # noqa: UP045
Finish = Annotated[bool, typer.Option("--finish", help="At the end, call services once more for all waiting elements.")]
EndOfInput = Annotated[
    bool,
    typer.Option("--end-of-input", help="At the end, declare that no more input comes: the last windows close."),
]
Lineage = Annotated[
    bool,
    typer.Option("--lineage", help="Put OpenLineage's datasets into the report, for a scheduler that sends events."),
]
Runner = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="spark|local", help="Where tasks run; local starts no JVM. By default as the cluster profile says."
    ),
]
Parallelism = Annotated[Optional[int], typer.Option(metavar="N", min=1, help="Tasks per operator.")]  # noqa: UP045
Backend = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="rocksdb|hashmap|delta", help="State backend."),
]
AsyncState = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option("--async/--sync", help="Let state accesses overlap, or not. Results are the same."),
]
WithoutSpark = Annotated[
    bool,
    typer.Option("--without-spark", help="End with exit code 14, before anything is taken in, if the run needs Spark."),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="First do what 'headrace check --no-sample' does; what it finds is in the report."),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Afterwards do what 'headrace verify' does, and see whether the compaction is due."),
]
NoFollow = Annotated[
    bool, typer.Option("--no-follow", help="Leave pending corrections to others, whatever replay.follow says.")
]
ForceFailOver = Annotated[bool, typer.Option("--force-fail-over", help="Take the job from a run that still holds it.")]
AllowEffects = Annotated[
    bool, typer.Option("--allow-effects", help="On a branch: also call services whose calls have effects outside.")
]


def budget_seconds(text: str | None) -> float | None:
    """Return --budget in seconds. Raises `ConfigError` for a text that is not a duration."""
    from headrace.config import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        msg = f"--budget: {error}"
        raise ConfigError(msg) from error


def run_function(
    config: JobConfig, runner: str | None, *, without_spark: bool = False
) -> Callable[[JobConfig, RunOptions, OnEvent], RunReport]:
    """Return the function that runs a job, by --runner, else by the cluster profile. Raises `ConfigError` for an unknown runner.

    The function raises `SparkNeededError` where a run `without_spark` needs Spark.
    """
    from headrace import local, spark

    check_word("--runner", runner, ("spark", "local"))
    if (runner or config.profile.runner) == "local":
        return _exported(local.run)
    return _exported(partial(spark.run, may_start=False) if without_spark else spark.run)


def _exported(run_job: RunJob) -> Callable[[JobConfig, RunOptions, OnEvent], RunReport]:
    """Return the function with the export of traces and metrics, if the environment asks for it."""
    from headrace.telemetry.settings import wanted

    if not (signals := wanted(os.environ)):
        return run_job
    from headrace.telemetry.exported import Exported

    return Exported(run_job, signals)


_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def shown_events() -> Iterator[Callable[[Event], None]]:
    """Yield the function that shows the events of a run, for the length of the block."""
    if logs.in_json() or not sys.stderr.isatty():
        yield EventLog()
        return
    from rich.console import Console

    with shown_on(Console(stderr=True, highlight=False)) as on_event:
        yield on_event


@contextmanager
def running(config: JobConfig, runner: str | None) -> Iterator[RunBranch]:
    """Yield the function that runs a branch of a job, and shows the events of its runs."""
    run_job = run_function(config, runner)
    with shown_events() as on_event:
        yield lambda branch, wishes: run_job(branch, wishes, on_event)


class EventLog:
    """Log of each event, and once a minute of the progress within a micro-batch."""

    def __init__(self) -> None:
        self._next = clock.monotonic() + _SECONDS_BETWEEN_LINES

    def __call__(self, event: Event) -> None:
        """Log an event. Skip progress within a minute after the last."""
        if event.kind == "progress":
            now = clock.monotonic()
            if now < self._next:
                return
            self._next = now + _SECONDS_BETWEEN_LINES
        level = logging.WARNING if event.kind == "warning" else logging.INFO
        text = f"{_now()} {event.kind}: {event.message}"
        logs.write(_log, event.message, level=level, kind=event.kind, text=text, fields=event.fields)


@contextmanager
def shown_on(console: Console) -> Iterator[Callable[[Event], None]]:
    """Show events on a terminal, above a progress bar for the micro-batch."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def on_event(event: Event) -> None:
            if event.kind == "batch":
                bar.update(task, description=event.message, completed=0, total=None)
            elif event.kind == "progress":
                bar.update(
                    task, description=event.message, completed=event.fields["rows"], total=event.fields["of"] or None
                )
            else:
                console.print(f"{_now()}  {event.message}", markup=False)

        yield on_event


def _now() -> str:
    return str(Time(clock.now() // 1000 * 1000))


_TIMES = ("watermark", "interval_start", "interval_end")


def plain_report(report: RunReport) -> dict[str, Any]:
    """Return the report as plain values, with its times as timestamps in UTC."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(report)
    pending = report.pending
    days = None if pending is None else {"from": Time(pending.start).utc, "to": Time(pending.end).utc}
    intervals = [[Time(start).utc, Time(end).utc] for start, end in report.intervals]
    return {**plain, **{name: Time(plain[name]).utc for name in _TIMES}, "intervals": intervals, "pending": days}


_MODES = ("auto", "caught-up", "interval")
_NO_REPLAY = (
    "--replay is no option any more: 'headrace backfill JOB --from START --to END' takes an interval in again, with all later ones, on a "
    "branch, while the live tables stay as they are. Nothing was run."
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    ctx: typer.Context,
    job: Job = None,
    *,
    cluster: Cluster = None,
    runner: Runner = None,
    without_spark: WithoutSpark = False,
    mode: Mode = "auto",
    interval_start: IntervalStart = None,
    interval_end: IntervalEnd = None,
    replay: Replay = False,
    recompute: Recompute = None,
    fill: Fill = False,
    run_id: RunId = None,
    budget: Budget = None,
    max_batches: MaxBatches = None,
    finish: Finish = False,
    end_of_input: EndOfInput = False,
    parallelism: Parallelism = None,
    backend: Backend = None,
    async_state: AsyncState = None,
    force_fail_over: ForceFailOver = False,
    no_follow: NoFollow = False,
    check: Check = False,
    verify: Verify = False,
    pipeline: OtherPipeline = None,
    source: OtherSource = None,
    allow_effects: AllowEffects = False,
    setting: Setting = None,
    branch: Branch = None,
    lineage: Lineage = False,
) -> Report:
    """Take in new input, update state and sinks.

    You may kill it at any point: run it again, and it continues from the last checkpoint. When its
    budget is used up, or on SIGTERM, it leaves records not begun yet to the next run, and commits. Where there is nothing to do, it ends
    without starting Spark; only a driver with 'deploy_mode: cluster' starts it at once.

    An interval that was taken in already is done if its input is the same: the run changes nothing. If a file of it has changed, came
    late or is gone, the run refuses it: 'headrace backfill' computes it again on a branch. A scheduler whose user asked to compute
    an interval again says so with --recompute TIME, the time of that request: only what was committed later counts as done.

    An interval that would leave a gap is refused. With --fill, or run.gaps: fill in the job's file, the run takes in what is missing
    first, in intervals as long as the one it is for, each in a checkpoint of its own, and then that one.

    A job that reads another one's table passes over its promotions, and names the days that these have corrected. With replay.follow:
    automatic in its file, it then computes them again as 'headrace backfill --pending' does, unless --no-follow is given.

    With --finish nothing waits for a service afterwards: after the input is taken in, services are called once more
    for each waiting element, due or not. Elements that fail then are handled as 'on_failure' says.
    Do it before record types change in ways that do not fit, or before you shut a job down.

    With --end-of-input no source waits for another one any more, and the watermark moves to the last event, and then to the
    end of time: windows close, timers of event time fire, and those that fire at the end cannot set others. It includes
    --finish. Later runs refuse more input, until a restore.

    With --branch NAME it takes in input after the branch's fork, and writes only to the branch; see 'headrace branch create'.
    Only there, --pipeline, --source and --set give other code, input and settings than the job's file. Later runs and readers
    of the branch use them, until a run gives others. A branch refuses to call services that the job's file marks with
    'effects', unless --allow-effects is given.

    With --runner local no JVM starts: for small slices, tests and a laptop. Results are the same. It refuses jobs that need
    Spark (Kafka, .spark(), .sql()).

    With --without-spark a run that has nothing to do ends as always, and one that needs Spark ends with exit code 14 before it takes
    anything in. A scheduler asks in this way whether a JVM has to start.

    With --check and --verify the run does in its own process what 'headrace check --no-sample' does before it, and 'headrace verify'
    after it. Both are steps of the report, with their seconds. A run goes on where the check fails, and refuses what it cannot work with.
    A failed verification ends with exit code 1; what the run has committed stays.

    With --lineage the report has the job's sources and sinks as datasets of OpenLineage, for a scheduler that sends the events of
    the run itself. Without, the run sends them, if OPENLINEAGE_URL or another variable of OpenLineage says where to.

    --report FILE writes the output of --json, or {"error", "message", "exit_code"}, to FILE, wherever stdout goes. An error in
    FILE is not shown on stderr as well.

    Example:  headrace run flights --max-batches 1

    Exit codes: 0 done, out of budget or told to stop; 1 --verify found a fault; 2 configuration; 3 another run holds the job; 4 a
    service is down; 5 user code raised; 6 stored state does not fit; 7 bad input; 8 storage; 9 an interval
    would leave a gap, or was taken in and its input has changed; 10 job and sink disagree; 12 rows conflict
    over a primary key; 13 Spark or a worker process died, or Spark did not start: run again; 14 --without-spark was given, and the run needs Spark.
    """
    if replay:
        raise ConfigError(_NO_REPLAY)
    config, options = _wishes(
        job,
        cluster,
        branch,
        run_id=run_id or new_run_id(),
        mode=_mode(mode),
        **interval_options(interval_start, interval_end),
        recompute=parsed_milliseconds(recompute) if recompute else None,
        fill=fill,
        budget=budget_seconds(budget),
        max_batches=max_batches,
        finish=finish,
        end_of_input=end_of_input,
        parallelism=parallelism,
        backend=_backend(backend),
        async_state=async_state,
        force_fail_over=force_fail_over,
        allow_effects=allow_effects,
    )
    config = with_options(config, pipeline, source, setting)
    if ctx.meta.get(REPORT_FILE) is None:  # a scheduler gives the interval of each of its runs
        _note_unused_interval(config, options)
    steps = RunSteps(config)
    try:
        if check:
            steps.check()
        run_job = partial(_run, config, options, runner, without_spark=without_spark)
        report = steps.run(lambda: with_events(config, options, run_job, is_reported=lineage))
        failed = steps.verify() if verify else None
    except HeadraceError:  # the lag of a job whose runs fail grows, too
        steps.tell(is_scheduled=False)
        raise
    # Airflow gets no report of a run whose verification failed.
    steps.tell(is_scheduled=failed is None and ctx.meta.get(REPORT_FILE) is not None)
    content, blocks = plain_report(report), [*_blocks(report, options)]
    content |= {"steps": steps.taken, "compaction_due": steps.compaction_due, "alerts": steps.alerts}
    if lineage:
        content["lineage"] = dict(zip(("inputs", "outputs"), datasets_of_run(config), strict=True))
    if report.pending is not None and config.replay.follow == "automatic" and not no_follow:
        content["backfill"], after = _follow(config, options, runner)
        blocks += after
    return Report(*facts(**content), *blocks, error=failed)


def _follow(config: JobConfig, options: RunOptions, runner: str | None) -> Ended:
    """Compute the pending days again behind a run. The run has committed, so an error of the backfill is reported, and a later run tries again."""
    try:
        with running(config, runner) as run_branch:
            return followed(config, options, run_branch)
    except HeadraceError as error:
        content = {
            "outcome": "failed",
            "error": type(error).__name__,
            "message": str(error),
            "exit_code": error.exit_code,
        }
        return content, [
            f"The run is done, and the backfill of its pending days failed (replay.follow: automatic). {type(error).__name__}: {error}"
        ]


def interval_options(start: str | None, end: str | None) -> dict[str, int | None]:
    """Return the options of the interval. Raises `ConfigError` for half of one."""
    if bool(start) != bool(end):
        given, missing = ("start", "end") if start else ("end", "start")
        msg = f"--interval-{given} is given without --interval-{missing}: an interval has both. Nothing was run."
        raise ConfigError(msg)
    return {
        "interval_start": parsed_milliseconds(start) if start else None,
        "interval_end": parsed_milliseconds(end) if end else None,
    }


def _note_unused_interval(config: JobConfig, options: RunOptions) -> None:
    mode = config.mode if options.mode == "auto" else options.mode
    if options.interval_start is not None and mode == "caught_up":
        logs.write(
            _log,
            f"this run takes in all input, as {config.where('mode')} says, and does not look at the interval. To take in the "
            "interval alone: --mode interval",
            kind="note",
        )


def _wishes(job: str | None, cluster: str | None, branch: str | None, **options: Any) -> tuple[JobConfig, RunOptions]:
    from headrace.run.options import RunOptions

    config, wishes = load(job, cluster, branch=branch), RunOptions(cluster=cluster, **options)
    logs.move(run=wishes.run_id)
    return config, wishes


def _run(config: JobConfig, options: RunOptions, runner: str | None, *, without_spark: bool) -> RunReport:
    run_job = run_function(config, runner, without_spark=without_spark)
    with shown_events() as on_event:
        return run_job(config, options, on_event)


def _mode(text: str) -> Literal["auto", "caught_up", "interval"]:
    check_word("--mode", text.replace("_", "-"), _MODES)
    return cast("Literal['auto', 'caught_up', 'interval']", text.replace("-", "_"))


def _backend(text: str | None) -> Literal["rocksdb", "hashmap", "delta"] | None:
    check_word("--backend", text, ("rocksdb", "hashmap", "delta"))
    return cast("Literal['rocksdb', 'hashmap', 'delta'] | None", text)


def _blocks(report: RunReport, options: RunOptions) -> Iterator[Block | str]:
    """Yield what people read of the report."""
    yield from (Fact(None, value, label) for label, value in _shown(report))
    if options.end_of_input and report.stopped_because != "ended":
        yield f"It had to stop before the end of the input. To continue: headrace run {report.job} --end-of-input"
    elif options.finish and report.waiting:
        yield f"It had to stop while elements wait. To continue: headrace run {report.job} --finish"
    if report.quarantined:
        yield f"Some input was set aside: headrace quarantine {report.job}"


def _shown(report: RunReport) -> Iterator[tuple[str, Any]]:
    """Yield the values that people read, with their labels."""
    from headrace.sources.interval import Interval

    ids = report.checkpoints
    yield "job", report.job
    yield "run", report.run_id
    if report.intervals:
        yield "interval", str(Interval(report.intervals[0][0], report.intervals[-1][1]))
    yield "checkpoints", "none" if not ids else str(ids[0]) if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
    yield from {"rows in": report.rows_in, "rows out": report.rows_out, "quarantined": report.quarantined}.items()
    if report.responses_taken:
        yield "responses taken", report.responses_taken
    yield from ((f"rows at {name}", _in_words(counts)) for name, counts in report.row_times.items())
    yield from (("rows missing to the next watermark", wait.rows_missing) for wait in report.watermark_waits)
    yield from {"waiting for services": report.waiting, "seconds": f"{report.seconds:.1f}"}.items()
    yield "ended because", report.stopped_because


def _in_words(counts: RowTimes) -> str:
    """Return late rows, and rows too far ahead, as text."""
    parts = {
        "behind the watermark": counts.behind,
        "dropped as late": counts.dropped,
        "late, to a side output": counts.to_side_output,
        "too far ahead": counts.ahead,
        "times that look like seconds or days": counts.doubtful,
    }
    return "; ".join(f"{count:,} {text}" for text, count in parts.items() if count)
