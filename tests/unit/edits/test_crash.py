"""A crash is an input: at whatever step a process dies, a checkpoint is complete or absent (in memory).

    script    ann --- bob --- compaction --- cyd --- restore to bob --- dee --- ann erased --- purged --- vacuum
    id         1       2          3           4            5             6          7            8          9

Each step of the script is killed at each place that it reaches: `faults.PLACES`, and each commit, sync and deletion
on the disk. At some places the power fails too.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest

from headrace import clock as engine_clock
from headrace import crash_points
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.erase import erase
from headrace.edits.erased_key import ErasedKey
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import FencedError, StorageError
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.memory_job import RETENTION, MemoryJob, commit_batch, killed_at, places_of

SCRIPT = (
    ("first", lambda job: job.run("ann")),
    ("batch", lambda job: job.run("bob")),
    ("compaction", lambda job: compact(job.config, "nightly")),
    ("batch after it", lambda job: job.run("cyd")),
    ("restore", lambda job: restore(job.config, 2, "", "somebody")),
    ("batch after that", lambda job: job.run("dee")),
    ("erasure", lambda job: erase(job.config, "dpo", ErasedKey("ann"), why="")),
    ("purge", lambda job: erase(job.config, "dpo", ErasedKey("ann"), why="", purge=True)),
    ("vacuum", lambda job: vacuum(job.config, "weekly", dry_run=False)),
)
STEPS = {name: number for number, (name, _) in enumerate(SCRIPT, 1)}


def play(job, clock, steps):
    """Run the script up to a step; return the content of the disk."""
    for step in range(1, steps + 1):
        play_step(job, clock, step)
    return job.copy()


def assert_whole(job, content):
    """Assert that state and sinks agree with each other and with a run without crashes."""
    assert job.content() == content
    assert [finding for finding in verify(job.config) if not finding.ok] == []
    ids = [checkpoint.checkpoint_id for checkpoint in job.log.checkpoints]
    assert ids == list(range(len(ids)))


@pytest.fixture(scope="module")
def contents():
    """Return the content of the job after each step of the script, without a crash."""
    own = engine_clock.VirtualClock(1_000_000)
    before = engine_clock.use(own)
    job = MemoryJob("whole")
    job.run()
    contents = [job.content()]
    for step in range(1, len(SCRIPT) + 1):
        play_step(job, own, step)
        contents.append(job.content())
    forget_disk("whole")
    engine_clock.use(before)
    return contents


def play_step(job, clock, step):
    name, act = SCRIPT[step - 1]
    if name == "vacuum":
        clock.advance(RETENTION)
    act(job)


KILLED = pytest.mark.parametrize(
    "name", ["first", "compaction", "restore", "batch after that", "erasure", "purge", "vacuum"]
)


@pytest.mark.slow
@KILLED
@pytest.mark.parametrize("power", ["power fails", pytest.param("power fails later", marks=pytest.mark.long)])
def test_killed_step_is_complete_or_undone(memory_job, clock, contents, name, power):
    job, step, outcomes = memory_job, STEPS[name], set()
    before = play(job, clock, step - 1)
    if name == "vacuum":
        clock.advance(RETENTION)
    act, places = SCRIPT[step - 1][1], []
    with places_of(job.disk, places):
        act(job)
    for place, visit in places:
        before.bring_back()
        with killed_at(job.disk, place, visit):
            act(job)
        if power == "power fails":
            job.disk.lose_power()
        job.run()  # the next opening: it undoes, or publishes
        if power == "power fails later":
            assert_whole(job, contents[job.last.checkpoint_id])
            job.disk.lose_power()
            job.run()
        number = job.last.checkpoint_id
        assert_whole(job, contents[number])
        outcomes.add(number)
        if number < step:
            act(job)
            assert job.content() == contents[step], place
    assert outcomes == {step - 1, step}


@pytest.mark.slow
def test_power_failure_never_takes_a_commit_back(memory_job, clock, contents):
    """A micro-batch that has returned survives a power failure, in the state and in the sinks."""
    for step in range(1, len(SCRIPT) + 1):
        play_step(memory_job, clock, step)
        memory_job.disk.lose_power()
        assert memory_job.content() == contents[step]
        memory_job.run()
        assert_whole(memory_job, contents[step])


@pytest.mark.slow
def test_second_crash_during_recovery_does_no_harm(memory_job, clock, contents):
    job, places = memory_job, []
    before = play(job, clock, 1)
    for first in ("prepare.half", "commit.after"):
        with killed_at(job.disk, first):
            job.run("bob")
        halfway = job.copy()
        places.clear()
        with places_of(job.disk, places):
            job.run()
        for place, visit in places:
            halfway.bring_back()
            with killed_at(job.disk, place, visit):
                job.run()
            job.run()
            assert_whole(job, contents[job.last.checkpoint_id])
        before.bring_back()


@pytest.mark.slow
def test_next_run_repeats_refused_commits(memory_job, clock, contents):
    """The disk refuses one commit and accepts later ones, like a network."""
    job, step, places = memory_job, STEPS["batch"], []
    before = play(job, clock, step - 1)
    with places_of(job.disk, places):
        job.run("bob")
    for place, visit in places:
        if place in crash_points.PLACES:
            continue
        before.bring_back()
        with refused_at(job.disk, place, visit):
            job.run("bob")
        job.run()
        number = job.last.checkpoint_id
        assert_whole(job, contents[number])
        if number < step:
            job.run("bob")
            assert job.content() == contents[step], place


@contextmanager
def refused_at(disk, place, visit):
    """Refuse one step of the disk. The process may notice, or continue: the lease need not be released."""
    visits = 0

    def step(name, path):
        nonlocal visits
        if f"{name} {path}" == place:
            visits += 1
            if visits == visit:
                raise OSError("try again")

    with disk.failing(step), suppress(StorageError):
        yield


def test_crash_points_cover_every_commit(memory_job, clock):
    """Other tests cover the other places: of runs, of requeues (`tests/unit/run/test_requeue_crashes.py`), and those named in the tests."""
    job, places = memory_job, []
    with places_of(job.disk, places):
        play(job, clock, len(SCRIPT))
        with killed_at(job.disk, "prepare.half"):
            job.run("eve")
        job.run()
    reached = {place for place, _ in places}
    of_runs = {"land.half", "ingest.after", "task.half", "run.after", "state_migration.staged"}
    of_commands = {
        *("migration.before", "migration.prepared", "operator_state.staged", "requeue.staged", "rescale.prepared"),
        *(
            "drop.marked",
            "drop.half",
            "drop.deleted",
            "reconcile.planned",
            "edit.staged",
        ),  # edits by hand: test_entries
        *("fork.listed", "fork.tables", "branch.dropped"),  # test_fork
        *("promotion.begun", "promotion.staged", "promotion.prepared"),  # test_promotion
        *("promotion.committed", "promotion.landed", "promotion.removed"),
        *("backfill.forked", "backfill.caught_up"),  # tests/unit/run/test_backfill.py
        *("take_over.before", "take_over.after", "sink_rename.before", "sink_rename.after"),  # test_sink_owners
    }
    of_deliveries = {"deliver.half"}  # tests/unit/sinks
    assert crash_points.PLACES - reached == of_runs | of_commands | of_deliveries


@pytest.mark.slow
def test_overtaken_process_never_writes_twice(memory_job):
    """A process is suspended at each place of a micro-batch; meanwhile another process takes the job and commits its own."""
    job, places = memory_job, []
    job.run("ann")
    before = job.copy()
    with places_of(job.disk, places):
        job.run("bob")
    for place in dict.fromkeys(place for place, _ in places if place in crash_points.PLACES):
        before.bring_back()
        with asleep_at(place, lambda: overtake(job)), suppress(FencedError):
            job.run("bob")
        job.run()
        committed = sorted(checkpoint.run_id for checkpoint in job.log.checkpoints[2:])
        assert committed in (["winner"], ["run", "winner"]), place
        reminded = ["ann", *(["bob"] if "run" in committed else []), "cyd"]
        assert_whole(job, (job.entries(), ["cyd"], reminded))
        assert [name for name in ("ann", "bob", "cyd") if name in str(job.entries()["timers"])] == reminded


def overtake(job):
    with job.open("winner", force=True) as winner:
        commit_batch(winner, "cyd")


@contextmanager
def asleep_at(place, act):
    acts = [act]
    with crash_points.observed(lambda reached: acts.pop()() if reached == place and acts else None):
        yield
