"""Files that cannot be removed after a commit: the run warns and continues (no JVM)."""

from __future__ import annotations

import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.run.batch_sequence import BatchSequence
from headrace.testing import World


class Order(Struct, frozen=True):
    id: str
    at: Timestamp


@pytest.fixture
def world():
    return World()


@pytest.fixture
def shop(world):
    latest = Pipeline("shop").source("orders", Order, event_time="at").upsert_materialize("latest", primary_key=("id",))
    return world.job(latest.sink("board"), files_per_batch=1)


def warnings(harness):
    return [event.message for event in harness.events if event.kind == "warning"]


def refuse_removal(step, path):
    if step == "delete":
        raise PermissionError(13, "Permission denied", path)


def test_file_that_stays_is_a_warning(world, shop):
    for at in (1, 2):
        shop.feed("orders", [Order("a", at)])
    with world.disk.failing(refuse_removal):
        report = shop.run()
    assert (report.stopped_because, len(report.checkpoints)) == ("drained", 2)
    assert shop.sink("board") == [Order("a", 2)]
    assert "files that only the micro-batch of checkpoint 2 needed could not be removed" in warnings(shop)[1]
    assert "Permission denied" in warnings(shop)[1]


def test_stop_file_that_stays_hides_no_error(world, shop, monkeypatch):
    def stop_and_fail(batches, *_args, **_options):
        batches.stop()
        raise ZeroDivisionError

    monkeypatch.setattr(BatchSequence, "make", stop_and_fail)
    shop.feed("orders", [Order("a", 1)])
    with world.disk.failing(refuse_removal), pytest.raises(ZeroDivisionError):
        shop.run()
    assert "the file that told tasks to stop could not be removed" in warnings(shop)[0]
