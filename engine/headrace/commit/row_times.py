"""Counts of rows with times that need attention: late rows, by operator; rows too far ahead and doubtful times, by source.

A micro-batch records them in the metrics of its checkpoint. The report of a run and `headrace status` add them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.run_warnings import RowTimes, RunWarning
from headrace.names import counted

_KEY: Final = "row_times"


NO_ROW_TIMES: Final = RowTimes()


def row_times_of_task(metrics: Mapping[str, int]) -> RowTimes:
    """Return the counts in the metrics of a task."""
    names = ("late", "dropped_late", "late_to_side", "ahead", "doubtful_times")
    return RowTimes(*(metrics.get(name, 0) for name in names))


def row_times_entry(row_times: Mapping[str, RowTimes]) -> dict[str, Any]:
    """Return the entry in the metrics of a checkpoint, by operator or source; empty without such rows."""
    counted = {name: counts for name, counts in row_times.items() if counts != NO_ROW_TIMES}
    return {_KEY: msgspec.to_builtins(counted)} if counted else {}


def row_times_of(checkpoints: Iterable[Checkpoint]) -> dict[str, RowTimes]:
    """Return the sums over checkpoints, by operator or source."""
    sums: dict[str, RowTimes] = {}
    for checkpoint in checkpoints:
        for name, counts in checkpoint.metrics.get(_KEY, {}).items():
            sums[name] = sums.get(name, NO_ROW_TIMES) + msgspec.convert(counts, RowTimes)
    return sums


def row_time_warnings(job: str, row_times: Mapping[str, RowTimes]) -> Iterator[RunWarning]:
    """Yield a warning for each operator that dropped late rows, and for each source with rows too far ahead or doubtful times."""
    for name, counts in row_times.items():
        fields = {"operator": name, **msgspec.structs.asdict(counts)}
        if counts.dropped:
            text = (
                f"{counted(counts.dropped, 'row')} came too late for '{name}' and {_were(counts.dropped)} dropped ({counts.behind:,} arrived behind the watermark): a "
                "larger out_of_orderness of the source waits longer for such rows, and a side output keeps them"
            )
            yield RunWarning("late", text, fields)
        if counts.ahead:
            text = (
                f"{counted(counts.ahead, 'row')} of '{name}' {'has an event time' if counts.ahead == 1 else 'have event times'} too far ahead, and {'is' if counts.ahead == 1 else 'are'} in the quarantine (headrace quarantine {job}): "
                "if such times are right, set max_ahead of the source in the job's file"
            )
            yield RunWarning("ahead", text, fields)
        if counts.doubtful:
            text = (
                f"'{name}' has {counted(counts.doubtful, 'time', 'times')} written as a number that looks like seconds since 1970, or like the digits of a day "
                "(20260131), and read as milliseconds: January and February 1970; if it is not milliseconds, convert it where it is written, "
                "or in a Spark step right after the source"
            )
            yield RunWarning("doubtful_times", text, fields)


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
