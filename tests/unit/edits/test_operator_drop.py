"""State of an operator that the code no longer has is deleted in one checkpoint (in memory)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.edit import apply, preview
from headrace.edits.operators import DropOperator
from headrace.edits.restore import restore_in
from headrace.errors import ConfigError, FencedError
from headrace.log.checkpoint import Kind
from headrace.log.facts import JobWork, OperatorFacts
from headrace.plan.loader import plan_of
from headrace.sources.position import SourceFacts
from headrace.state.ttl import TtlHistory
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
from tests.unit.support.keyed_job import KeyedJob, plan_by, value

ROWS = (
    value('"a"', 1),
    value('"b"', 2),
    value("null", 3),
    (TIMERS, '"a"', {"domain": "event_time", "timestamp": 1}),
    (TIMERS, '"a"', {"domain": "processing_time", "timestamp": 2}),
    (MATERIALIZER_HISTORY, '"a"', {"sequence_number": 1, "row": "{}"}),
    (ASYNC_REQUESTS, '"a"', {"sequence": 1, "status": "pending"}),
    (BUFFERED_REQUESTS, '"a"', {"sequence": 1, "record": "{}"}),
    (QUARANTINE, '"a"', {"source": "events", "position": "1", "error": "bad", "origin": "record"}),
)


def facts(rank, state):
    return OperatorFacts(
        timeline="orders",
        rank=rank,
        fired_until={"processing_time": rank},
        local_copies={"0-127": "copy"},
        ttl_since={state: 5},
    )


FIELDS = {
    "operators": {"legs": facts(0, "legs"), "other": facts(1, "n")},
    "edges": {"orders#0->other": 0},
    "sources": {"orders": SourceFacts()},
    "work": JobWork(held=1, pending=2, due=7),
}


@pytest.fixture
def job(tmp_path):
    """A job whose code has no operator 'legs'; all tables have rows of 'legs' and of 'other'."""
    job = KeyedJob(tmp_path)
    job.run(plan_by("tail"), *ROWS)
    others = (value('"a"', 7), (ASYNC_REQUESTS, '"z"', {"sequence": 2}))
    with open_job(job.config, "run") as opened:
        declared = opened.last.declared.with_ttls({"legs.legs": None, "other.n": None})
        job.commit(opened, "other", others, declared=declared, **FIELDS)
    return job


def test_dry_run_counts_and_changes_nothing(job):
    stored = preview(job.config, DropOperator("legs"))
    assert stored.state_rows == {
        KEYED_STATE: 3,
        TIMERS: 2,
        BUFFERED_REQUESTS: 1,
        ASYNC_REQUESTS: 1,
        MATERIALIZER_HISTORY: 1,
    }
    assert (stored.set_aside, stored.states) == (1, ("legs",))
    assert job.last.checkpoint_id == 2


def test_drop_removes_only_the_operators_state(job):
    checkpoint = apply(job.config, DropOperator("legs", "not needed"), "somebody")
    assert (checkpoint.kind, checkpoint.note) == (
        Kind.MIGRATION,
        "the state of operator 'legs' was dropped: not needed",
    )
    assert checkpoint.metrics == {"rows_dropped": 8}
    live = {table: [row["operator"] for row in job.live(table)] for table in STATE_TABLES}
    assert live == {
        KEYED_STATE: ["other"],
        TIMERS: [],
        BUFFERED_REQUESTS: [],
        ASYNC_REQUESTS: ["other"],
        MATERIALIZER_HISTORY: [],
        QUARANTINE: ["legs"],
    }
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_checkpoint_drops_the_operators_metadata(job):
    checkpoint = apply(job.config, DropOperator("legs", "not needed"), "somebody")
    assert (checkpoint.operators, checkpoint.edges) == ({"other": facts(1, "n")}, FIELDS["edges"])
    assert checkpoint.state_ttl == TtlHistory((), {"other.n": None}, {"other.n": 5})
    assert checkpoint.work == JobWork(held=1, pending=1, due=7)
    assert (checkpoint.state_schemas, checkpoint.operator_keys) == ({}, {})


def test_drop_without_waiting_elements_clears_the_order(job):
    with open_job(job.config, "run") as opened:
        removed = (ASYNC_REQUESTS, '"z"', {"sequence": 2, "deleted": True})
        job.commit(opened, "other", (removed,), work=JobWork(held=1, pending=1, due=7))
    checkpoint = apply(job.config, DropOperator("legs", "not needed"), "somebody")
    assert checkpoint.operators == {"other": replace(facts(1, "n"), rank=None)}
    assert (checkpoint.edges, checkpoint.work) == ({}, JobWork(held=1))


def test_new_operator_is_accepted_after_the_drop(job):
    apply(job.config, DropOperator("legs", "not needed"), "somebody")
    job.run(plan_by("flight", operator="hops"), value("1", 1), operator="hops")
    assert [row["operator"] for row in job.live()] == ["hops", "other"]


def test_reused_operator_name_starts_empty(job):
    apply(job.config, DropOperator("legs", "not needed"), "somebody")
    job.run(plan_by("flight"), value("1", 1))
    assert [row["key"] for row in job.live() if row["operator"] == "legs"] == ["1"]


def test_declared_operator_cannot_be_dropped(job):
    name = plan_of(job.config.code).keyed[0].name
    for act in (
        lambda: preview(job.config, DropOperator(name)),
        lambda: apply(job.config, DropOperator(name, ""), "somebody"),
    ):
        with pytest.raises(ConfigError, match="the code still has operator .*: its state is in use"):
            act()


@pytest.mark.parametrize(
    ("name", "message"), [("lags", "nothing is stored of an operator 'lags'"), ("orders", "'orders' is a source")]
)
def test_unknown_names_are_refused(job, name, message):
    for act in (
        lambda: preview(job.config, DropOperator(name)),
        lambda: apply(job.config, DropOperator(name, ""), "somebody"),
    ):
        with pytest.raises(ConfigError, match=message):
            act()


def test_second_drop_finds_nothing_but_the_quarantine(job):
    apply(job.config, DropOperator("legs", "not needed"), "somebody")
    with pytest.raises(ConfigError, match="but what it set aside"):
        apply(job.config, DropOperator("legs", "again"), "somebody")


def test_held_job_is_left_alone(job):
    with open_job(job.config, "run"), pytest.raises(FencedError):
        apply(job.config, DropOperator("legs", "not needed"), "somebody")
    assert job.last.checkpoint_id == 2


def test_restore_takes_the_drop_back(job):
    before = job.live()
    apply(job.config, DropOperator("legs", "a mistake"), "somebody")
    with open_job(job.config, "somebody") as opened:
        restore_in(opened, 2, "needed after all")
    assert job.live() == before
    assert "legs" in job.last.operator_keys


PLACES = ("operator_state.staged", "prepare.before", "prepare.half", "prepare.after", "commit.before", "commit.after")


@pytest.mark.parametrize("place", PLACES)
def test_crash_leaves_all_or_nothing(job, place):
    before = {table: job.live(table) for table in STATE_TABLES}

    with pytest.raises(Killed), dying_at(place):
        apply(job.config, DropOperator("legs", "not needed"), "somebody")
    with open_job(job.config, "next", force=True):
        pass
    after = {table: job.live(table) for table in STATE_TABLES}
    assert (after == before) is (place != "commit.after")
    if after == before:
        apply(job.config, DropOperator("legs", "not needed"), "somebody")
    assert [row["operator"] for row in job.live()] == ["other"]
