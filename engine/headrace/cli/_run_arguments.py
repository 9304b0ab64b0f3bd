"""The options of `headrace run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.spark.options import RunOptions, RunReport
    from headrace.spark.run_events import OnEvent

# Typer reads these at run time, and does not know `str | None` in an alias.
Mode = Annotated[str, typer.Option(metavar="auto|caught-up|interval", help="Take in all there is, or one interval.")]
IntervalStart = Annotated[Optional[str], typer.Option(metavar="TIME", help="ISO 8601, inclusive.")]  # noqa: UP045
IntervalEnd = Annotated[Optional[str], typer.Option(metavar="TIME", help="ISO 8601, exclusive.")]  # noqa: UP045
Replay = Annotated[bool, typer.Option("--replay", help="Run an interval again that was taken in, with all later ones.")]
RunId = Annotated[Optional[str], typer.Option(help="Names the run in checkpoints; made up if left out.")]  # noqa: UP045
Budget = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="30m", help="After this time, what has not begun is left to the next run."),
]
MaxBatches = Annotated[Optional[int], typer.Option(min=1, help="End after so many micro-batches.")]  # noqa: UP045
Finish = Annotated[
    bool, typer.Option("--finish", help="At the end, call services once more for all that waits, and never again.")
]
EndOfInput = Annotated[
    bool,
    typer.Option("--end-of-input", help="At the end, declare that no more input comes: the last windows close."),
]
Runner = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="spark|local", help="Where tasks run; local starts no JVM. As the cluster profile says if left out."
    ),
]
Parallelism = Annotated[Optional[int], typer.Option(min=1, help="Tasks per operator.")]  # noqa: UP045
Backend = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="rocksdb|hashmap|delta", help="State backend."),
]
AsyncState = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option("--async/--sync", help="Whether state accesses may overlap. Results are the same."),
]
ForceFailOver = Annotated[bool, typer.Option("--force-fail-over", help="Take the job from a run that still holds it.")]
ReportFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--report", metavar="FILE", help="Write the result, or the error, as JSON to FILE as well."),
]
AllowEffects = Annotated[
    bool, typer.Option("--allow-effects", help="On a branch: call services whose calls have effects outside, too.")
]


def budget_seconds(text: str | None) -> float | None:
    """Return the seconds of --budget. Raises `ConfigError` for a text that is no duration."""
    from headrace.config import parse_duration
    from headrace.errors import ConfigError

    if text is None:
        return None
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        msg = f"--budget: {error}"
        raise ConfigError(msg) from error


def run_function(config: JobConfig, runner: str | None) -> Callable[[JobConfig, RunOptions, OnEvent], RunReport]:
    """Return what runs a job where --runner says, else where the cluster profile does. Raises `ConfigError` for another word."""
    from headrace import local, spark
    from headrace.errors import ConfigError

    if runner not in {None, "spark", "local"}:
        msg = f"--runner '{runner}' is not allowed (allowed: spark, local)"
        raise ConfigError(msg)
    return local.run if (runner or config.profile.runner) == "local" else spark.run
