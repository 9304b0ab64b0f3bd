"""Sentences for the user about events in a run.

Positions of the sinks when a run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from headrace import clock, logs
from headrace.commit.input_report import InputKind
from headrace.commit.protocol import OpenJob
from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint
from headrace.log.progress import BatchProgress
from headrace.log.warnings import RunWarning, WatermarkWait
from headrace.materializer.upsert_materializer import LONG_HISTORY
from headrace.names import counted
from headrace.run.options import Event, SinkReport, StoppedBecause
from headrace.run.replay import Replay
from headrace.sources.interval import Interval
from headrace.sources.slices import Slice, Waiting
from headrace.state.ttl import Gap, TtlHistory
from headrace.storage.refusals import reason_of

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Events of a run of `job`, sent to `on_event`."""

    job: str
    on_event: OnEvent
    warnings: list[RunWarning] = field(default_factory=list)
    """Warnings of the run's report, in the order in which they were given."""

    def tell(self, kind: str, message: str, fields: dict[str, Any] | None = None) -> None:
        """Send an event."""
        self.on_event(Event(kind, message, fields or {}))

    def warn(self, message: str) -> None:
        """Send a warning."""
        self.tell("warning", message)

    def degrade(self, warning: RunWarning) -> None:
        """Send a warning that is also part of the run's report: it makes the run a degraded one."""
        self.warnings.append(warning)
        self.tell("warning", warning.message, {"kind": warning.kind, **warning.fields})

    def of_input(self, warning: RunWarning) -> None:
        """Send a warning on input. A clean-up of old files is only told: it degrades no run."""
        if warning.kind == InputKind.CLEANED_UP:
            self.tell("input", warning.message, {"kind": warning.kind, **warning.fields})
        else:
            self.degrade(warning)

    def opened(self, checkpoint: Checkpoint) -> None:
        """Say which checkpoint the run continues from."""
        logs.move(checkpoint=checkpoint.checkpoint_id)
        self.tell("opened", f"continuing from checkpoint {checkpoint.checkpoint_id}")

    def fills(self, missing: Interval, wanted: Interval) -> None:
        """Say that a missing interval is taken in before the one of the run."""
        self.tell("fill", f"interval {missing} is missing: it is taken in before {wanted}")

    def batch(self, checkpoint_id: int, taken: Slice) -> None:
        """Say which slice a micro-batch takes in."""
        last_files = ", ".join(taken.last_files.values())
        last = f" up to {last_files}" if last_files else ""
        self.tell("batch", f"micro-batch {checkpoint_id}: {counted(taken.rows, 'row')}{last}", {"rows": taken.rows})

    def progress(self, progress: BatchProgress) -> None:
        """Report the progress of a micro-batch."""
        self.tell("progress", progress.described(), msgspec.structs.asdict(progress))

    def repeats_requeue(self, checkpoint_id: int) -> None:
        """Say that a branch repeats a requeue of its job."""
        message = f"checkpoint {checkpoint_id} of the job requeued rows from the quarantine: the branch does the same"
        self.tell("requeue", message, {"repeats": checkpoint_id})

    def requeued(self, taken: Slice) -> None:
        """Say that requeued rows are taken in again."""
        files = counted(len(taken.files), "file")
        message = f"taking in again what was requeued from the quarantine: {counted(taken.rows, 'row')} of {files}"
        self.tell("requeued", message, {"rows": taken.rows})

    def committed(self, checkpoint_id: int, rows: int, seconds: float) -> None:
        """Say how long a micro-batch took."""
        self.tell(
            "committed",
            f"checkpoint {checkpoint_id}: {counted(rows, 'row')} in {seconds:.1f} s",
            {"checkpoint_id": checkpoint_id, "rows": rows, "seconds": seconds},
        )

    def not_removed(self, what: str, folder: str, error: StorageError) -> None:
        """Warn that files could not be removed after a commit."""
        self.warn(
            f"{what} could not be removed from {folder}: {reason_of(error)}. All that this run has committed counts, and nothing reads "
            f"them again. 'headrace maintain {self.job}' removes old Parquet files that are left."
        )

    def clock_behind(self, milliseconds: int) -> None:
        """Warn that this machine's clock is that long behind the job's last micro-batch."""
        behind = timedelta(milliseconds=milliseconds)
        self.warn(
            f"the clock of this machine is {behind} behind the job's last micro-batch: this micro-batch has that one's time, and so have all "
            "until the clock has passed it, because processing time never goes back. If the last micro-batch came from a machine with a wrong "
            f"clock, 'headrace restore {self.job} --to ID --why ...' goes back to a checkpoint before it."
        )

    def ttl(self, before: TtlHistory, after: TtlHistory) -> None:
        """Report changes that lifetimes of state depend on: pauses of the job, and TTLs."""
        for gap in after.gaps[len(before.gaps) :]:
            self.tell("gap", _gap_sentence(gap))
        for name in sorted(before.declared):
            was, now = before.declared[name], after.declared.get(name, before.declared[name])
            if was != now:
                self.tell("ttl", f"TTL of {name}: {was or 'off'} until now, from now on {now or 'off'}")

    def long_histories(self, keys: int) -> None:
        """Warn of keys with long histories, if there are any."""
        if keys:
            text = f"{counted(keys, 'key')} in this micro-batch with a history of {LONG_HISTORY:,} rows or more; see "
            self.tell("warning", f"{text}'headrace history {self.job} --largest'", {"keys": keys})

    def ahead(self, waiting: Iterable[Waiting]) -> None:
        """Report rows that wait for a source without further rows."""
        for rows, source, waits_for in waiting:
            self.tell(
                "ahead",
                f"{counted(rows, 'row')} of '{source}' {_wait(rows)} for '{waits_for}' (sources.{waits_for.partition('[')[0]}.idle_after ends that)",
                {"rows": rows, "source": source, "waits_for": waits_for},
            )

    def watermark_waits(self, waits: Iterable[WatermarkWait]) -> None:
        """Report timers that wait for the next step of a watermark, and the rows that are missing to it."""
        for wait in waits:
            self.tell("watermark", wait.message(self.job), msgspec.structs.asdict(wait))

    def timers_due(self) -> None:
        """Say that due timers cause a micro-batch without input."""
        self.tell("timers", "timers of processing time are due")

    def finishing(self, pending: int) -> None:
        """Say that services are called for the last time."""
        self.tell(
            "finishing", f"{counted(pending, 'element')} {_wait(pending)} for services: they are called for once more"
        )

    def ending(self) -> None:
        """Say that the end of the input is declared."""
        self.tell("ending", "the end of the input: the watermark passes all timers of event time")

    def responses_taken(self, count: int) -> None:
        """Say how many elements of a branch took kept responses, if any did."""
        if count:
            self.tell(
                "responses",
                f"{counted(count, 'element')} took kept responses, without a call",
                {"elements": count},
            )

    def waiting(self, pending: int, due: int | None) -> None:
        """Report, at the end of a run, the number of waiting elements, and when the first is due (ms)."""
        if pending:
            when = "" if due is None else f", the next attempt is due in {max(0, due - clock.now()) / 1000:.0f} s"
            message = f"{counted(pending, 'element')} {_wait(pending)} for services{when} (headrace waiting {self.job} --calls)"
            self.tell("waiting", message, {"pending": pending, "due": due})

    def interval_is_done(self, wanted: Interval) -> None:
        """Say that the interval was taken in before, and that its input is the same."""
        self.tell("done", f"interval {wanted} was taken in before, and its input is the same: there is nothing to do")

    def backfill_stopped(self, replay: Replay, stopped: StoppedBecause) -> None:
        """Say that a backfill has to end early."""
        self.warn(
            f"the backfill of interval {replay.requested} had to end before it was through ({stopped}): the branch lacks {replay.missing}. "
            "The same command goes on."
        )


