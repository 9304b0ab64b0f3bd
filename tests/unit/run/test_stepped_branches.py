"""Branches of a job whose source has a step: landed rows belong to the line that took them in. The step is one in Python (no JVM)."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from headrace import KeyedProcessFunction, Pipeline
from headrace.commit.branch_code import on_branch
from headrace.edits.fork import fork
from headrace.edits.promote import promoting
from headrace.local.tasks import LocalTasks
from headrace.plan.loader import plan_of
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.stepped_job import Copies, Copy, Order, order


class Emitting(KeyedProcessFunction[Copy, Copy]):
    """Emits each record: a keyed operator, before which the sources meet."""

    async def process(self, record, ctx, /):
        ctx.collect(record)


def pipeline():
    """Return a pipeline of two sources that meet; one of them has a step."""
    result = Pipeline("shop")
    others = result.source("others", Copy, event_time="at")
    rows = result.source("rows", Order, event_time="at").sql("select ...", record=Copy)
    rows.union(others).key_by("name").process("emitting", Emitting()).sink("copies")
    return result


class Shop:
    def __init__(self, topic=None):
        bound = {"format": "json"} if topic is None else {}
        topics = {} if topic is None else {"rows": topic}
        self.harness = PipelineHarness(pipeline(), topics=topics, job={"sources": {"rows": bound}})
        self.runs = 0

    def orders(self, name, *rows):
        text = "\n".join(json.dumps(order(*row)) for row in rows)
        (self.harness.folder / "input/rows" / name).write_text(text, encoding="utf-8")

    def run(self, branch=None, **options):
        config = self.harness.config if branch is None else on_branch(self.harness.config, branch)
        self.runs += 1
        steps = {
            "rows": Copies(next(source for source in plan_of(config.code).sources if source.name == "rows"), config)
        }
        with self.harness.on_its_clock():
            wishes = RunOptions(run_id=f"run-{self.runs}", **options)
            return run_on(LocalTasks(), config, wishes, lambda _: None, steps=steps, topics=self.harness.topics)

    def promote(self, name, crash_at):
        with (
            suppress(Killed),
            dying_at(crash_at),
            promoting(self.harness.config, name, "promotion") as promotion,
        ):
            promotion.promote()

    def copies(self, branch=None):
        config = self.harness.config if branch is None else on_branch(self.harness.config, branch)
        snapshot = Storage(config.sinks["copies"].table_path).table().latest()
        return sorted(row["name"] for row in snapshot.read(snapshot.schema).to_pylist())


@pytest.mark.parametrize("crash", [None, "promotion.committed", "promotion.landed", "promotion.removed"])
def test_promoted_job_takes_in_rest_of_branch_file(crash):
    shop = Shop()
    shop.harness.feed("others", [Copy("first", 0, 5)])
    shop.orders("a.json", ("a", 1, 1), ("b", 1, 9))
    shop.run()
    facts = shop.harness.facts[-1].sources["rows"]
    assert facts.begun  # the row at 9 waits for the other source
    fork(shop.harness.config, "corrected", 0, "fork")
    shop.orders("a.json", ("x", 2, 1), ("y", 1, 9), ("z", 1, 10))
    shop.run("corrected")
    shop.promote("corrected", crash_at=crash)
    shop.harness.feed("others", [Copy("last", 0, 20)])
    shop.run(end_of_input=True)
    assert shop.copies() == ["first", "last", "x.0", "x.1", "y.0", "z.0"]


def test_branch_takes_in_rest_of_file_begun_before():
    shop = Shop()
    shop.harness.feed("others", [Copy("first", 0, 5)])
    shop.orders("a.json", ("a", 1, 1), ("b", 1, 9))
    shop.run()
    begun_at = shop.harness.facts[-1].checkpoint_id
    fork(shop.harness.config, "other", begun_at, "fork")
    shop.orders("a.json", ("x", 1, 1), ("y", 2, 9))  # the rows of the former file are landed
    shop.harness.feed("others", [Copy("last", 0, 20)])
    shop.run("other", end_of_input=True)
    shop.run(end_of_input=True)
    assert shop.copies("other") == shop.copies() == ["a.0", "b.0", "first", "last"]


@pytest.mark.parametrize("crash", [None, "promotion.committed", "promotion.landed"])
def test_branch_makes_rows_of_expired_messages(crash):
    shop = Shop(topic := MemoryTopic("rows", partitions=2))
    topic.append([order("a", 2, 1), order("b", 1, 9)])
    topic.append([order("c", 1, 2)], partition=1)
    shop.harness.feed("others", [Copy("first", 0, 5)])
    shop.run()
    topic.append([order("d", 1, 11)], partition=1)
    shop.run()
    facts = shop.harness.facts[-1].sources["rows"]
    assert facts.begun
    live = shop.copies()
    fork(shop.harness.config, "again", 0, "fork")
    topic.expire(2)
    topic.expire(2, partition=1)
    shop.run("again")
    assert shop.copies("again") == live
    topic.append([order("e", 1, 12)])
    shop.run("again")
    shop.promote("again", crash_at=crash)
    shop.harness.feed("others", [Copy("last", 0, 20)])
    shop.run(end_of_input=True)
    assert shop.copies() == ["a.0", "a.1", "b.0", "c.0", "d.0", "e.0", "first", "last"]
