"""Which version of a sink belongs to which checkpoint: commits are known by id and incarnation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.errors import SinkMismatchError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.log.sink_history import SinkHistory
from headrace.sinks.sink import OutputFile
from headrace.storage.table import Commit, CommitInfo

A, B, C = 10, 20, 30
SINK = "board"
OUTPUT = {SINK: [OutputFile("file", 1, 1)]}


@dataclass
class Table:
    """A sink whose history is given: checkpoint and incarnations of each commit, from version 1 on."""

    commits: list[tuple[int | None, tuple[int, ...]]]
    first: int = 0
    uri: str = "lake/board"

    @property
    def version(self):
        return len(self.commits)

    def history(self, limit=None):
        infos = [CommitInfo(), *(CommitInfo(checkpoint_id=number, published_by=by) for number, by in self.commits)]
        return [Commit(version, info) for version, info in enumerate(infos)][self.first :][::-1][:limit]


def checkpoint(number, incarnation=A, outputs=OUTPUT, kind=Kind.BATCH, parent=None, target=None):
    return Checkpoint(
        checkpoint_id=number,
        parent_id=number - 1 if parent is None else parent,
        kind=kind,
        run_id="run",
        attempt_id="attempt",
        max_parallelism=1,
        versions={},
        committed_at=0,
        outputs=outputs,
        incarnation=incarnation,
        restored_from=target,
    )


def log(*ids, incarnation=A):
    initial = replace(checkpoint(0, incarnation, outputs={}, kind=Kind.INITIAL), parent_id=None)
    return Lineage([initial, *(checkpoint(number, incarnation) for number in ids)])


def history(table, lineage):
    return SinkHistory(table, SINK, lineage)


def test_each_checkpoint_has_its_version():
    assert history(Table([(1, (A,)), (2, (A,))]), log(1, 2)).versions(log(1, 2)) == {0: 0, 1: 1, 2: 2}


def test_checkpoint_id_of_another_incarnation_has_no_version():
    table = Table([(1, (A,)), (2, (B, A))])
    assert history(table, log(1, 2)).versions(log(1, 2)) == {0: 0, 1: 1}


@pytest.mark.parametrize(("by", "known"), [((A,), True), ((B, A), True), ((C, B, A), True), ((B,), False), ((), False)])
def test_later_incarnations_are_known(by, known):
    assert history(Table([(7, by)]), log(1)).is_known == known


def test_merges_through_spark_take_the_incarnation_before():
    """Spark's commits record no incarnation: the first commit is followed by one that does."""
    table = Table([(1, ()), (1, (B,)), (2, ())])
    assert history(table, log(1, 2)).versions(log(1, 2)) == {0: 0}
    lineage = log(1, 2, incarnation=B)
    assert history(table, lineage).versions(lineage) == {0: 0, 1: 1, 2: 3}


def test_manual_commits_belong_to_no_checkpoint():
    assert history(Table([(None, ()), (1, (A,))]), log(1)).versions(log(1)) == {0: 0, 1: 2}


def test_missing_sink_counts_as_empty():
    removed = history(None, log(1, 2))
    assert (removed.versions(log(1, 2)), removed.is_known) == ({0: 0}, False)
    with pytest.raises(SinkMismatchError, match="what checkpoint 2 wrote never reached sink 'board', so"):
        removed.version_of(log(1, 2))


def test_checkpoint_before_the_kept_history_is_refused():
    lineage, table = log(1, 2), Table([(1, (A,)), (2, (A,))], first=2)
    assert history(table, lineage).versions(lineage) == {2: 2}
    with pytest.raises(StorageError, match="begins at version 2"):
        history(table, lineage).version_of(lineage.to(lineage.checkpoints[0]))


@st.composite
def jobs(draw):
    """A log with restores, gaps before them and changes of incarnation, and a sink that has some of its checkpoints."""
    checkpoints, incarnation = [log().checkpoints[0]], A
    for _ in range(draw(st.integers(0, 10))):
        last = checkpoints[-1].checkpoint_id
        number, target, kind = (
            last + 1,
            None,
            draw(st.sampled_from([Kind.BATCH, Kind.BATCH, Kind.SAVEPOINT, Kind.RESTORE])),
        )
        outputs = OUTPUT if kind is Kind.BATCH and draw(st.booleans()) else {}
        if kind is Kind.RESTORE:
            target = draw(st.sampled_from(checkpoints)).checkpoint_id
            if draw(st.booleans()):
                number, incarnation = number + draw(st.integers(0, 3)), incarnation + 1
        checkpoints.append(checkpoint(number, incarnation, outputs, kind, last, target))
    ids = sorted(draw(st.sets(st.integers(1, 40), max_size=25)))
    by = draw(st.lists(st.sampled_from([(), (A,), (A + 1, A), (99,)]), min_size=len(ids), max_size=len(ids)))
    own = {new_checkpoint.checkpoint_id: new_checkpoint.incarnation for new_checkpoint in checkpoints}
    commits = [
        (number, (own[number],) if number in own and draw(st.booleans()) else says)
        for number, says in zip(ids, by, strict=True)
    ]
    return Lineage(checkpoints), Table(commits, first=draw(st.sampled_from([0, 0, 1])))


@given(job=jobs())
def test_versions_of_line_belong_to_its_checkpoints(job):
    lineage, table = job
    sink = history(table, lineage)
    expected = {}
    for checkpoint in lineage.checkpoints:
        try:
            expected[checkpoint.checkpoint_id] = sink.version_of(lineage.to(checkpoint))
        except (SinkMismatchError, StorageError):
            continue
    assert sink.versions(lineage) == expected
