"""A materializer's rows after a change of their record type: earlier rows match retractions of the new type."""

from __future__ import annotations

import itertools
from typing import Annotated

import msgspec
import pytest

from headrace import Emit, LagNode, Lifetime, Pipeline, RowKind, Strategy, Struct, Timestamp, UpsertMaterialize
from headrace.commit.protocol import open_job
from headrace.commit.schema_check import declared_schemas
from headrace.edits.migrate import settle_schemas
from headrace.edits.restore import restore, restore_in
from headrace.errors import StateSchemaError
from headrace.execution.element import Element
from headrace.log.checkpoint import Kind
from headrace.log.declared import HISTORY_STATE
from headrace.log.facts import OperatorFacts
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.operators import Sum
from headrace.plan.planner import plan_stages
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.changelog import Changelog, stage_state
from headrace.tables.entries import rebuild
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import MATERIALIZER_HISTORY
from headrace.testing import PipelineHarness
from tests.jobs import wake_ups
from tests.jobs.home import Home

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class Row(Struct, frozen=True):
    at: Timestamp
    key: str
    level: int


class Changed(Struct, frozen=True):
    """A record type with an added field, a widened field, and another order of fields."""

    level: float
    key: str
    at: Timestamp
    gate: str = "none"


def plan(record):
    source = Pipeline("p").source("orders", record, event_time="at")
    return plan_stages(source.upsert_materialize("m", primary_key=("key",)).sink("greetings"))


class Job:
    """A job whose record type changes from run to run; each run is one micro-batch of changes of the key `k`."""

    def __init__(self, folder, strategy):
        self.config = Home(folder, wake_ups.JOB).config()
        self.operator = UpsertMaterialize("m", ("key",), None, strategy, Emit.EVERY_CHANGE)
        self.ordinals, self.names = itertools.count(1), itertools.count()

    def run(self, record, *changes):
        """Start as a run does, and return the changes that are sent on."""
        with open_job(self.config, "run", create=True) as job:
            settle_schemas(job, plan(record))
            backend = HashMapBackend()
            rebuild(backend, JobFolder(self.config.job_folder).views(job.versions), "m", KeyGroupRange(0, 127))
            task = UpsertMaterializer(self.operator, backend, record=record)
            task.run([[Element(record_order(next(self.ordinals)), 0, kind, b'"k"', r) for kind, r in changes]])
            rows = Changelog("m", job.next_id, 128).history(task.changes(), lambda _: None)
            name = f"{next(self.names)}.parquet"
            staged = (
                [stage_state(JobFolder(self.config.job_folder), MATERIALIZER_HISTORY, name, rows)]
                if rows.num_rows
                else []
            )
            job.commit(
                Kind.BATCH,
                files={MATERIALIZER_HISTORY: staged},
                operators={"m": OperatorFacts(local_copies={"0-127": "a"})},
            )
            self.kinds = [checkpoint.kind for checkpoint in job.checkpoints]
            return [(out.kind, msgspec.json.decode(out.raw, type=record)) for out in task.outputs()]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path, Strategy.ADAPTIVE)


def test_rows_of_new_type_retract_old_ones(job):
    one, two = Changed(1.0, "k", 0), Changed(2.0, "k", 0)
    job.run(Row, (INSERT, Row(0, "k", 1)), (UPDATE_AFTER, Row(0, "k", 2)))
    assert job.run(Changed, (UPDATE_BEFORE, two)) == [(UPDATE_AFTER, one)]
    assert job.run(Changed) == []
    assert job.kinds == [Kind.INITIAL, Kind.BATCH, Kind.MIGRATION, Kind.BATCH, Kind.BATCH]
    with open_job(job.config, "run") as opened:
        restore_in(opened, 1, "to see the old rows again")
    assert job.run(Changed, (UPDATE_BEFORE, two), (DELETE, one)) == [(UPDATE_AFTER, one), (DELETE, one)]
    assert job.kinds.count(Kind.MIGRATION) == 2


def test_rename_migrates_nothing_and_incompatible_type_is_refused(job):
    class Texts(Struct, frozen=True):
        at: Timestamp
        key: str
        level: str

    class Renamed(Row, frozen=True):
        """Rows of this type look like those of `Row`."""

    job.run(Row, (INSERT, Row(0, "k", 1)))
    job.run(Renamed)
    assert Kind.MIGRATION not in job.kinds
    with pytest.raises(StateSchemaError, match=r"field 'level' is stored as int, and declared as str\. A mater"):
        job.run(Texts)


def test_lag_history_has_its_input_rows():
    source = Pipeline("p").source("orders", Row, event_time="at")
    lag = source.lag("m", lambda row, _: row, record=Changed, partition_by=("key",), primary_key=("key",))
    stages = plan_stages(lag.sink("greetings"))
    assert isinstance(stages.keyed[0].operator, LagNode)
    assert declared_schemas(stages)["m"][HISTORY_STATE].type is Row


class Total(Struct, frozen=True):
    key: str
    level: Annotated[int, Sum("level")]


def totals(**options):
    rows = Pipeline("p").source("rows", Row, event_time="at", row_kind="op")
    sums = rows.key_by("key").aggregate("sums", Total, state_ttl=Lifetime.FOREVER)
    return sums.upsert_materialize("m", primary_key=("key",), **options).sink("totals")


def run_totals(harness, pipeline, *changes):
    harness.change(pipeline=pipeline)
    harness.feed("rows", [row for _, row in changes], kinds=[kind for kind, _ in changes])
    harness.run()
    return {row.key: row.level for row in harness.sink("totals")}


A, B, C = (Row(1, key, level) for level, key in enumerate("abc", 1))


def test_stored_history_may_give_way_to_none():
    harness = PipelineHarness(totals(force=True))
    run_totals(harness, totals(force=True), (INSERT, A), (INSERT, B), (INSERT, C))
    assert run_totals(harness, totals(), (DELETE, A), (INSERT, B)) == {"b": 4, "c": 3}
    assert run_totals(harness, totals(), (DELETE, C), (DELETE, B)) == {"b": 2}
    assert harness.table("quarantine").num_rows == 0


def test_history_cannot_begin_behind_rows():
    harness = PipelineHarness(totals())
    run_totals(harness, totals(), (INSERT, A), (INSERT, B))
    with pytest.raises(StateSchemaError, match="'m' has kept no history so far.*restore p --to 0"):
        run_totals(harness, totals(force=True), (DELETE, A))
    restore(harness.config, 0, "to keep a history", "by-hand")
    assert run_totals(harness, totals(force=True), (INSERT, C)) == {"b": 2, "c": 3}
