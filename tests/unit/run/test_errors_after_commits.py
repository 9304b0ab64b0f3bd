"""Errors of a run that has committed checkpoints before: the message says that they stay."""

from __future__ import annotations

import errno
import os

import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.errors import SourceError, StorageError, keep_committed
from headrace.sinks.delta import DeltaTableSink
from headrace.testing import PipelineHarness


class Row(Struct, frozen=True):
    id: str
    at: Timestamp


@pytest.fixture
def harness():
    result = PipelineHarness(Pipeline("job").source("rows", Row, event_time="at").sink("taken"), files_per_batch=1)
    result.feed("rows", [Row("a", 1)])
    return result


def test_unreadable_second_file_leaves_the_first(harness):
    harness.feed("rows", [Row("b", 2)])
    os.truncate(max((harness.folder / "input" / "rows").glob("*.parquet")), 50)
    with pytest.raises(
        SourceError, match=r"Nothing of this micro-batch was taken in; checkpoint 1 of this run stays\."
    ):
        harness.run()


def test_unreadable_first_file_leaves_nothing(harness):
    os.truncate(max((harness.folder / "input" / "rows").glob("*.parquet")), 50)
    with pytest.raises(SourceError, match="Nothing was taken in") as refusal:
        harness.run()
    assert "stays" not in str(refusal.value)


def test_several_checkpoints_are_counted():
    error = SourceError("a file is bad. Nothing was committed.")
    keep_committed(error, [3, 4, 5])
    assert (
        str(error) == "a file is bad. Nothing of this micro-batch was committed; checkpoints 3 to 5 of this run stay."
    )


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free space, then run again"), (errno.EPERM, "the right to read and write there")],
)
def test_refusing_sink_leaves_its_checkpoint(harness, monkeypatch, number, advice):
    def refuse(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(DeltaTableSink, "write", refuse)
    with pytest.raises(StorageError) as refusal:
        harness.run()
    text = str(refusal.value)
    assert "Checkpoint 1 is committed, and the next run publishes it first; " in text
    assert advice in text
    assert text.count(harness.config.sinks["taken"].path) == 1
    monkeypatch.undo()
    harness.run()
    assert len(harness.sink("taken")) == 1
