"""Work that a run has without new input: elements that wait for services, held records, due timers, the end of the input."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import clock
from headrace.commit.due_timers import any_timer_due
from headrace.sources.intake import end_of_input
from headrace.spark.batch_sequence import BatchSequence
from headrace.spark.options import StoppedBecause


@dataclass(slots=True)
class RemainingWork:
    """Decides when a run makes micro-batches without new input, and makes them."""

    batches: BatchSequence
    has_fired_timers: bool = False
    left_before: int | None = None
    """Elements that waited for services before the last micro-batch that was made for them."""

    @property
    def waiting(self) -> int:
        """Count the elements that wait for services, or for those that do."""
        return self.batches.job.last.pending

    def takes_up(self) -> bool:
        """Tell whether to make a micro-batch for elements that are due in `async_requests`, or for what was held behind them.

        Again only if the last one got on: while a service is down, a run does not wait for it, but leaves that to the next one.
        """
        last = self.batches.job.last
        was_left = last.held and not self.batches.committed  # a run that had to stop may have held it: it is tried once
        if not (was_left or self.is_due()) or (self.left_before is not None and last.pending >= self.left_before):
            return False
        self.left_before = last.pending
        return True

    def is_due(self) -> bool:
        """Tell whether an element in `async_requests` is to be called for now."""
        due = self.batches.job.last.due
        return due is not None and due <= clock.now()

    def fire_timers(self) -> bool:
        """Make a micro-batch if timers of processing time are due; tell whether there was one.

        One in a run: timers that set themselves again would keep it from ever ending.
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
        """Take up what waits and fire what is due behind an interval."""
        batches = self.batches
        while not batches.limit() and self.takes_up():
            batches.make_without_input()
        if batches.job.last.held and (not self.waiting or self.is_due()):
            return "terminated" if batches.stopping.is_set() else "budget"
        self.fire_timers()
        return "interval"

    def finish(self) -> StoppedBecause:
        """Make micro-batches until nothing waits for services: FLIP-232's end of input, though more may come later.

        Each calls for the last time for what earlier ones have left. An element that comes to another wait by that is new
        there, with all its retries, so one micro-batch may not be enough; but none leaves what it found.
        """
        while self.waiting or self.batches.job.last.held:
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
        offsets = self.batches.job.last.offsets
        if not all(offset.ended for offset in offsets.values()) or not offsets:
            self.batches.events.ending()
            taken = end_of_input(self.batches.plan, offsets)
            self.batches.make(taken, self.batches.last_interval())
            stopped = self.finish()
        return "ended" if stopped == "finished" else stopped
