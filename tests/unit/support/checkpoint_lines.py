"""The checkpoints of a job as runs commit them, without tables. Days are numbered from 1970-01-01."""

from __future__ import annotations

from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import Restored
from headrace.log.intervals import place_of
from headrace.sources.interval import Interval
from headrace.sources.position import FolderPosition, SourceFacts

DAY = 86_400_000


def days(first, end=None):
    """Return the interval from the beginning of one day to before another, or to the end of that day."""
    return Interval(int(first * DAY), int((first + 1 if end is None else end) * DAY))


class Line:
    """All checkpoints of a job."""

    def __init__(self):
        self.checkpoints = []
        self.add(Kind.INITIAL)

    def add(self, kind, start=None, end=None, *, run="r", attempt="a", has_state=True, committed_at=0, **fields):
        last = self.checkpoints[-1] if self.checkpoints else None
        checkpoint = Checkpoint(
            checkpoint_id=0 if last is None else last.checkpoint_id + 1,
            kind=kind,
            run_id=run,
            attempt_id=attempt,
            max_parallelism=128,
            versions={"keyed_state": 0} if has_state else {},
            committed_at=committed_at,
            incarnation=1,
            parent_id=None if last is None else last.checkpoint_id,
            interval_start=start,
            interval_end=end,
            **fields,
        )
        self.checkpoints.append(checkpoint)
        return self

    def take_in(self, interval, **fields):
        return self.add(Kind.BATCH, interval.start, interval.end, **fields)

    def days(self, *numbers, **fields):
        for number in numbers:
            self.take_in(days(number), **fields)
        return self

    def files(self, *names):
        """Add slices of caught-up runs without intervals."""
        for name in names:
            self.add(Kind.BATCH, sources={"source": SourceFacts(position=FolderPosition(name))})
        return self

    def again(self, kind):
        """Add a checkpoint that leaves the interval unchanged: compaction, savepoint, or a micro-batch without input."""
        last = self.checkpoints[-1]
        return self.add(kind, last.interval_start, last.interval_end, sources=last.sources)

    def restore(self, target, note=None, run="r", **fields):
        to = self.checkpoints[target]
        return self.add(
            Kind.RESTORE,
            to.interval_start,
            to.interval_end,
            restored_from=target,
            note=note,
            sources=to.sources,
            run=run,
            **{"cause": Restored(), **fields},
        )

    def place(self, start, end=None):
        return place_of(days(start, end), self.checkpoints)
