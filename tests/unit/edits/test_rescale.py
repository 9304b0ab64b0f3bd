"""Another number of key groups: the state equals that of a job with this number from its first run (in memory)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.commit.protocol import open_job
from headrace.commit.run_check import stored_problems
from headrace.commit.verify import verify
from headrace.edits.edit import apply, preview
from headrace.edits.rescale import Rescale
from headrace.edits.restore import restore, restore_in
from headrace.errors import ConfigError, FencedError
from headrace.log.checkpoint import Kind
from headrace.log.facts import OperatorFacts
from headrace.readers.history import key_history
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.state import get
from headrace.state.key_groups import key_group
from headrace.tables.schemas import (
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    STATE_TABLES,
    TIMERS,
)
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.fuzzing import examples
from tests.unit.support.keyed_job import KeyedJob, plan_by, value

KEYS = ('"a"', '"b"', '"c"', "1", "2.5", '["x",1]', "null")
IDENTITIES = {
    KEYED_STATE: {"state": "legs", "value": "1"},
    TIMERS: {"domain": "event_time", "timestamp": 5},
    MATERIALIZER_HISTORY: {"sequence_number": 1, "row": "{}"},
    ASYNC_REQUESTS: {"sequence": 1, "status": "pending"},
    BUFFERED_REQUESTS: {"sequence": 1, "record": "{}"},
    QUARANTINE: {"source": "events", "position": "1", "error": "bad", "origin": "record"},
}
ROWS = tuple((table, key, columns) for table, columns in IDENTITIES.items() for key in KEYS)
PLAN = plan_by("tail")


def contents(job):
    return {table: job.live(table) for table in STATE_TABLES}


@pytest.fixture
def job(tmp_path):
    job = KeyedJob(tmp_path)
    job.run(PLAN, *ROWS, operators={"legs": OperatorFacts(local_copies={"0-127": "copy"})})
    return job


changes = st.lists(
    st.tuples(st.sampled_from(sorted(IDENTITIES)), st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=12
)
numbers = st.integers(1, 300)


@pytest.mark.slow
@examples(15)
@given(st.lists(changes, min_size=1, max_size=3), numbers, numbers)
def test_state_equals_that_of_an_unchanged_job(batches, before, after):
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        jobs = KeyedJob(Path(one), max_parallelism=before), KeyedJob(Path(other), max_parallelism=after)
        for job in jobs:
            for batch in batches:
                last = {(table, key): deleted for table, key, deleted in batch}  # an entry changes once
                rows = [
                    (table, key, IDENTITIES[table] | {"deleted": deleted}) for (table, key), deleted in last.items()
                ]
                job.run(PLAN, *rows)
        if before != after:
            apply(jobs[0].config, Rescale(after, "more tasks"), "somebody")
        assert contents(jobs[0]) == contents(jobs[1])


def test_only_the_key_groups_change(job):
    before = contents(job)
    checkpoint = apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    assert (checkpoint.kind, checkpoint.note) == (Kind.MIGRATION, "7 key groups instead of 128: fewer tasks")
    assert (checkpoint.max_parallelism, checkpoint.operators, checkpoint.metrics) == (
        7,
        {"legs": OperatorFacts()},
        {"rows_rewritten": len(ROWS)},
    )
    expected = {
        table: [row | {"key_group": key_group(row["key"].encode(), 7)} for row in rows]
        for table, rows in before.items()
    }
    assert contents(job) == expected
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_dry_run_counts_and_changes_nothing(job):
    plan = preview(job.config, Rescale(7))
    assert (plan.before, plan.after, plan.rows()) == (128, 7, dict.fromkeys(STATE_TABLES, len(KEYS)))
    assert job.last.checkpoint_id == 1


@pytest.mark.parametrize(
    ("number", "message"), [(128, "has 128 key groups already"), (0, "at least one"), (3, "4 tasks cannot share 3")]
)
def test_invalid_numbers_are_refused(job, number, message):
    job.configure(parallelism=4)
    for act in (
        lambda: preview(job.config, Rescale(number)),
        lambda: apply(job.config, Rescale(number, ""), "somebody"),
    ):
        with pytest.raises(ConfigError, match=message):
            act()
    assert job.last.checkpoint_id == 1


def test_run_with_the_old_file_is_refused(job):
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    with pytest.raises(ConfigError, match="the state has 7 key groups, not 128") as refusal:
        job.run(PLAN, value('"a"', 5))
    assert "headrace rescale wake_ups --max-parallelism 128" in str(refusal.value)
    assert str(refusal.value) in [problem for _, problem in stored_problems(job.config, job.log, PLAN)]
    job.configure(max_parallelism=7)
    job.run(PLAN, value('"a"', 5))
    assert [row["value"] for row in job.live() if row["key"] == '"a"'] == ["5"]


def test_file_may_be_changed_first(job):
    job.configure(max_parallelism=7)
    with pytest.raises(ConfigError, match="the state has 128 key groups, not 7"):
        job.run(PLAN)
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    job.run(PLAN, value('"a"', 5))


def test_rescaling_back_undoes_it(job):
    before = contents(job)
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    apply(job.config, Rescale(128, "it was a mistake"), "somebody")
    assert contents(job) == before


def test_restore_keeps_the_number_of_the_file(job):
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    job.configure(max_parallelism=7)
    after = contents(job)
    job.run(PLAN, value('"a"', 5))
    restore(job.config, 1, "wrong data", "somebody")
    assert (job.last.max_parallelism, job.kinds()[-2:]) == (7, ["restore", "migration"])
    assert contents(job) == after


def test_restore_within_a_run_keeps_the_number(job):
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    job.configure(max_parallelism=7)
    with open_job(job.config, "replay") as opened:
        restore_in(opened, 1, "replay")
        assert opened.last.max_parallelism == 7
        job.commit(opened, "legs", (value('"a"', 5),))
    assert [row["key_group"] for row in job.live() if row["key"] == '"a"'] == [key_group(b'"a"', 7)]


def test_held_job_is_left_alone(job):
    with open_job(job.config, "run"), pytest.raises(FencedError):
        apply(job.config, Rescale(7, "fewer tasks"), "somebody")


@pytest.mark.parametrize("place", ["rescale.prepared", "commit.before", "commit.after", "publish.after"])
def test_crash_leaves_one_number_or_the_other(job, place):
    before = contents(job)
    with pytest.raises(Killed), dying_at(place):
        apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    committed = job.last.max_parallelism == 7
    assert committed is place.endswith(".after")
    job.configure(max_parallelism=job.last.max_parallelism)
    with open_job(job.config, "next", force=True):
        pass
    assert (contents(job) == before) is not committed
    if not committed:
        apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    assert {row["key_group"] for row in job.live() if row["key"] == '"a"'} == {key_group(b'"a"', 7)}


def test_readers_find_keys_at_every_number(job):
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    job.configure(max_parallelism=7)
    job.run(PLAN, value('"a"', 5))
    values = {at: get(JobAtCheckpoint(job.config, at), "a").dicts()[0]["value"] for at in ("1", "2", "3")}
    assert values == {"1": "1", "2": "1", "3": "5"}


def test_history_of_a_key_reaches_over_a_rescaling(job):
    job.run(PLAN, value('"a"', 2))
    apply(job.config, Rescale(7, "fewer tasks"), "somebody")
    job.configure(max_parallelism=7)
    job.run(PLAN, value('"a"', 3))
    output = key_history(JobAtCheckpoint(job.config, None), "a").dicts()
    assert [(row["what"], row["value"], row["checkpoint_id"]) for row in output] == [
        ("written", "1", 1),
        ("changed", "2", 2),
        ("changed", "3", 4),
    ]
    assert {row["key_group"] for row in output} == {key_group(b'"a"', 7)}
