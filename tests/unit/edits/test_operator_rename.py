"""State moves to the new name of its operator, in one checkpoint (in memory)."""

from __future__ import annotations

import pytest

from headrace import KeyedProcessFunction, ValueState
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.edit import apply, preview
from headrace.edits.operators import RenameOperator
from headrace.edits.restore import restore_in
from headrace.errors import ConfigError, FencedError, StateSchemaError
from headrace.log.checkpoint import Kind
from headrace.log.facts import Declarations, JobWork, OperatorDeclaration, OperatorFacts
from headrace.plan.loader import plan_of
from headrace.state.ttl import Gap, TtlHistory
from headrace.tables.schemas import ASYNC_REQUESTS, KEYED_STATE, QUARANTINE, STATE_TABLES, TIMERS
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.keyed_job import Event, KeyedJob, Snoozes, plan_by

OLD, NEW = "wakers", "alarms"
ROWS = (
    (KEYED_STATE, '"a"', {"state": "snoozes", "value": "1", "ttl_ms": 5}),
    (KEYED_STATE, '"b"', {"state": "snoozes", "value": "2"}),
    (TIMERS, '"a"', {"domain": "processing_time", "timestamp": 2}),
    (QUARANTINE, '"a"', {"source": "events", "position": "1", "error": "bad", "origin": "record", "raw": "x"}),
)
KEPT = {"timeline": "orders", "fired_until": {"processing_time": 9}, "ttl_since": {"snoozes": 5}}
FIELDS = {
    "operators": {
        OLD: OperatorFacts(local_copies={"0-127": "copy"}, rank=0, **KEPT),
        "other": OperatorFacts(local_copies={"0-127": "copy"}),
    },
    "edges": {"orders#0->wakers": 0},
    "pauses": (Gap(1, 2, None, {OLD: 3, "other": 4}),),
    "declared": Declarations({OLD: OperatorDeclaration(ttls={"snoozes": None})}),
}


class Texts(KeyedProcessFunction[Event, Event]):
    snoozes = ValueState("snoozes", str)

    async def process(self, record, ctx, /):
        return None


@pytest.fixture
def job(tmp_path):
    """A job whose code names the operator 'alarms', stored as 'wakers'."""
    job = KeyedJob(tmp_path)
    assert plan_of(job.config.code).keyed[0].name == NEW
    job.run(plan_by(lambda event: event.tail, operator=OLD, function=Snoozes()), *ROWS, operator=OLD, **FIELDS)
    return job


def contents(job):
    """Return the live rows of all tables, without the time of writing."""
    return {
        table: [
            {name: row[name] for name in row if name not in {"operator", "checkpoint_id"}} for row in job.live(table)
        ]
        for table in STATE_TABLES
    }


def test_dry_run_counts_and_changes_nothing(job):
    assert preview(job.config, RenameOperator(OLD, NEW)).rows == {KEYED_STATE: 2, TIMERS: 1, QUARANTINE: 1}
    assert job.last.checkpoint_id == 1


def test_rename_moves_all_rows_unchanged(job):
    before = contents(job)
    checkpoint = apply(job.config, RenameOperator(OLD, NEW, "a better name"), "somebody")
    assert (checkpoint.kind, checkpoint.note) == (Kind.MIGRATION, "operator 'wakers' is 'alarms' now: a better name")
    assert checkpoint.metrics == {"rows_moved": 4}
    assert contents(job) == before
    assert {row["operator"] for table in STATE_TABLES for row in job.live(table)} == {NEW}
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_checkpoint_stores_the_new_operator_name(job):
    checkpoint = apply(job.config, RenameOperator(OLD, NEW), "somebody")
    assert checkpoint.operators == {NEW: OperatorFacts(**KEPT), "other": OperatorFacts(local_copies={"0-127": "copy"})}
    assert checkpoint.edges == {}
    history = TtlHistory((Gap(1, 2, None, {NEW: 3, "other": 4}),), {f"{NEW}.snoozes": None}, {f"{NEW}.snoozes": 5})
    assert checkpoint.state_ttl == history
    assert {*checkpoint.state_schemas} == {*checkpoint.operator_keys} == {NEW}


