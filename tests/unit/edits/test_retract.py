"""Rows that somebody takes out of a history: sink and history are those of the stream without the row, and stay so."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, OnConflict, Pipeline, RowKind, StateTtl, Strategy, Struct, Timestamp
from headrace.commit.verify import verify
from headrace.edits.edit import LastState, apply, preview
from headrace.edits.restore import restore
from headrace.edits.retract import RetractRow, RowName, materializer_of
from headrace.errors import ConfigError, FencedError, StateSchemaError
from headrace.log.checkpoint import Kind
from headrace.log.facts import JobWork
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.state import rows_of_key
from headrace.readers.why import why
from headrace.testing import PipelineHarness
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.fuzzing import examples

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
SECOND = 1000


class Leg(Struct, frozen=True):
    tail: str
    leg: str
    at: Timestamp


class Step(Struct, frozen=True):
    leg: str
    before: str | None


def board(**options):
    legs = Pipeline("legs").source("legs", Leg, event_time="at", row_kind="kind")
    own = {"primary_key": ("tail",), "strategy": Strategy.VALUE, **options}
    return legs.upsert_materialize("latest", **own).sink("board")


def step(leg: Leg, before: Leg | None) -> Step:
    return Step(leg.leg, None if before is None else before.leg)


def job_of(pipeline, *changes, **options):
    job = PipelineHarness(pipeline, now=0, **options)
    if changes:
        feed(job, *changes)
    return job


def feed(job, *changes, at=SECOND):
    """Read `+N7 a` as an addition of leg a of aircraft N7; `-N7 a` retracts it."""
    texts = [change[1:].split() for change in changes]
    kinds = [UPDATE_AFTER if change[0] == "+" else DELETE for change in changes]
    job.feed("legs", [Leg(tail, leg, at) for tail, leg in texts], kinds=kinds)
    job.run()


def retract(job, key, number=None, *, config=None, **fields):
    name = RowName(materializer_of(job.config, None, None), key, number, fields)
    with job.on_its_clock():
        return apply(config or job.config, RetractRow(name, "it never flew"), "somebody")


def look(job, key, number=None, **fields):
    with job.on_its_clock():
        return preview(job.config, RetractRow(RowName("latest", key, number, fields)))


def history(job, key):
    return [
        (row["sequence_number"], row["row"].split('"leg":"')[1][0])
        for row in rows_of_key(JobAtCheckpoint(job.config), key).dicts()
    ]


def shown(job):
    return {row.tail: row.leg for row in job.sink("board")}


@pytest.mark.slow
def test_last_row_goes_and_sink_follows():
    job = job_of(board(), "+N7 a", "+N7 b", "+N8 c")
    effect = look(job, "N7", 1)
    assert [(output.kind, b'"a"' in output.raw) for output in effect.outputs] == [(UPDATE_AFTER, True)]
    checkpoint = retract(job, "N7", 1)
    assert (checkpoint.kind, checkpoint.note) == (
        Kind.EDIT,
        "row of the history of 'latest' taken out: it never flew",
    )
    assert (history(job, "N7"), shown(job)) == ([(0, "a")], {"N7": "a", "N8": "c"})
    retract(job, "N7")
    assert (history(job, "N7"), shown(job)) == ([], {"N8": "c"})
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_other_rows_go_and_sink_stays():
    job = job_of(board(), "+N7 a", "+N7 b")
    before = job.sink_table("board")
    assert look(job, "N7", leg="a").outputs == []
    retract(job, "N7", leg="a")
    assert (history(job, "N7"), job.sink_table("board")) == ([(1, "b")], before)
    feed(job, "-N7 b")
    assert shown(job) == {}
    feed(job, "-N7 a")
    assert [row["error"] for row in job.live("quarantine")] != []


def test_restore_brings_row_and_sink_back():
    job = job_of(board(), "+N7 a", "+N7 b")
    before = JobAtCheckpoint(job.config).checkpoint.checkpoint_id
    retract(job, "N7", 1)
    with job.on_its_clock():
        restore(job.config, before, "it flew", "somebody")
    assert (history(job, "N7"), shown(job)) == ([(0, "a"), (1, "b")], {"N7": "b"})


@pytest.mark.slow
def test_branch_tries_it_and_promotion_keeps_it():
    job = job_of(board(), "+N7 a", "+N7 b")
    branch = job.branch("phone")
    retract(job, "N7", 1, config=branch.config)
    assert (shown(job), {row.tail: row.leg for row in branch.sink("board")}) == ({"N7": "b"}, {"N7": "a"})
    branch.promote()
    assert (history(job, "N7"), shown(job)) == ([(0, "a")], {"N7": "a"})


@pytest.mark.slow
def test_promotion_waits_for_the_same_edit():
    job = job_of(board(), "+N7 a", "+N7 b")
    branch = job.branch("phone")
    retract(job, "N7", 1)
    with pytest.raises(ConfigError, match="Make the same edit on the branch"):
        branch.promote()
    retract(job, "N7", 1, config=branch.config)
    branch.promote()
    assert shown(job) == {"N7": "a"}


@pytest.mark.parametrize("place", ["edit.staged", "commit.before", "commit.after", "publish.after"])
def test_crash_leaves_it_done_or_not(place):
    job = job_of(board(), "+N7 a", "+N7 b")
    with pytest.raises(Killed), dying_at(place):
        retract(job, "N7", 1)
    is_done = place in {"commit.after", "publish.after"}
    feed(job, "+N8 c")
    assert shown(job) == {"N7": "a" if is_done else "b", "N8": "c"}
    assert history(job, "N7") == ([(0, "a")] if is_done else [(0, "a"), (1, "b")])
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_checkpoint_holds_neither_key_nor_value():
    job = job_of(board(), "+N7 abc", "+N7 xyz")
    with job.on_its_clock():
        checkpoint = apply(job.config, RetractRow(RowName("latest", "N7", 1), "wrong"), "somebody")
    texts = str([checkpoint.note, checkpoint.cause, checkpoint.metrics, checkpoint.outputs])
    assert [text for text in ("N7", "abc", "xyz") if text in texts] == []


def test_rows_must_be_named_without_doubt():
    job = job_of(board(), "+N7 a", "+N7 b", "+N7 a")
    for fields, message in (
        ({}, r"3 rows are meant: name one of them.*\n  --row 0 "),
        ({"leg": "a"}, r"2 rows are meant.*\n  --row 0 .*\n  --row 2 "),
        ({"leg": "q"}, r"no row of the history is meant.*\n  --row 0 "),
        ({"gel": "a"}, "no row of the history is meant"),
        ({"number": 9}, "no row of the history is meant"),
        ({"number": 1, "leg": "a"}, "no row of the history is meant"),
    ):
        with pytest.raises(ConfigError, match=message):
            look(job, "N7", **fields)
    with pytest.raises(ConfigError, match="has no history of key N9: 'headrace history legs --largest'"):
        look(job, "N9")
    retract(job, "N7", 2)
    assert (history(job, "N7"), shown(job)["N7"]) == ([(0, "a"), (1, "b")], "b")


def test_materializer_is_found_by_its_sink():
    pipeline = Pipeline("legs")
    legs = pipeline.source("legs", Leg, event_time="at", row_kind="kind")
    for number in (1, 2):
        legs.upsert_materialize(f"latest{number}", primary_key=("tail",)).sink(f"board{number}")
    job = job_of(pipeline)
    config = job.config
    assert materializer_of(config, None, "board2") == "latest2"
    assert materializer_of(config, "latest1", None) == "latest1"
    for operator, sink, message in (
        (None, None, r"several materializers are meant: name one of them \(--operator latest1 \(sink board1\); "),
        (None, "bord", "the code has no such materializer"),
        ("latest1", "board2", "the code has no such materializer"),
    ):
        with pytest.raises(ConfigError, match=message):
            materializer_of(config, operator, sink)


def test_operator_without_history_is_refused():
    job = job_of(board(upsert_key=("tail",)), "+N7 a")
    with pytest.raises(ConfigError, match="keeps no history"):
        look(job, "N7")


def test_other_types_need_a_run_first():
    job = job_of(board(), "+N7 a")

    class Leg(Struct, frozen=True):
        tail: str
        leg: int
        at: Timestamp

    legs = Pipeline("legs").source("legs", Leg, event_time="at", row_kind="kind")
    job.change(pipeline=legs.upsert_materialize("latest", primary_key=("tail",), strategy=Strategy.VALUE).sink("board"))
    with pytest.raises(StateSchemaError):
        look(job, "N7")


def test_new_columns_need_a_run_first():
    job = job_of(board(), "+N7 a")

    class Leg(Struct, frozen=True):
        tail: str
        leg: str
        at: Timestamp
        seats: int = 0

    legs = Pipeline("legs").source("legs", Leg, event_time="at", row_kind="kind")
    job.change(pipeline=legs.upsert_materialize("latest", primary_key=("tail",), strategy=Strategy.VALUE).sink("board"))
    with pytest.raises((ConfigError, StateSchemaError), match="run the job once"):
        look(job, "N7")


def test_run_that_holds_the_job_refuses_it():
    from headrace.commit.protocol import open_job

    job = job_of(board(), "+N7 a")
    with job.on_its_clock(), open_job(job.config, "other"), pytest.raises(FencedError):
        retract(job, "N7")


def test_later_checkpoint_than_seen_is_refused():
    job = job_of(board(), "+N7 a")
    with job.on_its_clock(), pytest.raises(ConfigError, match="has gone on since you looked, to checkpoint 1"):
        apply(job.config, RetractRow(RowName("latest", "N7"), "wrong"), "somebody", seen=0)


def test_why_names_row_and_reason():
    job = job_of(board(), "+N7 a", "+N7 b")
    retract(job, "N7", 1)
    first, *_ = why(JobAtCheckpoint(job.config), "N7").causes
    assert (first.checkpoint.kind, first.checkpoint.note.endswith("it never flew")) == (Kind.EDIT, True)
    assert [(change["what"], change["value"]) for change in first.changes] == [
        ("row of the history taken out by hand", None)
    ]
    assert '"leg":"b"' in first.changes[0]["before"]


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_held_records_come_first_in_a_log(mode):
    job = job_of(board(), job={"sinks": {"board": {"mode": mode}}})
    feed(job, "+N7 a")
    state = LastState.of(job.config)
    held = replace(state, last=msgspec.structs.replace(state.last, work=JobWork(held=1)))
    with job.on_its_clock(), nullcontext() if mode == "merge" else pytest.raises(ConfigError, match="records are held"):
        RetractRow(RowName("latest", "N7")).look(held)


def test_row_updated_in_place_may_stay():
    job = job_of(board(upsert_key=("leg",)), "+N7 a", "+N7 b")
    assert (look(job, "N7", 0).may_stay, look(job, "N7", 1).may_stay) == (True, False)


@pytest.mark.slow
def test_dead_rows_go_along_and_are_not_shown():
    job = job_of(board(ttl=StateTtl(timedelta(seconds=10))), "+N7 a", bucket=1)
    feed(job, "+N7 b", at=9 * SECOND)
    feed(job, "+N8 z", at=30 * SECOND)
    feed(job, "+N7 c", at=31 * SECOND)
    effect = look(job, "N7")
    assert [line.is_taken_out for line in effect.lines] == [True]
    assert [output.kind for output in effect.outputs] == [DELETE]
    retract(job, "N7")
    assert shown(job) == {"N8": "z"}
    feed(job, "+N9 z", at=60 * SECOND)
    assert [row["key"] for row in job.live("timers") if row["key"] == '"N7"'] == []


def test_first_row_shows_the_next_one():
    job = job_of(board(on_conflict=OnConflict.DO_NOTHING), "+N7 a", "+N7 b")
    assert shown(job) == {"N7": "a"}
    retract(job, "N7", 0)
    assert (history(job, "N7"), shown(job)) == ([(1, "b")], {"N7": "b"})


def test_lag_gives_later_rows_anew():
    legs = Pipeline("legs").source("legs", Leg, event_time="at", row_kind="kind")
    steps = legs.lag("steps", step, record=Step, partition_by=("tail",), primary_key=("leg",), offset=1)
    job = job_of(steps.sink("board"), "+N7 a", "+N7 b", "+N7 c")
    retract(job, "N7", 1)
    assert sorted(job.sink("board"), key=lambda row: row.leg) == [Step("a", None), Step("c", "a")]


@pytest.mark.parametrize("emit", Emit)
def test_log_of_changes_gets_the_change(emit):
    job = job_of(board(emit=emit), job={"sinks": {"board": {"mode": "append"}}})
    feed(job, "+N7 a", "+N7 b")
    retract(job, "N7", 1)
    feed(job, "+N7 c")
    rows = sorted(job.sink_table("board").to_pylist(), key=lambda row: row["_order"])
    assert [(row["_row_kind"], row["leg"]) for row in rows][-2:] == [("+U", "a"), ("+U", "c")]


def test_folder_of_files_gets_the_change():
    job = job_of(board(), job={"sinks": {"board": {"format": "parquet", "mode": "append", "partition_by": ["tail"]}}})
    feed(job, "+N7 a", "+N7 b")
    retract(job, "N7", 1)
    rows = sorted(job.sink_table("board").to_pylist(), key=lambda row: row["_order"])
    assert [(row["_row_kind"], row["leg"]) for row in rows] == [("+I", "b"), ("+U", "a")]


changes = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["N7", "N8"]), st.sampled_from("abc")), min_size=1, max_size=8
)


keys = st.sampled_from(["N7", "N8"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
@examples(10)
@given(
    strategy=st.sampled_from(Strategy),
    runs=st.lists(st.tuples(changes, st.tuples(keys, st.integers(0, 7))), min_size=2, max_size=3),
)
def test_later_changes_find_the_stream_without_the_rows(backend, strategy, runs):
    settings = {"adaptive.threshold.high": 3, "adaptive.threshold.low": 1}
    job = job_of(board(strategy=strategy), backend=backend, job={"execution": {"upsert-materialize": settings}})
    model = defaultdict(list)
    for part, (key, place) in runs:
        feed(job, *(f"{'+' if adds else '-'}{tail} {leg}" for adds, tail, leg in part))
        for adds, tail, leg in part:
            if adds:
                model[tail].append(leg)
            elif leg in model[tail]:
                model[tail].remove(leg)
        if model[key]:
            row = place % len(model[key])
            retract(job, key, history(job, key)[row][0])
            del model[key][row]
        assert shown(job) == {tail: legs[-1] for tail, legs in model.items() if legs}
        assert {tail: [leg for _, leg in history(job, tail)] for tail in model} == dict(model)
