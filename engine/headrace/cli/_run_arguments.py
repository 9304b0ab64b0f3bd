"""Options of `headrace run`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.spark.options import RunOptions, RunReport
    from headrace.spark.run_events import OnEvent

# Typer reads these at run time, and does not support `str | None` in an alias.
Mode = Annotated[str, typer.Option(metavar="auto|caught-up|interval", help="Take in all input, or one interval.")]
IntervalStart = Annotated[Optional[str], typer.Option(metavar="TIME", help="ISO 8601, inclusive.")]  # noqa: UP045
IntervalEnd = Annotated[Optional[str], typer.Option(metavar="TIME", help="ISO 8601, exclusive.")]  # noqa: UP045
Replay = Annotated[bool, typer.Option("--replay", hidden=True)]  # refused: `headrace backfill` does what it did
Recompute = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="TIME", help="Somebody asked at TIME to compute the interval again (ISO 8601)."),
]
RunId = Annotated[Optional[str], typer.Option(help="Id of the run in checkpoints; a new one if left out.")]  # noqa: UP045
Budget = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="30m", help="After this time, leave the rest to the next run."),
]
MaxBatches = Annotated[Optional[int], typer.Option(min=1, help="End after this many micro-batches.")]  # noqa: UP045
Finish = Annotated[bool, typer.Option("--finish", help="At the end, call services once more for all waiting elements.")]
EndOfInput = Annotated[
    bool,
    typer.Option("--end-of-input", help="At the end, declare that no more input comes: the last windows close."),
]
Runner = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="spark|local", help="Where tasks run; local starts no JVM. By default as the cluster profile says."
    ),
]
Parallelism = Annotated[Optional[int], typer.Option(min=1, help="Tasks per operator.")]  # noqa: UP045
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
ForceFailOver = Annotated[bool, typer.Option("--force-fail-over", help="Take the job from a run that still holds it.")]
ReportFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--report", metavar="FILE", help="Also write the result, or the error, as JSON to FILE."),
]
AllowEffects = Annotated[
    bool, typer.Option("--allow-effects", help="On a branch: also call services whose calls have effects outside.")
]


def budget_seconds(text: str | None) -> float | None:
    """Return --budget in seconds. Raises `ConfigError` for a text that is not a duration."""
    from headrace.config import parse_duration
    from headrace.errors import ConfigError

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
    from headrace.errors import ConfigError

    if runner not in {None, "spark", "local"}:
        msg = f"--runner '{runner}' is not allowed (allowed: spark, local)"
        raise ConfigError(msg)
    if (runner or config.profile.runner) == "local":
        return local.run
    return partial(spark.run, may_start=False) if without_spark else spark.run
