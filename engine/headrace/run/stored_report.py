"""Report of a run that nobody was there to read: made again from the checkpoints that it has committed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from headrace.commit.input_report import InputKind, pending_correction, run_warnings
from headrace.config import JobConfig
from headrace.errors import HeadraceError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.intervals import interval_of, position_of
from headrace.log.log import CheckpointLog
from headrace.log.warnings import (
    RunWarning,
    new_operator_warnings,
    passed_version_warnings,
    passed_versions,
    row_time_warnings,
    row_times_of,
    stateful,
)
from headrace.run.events import sink_rows
from headrace.run.options import RunReport, SinkReport
from headrace.sources.interval import Interval
from headrace.tables.folder import JobFolder


def stored_report(config: JobConfig, run_id: str, wanted: Interval | None) -> tuple[RunReport, bool]:
    """Return the report of a run as its checkpoints tell it, and whether they have all rows of the interval that it was for.

    Checkpoints do not say why a run ended, how long it took besides its micro-batches, and which versions of the sinks it left. Those that a restore
    has left behind do not count. Raises `StorageError` if the log cannot be read.
    """
    lineage = CheckpointLog(JobFolder.of(config)).lineage.checkpoints
    own = [checkpoint for checkpoint in lineage if checkpoint.run_id == run_id and checkpoint.kind is Kind.BATCH]
    last = own[-1] if own else lineage[-1] if lineage else None
    is_whole = wanted is not None and _has_whole(own, wanted)
    interval = wanted or (None if last is None else last.interval)
    pending = None if config.branch is not None else pending_correction(config, lineage)
    rows = sink_rows(own)
    report = RunReport(
        job=config.job,
        run_id=run_id,
        checkpoints=[checkpoint.checkpoint_id for checkpoint in own],
        rows_in=_total(own, "rows_in"),
        rows_out=_total(own, "rows_out"),
        seconds=round(sum(sum(checkpoint.seconds.values()) for checkpoint in own), 3),
        stopped_because=None,
        quarantined=_total(own, "quarantined"),
        responses_taken=_total(own, "responses_taken"),
        waiting=0 if last is None else last.work.pending,
        checkpoint=None if last is None else last.checkpoint_id,
        watermark=None if last is None else last.watermark,
        interval_start=None if interval is None else interval.start,
        interval_end=None if interval is None else interval.end,
        intervals=tuple(_published(own, wanted if is_whole else None)),
        sinks={name: SinkReport(rows=rows[name]) for name in config.sinks},
        row_times=row_times_of(own),
        warnings=tuple(_warnings(config, own, lineage)),
        pending=pending,
    )
    return report, is_whole


def _total(own: Sequence[Checkpoint], metric: str) -> int:
    return sum(checkpoint.metrics.get(metric, 0) for checkpoint in own)


def _has_whole(own: Sequence[Checkpoint], wanted: Interval) -> bool:
    """Return whether a run has taken in an interval up to its end, and holds no record of it."""
    reached = position_of(own)
    return reached is not None and reached >= wanted.end and not own[-1].holds_records


def _published(own: Sequence[Checkpoint], wanted: Interval | None) -> list[tuple[int, int]]:
    """Return the intervals whose rows the run has published whole, in order."""
    taken = {interval_of(checkpoint) for checkpoint in own} | {wanted}
    held = own[-1].interval if own and own[-1].holds_records else None
    return sorted((interval.start, interval.end) for interval in taken - {held} if interval is not None)


def _warnings(config: JobConfig, own: Sequence[Checkpoint], lineage: Sequence[Checkpoint]) -> list[RunWarning]:
    before = lineage[: lineage.index(own[0])] if own else ()
    new = new_operator_warnings(config.job, before, stateful(own[-1].state_schemas) if own else ())
    warnings = [*new, *row_time_warnings(config.job, row_times_of(own)), *passed_version_warnings(passed_versions(own))]
    with suppress(HeadraceError):  # the input may be out of reach from this machine: the run has warned on it
        warnings += [own for own in run_warnings(config, lineage) if own.kind != InputKind.CLEANED_UP]
    return warnings