def test_run_continues_with_the_moved_state(job):
    code = plan_of(job.config.code)
    with pytest.raises(StateSchemaError, match="headrace state rename wake_ups --operator wakers --to NEW"):
        job.run(code)
    apply(job.config, RenameOperator(OLD, NEW), "somebody")
    job.run(code, (KEYED_STATE, '"a"', {"state": "snoozes", "value": "3"}), operator=NEW)
    assert [row["value"] for row in job.live()] == ["3", "2"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (OLD, "bells", "the code has no operator 'bells' .it has: alarms, numbers"),
        (NEW, NEW, "the code still has operator 'alarms'"),
        ("lags", NEW, "nothing is stored of an operator 'lags'"),
        (OLD, "Big Bells", "not a valid operator name"),
    ],
)
def test_invalid_operator_names_are_refused(job, old, new, message):
    for act in (
        lambda: preview(job.config, RenameOperator(old, new)),
        lambda: apply(job.config, RenameOperator(old, new), "somebody"),
    ):
        with pytest.raises(ConfigError, match=message):
            act()
    assert job.last.checkpoint_id == 1


def test_new_name_with_state_is_refused(job):
    with open_job(job.config, "run") as opened:
        job.commit(opened, NEW, ROWS[:1])
    with pytest.raises(ConfigError, match="operator 'alarms' has stored state of its own"):
        apply(job.config, RenameOperator(OLD, NEW), "somebody")


@pytest.mark.parametrize("work", [JobWork(held=1), JobWork(pending=1)])
def test_waiting_records_refuse_a_rename(job, work):
    with open_job(job.config, "run") as opened:
        job.commit(opened, OLD, (), work=work)
    with pytest.raises(ConfigError, match="headrace run wake_ups --finish"):
        apply(job.config, RenameOperator(OLD, NEW), "somebody")


@pytest.mark.parametrize(
    ("keys", "function", "message"),
    [
        ((lambda event: event.tail,), Texts(), "state 'snoozes': it is stored as str, and declared as int"),
        (("flight",), Snoozes(), r"stored by the key flight \(int\), and the code has the key guest \(str\)"),
    ],
)
def test_incompatible_state_is_refused(tmp_path, keys, function, message):
    job = KeyedJob(tmp_path)
    job.run(plan_by(*keys, operator=OLD, function=function), *ROWS, operator=OLD)
    for act in (
        lambda: preview(job.config, RenameOperator(OLD, NEW)),
        lambda: apply(job.config, RenameOperator(OLD, NEW), "somebody"),
    ):
        with pytest.raises(StateSchemaError, match=message):
            act()
    assert job.last.checkpoint_id == 1


def test_held_job_is_left_alone(job):
    with open_job(job.config, "run"), pytest.raises(FencedError):
        apply(job.config, RenameOperator(OLD, NEW), "somebody")


def test_restore_takes_the_new_name_back(job):
    before = job.live()
    apply(job.config, RenameOperator(OLD, NEW), "somebody")
    with open_job(job.config, "somebody") as opened:
        restore_in(opened, 1, "the old name was better")
    assert job.live() == before


@pytest.mark.parametrize(
    "place", ["operator_state.staged", "prepare.half", "prepare.after", "commit.before", "commit.after"]
)
def test_crash_leaves_one_name_or_the_other(job, place):
    before = contents(job)
    with pytest.raises(Killed), dying_at(place):
        apply(job.config, RenameOperator(OLD, NEW), "somebody")
    with open_job(job.config, "next", force=True):
        pass
    names = {row["operator"] for table in STATE_TABLES for row in job.live(table)}
    assert names == ({NEW} if place == "commit.after" else {OLD})
    assert contents(job) == before


def test_waiting_elements_never_move_alone(job):
    with open_job(job.config, "run") as opened:
        job.commit(opened, OLD, ((ASYNC_REQUESTS, '"a"', {"sequence": 1}),))
    apply(job.config, RenameOperator(OLD, NEW), "somebody")
    assert [row["operator"] for row in job.live(ASYNC_REQUESTS)] == [NEW]
