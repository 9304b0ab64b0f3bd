"""Work of a run without new input: waiting elements, held records, due timers, the end of the input."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import clock
from headrace.run.batch_sequence import BatchSequence
from headrace.run.due_timers import any_timer_due
from headrace.run.options import StoppedBecause
from headrace.sources.intake import end_of_input


@dataclass(slots=True)
class RemainingWork:
    """Maker of micro-batches without new input: decides when a run needs one."""

    batches: BatchSequence
    has_fired_timers: bool = False
    left_before: int | None = None
    """Number of elements that waited before the last micro-batch that was made for them."""

    @property
    def waiting(self) -> int:
        """Return the number of elements that wait for services, and of those that wait behind them."""
        return self.batches.job.last.work.pending

    def takes_up(self) -> bool:
        """Return whether to make a micro-batch for elements due in `async_requests`, or for records held behind them.

        A second micro-batch follows only if the first made progress: while a service is down, the run leaves its elements to the next run.
        """
        last = self.batches.job.last
        was_left = last.holds_records and not self.batches.committed  # an interrupted run may have held them: try once
        if not (was_left or self.is_due()) or (self.left_before is not None and last.work.pending >= self.left_before):
            return False
        self.left_before = last.work.pending
        return True

    def is_due(self) -> bool:
        """Return whether an element in `async_requests` is due."""
        due = self.batches.job.last.work.due
        return due is not None and due <= clock.now()

    def fire_timers(self) -> bool:
        """Make a micro-batch if timers of processing time are due; return whether it made one.

        Makes one per run: timers that register themselves again would keep the run from ending.
        """
        if (
            self.has_fired_timers
            or self.batches.stopping.is_set()
            or not any_timer_due(self.batches.job, self.batches.followed.now())
        ):
            return False
        self.has_fired_timers = True
        self.batches.events.timers_due()
        self.batches.make_without_input()
        return True

    def end_interval(self) -> StoppedBecause:
        """Resume waiting elements and fire due timers after an interval."""
        batches = self.batches
        while not batches.limit() and self.takes_up():
            batches.make_without_input()
        if batches.job.last.holds_records and (not self.waiting or self.is_due()):
            return "terminated" if batches.stopping.is_set() else "budget"
        self.fire_timers()
        return "interval"

    def finish(self) -> StoppedBecause:
        """Make micro-batches until nothing waits for services, as at FLIP-232's end of input, though more may come later.

        Each micro-batch calls for the last time for the elements of earlier ones. A result that reaches another wait is new there,
        with all its retries, so one micro-batch may not be enough; but each finishes all elements that waited before it.
        """
        while self.waiting or self.batches.job.last.holds_records:
            if reason := self.batches.limit():
                return reason
            self.batches.events.finishing(self.waiting)
            self.batches.make_without_input(finishes=True)
        return "finished"

    def end(self) -> StoppedBecause:
        """Declare the end of the input: nothing waits any more, and the watermark passes all timers of event time."""
        stopped = self.finish()
        if stopped != "finished":
            return stopped
        last = self.batches.job.last
        if not all(facts.ended for facts in last.sources.values()) or not last.sources:
            self.batches.events.ending()
            taken = end_of_input(self.batches.plan, last.sources, last.timelines)
            self.batches.make(taken, self.batches.last_interval())
            stopped = self.finish()
        return "ended" if stopped == "finished" else stopped
