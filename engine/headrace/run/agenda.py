"""Agenda: what a run does next, from facts alone.

A run asks for its next step, takes it, and asks again, until it gets the reason to stop. A step may find nothing to do: then the next
one follows. So a crash, a signal and a retry are only other facts. The order of steps:

    the limit that is reached                   no further micro-batch begins
    held records                                a micro-batch without input resumes them
    requeued rows                               taken in before new input
    what the job did                            on a branch: its requeues, its micro-batches, a backfill's replay
    input                                       the next of all sources, or one interval
    calls that are due, due timers              the latter once: timers that register themselves again would keep the run from ending
    the end                                     services are called for the last time, the input is declared to have ended
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import interval_of
from headrace.run.followed import FollowedLineage
from headrace.run.options import StoppedBecause
from headrace.run.replay import Replay
from headrace.sources.interval import Interval
from headrace.sources.slices import NEXT_SLICE, SliceRequest


@dataclass(frozen=True, slots=True)
class TakeRequeued:
    """Take in rows that left the quarantine."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeat, on a branch, a requeue of the job."""

    requeue: Checkpoint


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Take in input. On a branch, `follows` is the micro-batch of the job whose time it gets."""

    wanted: SliceRequest = NEXT_SLICE
    follows: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Make a micro-batch without input, for held records and waiting calls. On a branch, it may follow one of the job."""

    follows: Checkpoint | None = None
    for_calls: bool = False
    """For calls that are due: another one follows only if this one leaves fewer of them."""


@dataclass(frozen=True, slots=True)
class FireTimers:
    """Make a micro-batch if timers of processing time are due; on a branch, at the time of a micro-batch of the job."""

    follows: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class PassOver:
    """Leave out, on a branch, a micro-batch of the job for which the branch has no input."""

    followed: Checkpoint


@dataclass(frozen=True, slots=True)
class ReadReplay:
    """Read, on the branch of a backfill, what the job has taken in meanwhile."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Call services for the last time for all waiting elements."""


@dataclass(frozen=True, slots=True)
class EndInput:
    """Declare the end of the input: the watermark passes all timers of event time."""


Step = TakeRequeued | Repeat | TakeIn | Resume | FireTimers | PassOver | ReadReplay | Finish | EndInput


@dataclass(frozen=True, slots=True)
class Past:
    """Steps that this run has tried, as far as the next one depends on them."""

    tried: tuple[Step, ...] = ()
    """Those since the last checkpoint of this run, which found nothing to do."""
    kinds: frozenset[type[Step]] = frozenset()
    """Kinds of all steps that were tried."""
    committed: frozenset[type[Step]] = frozenset()
    """Kinds of the steps that committed a checkpoint."""
    has_fired: bool = False
    """Timers that were due at the time of the run have fired."""
    waiting: int | None = None
    """Number of calls that waited before the last micro-batch for them; None without one."""

    def after(self, step: Step, *, commits: bool, waiting: int) -> Past:
        """Return the past after a step, before which `waiting` calls waited."""
        is_for_calls = isinstance(step, Resume) and step.for_calls
        return Past(
            () if commits else (*self.tried, step),
            self.kinds | {type(step)},
            self.committed | {type(step)} if commits else self.committed,
            self.has_fired or (commits and step == FireTimers()),
            waiting if is_for_calls else self.waiting,
        )


NO_PAST = Past()


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A run takes in all input."""

    ends: bool = False
    """No more input comes: no source waits for another one."""


@dataclass(frozen=True, slots=True)
class OneInterval:
    """A run takes in one interval."""

    interval: Interval
    is_done: bool
    """It was taken in before, with the same input."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A run takes in on a branch an interval, and all later input of the job."""


Wanted = CaughtUp | OneInterval | Backfill
Ending = Literal["finish", "end"] | None


@dataclass(frozen=True, slots=True)
class Now:
    """Facts on which the next step depends. `time` is by the clock of the machine (ms)."""

    last: Checkpoint
    time: int
    limit: StoppedBecause | None
    followed: FollowedLineage
    past: Past = NO_PAST
    replay: Replay | None = None
    """What the branch of a backfill lacks, without the parts that were tried; None if it was not read yet, or nothing is left."""

    def is_new(self, step: Step) -> bool:
        """Return whether a step was not tried since the last checkpoint of this run."""
        return step not in self.past.tried

    @property
    def may_begin(self) -> bool:
        """Return whether another micro-batch may begin."""
        return self.limit is None

    @property
    def is_due(self) -> bool:
        """Return whether a waiting call is due."""
        due = self.last.work.due
        return due is not None and due <= self.time

    @property
    def calls(self) -> Resume | None:
        """Return the step for calls that are due, or for records held behind them.

        A second one follows only if the first made progress: while a service is down, the run leaves its elements to the next run. An
        interrupted run may have held records: they are resumed once, whether a call is due or not.
        """
        was_left = self.last.holds_records and not self.past.committed
        has_progress = self.past.waiting is None or self.last.work.pending < self.past.waiting
        return Resume(for_calls=True) if (was_left or self.is_due) and has_progress else None

    @property
    def held(self) -> Resume | None:
        """Return the step for held records; None without any, and while they wait behind calls that are not due."""
        if not self.last.holds_records:
            return None
        return self.calls if self.last.work.pending else Resume()

    @property
    def requeued(self) -> Step | None:
        """Return the step for rows of the quarantine: those of the job itself first, then those that the job has requeued."""
        if self.is_new(TakeRequeued()):
            return TakeRequeued()
        requeue = self.followed.next_requeue()
        return None if requeue is None else Repeat(requeue)

    @property
    def without_input(self) -> Resume | None:
        """Return the step for the job's next micro-batch, if that took in no input."""
        live = self.followed.next()
        return None if live is None or self.followed.takes_input() else Resume(follows=live)

    @property
    def timers(self) -> FireTimers | None:
        """Return the step for due timers; None if this run has fired some, or must end at once."""
        may_fire = self.limit != "terminated" and not self.past.has_fired
        return FireTimers() if may_fire and self.is_new(FireTimers()) else None


