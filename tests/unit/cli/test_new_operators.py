"""An operator that is added to a job starts empty: the first run with it, its report and the check before it say so."""

from __future__ import annotations

import json
import os

import pytest

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.commit.branch_code import on_branch
from headrace.local.tasks import LocalTasks
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.run.stored_report import stored_report
from headrace.testing import PipelineHarness

KEYS = {"shop": str, "customer": str}


class Order(Struct, frozen=True):
    shop: str
    customer: str
    at: Timestamp


class Count(Struct, frozen=True):
    of: str
    number: int


class Counter(KeyedProcessFunction[Order, Count]):
    """Counts orders."""

    count = ValueState("count", int)

    async def process(self, order, ctx, /):
        number = (await self.count.value() or 0) + 1
        await self.count.update(number)
        ctx.collect(Count(str(ctx.key), number))


class Passing(KeyedProcessFunction[Order, Count]):
    """Has no state."""

    async def process(self, order, ctx, /):
        ctx.collect(Count(str(ctx.key), 0))


def counting(*names, function=Counter):
    orders = Pipeline("shop").source("orders", Order, event_time="at")
    first, *others = (orders.key_by(name).process(f"by_{name}", function()) for name in names)
    return (first.union(*others) if others else first).sink("counts")


@pytest.fixture
def job():
    """Return a job that has counted two orders by shop."""
    harness = PipelineHarness(counting("shop"), job={"sinks": {"counts": {"mode": "append"}}})
    harness.feed("orders", [Order("a", "ann", 1_000), Order("a", "bob", 2_000)])
    assert harness.run().warnings == ()
    return harness


def add_operator(job):
    job.change(pipeline=counting("shop", "customer"))
    job.feed("orders", [Order("a", "ann", 3_000)])


WORDS = "operator 'by_customer' is new in this job: its state starts empty, and it has not seen the records up to checkpoint 1."


def test_run_says_once_that_an_operator_is_new(job):
    add_operator(job)
    report = job.run()
    (warning,) = report.warnings
    assert (warning.kind, warning.fields) == ("new_operator", {"operator": "by_customer", "checkpoint": 1})
    assert warning.message.startswith(WORDS)
    assert "headrace branch create" in warning.message
    assert [own.message for own in stored_report(job.config, report.run_id, None)[0].warnings] == [warning.message]
    job.feed("orders", [Order("a", "ann", 4_000)])
    assert job.run().warnings == ()


def test_run_without_input_says_it_later(job):
    job.change(pipeline=counting("shop", "customer"))
    assert job.run().warnings == ()
    job.feed("orders", [Order("a", "ann", 3_000)])
    assert [warning.kind for warning in job.run().warnings] == ["new_operator"]


def test_operator_that_comes_back_is_not_new(job):
    add_operator(job)
    job.run()
    for names in (("shop",), ("shop", "customer")):
        job.change(pipeline=counting(*names))
        job.feed("orders", [Order("a", "ann", 5_000)])
        assert job.run().warnings == ()


def test_operator_without_state_is_not_new():
    harness = PipelineHarness(counting("shop", function=Passing), job={"sinks": {"counts": {"mode": "append"}}})
    harness.feed("orders", [Order("a", "ann", 1_000)])
    harness.run()
    harness.change(pipeline=counting("shop", "customer", function=Passing))
    harness.feed("orders", [Order("a", "ann", 2_000)])
    assert harness.run().warnings == ()


def findings(headrace):
    answer = json.loads(headrace("check --json").stdout)
    return [
        finding["detail"]
        for finding in answer["findings"]
        if (finding["check"], finding["outcome"]) == ("state", "warn")
    ]


@pytest.mark.slow
def test_branch_from_the_beginning_computes_a_new_operator(job, headrace, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", os.fspath(job.folder))
    add_operator(job)
    (detail,) = findings(headrace)
    assert detail.startswith(WORDS)
    job.run()
    assert findings(headrace) == []
    name = job.config.job
    assert headrace(f"branch create {name} again --at 0").exit_code == 0
    config = on_branch(job.config, "again")
    with job.on_its_clock():
        run_on(LocalTasks(), config, RunOptions(run_id="again"), lambda _: None)
    promoted = headrace(f"branch promote {name} again")
    assert promoted.exit_code == 0, promoted.output
    assert sorted((row.of, row.number) for row in job.sink("counts")) == [
        ("a", 1), ("a", 2), ("a", 3), ("ann", 1), ("ann", 2), ("bob", 1),
    ]  # fmt: skip
