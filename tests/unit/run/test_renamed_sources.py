"""A source under a new name has read nothing: a run refuses to count its input again."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.cli.check import sources as findings
from headrace.edits.restore import restore
from headrace.errors import ConfigError
from headrace.log.log import CheckpointLog
from headrace.operators import Count
from headrace.plan.loader import plan_of
from headrace.tables.folder import JobFolder
from headrace.testing import MemoryTopic, PipelineHarness


class Order(Struct, frozen=True):
    id: int
    shop: str
    at: Timestamp


ORDERS = [Order(number, "a", number) for number in range(10)]


def pipeline_of(*sources):
    pipeline = Pipeline("shop")
    first, *others = (pipeline.source(name, Order, event_time="at") for name in sources)
    orders = first.union(*others) if others else first
    return orders.key_by("shop").aggregate("totals", orders=Count(), state_ttl=Lifetime.FOREVER).sink("totals")


def read_from(kind, name):
    """Return a job that has read all orders from a source of this kind, and where it has read them."""
    topics = {name: MemoryTopic()} if kind == "topic" else {}
    harness = PipelineHarness(pipeline_of(name), topics=topics)
    place = {"path": str(harness.folder / "input" / name)}
    if kind == "topic":
        topics[name].append(ORDERS)
    elif kind == "table":
        place = {"format": "delta", "path": str(harness.folder / "table")}
        times = pa.array(range(10), pa.timestamp("ms", "UTC"))
        write_deltalake(place["path"], pa.table({"id": range(10), "shop": ["a"] * 10, "at": times}))
        harness.change(job={"sources": {name: place}})
    else:
        harness.feed(name, ORDERS)
    harness.run()
    assert last_count(harness) == len(ORDERS)
    return harness, place


def last_count(harness):
    return max(total.orders for total in harness.sink("totals"))


def renamed(harness, place, *names):
    """Give the last of these sources the place, and a pipeline with all of them to the job."""
    if harness.topics:
        (topic,) = harness.topics.values()
        harness.topics = dict.fromkeys(names, topic)
        place = {}
    harness.change(pipeline=pipeline_of(*names), job={"sources": {names[-1]: place}})


@pytest.mark.parametrize("kind", ["folder", "table", "topic"])
def test_renamed_source_is_refused(kind):
    harness, place = read_from(kind, "orders")
    renamed(harness, place, "bookings")
    with pytest.raises(ConfigError, match="source 'bookings' is new, and reads what source 'orders' has read"):
        harness.run()
    assert last_count(harness) == len(ORDERS)
    renamed(harness, place, "orders")
    harness.run()
    assert last_count(harness) == len(ORDERS)


def test_copy_of_files_is_refused():
    harness, place = read_from("folder", "orders")
    shutil.copytree(place["path"], harness.folder / "copy", copy_function=shutil.copyfile)
    renamed(harness, {"path": str(harness.folder / "copy")}, "bookings")
    with pytest.raises(ConfigError, match="would count again"):
        harness.run()


def test_check_names_the_former_source():
    harness, place = read_from("folder", "orders")
    renamed(harness, place, "bookings")
    log = CheckpointLog(JobFolder.of(harness.config))
    first = next(findings(harness.config, plan_of(harness.config.code), log))
    assert (first.check, first.outcome) == ("source bookings", "warn")
    assert "the job has read 'orders', which the pipeline has no more" in first.detail


def test_first_checkpoint_has_read_nothing():
    harness, place = read_from("folder", "orders")
    with harness.on_its_clock():
        restore(harness.config, 0, "test", "a source has another name")
    renamed(harness, place, "bookings")
    harness.run()
    assert last_count(harness) == len(ORDERS)


def test_other_files_with_same_names_are_read():
    harness, _ = read_from("folder", "orders")
    harness.change(pipeline=pipeline_of("bookings"))
    harness.feed("bookings", [Order(number, "a", 5) for number in range(7)], file="000001.parquet")
    harness.run()
    assert last_count(harness) == len(ORDERS) + 7


def test_second_source_of_same_input_is_read():
    harness, place = read_from("folder", "orders")
    renamed(harness, place, "orders", "bookings")
    harness.run(end_of_input=True)
    assert last_count(harness) == 2 * len(ORDERS)
