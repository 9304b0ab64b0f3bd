"""A sink that was merged by one primary key is not merged by another (in memory)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from headrace.commit.run_check import stored_problems
from headrace.edits.restore import restore
from headrace.errors import ConfigError
from headrace.plan.loader import plan_of
from tests.unit.support.memory_job import BOARD, commit_batch


def plan_by(job, *primary_key):
    """The plan of the job with another primary key of its board."""
    plan = plan_of(job.config.code)
    return replace(plan, sinks={**plan.sinks, BOARD: replace(plan.sinks[BOARD], primary_key=primary_key)})


def run(job, plan, *customers):
    with job.open(plan=plan) as opened:
        for customer in customers:
            commit_batch(opened, customer, item=f"fruit of {customer}")


def test_another_primary_key_is_refused_with_ways_out(memory_job):
    run(memory_job, plan_by(memory_job, "item"), "ann")
    before = memory_job.content()
    with pytest.raises(ConfigError) as refusal:
        run(memory_job, plan_by(memory_job, "customer"))
    for part in (
        "sink 'lines_by_item' at memory://job/lake/lines_by_item was merged by the primary key item",
        "the pipeline has it merged by the primary key customer",
        "headrace restore purchases --to 0",
        "sinks.lines_by_item.path",
    ):
        assert part in str(refusal.value)
    assert memory_job.content() == before


def test_check_reports_the_errors_of_a_run(memory_job):
    run(memory_job, plan_by(memory_job, "item"), "ann")
    problems = [*stored_problems(memory_job.config, memory_job.log, plan_by(memory_job, "customer"))]
    assert ["was merged by the primary key item" in problem for what, problem in problems if what == "sinks"] == [True]


def test_sink_that_was_never_written_takes_any_key(memory_job):
    run(memory_job, plan_by(memory_job, "item"))
    run(memory_job, plan_by(memory_job, "customer"), "ann")
    with pytest.raises(ConfigError):
        run(memory_job, plan_by(memory_job, "item"))


def test_suggested_new_path_is_filled(memory_job):
    run(memory_job, plan_by(memory_job, "item"), "ann", "bob")
    sinks = memory_job.config.sinks
    sinks = {**sinks, BOARD: changed(sinks[BOARD], path=sinks[BOARD].path + "_by_customer")}
    memory_job.config = changed(memory_job.config, sinks=sinks)
    restore(memory_job.config, 0, "by customer", "somebody")
    run(memory_job, plan_by(memory_job, "customer"), "ann", "ann", "bob")
    assert memory_job.sink_rows(BOARD, "customer") == ["ann", "bob"]
    with pytest.raises(ConfigError):
        run(memory_job, plan_by(memory_job, "item"))


def test_commands_without_code_need_no_key(memory_job):
    run(memory_job, plan_by(memory_job, "customer"), "ann")
    restore(memory_job.config, 0, "a mistake", "somebody")
