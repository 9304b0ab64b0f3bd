"""Warnings of a run: facts that need attention although the run succeeded, and the counts behind them.

A run collects warnings in its report, from where they reach the log, the asset events, and the WARNING of a degraded
run. `headrace status` derives the same facts from the job's checkpoints.

Late rows are counted by operator; rows too far ahead and doubtful times are counted by source. A micro-batch records
the counts in its checkpoint. The report of a run and `headrace status` add them up.

The watermark moves after each full bucket of rows. So the last rows of a job's input may be taken in while the windows
that they end have not fired. A micro-batch records its open steps in its checkpoint; the report of a run
and `headrace status` show those that a timer waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.api.functions import TimeDomain
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import StateSchemas
from headrace.log.facts import NO_ROW_TIMES, RowTimes, WatermarkStep
from headrace.log.lineage import Lineage
from headrace.names import counted
from headrace.records.watermarks import Bucket, latest
from headrace.sources.interval import timestamp_text
from headrace.sources.position import PassedVersion
from headrace.storage.predicate import BetweenTimes, OneOf
from headrace.tables.schemas import TIMERS
from headrace.tables.view import TableView, ViewOf


class RunWarning(msgspec.Struct, frozen=True):
    """Fact that does not fail a run: its kind, one sentence without a full stop, and its values."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


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


def row_times_of_task(metrics: Mapping[str, int]) -> RowTimes:
    """Return the counts in the metrics of a task."""
    names = ("late", "dropped_late", "late_to_side", "ahead", "doubtful_times")
    return RowTimes(*(metrics.get(name, 0) for name in names))


def row_times_of(checkpoints: Iterable[Checkpoint]) -> dict[str, RowTimes]:
    """Return the sums over checkpoints, by operator or source."""
    sums: dict[str, RowTimes] = {}
    for checkpoint in checkpoints:
        for name, counts in checkpoint.row_times.items():
            sums[name] = sums.get(name, NO_ROW_TIMES) + counts
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
                "or in a Spark transform right after the source"
            )
            yield RunWarning("doubtful_times", text, fields)


def stateful(schemas: StateSchemas) -> set[str]:
    """Return the operators that store state by what checkpoints record of their states."""
    return {
        name for name, states in schemas.items() if any(state.kept and not state.removed for state in states.values())
    }


def new_operator_warnings(job: str, before: Sequence[Checkpoint], now: Collection[str]) -> Iterator[RunWarning]:
    """Yield a warning for each operator whose state begins after the records that a lineage has taken in: it is new in the code.

    `now` has the operators that store state from the next checkpoint on. An operator whose state stayed stored while it was away is not new.
    """
    if not any(checkpoint.kind is Kind.BATCH for checkpoint in before):
        return
    last = before[-1]
    for name in sorted({*now} - last.state_schemas.keys()):
        text = (
            f"operator '{name}' is new in this job: its state starts empty, and it has not seen the records up to checkpoint {last.checkpoint_id}. "
            f"If it needs them, a branch from the beginning computes it over all input: headrace branch create {job} NAME --at 0, run it, and promote it"
        )
        yield RunWarning("new_operator", text, {"operator": name, "checkpoint": last.checkpoint_id})


def passed_versions(checkpoints: Iterable[Checkpoint]) -> dict[str, list[PassedVersion]]:
    """Return the versions of tables that checkpoints passed over, in order, by source."""
    by_source: dict[str, dict[int, PassedVersion]] = {}
    for checkpoint in checkpoints:
        for name, facts in checkpoint.sources.items():
            for passed in facts.passed_over:
                by_source.setdefault(name, {})[passed.version] = passed
    return {name: [versions[number] for number in sorted(versions)] for name, versions in by_source.items()}


def passed_version_warnings(by_source: Mapping[str, Sequence[PassedVersion]]) -> Iterator[RunWarning]:
    """Yield a warning for each source of which versions were passed over."""
    for name, versions in by_source.items():
        corrections = [own for own in versions if own.corrected_by is not None]
        others = [own for own in versions if own.corrected_by is None]
        if others:
            text = f"source '{name}' passed over {passed_text(others)}, as its on_change says: the job does not have what they changed"
            yield RunWarning("passed_versions", text, {"source": name, "versions": msgspec.to_builtins(others)})
        if corrections:
            text = (
                f"source '{name}' passed over {passed_text(corrections)}: the job keeps the rows of before, and no backfill takes in what was corrected. "
                "Intervals by partition would tell which days these are"
            )
            yield RunWarning("passed_corrections", text, {"source": name, "versions": msgspec.to_builtins(corrections)})


def passed_text(versions: Sequence[PassedVersion]) -> str:
    """Return versions that were passed over as text: what the last ones did, and how many came before them."""
    shown = [
        f"version {own.version} ({_operation(own)}, {counted(own.files, 'file')}, {timestamp_text(own.timestamp)})"
        for own in versions[-_SHOWN:]
    ]
    before = len(versions) - len(shown)
    return ", ".join([counted(before, "earlier version"), *shown] if before else shown)


_SHOWN: Final = 5


def _operation(passed: PassedVersion) -> str:
    return passed.operation if passed.corrected_by is None else f"a promotion of job '{passed.corrected_by}'"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def open_step(
    sources: tuple[str, ...], bucket: Bucket, watermark: int | None, *, size: int, lag: int, operators: Iterable[str]
) -> WatermarkStep | None:
    """Return the next step of a watermark; None if the rows taken in so far would not move it.

    `size` is the number of rows in a bucket, `lag` the distance of the watermark behind the latest time (ms).
    """
    time = latest((bucket.open_max, bucket.closed_max))
    if time is None or (watermark is not None and time - lag <= watermark):
        return None
    return WatermarkStep(sources, size - bucket.next_ordinal % size, size, time - lag, tuple(operators))


def watermark_waits(lineage: Lineage, last: Checkpoint, view_of: ViewOf) -> list[WatermarkWait]:
    """Return the watermarks that timers wait for, as of the last checkpoint of a lineage.

    Reads only files of `timers` that may have such timers.
    """
    batch = lineage.last_of(Kind.BATCH)
    steps = () if batch is None else batch.watermark_steps
    if not steps or not last.versions.get(TIMERS):
        return []
    view = view_of(TIMERS)
    waits = [WatermarkWait(step.sources, step.rows_missing, step.bucket, _timers(view, step, last)) for step in steps]
    return [wait for wait in waits if wait.timers]


def _timers(view: TableView, step: WatermarkStep, last: Checkpoint) -> int:
    """Count the timers that the step fires."""
    known = [last.fired_until(name).get(TimeDomain.EVENT_TIME) for name in step.operators]
    until = [time for time in known if time is not None]
    after = min(until, default=None) if len(until) == len(known) else None
    due = view.where(
        OneOf("domain", (TimeDomain.EVENT_TIME,)),
        OneOf("operator", step.operators),
        BetweenTimes("timestamp", after, step.time),
    )
    count: int = due.live().num_rows
    return count
