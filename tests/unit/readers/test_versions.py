"""Events behind versions: each names the row of the input that it was, as an independent reader finds it."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import History, Pipeline
from headrace.edits.compact import compact
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.versions import versions_of
from headrace.testing import PipelineHarness
from tests.unit.operators.changed_jobs import Change, changes_of, stream_of, versions
from tests.unit.support.fuzzing import examples

VALUES = st.sampled_from(["a", "b", None])
EVENTS = st.lists(
    st.builds(Change, st.sampled_from("xy"), st.integers(0, 9), st.integers(0, 9), st.sampled_from("uud"), VALUES),
    max_size=8,
    unique_by=lambda event: (event.id, event.lsn),
)


def job_of(files, **options):
    pipeline = stream_of(History.SCD2, **options).sink("versions")
    job = PipelineHarness(pipeline, files_per_batch=1, now=0)
    for events in files:
        if events:
            job.feed("changes", events)
    job.run()
    return job


def told(job, key):
    return versions_of(JobAtCheckpoint(job.config), key).events


@pytest.mark.slow
@examples(15)
@given(events=EVENTS.filter(bool), cut=st.integers(0, 8))
def test_events_name_their_rows(events, cut):
    job = job_of([events[:cut], events[cut:]])
    with job.on_its_clock():
        compact(job.config, "compaction")
    for key in {event.id for event in events}:
        own = told(job, key)
        assert [event.sequence.lsn for event in own] == sorted(event.lsn for event in events if event.id == key)
        assert sum(event.what == "opens" for event in own) == sum(row.id == key for row in versions(events))
        for event in own:
            row = pq.read_table(job.folder / "input" / "changes" / event.source.file).to_pylist()[event.source.rows[0]]
            assert (row["id"], row["lsn"]) == (key, event.sequence.lsn)
            assert (event.fields is None) == (row["op"] == "d")


def test_event_that_came_twice_is_its_first_row():
    first, again = Change("x", 1, 0, "u", "a"), Change("x", 2, 1, "u", "b")
    (event, _) = told(job_of([[first], [first, again]]), "x")
    assert (event.source.file, event.source.rows, event.checkpoint_id) == ("000001.parquet", (0,), 1)


def test_refused_event_is_not_the_stored_one():
    job = job_of([[Change("x", 1, 0, "u", "a")], [Change("x", 2, 1, "u", "b"), Change("x", 1, 2, "u", "c")]])
    own = told(job, "x")
    assert [(event.source.file, event.source.rows) for event in own] == [
        ("000001.parquet", (0,)),
        ("000002.parquet", (0,)),
    ]


def test_operator_without_state_hides_no_other():
    def pipeline(*names):
        source = Pipeline("shop").source("changes", Change, event_time="at")
        for name in names:
            source.apply_changes(name, **changes_of(History.SCD2)).sink(f"of_{name}")
        return source._pipeline

    job = PipelineHarness(pipeline("customers"), now=0)
    job.feed("changes", [Change("x", 1, 0, "u", "a")])
    job.run()
    job.change(pipeline=pipeline("another", "customers"))
    assert [(event.operator, event.what) for event in told(job, "x")] == [("customers", "opens")]


def test_truncate_names_its_row():
    first = [Change("x", 1, 0, "u", "a"), Change("x", 5, 2, "u", "a"), Change("z", 4, 2, "d")]
    job = job_of([first, [Change("x", 9, 3, "d"), Change("y", 3, 1, "t")]], truncates=("op", "t"))
    own = [(event.what, event.sequence.lsn, event.checkpoint_id, event.source) for event in told(job, "x")]
    assert [(what, lsn, number, source.file, source.rows) for what, lsn, number, source in own] == [
        ("opens", 1, 1, "000001.parquet", (0,)),
        ("truncates", 3, 2, "000002.parquet", (1,)),
        ("opens", 5, 1, "000001.parquet", (1,)),
        ("deletes", 9, 2, "000002.parquet", (0,)),
    ]


def test_early_truncate_ends_late_versions():
    job = job_of([[Change("y", 3, 1, "t")], [Change("x", 1, 0, "u", "a")]], truncates=("op", "t"))
    (_, truncate) = told(job, "x")
    assert (truncate.what, truncate.checkpoint_id, truncate.source.file) == ("truncates", 1, "000001.parquet")


def test_rows_behind_code_are_unknown():
    source = Pipeline("shop").source("changes", Change, event_time="at").map(lambda event: event, record=Change)
    job = PipelineHarness(source.apply_changes("customers", **changes_of(History.SCD2)).sink("versions"), now=0)
    job.feed("changes", [Change("x", 1, 0, "u", "a")])
    job.run()
    answer = versions_of(JobAtCheckpoint(job.config), "x")
    assert [(event.what, event.source) for event in answer.events] == [("opens", None)]
    assert any("its rows reach the operator changed" in sentence for sentence in answer.untold)


def test_key_without_events_has_no_answer():
    job = job_of([[Change("x", 1, 0, "u", "a")]])
    answer = versions_of(JobAtCheckpoint(job.config), json.dumps("z"))
    assert (answer.events, answer.untold) == ([], [])
    assert told(job, "x")
    assert versions_of(JobAtCheckpoint(job.config), "x", "other").events == []
