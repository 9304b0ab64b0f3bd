"""The line of checkpoints that leads to a head, against a plain walk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage

KINDS = (Kind.BATCH, Kind.SAVEPOINT, Kind.COMPACTION)


def checkpoint(number, kind=Kind.BATCH, target=None):
    return Checkpoint(
        incarnation=1,
        checkpoint_id=number,
        parent_id=number - 1 if number else None,
        kind=kind if number else Kind.INITIAL,
        run_id="run",
        attempt_id="attempt",
        max_parallelism=1,
        versions={},
        committed_at=number * 10,
        restored_from=target,
    )


@st.composite
def logs(draw):
    """A job with restores to any earlier checkpoint."""
    log = [checkpoint(0)]
    for number in range(1, draw(st.integers(1, 12))):
        target = draw(st.none() | st.integers(0, number - 1))
        kind = Kind.RESTORE if target is not None else draw(st.sampled_from(KINDS))
        log.append(checkpoint(number, kind, target))
    return log


def walked(log, head):
    """Ids of the line of `head`, oldest first: each checkpoint extends the line of another one by itself."""
    lines = {}
    for checkpoint in log:
        before = checkpoint.restored_from if checkpoint.kind is Kind.RESTORE else checkpoint.parent_id
        lines[checkpoint.checkpoint_id] = [*lines.get(before, []), checkpoint.checkpoint_id]
    return lines[head]


def ids(checkpoints):
    return [new_checkpoint.checkpoint_id for new_checkpoint in checkpoints]


@given(log=logs())
def test_line_equals_a_walk_over_parents(log):
    lineage = Lineage(log)
    assert lineage.head is log[-1]
    assert ids(lineage.checkpoints) == ids(lineage.newest_first())[::-1] == walked(log, len(log) - 1)


@given(log=logs(), data=st.data())
def test_any_checkpoint_has_a_line(log, data):
    head = data.draw(st.sampled_from(log))
    assert ids(Lineage(log).to(head).checkpoints) == walked(log, head.checkpoint_id)


@given(log=logs(), data=st.data())
def test_last_checkpoints_are_on_the_line(log, data):
    line = walked(log, len(log) - 1)
    kind, timestamp = data.draw(st.sampled_from(Kind)), data.draw(st.integers(-1, 120))
    last = Lineage(log).last_of(kind)
    assert (last and last.checkpoint_id) == max((i for i in line if log[i].kind is kind), default=None)
    before = Lineage(log).as_of(timestamp)
    assert (before and before.checkpoint_id) == max((i for i in line if i * 10 <= timestamp), default=None)


@given(log=logs())
def test_last_micro_batch_lies_on_the_line(log):
    batches = [i for i in walked(log, len(log) - 1) if log[i].kind is Kind.BATCH]
    assert Lineage(log).last_micro_batch() == (batches[-1] * 10 if batches else None)


@given(log=logs(), data=st.data())
def test_checkpoint_with_later_dependents_counts_as_published(log, data):
    published = data.draw(st.sets(st.integers(0, len(log) - 1)))
    wanted = data.draw(st.sampled_from(log))
    later = min((i for i in published if i >= wanted.checkpoint_id), default=None)
    expected = later is not None and wanted.checkpoint_id in walked(log, later)
    assert Lineage(log).was_published(wanted, published) is expected


def test_restored_restores_leave_the_line_unchanged():
    """0 - 1 - 2 - 3 (to 1) - 4 - 5 (to 3) - 6."""
    log = [checkpoint(number) for number in range(7)]
    log[3], log[5] = checkpoint(3, Kind.RESTORE, 1), checkpoint(5, Kind.RESTORE, 3)
    assert ids(Lineage(log).checkpoints) == [0, 1, 3, 5, 6]


def test_job_without_checkpoints_has_no_line():
    lineage = Lineage([])
    assert (lineage.head, lineage.checkpoints, lineage.last_of(Kind.BATCH), lineage.as_of(9)) == (None, [], None, None)
    assert lineage.last_micro_batch() is None


def test_line_begins_at_first_logged_checkpoint():
    log = [checkpoint(number) for number in (5, 6)]
    assert ids(Lineage(log).checkpoints) == [5, 6]
    assert not Lineage(log).was_published(log[0], {9})
