"""Warnings of a run: facts that somebody has to know although the run succeeded, and the same facts for `headrace status`.

A run collects them in its report, from where they reach the log, the asset events, and the WARNING of a degraded run.
`headrace status` derives them from the job's checkpoints.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.names import counted


class RunWarning(msgspec.Struct, frozen=True):
    """Fact that does not fail a run: its kind, one sentence without a full stop, and its values."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class RowTimes(msgspec.Struct, frozen=True):
    """Counts of rows of one operator or source. Rows that were `dropped`, or went `to_side_output`, are rows `behind` as well."""

    behind: int = 0
    """Rows that arrived at or behind the watermark. The operator may have processed them all the same."""
    dropped: int = 0
    """Rows that came too late for the operator, and that no side output takes: they are lost."""
    to_side_output: int = 0
    """Rows that came too late for the operator, and went to its side output."""
    ahead: int = 0
    """Rows too far ahead of the micro-batch (`max_ahead`): they are in the quarantine."""
    doubtful: int = 0
    """Numbers for times that look like seconds since 1970, or like the digits of a day; they were read as milliseconds."""

    def __add__(self, other: RowTimes) -> RowTimes:
        """Return the sums of both counts."""
        return RowTimes(
            self.behind + other.behind,
            self.dropped + other.dropped,
            self.to_side_output + other.to_side_output,
            self.ahead + other.ahead,
            self.doubtful + other.doubtful,
        )


class WatermarkWait(msgspec.Struct, frozen=True):
    """Timers of event time, such as those of windows, that fire only with the next step of a watermark."""

    sources: tuple[str, ...]
    rows_missing: int
    bucket: int
    timers: int

    def message(self, job: str) -> str:
        """Return what waits for how many rows, and what to do."""
        named = " and ".join(f"'{source}'" for source in self.sources)
        return (
            f"{counted(self.timers, 'timer')} of event time, such as those of windows, {'waits' if self.timers == 1 else 'wait'} for the watermark of {named}: it moves after each "
            f"{counted(self.bucket, 'row')}, and {counted(self.rows_missing, 'more row')} {'is' if self.rows_missing == 1 else 'are'} missing. A job that begins with a smaller "
            f"watermark.bucket waits for fewer rows, complete_intervals moves the watermark at the end of each file, and 'headrace run {job} "
            "--end-of-input' ends the input"
        )
