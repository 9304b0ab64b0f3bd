"""A job continues with another version of its pipeline, or names the required steps; no record is lost."""

from __future__ import annotations

import json

import pytest

from headrace import KeyedCoProcessFunction, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.edits.restore import restore
from headrace.errors import ConfigError, StateSchemaError
from headrace.execution import keyed_process
from headrace.log.checkpoint import Checkpoint
from headrace.log.facts import JobWork
from headrace.tables.schemas import CHECKPOINTS_SCHEMA
from headrace.testing import PipelineHarness

pytestmark = pytest.mark.delta


class Row(Struct, frozen=True):
    key: str
    at: Timestamp


class Sum(Struct, frozen=True):
    key: str
    value: int


class Count(KeyedProcessFunction[Row, Sum]):
    sum = ValueState("sum", int)

    async def process(self, row, ctx, /):
        await self.sum.update((await self.sum.value() or 0) + 1)
        ctx.collect(Sum(row.key, await self.sum.value()))


class CountBoth(KeyedCoProcessFunction[Row, Row, Sum]):
    sum = ValueState("sum", int)

    async def process1(self, row, ctx, /):
        await self._add(row, ctx, 1)

    async def process2(self, row, ctx, /):
        await self._add(row, ctx, 100)

    async def _add(self, row, ctx, amount):
        await self.sum.update((await self.sum.value() or 0) + amount)
        ctx.collect(Sum(row.key, await self.sum.value()))


LEFT = [Row("a", 1), Row("b", 2), Row("a", 3)]
RIGHT = [Row("a", 1), Row("b", 2)]
HOUR = 3_600_000
IDLE = {"sources": {"left": {"idle_after": "1h"}, "right": {"idle_after": "1h"}}}
LATER = [Row("c", 9)]
SUMS = [1, 1, 101, 101, 102]


def joined(name="sums", *, before=None, behind=None):
    """Return a pipeline that counts rows of two sources; `before` and `behind` add steps to the first source's stream."""
    pipeline = Pipeline("job")
    left = pipeline.source("left", Row, event_time="at")
    right = pipeline.source("right", Row, event_time="at")
    if before is not None:
        before(left)
    left.key_by("key").connect(right.key_by("key")).process(name, CountBoth()).sink("sink")
    if behind is not None:
        behind(left)
    return pipeline


def single(source="left", name="sums"):
    pipeline = Pipeline("job")
    pipeline.source(source, Row, event_time="at").key_by("key").process(name, Count()).sink("sink")
    return pipeline


def sums(harness):
    return sorted(row.value for row in harness.sink("sink") if row.key != "c")


def run_dry(harness):
    """Run until no rows wait for another source; a source without new files is idle after an hour."""
    harness.run()
    harness.clock.advance(HOUR)
    harness.run()


@pytest.fixture
def holding(monkeypatch):
    """A job that has taken in all rows, and holds some of them."""
    monkeypatch.setattr(keyed_process, "_ASKED_AFTER", 1)
    harness = PipelineHarness(joined())
    harness.feed("left", LEFT)
    harness.feed("right", [*RIGHT, *LATER])
    assert harness.run(budget_ends_at="ingest.after").stopped_because == "budget"
    assert harness.table("buffered_requests").num_rows == 3
    return harness


def refused(harness, pipeline, match, error=StateSchemaError):
    """Check that the run is refused without changes, and that the former code continues without a loss."""
    before = harness.pipeline
    batches = harness.table("checkpoints").column("kind").to_pylist().count("batch")
    harness.change(pipeline=pipeline)
    with pytest.raises(error, match=match):
        harness.run()
    assert harness.table("checkpoints").column("kind").to_pylist().count("batch") == batches
    harness.change(pipeline=before)
    harness.run()
    assert sums(harness) == SUMS


def test_held_records_resume_in_order(holding):
    holding.run()
    assert sums(holding) == SUMS


def test_held_records_keep_their_operator(holding):
    without = Pipeline("job")
    left, right = (without.source(name, Row, event_time="at") for name in ("left", "right"))
    left.union(right).map(lambda row: Sum(row.key, 0), record=Sum).sink("sink")
    refused(holding, without, r"operator 'sums' holds records of a run that had to stop.*Bring the name back")


def test_held_records_keep_their_input(holding):
    refused(holding, single(), r"operator 'sums' holds records of its second input.*Bring the input back")


