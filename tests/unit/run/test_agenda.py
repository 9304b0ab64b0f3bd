"""The agenda: the next step follows from facts alone, in one order, whatever happened before."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import JobWork
from headrace.records.watermarks import Timeline
from headrace.run.agenda import (
    NO_PAST,
    Backfill,
    CaughtUp,
    EndInput,
    Finish,
    FireTimers,
    Now,
    OneInterval,
    PassOver,
    ReadReplay,
    Repeat,
    Resume,
    TakeIn,
    TakeRequeued,
    next_step,
)
from headrace.run.replay import Part, Replay
from headrace.sources.interval import Interval
from headrace.sources.position import SourceFacts
from headrace.sources.slices import SliceRequest

DAY = Interval(0, 86_400_000)


def checkpoint(number=7, **fields):
    named = {"run_id": "r", "attempt_id": "a", "max_parallelism": 4, "versions": {}, "committed_at": 0}
    return Checkpoint(**named, kind=Kind.BATCH, checkpoint_id=number, incarnation=1, **fields)


class Followed:
    """What the job did, as data: its next micro-batch and whether that took input, its next requeue."""

    def __init__(self, live=None, *, takes_input=True, requeue=None):
        self.live, self.with_input, self.requeue = live, takes_input, requeue

    def next(self):
        return self.live

    def takes_input(self):
        return self.with_input

    def next_requeue(self):
        return self.requeue

    def of_interval(self, _):
        return self.live

    def later(self, live):
        return [] if live is None else [live.sources]


NOTHING = Followed()
WAITING = JobWork(pending=3, due=10)
HELD = JobWork(held=2)


def now(*past, work=JobWork(), followed=NOTHING, time=5, limit=None, replay=None, **fields):  # noqa: B008 - it is frozen
    steps = reduce(lambda before, step: before.after(**step), past, NO_PAST)
    return Now(checkpoint(work=work, **fields), time, limit, followed, steps, replay)


def tried(step, *, committed=False, waiting=0):
    return {"step": step, "commits": committed, "waiting": waiting}


def course(facts, wanted, ending=None, committing=()):
    """Return the steps of a run in which only some steps find something to do, once each, and the reason to stop."""
    left, steps = [*committing], []
    while not isinstance(step := next_step(facts, wanted, ending), str):
        steps.append(step)
        is_committed = type(step) in left
        if is_committed:
            left.remove(type(step))
        past = facts.past.after(step, commits=is_committed, waiting=facts.last.work.pending)
        facts = replace(facts, past=past)
        assert len(steps) < 30
    return [type(step) for step in steps], step


def test_run_without_work_looks_everywhere_once():
    assert course(now(), CaughtUp()) == ([TakeRequeued, TakeIn, FireTimers], "drained")


def test_micro_batch_is_followed_by_another_look():
    steps, reason = course(now(), CaughtUp(), committing=[TakeIn, FireTimers])
    assert steps == [TakeRequeued, TakeIn, TakeRequeued, TakeIn, FireTimers, TakeRequeued, TakeIn]
    assert reason == "drained"


@pytest.mark.parametrize("wanted", [CaughtUp(), Backfill()])
@pytest.mark.parametrize("limit", ["budget", "max_batches", "terminated"])
def test_limit_ends_the_run(wanted, limit):
    replay = Replay(DAY, (Part(DAY),))
    assert next_step(now(limit=limit, work=HELD, replay=replay), wanted) in {limit, ReadReplay()}
    assert next_step(now(tried(ReadReplay()), limit=limit, replay=replay), wanted) == limit


def test_held_records_come_first():
    assert next_step(now(work=HELD), CaughtUp()) == Resume()
    repeated = {"a": Timeline(("a",), repeated=((1, 2),))}
    assert next_step(now(timelines=repeated), CaughtUp()) == Resume()


def test_records_held_behind_calls_wait_with_them():
    work = JobWork(held=2, pending=3, due=10)
    after = tried(TakeIn(), committed=True)
    assert next_step(now(work=work), CaughtUp()) == Resume(for_calls=True)  # an interrupted run may have held them
    assert next_step(now(after, work=work), CaughtUp()) == TakeRequeued()
    assert next_step(now(after, work=work, time=10), CaughtUp()) == Resume(for_calls=True)


def test_calls_are_repeated_while_they_make_progress():
    call = tried(Resume(for_calls=True), committed=True, waiting=3)
    facts = now(call, tried(TakeRequeued()), tried(TakeIn()), time=10, work=JobWork(pending=2, due=10))
    assert next_step(facts, CaughtUp()) == Resume(for_calls=True)
    assert next_step(replace(facts, last=checkpoint(work=WAITING)), CaughtUp()) == FireTimers()


def test_timers_fire_once_a_run():
    steps, _ = course(now(), CaughtUp(), committing=[FireTimers, FireTimers])
    assert steps.count(FireTimers) == 1


def test_branch_follows_its_job():
    live = checkpoint(4, sources={"a": SourceFacts(number=1)})
    taken = TakeIn(SliceRequest(None, live.sources, follows=[live.sources]), live)
    assert next_step(now(tried(TakeRequeued()), followed=Followed(live)), CaughtUp()) == taken
    assert next_step(now(tried(TakeRequeued()), tried(taken), followed=Followed(live)), CaughtUp()) == FireTimers(live)
    passed = (tried(TakeRequeued()), tried(taken), tried(FireTimers(live)))
    assert next_step(now(*passed, followed=Followed(live)), CaughtUp()) == PassOver(live)
    without = Followed(live, takes_input=False)
    assert next_step(now(tried(TakeRequeued()), followed=without), CaughtUp()) == Resume(follows=live)
    requeue = checkpoint(3)
    assert next_step(now(tried(TakeRequeued()), followed=Followed(live, requeue=requeue)), CaughtUp()) == Repeat(
        requeue
    )


def test_interval_is_taken_in_once():
    assert course(now(), OneInterval(DAY, is_done=False), committing=[TakeIn]) == (
        [TakeRequeued, TakeIn, FireTimers],
        "interval",
    )
    assert course(now(), OneInterval(DAY, is_done=True)) == ([TakeRequeued, FireTimers], "done")


def test_interval_is_taken_behind_the_limit():
    assert isinstance(next_step(now(limit="budget"), OneInterval(DAY, is_done=False)), TakeIn)
    assert next_step(now(limit="terminated"), OneInterval(DAY, is_done=False)) == "terminated"


def test_records_held_behind_an_interval_are_named():
    taken = tried(TakeIn(), committed=True)
    wanted = OneInterval(DAY, is_done=False)
    assert next_step(now(taken, work=HELD, limit="budget"), wanted) == "budget"
    assert next_step(now(taken, work=HELD, limit="terminated"), wanted) == "terminated"


def test_records_held_behind_timers_are_named():
    fired = (tried(TakeIn(), committed=True), tried(FireTimers(), committed=True))
    wanted = OneInterval(DAY, is_done=False)
    assert next_step(now(*fired, work=HELD, limit="budget"), wanted) == "budget"
    assert next_step(now(*fired, work=WAITING, time=10), wanted) == Resume(for_calls=True)
    assert next_step(now(*fired), wanted) == "interval"


def test_backfill_reads_again_after_progress():
    replay = Replay(DAY, (Part(DAY),))
    assert next_step(now(), Backfill()) == ReadReplay()
    assert next_step(now(tried(ReadReplay()), replay=replay), Backfill()) == TakeRequeued()
    read = (tried(ReadReplay()), tried(TakeRequeued()))
    step = next_step(now(*read, replay=replay), Backfill())
    assert step == TakeIn(SliceRequest(DAY, follows=[]))
    committed = (*read, tried(step, committed=True))
    assert next_step(now(*committed), Backfill()) == TakeRequeued()
    assert next_step(now(*committed, tried(TakeRequeued())), Backfill()) == ReadReplay()
    assert next_step(now(*committed, tried(TakeRequeued()), tried(ReadReplay())), Backfill()) == FireTimers()
    vanished = (*read, tried(step))
    assert next_step(now(*vanished), Backfill()) == FireTimers()


def test_replay_of_a_requeue_repeats_it():
    requeue = checkpoint(3)
    replay = Replay(DAY, (Part(requeue=requeue),))
    assert next_step(now(tried(ReadReplay()), tried(TakeRequeued()), replay=replay), Backfill()) == Repeat(requeue)


def test_finish_calls_until_nothing_waits():
    drained = [tried(step) for step in (TakeRequeued(), TakeIn(), FireTimers())]
    assert next_step(now(*drained, work=JobWork(pending=1, due=99)), CaughtUp(), "finish") == Finish()
    called = (*drained, tried(Finish(), committed=True, waiting=1))
    assert next_step(now(*called, work=JobWork(pending=1, due=99)), CaughtUp(), "finish") == Finish()
    assert next_step(now(*called, work=JobWork(pending=1), limit="budget"), CaughtUp(), "finish") == "budget"
    assert next_step(now(*called), CaughtUp(), "finish") == "finished"


def test_end_is_declared_once():
    drained = [tried(step) for step in (TakeRequeued(), TakeIn(SliceRequest(ends=True)), FireTimers())]
    facts = now(*drained, sources={"a": SourceFacts()})
    assert next_step(facts, CaughtUp(ends=True), "end") == EndInput()
    ended = now(*drained, tried(EndInput(), committed=True), sources={"a": SourceFacts(ended=True)})
    assert next_step(ended, CaughtUp(ends=True), "end") == "ended"
    assert next_step(replace(ended, last=checkpoint(work=HELD)), CaughtUp(ends=True), "end") == Finish()


STEPS = st.sampled_from([TakeRequeued, TakeIn, FireTimers, Resume, Repeat])


@given(
    committing=st.lists(STEPS, max_size=6),
    wanted=st.sampled_from([CaughtUp(), OneInterval(DAY, is_done=False), OneInterval(DAY, is_done=True)]),
    ending=st.sampled_from([None, "finish"]),
    limit=st.sampled_from([None, "budget", "terminated"]),
)
def test_every_run_ends(committing, wanted, ending, limit):
    is_interval = isinstance(wanted, OneInterval) and not wanted.is_done
    took = [TakeIn, *committing] if is_interval else committing
    steps, reason = course(now(limit=limit), wanted, ending, took)
    if limit is None:
        assert reason in {"drained", "interval", "done", "finished"}
        assert (steps.count(TakeIn) == 1) if is_interval else True
    else:
        assert reason in {limit, "interval", "done"}
