"""Report file of `headrace run --report`: the result of a run, or its error, for the scheduler that started it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from headrace.spark.options import RunReport

_TIMES = ("watermark", "interval_start", "interval_end")


def plain_report(report: RunReport) -> dict[str, Any]:
    """Return the report as plain values, with its times as moments in UTC."""
    import msgspec

    from headrace.cli._output import at_time

    plain: dict[str, Any] = msgspec.to_builtins(report)
    return {**plain, **{name: at_time(plain[name]) for name in _TIMES}}


@contextmanager
def failure_reported(file: Path | None) -> Iterator[None]:
    """Write an error of the block to `file`, and exit with its code; without a file, let the error pass.

    An error of Headrace in the file is not shown on stderr as well. An unexpected error is shown with its traceback in any
    case, and every error is shown if the file cannot be written.
    """
    from headrace.errors import EngineBug, HeadraceError, IntervalError

    try:
        yield
    except HeadraceError as error:
        content: dict[str, Any] = {
            "error": type(error).__name__,
            "message": str(error),
            "exit_code": error.exit_code,
        }
        if isinstance(error, IntervalError) and error.is_taken_in:
            content["is_taken_in"] = True
            content["changes"] = list(error.changes)
        if file is None or not _is_written(file, content) or isinstance(error, EngineBug):
            raise
        raise typer.Exit(error.exit_code) from error


def write_report(file: Path, content: dict[str, Any]) -> None:
    """Write the result of a command. If the file cannot be written, print a line on stderr; the command does not fail."""
    _is_written(file, content)


def _is_written(file: Path, content: dict[str, Any]) -> bool:
    """Write `content` as one JSON document, whole or not at all; return whether it was written."""
    import msgspec

    unfinished = file.with_name(f"{file.name}.part")
    try:
        unfinished.write_bytes(msgspec.json.encode(content, enc_hook=str))
        os.replace(unfinished, file)  # noqa: PTH105  Path.replace returns a path that nobody needs
    except OSError as error:
        print(f"--report: {file} cannot be written: {error}", file=sys.stderr)
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True
