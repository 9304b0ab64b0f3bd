"""The parts that a checkpoint inherits from its parent, and from the target of a restore (in memory)."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict, replace

from headrace import crash_points
from headrace.commit.protocol import OF_STATE, open_job
from headrace.edits.restore import drop_savepoint, restore, savepoint
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import JobWork, OperatorFacts
from headrace.records.watermarks import Timeline
from headrace.sources.position import FolderPosition, SourceFacts
from tests.unit.support.memory_job import BOARD, board, killed_at

MORNING = {
    "sources": {"purchases": SourceFacts(position=FolderPosition("a"))},
    "timelines": {"purchases": Timeline(("purchases",), watermark=7, seen=7)},
    "work": JobWork(held=1, pending=2, due=3),
    "watermark": 7,
    "operators": {
        "customers": OperatorFacts(
            timeline="purchases", rank=1, fired_until={"event_time": 7}, local_copies={"0-127": "copy"}
        )
    },
    "edges": {"purchases#0->customers": 0},
    "interval_start": 0,
    "interval_end": 10,
}
EVENING = {**MORNING, "watermark": 17, "interval_start": 10, "interval_end": 20, "edges": {}}


@pytest.fixture
def job(memory_job):
    """Two micro-batches with every field that describes the state."""
    with memory_job.open() as opened:
        opened.commit(Kind.BATCH, **MORNING)
        opened.commit(Kind.BATCH, **EVENING)
    return memory_job


def state_of(checkpoint: Checkpoint):
    fields = asdict(checkpoint)
    return {name: fields[name] for name in OF_STATE}


def test_checkpoint_inherits_its_parents_state(job):
    savepoint(job.config, "here", "why", "somebody")
    assert state_of(job.last) == state_of(job.log.get(2))
    assert state_of(job.last) == {**state_of(job.log.get(0)), **EVENING}
    assert (job.last.parent_id, job.last.name, job.last.note, job.last.outputs) == (2, "here", "why", {})


def test_restore_takes_the_state_of_its_target(job):
    restored = restore(job.config, 1, "why", "somebody")
    assert state_of(restored) == state_of(job.log.get(1)) != state_of(job.log.get(2))
    assert job.last == restored


def test_name_of_a_savepoint_is_free_once_dropped(job):
    savepoint(job.config, "here", "", "somebody")
    with pytest.raises(
        ConfigError, match="savepoint 'here' of job 'purchases' exists: it is checkpoint 3. Nothing was changed"
    ):
        savepoint(job.config, "here", "", "somebody else")
    assert savepoint(job.config, "here", "", "somebody").checkpoint_id == 3
    drop_savepoint(job.config, "here", "", "somebody")
    savepoint(job.config, "here", "", "somebody")
    assert restore(job.config, "here", "", "somebody").restored_from == 5


def test_checkpoints_are_committed_before_they_are_published(job):
    seen = []

    def note(place):
        if place in {"commit.before", "commit.after", "publish.after"}:
            seen.append((place, job.last.checkpoint_id, job.published()))

    with job.open() as opened, crash_points.observed(note):
        opened.commit(Kind.BATCH, outputs=board(opened, "ann"))
    assert seen == [("commit.before", 2, None), ("commit.after", 3, None), ("publish.after", 3, 3)]


def test_unpublished_checkpoint_is_not_built_on(job):
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        opened.commit(Kind.BATCH, outputs=board(opened, "ann"))
    with job.open() as opened:
        assert job.sink_rows(BOARD, "customer") == ["ann"]
        assert opened.next_id == 4


@pytest.mark.parametrize("key_groups", [64, 256])
def test_other_number_of_key_groups_is_refused(job, key_groups):
    job.config = replace(job.config, max_parallelism=key_groups)
    with pytest.raises(ConfigError, match=f"128 key groups, not {key_groups}"):
        job.run("ann")
    assert job.last.checkpoint_id == 2


def test_job_never_run_is_refused(memory_job):
    with pytest.raises(ConfigError, match="run it first"), open_job(memory_job.config, "compact"):
        pass
    assert memory_job.disk.tables == {}


def test_unknown_checkpoints_are_refused(job):
    with pytest.raises(ConfigError, match=r"no checkpoint 9 \(known: 0 to 2\)"):
        restore(job.config, 9, "", "somebody")
    with pytest.raises(ConfigError, match="no savepoint 'here'"):
        restore(job.config, "here", "", "somebody")
