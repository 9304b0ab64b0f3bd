"""Differences against a plain comparison: any two checkpoints over any micro-batches, restores and compactions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.edits.compact import compact
from headrace.edits.fork import fork
from headrace.edits.restore import restore, savepoint
from headrace.log.checkpoint import Kind
from headrace.readers.difference import Change, differences
from headrace.readers.job_at import JobAtCheckpoint
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.fuzzing import examples
from tests.unit.support.memory_job import BOARD, REMINDERS, MemoryJob, board, reminder, state_row, timer_row

CUSTOMERS = st.sampled_from(["ann", "bob", "cyd"])
BATCH = st.tuples(st.just("batch"), CUSTOMERS, st.booleans(), st.sampled_from(["+U", "-D"]))
STEPS = st.lists(
    st.one_of(
        BATCH,
        st.tuples(st.just("restore"), st.integers(0, 100)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("savepoint")),
    ),
    min_size=1,
    max_size=7,
)

LINE = st.lists(st.one_of(BATCH, st.tuples(st.just("tick"), CUSTOMERS), st.tuples(st.just("compact"))), max_size=3)


def play(job: MemoryJob, step: tuple[Any, ...]) -> None:
    """Make one step of a drawn history."""
    if step[0] == "batch":
        _, customer, deleted, kind = step
        with job.open() as opened:
            files = {KEYED_STATE: [state_row(opened, customer, deleted=deleted)], TIMERS: [timer_row(opened, customer)]}
            item = "apples" if deleted else "pears"
            outputs = {**board(opened, customer, kind, item), **reminder(opened, customer)}
            opened.commit(Kind.BATCH, files=files, outputs=outputs)
    elif step[0] == "tick":
        with job.open() as opened:
            opened.commit(Kind.BATCH, files={TIMERS: [timer_row(opened, step[1])]})
    elif step[0] == "restore":
        known = job.log.checkpoints
        restore(job.config, known[step[1] % len(known)].checkpoint_id, "drawn", "run")
    elif step[0] == "compact":
        compact(job.config, "run")
    else:
        savepoint(job.config, f"point_{job.last.checkpoint_id}", "drawn", "run")


def state_of(job: MemoryJob) -> dict[str, dict[Any, Any]]:
    """Return the live entries by table and name."""
    result = {}
    for name, table in STATE_TABLES.items():
        rows = JobFolder(job.config.job_folder).view(name, job.last.versions[name]).live_rows()
        names = [column for column in table.entry if column != "key_group"]
        left_out = {*table.entry, "checkpoint_id", "deleted"}
        result[name] = {
            tuple(row[column] for column in names): {k: v for k, v in row.items() if k not in left_out} for row in rows
        }
    return result


def sinks_of(job: MemoryJob) -> dict[str, list[dict[str, Any]]]:
    return {name: job.sink(name).read(job.sink(name).schema).to_pylist() for name in (BOARD, REMINDERS)}


def expected(before: dict[Any, Any], after: dict[Any, Any]) -> Counter[Change]:
    kinds = Counter[Change]()
    for name in {*before, *after}:
        if name not in before:
            kinds[Change.ADDED] += 1
        elif name not in after:
            kinds[Change.GONE] += 1
        elif before[name] != after[name]:
            kinds[Change.CHANGED] += 1
    return kinds


def expected_rows(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Counter[Change]:
    old, new = (Counter(str(sorted(row.items())) for row in rows) for rows in (before, after))
    return +Counter({Change.ADDED: (new - old).total(), Change.GONE: (old - new).total()})


@pytest.mark.slow
@examples(5)
@given(STEPS, st.data())
def test_differences_equal_a_plain_comparison(steps, data):
    job = MemoryJob("difference")
    try:
        seen = {}
        for step in [("batch", "ann", False, "+U"), *steps]:
            play(job, step)
            seen[job.last.checkpoint_id] = (state_of(job), sinks_of(job))
        first, second = (data.draw(st.sampled_from(sorted(seen))) for _ in range(2))
        assert_found([JobAtCheckpoint(job.config, at) for at in (first, second)], seen[first], seen[second])
    finally:
        forget_disk("difference")


@pytest.mark.slow
@examples(5)
@given(before=STEPS, live=LINE, branch=LINE)
def test_differences_of_branches_equal_a_plain_comparison(before, live, branch):
    job, other = MemoryJob("difference"), MemoryJob("difference")
    other.config = job.config.on_branch("other")
    try:
        for step in [("batch", "ann", False, "+U"), *before]:
            play(job, step)
        fork(job.config, "other", None, "run")
        for line, steps in ((job, live), (other, branch)):
            for step in steps:
                play(line, step)
        contents = [(state_of(line), sinks_of(line)) for line in (job, other)]
        assert_found([JobAtCheckpoint(line.config) for line in (job, other)], *contents)
    finally:
        forget_disk("difference")


def assert_found(jobs, before, after):
    """Check the differences of two checkpoints against their contents."""
    totals = {}
    for difference in differences(*jobs, limit=1000):
        totals[difference.table] = sum((Counter(counts.rows) for counts in difference.counts), Counter[Change]())
        if difference.table != REMINDERS:  # its rows are counted: the same one may be there several times
            assert totals[difference.table] == Counter(row.change for row in difference.rows)
    wanted = {name: expected(before[0][name], after[0][name]) for name in STATE_TABLES}
    boards = [{row["item"]: row for row in content[1][BOARD]} for content in (before, after)]
    wanted[BOARD] = expected(*boards)
    wanted[REMINDERS] = expected_rows(before[1][REMINDERS], after[1][REMINDERS])
    assert totals == {name: kinds for name, kinds in wanted.items() if kinds}