def _gap_sentence(gap: Gap) -> str:
    start, end = gap.of_event_time
    pause, left = (timedelta(seconds=max(0, span) // 1000) for span in (gap.end - gap.start, end - start))
    text = f"the job was paused for {pause}: entries of states with OnGap.PROLONG live longer by this time"
    if left == pause:
        return text
    return f"{text}, and by {left} where they expire by the watermark, which had run ahead of the clock"


def _wait(number: int) -> str:
    """Return the verb whose subject is a number of things that wait."""
    return "waits" if number == 1 else "wait"


def sink_reports(job: OpenJob) -> dict[str, SinkReport]:
    """Return, for each sink, the rows that the run holding `job` gave to it, and the version of its table.

    Called at the end of a run, after its last commit. A sink that cannot be read has no version: its rows are committed, and the
    next run reads it again.
    """
    rows = sink_rows(checkpoint for checkpoint in job.checkpoints if checkpoint.run_id == job.run_id)
    statuses = job.sink_status()
    return {
        name: SinkReport(
            rows=rows[name],
            version=statuses[name].version if name in statuses else None,
            checkpoint=statuses[name].checkpoint if name in statuses else None,
        )
        for name in job.config.sinks
    }


def sink_rows(checkpoints: Iterable[Checkpoint]) -> Counter[str]:
    """Return the rows that checkpoints gave to each sink."""
    rows: Counter[str] = Counter()
    for checkpoint in checkpoints:
        for sink, files in checkpoint.outputs.items():
            rows[sink] += sum(file.rows for file in files)
    return rows