def next_step(now: Now, wanted: Wanted, ending: Ending = None) -> Step | StoppedBecause:
    """Return the next step of a run, or the reason to stop. Reads no table, clock or file."""
    if ending and now.past.kinds & {Finish, EndInput}:
        return _end(now, ending)
    step = _of_kind(now, wanted)
    return _end(now, ending) if ending and isinstance(step, str) and now.may_begin else step


def _of_kind(now: Now, wanted: Wanted) -> Step | StoppedBecause:
    match wanted:
        case CaughtUp():
            return _caught_up(now, wanted)
        case OneInterval():
            return _one_interval(now, wanted)
        case Backfill():
            return _backfill(now)


def _caught_up(now: Now, wanted: CaughtUp) -> Step | StoppedBecause:
    if now.limit is not None:
        return now.limit
    step = now.held or now.requeued or _follow(now)
    if step is not None:
        return step
    take_in = TakeIn(SliceRequest(ends=wanted.ends))
    if now.is_new(take_in):
        return take_in
    return now.calls or now.timers or "drained"


def _follow(now: Now) -> Step | None:
    """Return the step that makes, on a branch, the job's next micro-batch: with the same input and time."""
    live = now.followed.next()
    if live is None:
        return None
    if not now.followed.takes_input():
        return Resume(follows=live)
    take_in = TakeIn(SliceRequest(interval_of(live), live.sources, follows=now.followed.later(live)), live)
    if now.is_new(take_in):
        return take_in
    return FireTimers(live) if now.is_new(FireTimers(live)) else PassOver(live)


def _one_interval(now: Now, wanted: OneInterval) -> Step | StoppedBecause:
    is_taken = wanted.is_done or TakeIn in now.past.committed
    has_begun = now.past.committed & {TakeIn, Resume, FireTimers}
    if now.may_begin and not has_begun and (requeued := now.requeued) is not None:
        return requeued
    if is_taken:
        return _rest(now) or ("done" if wanted.is_done else "interval")
    if now.limit == "terminated":
        return now.limit
    if now.may_begin and (without_input := now.without_input) is not None:
        return without_input
    live = now.followed.of_interval(wanted.interval)
    return TakeIn(SliceRequest(wanted.interval, follows=now.followed.later(live)), live)


def _backfill(now: Now) -> Step | StoppedBecause:
    if now.replay is None and not now.past.kinds & {TakeIn, Repeat}:
        return ReadReplay() if now.is_new(ReadReplay()) else _rest(now) or "interval"
    if now.may_begin and now.is_new(TakeRequeued()):
        return TakeRequeued()
    if now.replay is None:
        return ReadReplay() if now.is_new(ReadReplay()) else _rest(now) or "interval"
    if now.limit is not None:
        return now.limit
    if (without_input := now.without_input) is not None:
        return without_input
    part = now.replay.parts[0]
    if part.requeue is not None:
        return Repeat(part.requeue)
    live = now.followed.next() if part.interval is None else now.followed.of_interval(part.interval)
    return TakeIn(SliceRequest(part.interval, part.sources, follows=now.followed.later(live)), live)


def _rest(now: Now) -> Step | StoppedBecause | None:
    """Return the step for what waits behind an interval; None if nothing is left to do."""
    if now.may_begin and (calls := now.calls) is not None:
        return calls
    if now.last.holds_records and (not now.last.work.pending or now.is_due):
        return "terminated" if now.limit == "terminated" else "budget"
    return now.timers


def _end(now: Now, ending: Ending) -> Step | StoppedBecause:
    """Return the step that ends the run: nothing waits for services any more, as at FLIP-232's end of input.

    Each micro-batch calls for the last time for the elements of earlier ones. A result that reaches another wait is new there, with all
    its retries, so one micro-batch may not be enough; but each finishes all elements that waited before it.
    """
    last = now.last
    if last.work.pending or last.holds_records:
        return now.limit or Finish()
    if ending == "finish":
        return "finished"
    has_ended = bool(last.sources) and all(facts.ended for facts in last.sources.values())
    return "ended" if has_ended or EndInput in now.past.kinds else EndInput()
