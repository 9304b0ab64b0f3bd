"""Places of a job that are gone, or that are a file: the run names the place, and the next run behind the mending takes all in.

Places with a wrong scheme are refused when the job loads: tests/unit/config/test_places.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.errors import SinkMismatchError, SourceError, StorageError
from headrace.testing import PipelineHarness

pytestmark = pytest.mark.delta

START = 1_600_000_000_000


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp
    number: int = 0


class Numbered(KeyedProcessFunction[Order, Order]):
    """Numbers the orders of a customer."""

    count = ValueState("count", int)

    async def process(self, order, ctx, /):
        number = (await self.count.value() or 0) + 1
        await self.count.update(number)
        ctx.collect(Order(order.customer, order.at, number))


@pytest.fixture(scope="module")
def ran():
    """A snapshot of a job that has taken in one of its two files."""
    pipeline = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    harness = PipelineHarness(pipeline.process("numbered", Numbered()).sink("out"), backend="rocksdb", now=START)
    harness.feed("orders", [Order("ann", START)])
    harness.run()
    harness.feed("orders", [Order("ann", START + 1)])
    return harness.snapshot()


@pytest.fixture
def harness(ran):
    pipeline = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    harness = PipelineHarness(pipeline.process("numbered", Numbered()).sink("out"), backend="rocksdb", now=START)
    harness.restore(ran)
    return harness


def place_of(harness, name):
    config = harness.config
    paths = {
        "source": config.sources["orders"].path,
        "sink": config.sinks["out"].table_path,
        "root": config.state.root,
        "local": config.state.local,
    }
    return Path(paths[name])


def assert_next_run_takes_all_in(harness):
    harness.run()
    assert sorted(order.number for order in harness.sink("out")) == [1, 2]


@pytest.mark.parametrize(
    ("name", "is_file", "error", "message"),
    [
        (
            "source",
            False,
            SourceError,
            "there is no folder .* make it if it never had a file, or correct 'sources.orders.path'",
        ),
        ("source", True, SourceError, "is a file, and a source reads all files of a folder. .* 'sources.orders.path'"),
        ("sink", False, SinkMismatchError, "sink 'out' at .* is gone, .*headrace reconcile shop"),
        (
            "sink",
            True,
            StorageError,
            "storage refused to .*out is a file, and a folder is needed there.*move that file away",
        ),
        ("root", False, SinkMismatchError, "has no checkpoints. .*Bring back a copy of that folder"),
        (
            "root",
            True,
            StorageError,
            "is a file, and a folder is needed there.*move that file away, or correct the path",
        ),
        ("local", True, StorageError, "local state in .*Not a directory.*Nothing was committed"),
    ],
)
def test_missing_place_is_named_and_mended(harness, name, is_file, error, message):
    place = place_of(harness, name)
    aside = place.rename(place.with_name("aside")) if place.exists() else None
    if is_file:
        place.write_text("no folder")
    with pytest.raises(error, match=message) as refused:
        harness.run()
    assert str(place) in str(refused.value)
    if is_file:
        place.unlink()
    if aside is not None:
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
    assert_next_run_takes_all_in(harness)


def test_missing_local_copies_are_made_again(harness):
    shutil.rmtree(place_of(harness, "local"))
    assert_next_run_takes_all_in(harness)
