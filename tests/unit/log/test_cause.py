"""Causes of checkpoints and branches: recorded as data; no note is read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import clock as engine_clock
from headrace.edits.erase import erase
from headrace.edits.erased_key import ErasedKey
from headrace.edits.fork import drop_branch, fork
from headrace.edits.promote import promoting
from headrace.edits.restore import drop_savepoint, restore, savepoint
from headrace.errors import ConfigError
from headrace.log.branches import Branch, Branches, BranchStatus, _decoded, _encoded
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import Requeued, Restored
from headrace.log.log import CheckpointLog
from headrace.run.backfill_branches import backfill_note, interrupted_renewal
from headrace.sources.interval import Interval
from headrace.tables.folder import JobFolder
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.fuzzing import examples
from tests.unit.support.memory_job import MemoryJob

TIMESTAMPS = st.integers(0, 4_000_000_000_000)
INTERVALS = st.tuples(TIMESTAMPS, TIMESTAMPS).map(lambda pair: Interval(min(pair), max(pair) + 1))
NOTES = st.one_of(
    st.text(),
    INTERVALS.map(lambda interval: f"interval {interval} is run again"),
    INTERVALS.map(backfill_note),
    st.integers(0, 9).map(lambda number: f"the requeue of checkpoint {number} again"),
)
CAUSES = {
    Kind.RESTORE: st.just(Restored()),
    Kind.REQUEUE: st.builds(Requeued, st.none() | st.integers(0, 9), st.lists(st.text()).map(tuple)),
}


def stored(folder, *checkpoints):
    """Write checkpoints, and read them again."""
    log = CheckpointLog(JobFolder(str(folder)))
    log.create()
    log.begin(checkpoints)
    return CheckpointLog(JobFolder(str(folder))).checkpoints


def checkpoint(kind, number=0, **fields):
    named = {"checkpoint_id": number, "kind": kind, "run_id": "r", "attempt_id": "a", "max_parallelism": 1}
    return Checkpoint(**named, versions={}, committed_at=0, incarnation=1, **fields)


@examples(40)
@given(
    kept=st.sampled_from(sorted(CAUSES, key=str)).flatmap(lambda kind: st.tuples(st.just(kind), CAUSES[kind])),
    note=st.none() | NOTES,
)
def test_causes_are_stored_beside_any_note(kept, note):
    kind, cause = kept
    forget_disk("causes")
    (result,) = stored("memory://causes/job", checkpoint(kind, cause=cause, note=note))
    assert (result.cause, result.note) == (cause, note)


@given(note=st.none() | NOTES, requested=st.none() | INTERVALS)
def test_branches_keep_their_interval_beside_any_note(note, requested):
    def branch_with(**fields):
        return Branch(
            name="b", status=BranchStatus.OPEN, fork_id=0, versions={}, sinks={}, created_at=0, made_at=0, **fields
        )

    branch = branch_with(note=note, requested=requested)
    assert _decoded(_encoded(branch, 1).to_pylist()[0] | {"created_at": 0}) == branch


@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.SAVEPOINT, Kind.FORK])
def test_other_kinds_have_no_cause(kind):
    forget_disk("causes")
    (result,) = stored("memory://causes/job", checkpoint(kind, note="the requeue of checkpoint 7 again"))
    assert result.cause is None


def played(why):
    """Call each command that takes a reason; return what the commands after them see."""
    before = engine_clock.use(engine_clock.VirtualClock(1_000_000))
    job = MemoryJob("reasons")
    try:
        job.run("ann", "bob")
        fork(job.config, "one", 1, "somebody", why)
        fork(job.config, "two", 1, "somebody", why)
        drop_branch(job.config, "two", "somebody", why)
        savepoint(job.config, "kept", why, "somebody")
        restore(job.config, 1, why, "somebody")
        drop_savepoint(job.config, "kept", why, "somebody")
        with promoting(job.config, "one", "somebody") as promotion, suppress(ConfigError):
            promotion.promote(why)
        with suppress(ConfigError):  # it was promoted
            drop_branch(job.config, "one", "somebody", why)
        erase(job.config, "somebody", ErasedKey("a key that nobody has"), why=why, purge=True)
        log = [replace(c, note=None) for c in job.log.checkpoints]
        branches = [replace(branch, note=None) for branch in Branches(job.config).all]
        return log, branches, interrupted_renewal(job.config, "two"), job.content()
    finally:
        forget_disk("reasons")
        engine_clock.use(before)


@pytest.mark.slow
@examples(3)
@given(NOTES)
def test_no_reason_changes_the_result_of_commands(why):
    assert played(why) == played("because")
