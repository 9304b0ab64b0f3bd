"""`headrace run`: run a job once, with its progress on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from headrace.cli._arguments import AsJson, Cluster, Job, load, new_run_id, parsed_milliseconds
from headrace.cli._branch_settings import OtherPipeline, OtherSource, Setting, with_options
from headrace.cli._run_arguments import (
    AllowEffects,
    AsyncState,
    Backend,
    Budget,
    EndOfInput,
    Finish,
    ForceFailOver,
    IntervalEnd,
    IntervalStart,
    MaxBatches,
    Mode,
    Parallelism,
    Recompute,
    Replay,
    ReportFile,
    RunId,
    Runner,
    WithoutSpark,
    budget_seconds,
    run_function,
)
from headrace.cli._run_events import shown_events
from headrace.cli._run_report import failure_reported, plain_report, write_report
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.commit.run_warnings import RowTimes
    from headrace.config import JobConfig
    from headrace.spark.options import RunOptions, RunReport

_MODES = ("auto", "caught-up", "interval")
_NO_REPLAY = (
    "--replay is no option any more: 'headrace backfill JOB --from START --to END' takes an interval in again, with all later ones, on a "
    "branch, while the live tables stay as they are. Nothing was run."
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
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
    run_id: RunId = None,
    budget: Budget = None,
    max_batches: MaxBatches = None,
    finish: Finish = False,
    end_of_input: EndOfInput = False,
    parallelism: Parallelism = None,
    backend: Backend = None,
    async_state: AsyncState = None,
    force_fail_over: ForceFailOver = False,
    pipeline: OtherPipeline = None,
    source: OtherSource = None,
    allow_effects: AllowEffects = False,
    setting: Setting = None,
    report_file: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Take in new input, update state and sinks.

    You may kill it at any point: run it again, and it continues from the last checkpoint. When its
    budget is used up, or on SIGTERM, it leaves records not begun yet to the next run, and commits.

    An interval that was taken in already is done if its input is the same: the run changes nothing. If a file of it has changed, came
    late or is gone, the run refuses it: 'headrace backfill' computes it again on a branch. A scheduler whose user asked to compute
    an interval again says so with --recompute TIME, the time of that request: only what was committed later counts as done.

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

    --report FILE writes the output of --json, or {"error", "message", "exit_code"}, to FILE, wherever stdout goes. An error in
    FILE is not shown on stderr as well.

    Example:  headrace run flights --max-batches 1

    Exit codes: 0 done, out of budget or told to stop; 2 configuration; 3 another run holds the job; 4 a
    service is down; 5 user code raised; 6 stored state does not fit; 7 bad input; 8 storage; 9 an interval
    would leave a gap, or was taken in and its input has changed; 10 job and sink disagree; 12 rows conflict
    over a primary key; 13 Spark or a worker process died, or Spark did not start: run again; 14 --without-spark was given, and the run needs Spark.
    """
    with failure_reported(report_file):
        if replay:
            raise ConfigError(_NO_REPLAY)
        config, options = _wishes(
            job,
            cluster,
            run_id=run_id or new_run_id(),
            mode=_mode(mode),
            interval_start=parsed_milliseconds(interval_start) if interval_start else None,
            interval_end=parsed_milliseconds(interval_end) if interval_end else None,
            recompute=parsed_milliseconds(recompute) if recompute else None,
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
        report = _run(config, options, runner, without_spark=without_spark)
    if report_file is not None:
        write_report(report_file, plain_report(report))
    _show(report, options, as_json=as_json)


def _wishes(job: str | None, cluster: str | None, **options: Any) -> tuple[JobConfig, RunOptions]:
    from headrace.spark.options import RunOptions

    return load(job, cluster), RunOptions(cluster=cluster, **options)


def _run(config: JobConfig, options: RunOptions, runner: str | None, *, without_spark: bool) -> RunReport:
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    run_job = run_function(config, runner, without_spark=without_spark)
    with shown_events() as on_event:
        return run_job(config, options, on_event)


def _mode(text: str) -> Literal["auto", "caught_up", "interval"]:
    from headrace.errors import ConfigError

    if text.replace("_", "-") not in _MODES:
        msg = f"--mode '{text}' is not allowed (allowed: {', '.join(_MODES)})"
        raise ConfigError(msg)
    return cast("Literal['auto', 'caught_up', 'interval']", text.replace("-", "_"))


def _backend(text: str | None) -> Literal["rocksdb", "hashmap", "delta"] | None:
    from headrace.errors import ConfigError

    if text not in {None, "rocksdb", "hashmap", "delta"}:
        msg = f"--backend '{text}' is not allowed (allowed: rocksdb, hashmap, delta)"
        raise ConfigError(msg)
    return cast("Literal['rocksdb', 'hashmap', 'delta'] | None", text)


def _show(report: RunReport, options: RunOptions, *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show, shown, table

    if as_json:
        print_json(plain_report(report))
        return
    ids = report.checkpoints
    span = "none" if not ids else str(ids[0]) if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
    rows: list[tuple[str, Any]] = [
        ("job", report.job),
        ("run", report.run_id),
        ("checkpoints", span),
        ("rows in", shown(report.rows_in)),
        ("rows out", shown(report.rows_out)),
        ("quarantined", shown(report.quarantined)),
        *([("answers taken", shown(report.answers_taken))] if report.answers_taken else []),
        *((f"rows at {name}", _in_words(counts)) for name, counts in report.row_times.items()),
        *(("rows missing to the next watermark", shown(wait.rows_missing)) for wait in report.watermark_waits),
        ("waiting for services", shown(report.waiting)),
        ("seconds", f"{report.seconds:.1f}"),
        ("ended because", report.stopped_because),
    ]
    show(table(("", ""), rows))
    if options.end_of_input and report.stopped_because != "ended":
        show(f"It had to stop before the end of the input. To continue: headrace run {report.job} --end-of-input")
    elif options.finish and report.waiting:
        show(f"It had to stop while elements wait. To continue: headrace run {report.job} --finish")
    if report.quarantined:
        show(f"Some input was set aside: headrace quarantine {report.job}")


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