@pytest.mark.parametrize(
    "change",
    [
        {"before": lambda left: left.key_by("key").process("first", Count()).sink("counts")},
        {"behind": lambda left: left.sink("copies")},
    ],
    ids=["an operator before it", "a second use of its input"],
)
def test_held_records_keep_their_numbers(holding, change):
    refused(
        holding,
        joined(**change),
        r"records wait in the order of an earlier graph, which has changed at .*sums.*headrace run job --finish",
    )


def test_pipeline_may_grow_when_nothing_is_held(holding):
    holding.run()
    holding.change(pipeline=joined(behind=lambda left: left.sink("copies")))
    holding.feed("left", [Row("b", 5)])
    holding.run()
    assert sums(holding) == [*SUMS, 102]
    assert holding.sink("copies") == [Row("b", 5)]


def test_every_field_of_a_checkpoint_is_stored():
    fields = {*Checkpoint.__struct_fields__, *JobWork.__struct_fields__} - {"work"}
    assert fields <= {*CHECKPOINTS_SCHEMA.names}


def test_restore_brings_the_ranks_back(holding):
    def ranks_of(operators):
        return {name: facts["rank"] for name, facts in json.loads(operators or "{}").items() if "rank" in facts}

    holding.run()
    restore(holding.config, 1, "to see its ranks", "restore")
    ranks = {row["checkpoint_id"]: ranks_of(row["operators"]) for row in holding.table("checkpoints").to_pylist()}
    assert ranks[1] == ranks[3] == {"sums": 0}


def test_source_with_rows_ahead_cannot_be_removed():
    harness = PipelineHarness(joined())
    harness.feed("left", LEFT[:2])
    harness.feed("right", RIGHT)
    harness.run()
    harness.change(pipeline=single())
    with pytest.raises(
        ConfigError, match=r"no source 'right' any more, and rows of it were not taken in yet.*Bring the source back"
    ):
        harness.run()
    harness.change(pipeline=joined(), job=IDLE)
    harness.feed("left", LEFT[2:])
    run_dry(harness)
    assert sums(harness) == SUMS


@pytest.fixture
def dry():
    """A job that has taken in all rows of both sources."""
    harness = PipelineHarness(joined(), job=IDLE)
    harness.feed("left", LEFT)
    harness.feed("right", RIGHT)
    run_dry(harness)
    assert sums(harness) == SUMS
    return harness


def test_source_without_rows_ahead_may_be_removed(dry):
    dry.change(pipeline=single(), job={})
    dry.feed("left", [Row("b", 4)])
    dry.run()
    assert sums(dry) == [*SUMS, 102]


def test_returning_source_continues(dry):
    dry.change(pipeline=single(), job={})
    dry.run()
    dry.change(pipeline=joined(), job=IDLE)
    dry.feed("right", [Row("b", 5)])
    dry.feed("left", [Row("b", 6)])
    run_dry(dry)
    assert sums(dry) == [*SUMS, 201, 202]


def test_new_source_meets_an_old_one():
    harness = PipelineHarness(single())
    harness.feed("left", LEFT)
    harness.run()
    harness.change(pipeline=joined())
    harness.feed("right", RIGHT)
    harness.run(end_of_input=True)
    assert sums(harness) == [1, 1, 2, 101, 102]


def test_two_operators_of_one_name_are_refused():
    def twice_named():
        pipeline = Pipeline("job")
        rows = pipeline.source("left", Row, event_time="at")
        rows.key_by("key").process("sums", Count()).sink("sink")
        rows.key_by("key").process("sums", Count()).sink("others")
        return pipeline

    with pytest.raises(ValueError, match=r"'job' has two operators named 'sums': give one of them another name"):
        twice_named()


def test_unused_stream_is_refused():
    pipeline = single()
    pipeline.source("right", Row, event_time="at").filter(lambda row: row.at > 1)
    with pytest.raises(ConfigError, match=r"nobody reads the stream of 'filter <lambda>': give it a sink\(\)"):
        PipelineHarness(pipeline).run()


def test_own_sink_as_a_source_is_refused():
    harness = PipelineHarness(single(), job={"sources": {"left": {"path": "lake/sink"}}})
    with pytest.raises(ConfigError, match=r"source 'left' reads this folder: a job must not read what it writes"):
        harness.run()
