"""Sinks written through Spark and through deltalake, repeated publications, and replaced tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.commit.protocol import open_job
from headrace.commit.publish import Publisher
from headrace.errors import ConfigError, SinkMismatchError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.lineage import Lineage
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of, sink_schemas
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.sink import OutputFile, SparkRows, SparkWriters
from headrace.spark.writers import writer_through
from headrace.storage.files import Files
from headrace.storage.storage import Storage
from headrace.storage.table import ROW_KIND, Transaction
from headrace.tables.folder import JobFolder
from tests.jobs.home import Home
from tests.jobs.outcome import checkpoints, outcome, sink_rows
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

QUICK: dict[str, Any] = {"parallelism": 1, "backend": "hashmap"}
THROUGH_SPARK = {"publish": {"spark_above_rows": 0}}
ONE_BY_ONE = {"sources": {"purchases": {"max_files_per_batch": 1}}}


def versions(config):
    return {name: DeltaTable(sink.path).version() for name, sink in config.sinks.items()}


@pytest.mark.slow
def test_merge_through_spark_gives_same_board(home, run):
    write_days(home.input, range(2))
    home.configure(THROUGH_SPARK | ONE_BY_ONE)
    run(home, **QUICK)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(2))))
    operations = {
        entry["operation"]: entry for entry in DeltaTable(home.config().sinks["lines_by_item"].path).history()
    }
    assert "Apache-Spark" in operations["MERGE"]["engineInfo"]


@pytest.mark.slow
def test_merges_through_spark_and_deltalake_may_alternate(home, run):
    write_days(home.input, range(3))
    for through in (ONE_BY_ONE | THROUGH_SPARK, ONE_BY_ONE, ONE_BY_ONE | THROUGH_SPARK):
        home.configure(through)
        run(home, max_batches=1, **QUICK)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(3))))


@pytest.mark.parametrize("through", [{}, THROUGH_SPARK], ids=["deltalake", "spark"])
def test_publishing_a_checkpoint_again_does_nothing(home, run, spark, through, monkeypatch):
    # A run removes the outputs after their publication; a run that died in between would leave them.
    monkeypatch.setattr(Files, "remove_file", lambda *_: None)
    write_days(home.input, [0])
    home.configure(through)
    run(home, **QUICK)
    config = home.config()
    before, at = outcome(config), versions(config)
    publisher = Publisher(config, sink_schemas(plan_of(config.code)), SparkWriters(write=writer_through(spark)))
    line = Lineage(checkpoints(config))
    assert line.head is not None
    assert publisher.publish(line.head, line) == 0
    assert versions(config) == at
    assert outcome(config) == before


@pytest.mark.slow
def test_spark_itself_skips_a_merge_that_was_published(home, run, spark, monkeypatch):
    # Two drivers may both find a checkpoint unpublished; the second one's MERGE must do nothing.
    monkeypatch.setattr(Files, "remove_file", lambda *_: None)
    write_days(home.input, [0])
    home.configure(THROUGH_SPARK)
    run(home, **QUICK)
    config = home.config()
    before, at = outcome(config), versions(config)
    checkpoint = checkpoints(config)[-1]
    paths = [f"{config.job_folder}/{file.path}" for file in checkpoint.outputs["lines_by_item"]]
    write = writer_through(spark)
    transaction = Transaction("purchases/lines_by_item", 1)
    table = config.sinks["lines_by_item"].path
    write(SparkRows(uri=table, files=tuple(paths), transaction=transaction, keys=("item",)))
    assert versions(config) == at
    assert outcome(config) == before


@pytest.mark.slow
@pytest.mark.parametrize("through", [{}, THROUGH_SPARK], ids=["deltalake", "spark"])
def test_merge_without_effect_is_recorded(home, run, spark, through):
    write_days(home.input, [0])
    home.configure(through)
    run(home, **QUICK)
    config = home.config()
    schema = sink_schemas(plan_of(config.code))["lines_by_item"][0]
    absent = {name: pa.nulls(1, schema.field(name).type) for name in schema.names} | {ROW_KIND: ["-D"], "item": ["?"]}
    file = Storage(config.job_folder).stage("outputs/absent.parquet", pa.table(absent))
    with open_job(config, "batch", writers=SparkWriters(write=writer_through(spark))) as job:
        outputs = {"lines_by_item": [OutputFile(file.path, file.rows, file.size)]}
        checkpoint = job.commit(Kind.BATCH, outputs=outputs)
    Path(config.job_folder, file.path).unlink()
    table = DeltaTable(config.sinks["lines_by_item"].path)
    assert table.transaction_version("purchases/lines_by_item") == checkpoint.checkpoint_id
    write_days(home.input, [1])
    run(home, **QUICK)
    assert_as_by_hand(config, by_hand(map(purchases_of, range(2))))


def test_sink_with_other_columns_is_refused(home, run):
    write_days(home.input, [0], rows=20)
    home.configure({"sinks": {"lines_by_item": {"path": "lake/one"}, "reminders": {"path": "lake/two"}}})
    run(home, **QUICK)
    home.configure({"sinks": {"lines_by_item": {"path": "lake/two"}, "reminders": {"path": "lake/one"}}})
    with pytest.raises(ConfigError, match="has no column item, which is of the primary key now"):
        run(home, **QUICK)


def test_missing_sink_is_not_recreated_silently(home, run):
    write_days(home.input, [0])
    run(home, **QUICK)
    write_days(home.input, [1])
    board = Path(home.config().sinks["lines_by_item"].path)
    board.rename(board.with_name("elsewhere"))
    with pytest.raises(SinkMismatchError, match="lines_by_item.* is gone"):
        run(home, **QUICK)
    board.with_name("elsewhere").rename(board)
    run(home, **QUICK)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(2))))


def test_sink_from_old_backup_is_refused(home, run):
    write_days(home.input, [0])
    run(home, **QUICK)
    board = Path(home.config().sinks["lines_by_item"].path)
    shutil.copytree(board, board.with_name("backup"))
    for day in (1, 2):
        write_days(home.input, [day])
        run(home, **QUICK)
    board.rename(board.with_name("newest"))
    board.with_name("backup").rename(board)
    with pytest.raises(SinkMismatchError, match="up to checkpoint 1, but checkpoint 2"):
        run(home, **QUICK)
    shutil.rmtree(board)
    board.with_name("newest").rename(board)
    assert run(home, **QUICK).stopped_because == "drained"


def test_restarted_job_republishes_earlier_incarnations_rows(home, run):
    """A new job does not skip checkpoints that an earlier incarnation has published."""
    # Delta silently ignores a transaction whose id is not above the last one. The new job's ids start at 1 again, so
    # its changes would never reach the old tables.
    write_days(home.input, range(2))
    home.configure(ONE_BY_ONE)
    run(home, **QUICK)
    shutil.rmtree(home.config().job_folder)
    with pytest.raises(
        SinkMismatchError, match="has what checkpoint 2 of this job published, but .* has no checkpoints"
    ):
        run(home, **QUICK)
    shutil.rmtree(home.folder / "lake")
    run(home, **QUICK)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(2))))


def test_next_opening_publishes_the_unpublished_rows(home, run, monkeypatch):
    write_days(home.input, [0])

    def refuse(*_: object) -> None:
        raise StorageError("the lake is closed")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTableSink, "write", refuse)
        with pytest.raises(StorageError, match="the lake is closed"):
            run(home, **QUICK)
    config = home.config()
    assert [checkpoint.checkpoint_id for checkpoint in checkpoints(config)] == [0, 1]
    with open_job(config, "repair"):
        pass
    assert_as_by_hand(config, by_hand([purchases_of(0)]))
    assert CheckpointLog(JobFolder(config.job_folder)).last == checkpoints(config)[-1]


def test_float_with_whole_number_is_retracted_as_stored(tmp_path, run):
    home = Home(
        tmp_path,
        {
            "job": "whole_numbers",
            "pipeline": "tests.jobs.whole_numbers:pipeline",
            "state": {"root": "state", "local": "local"},
            "sources": {"readings": {"path": "input", "max_files_per_batch": 1}},
            "sinks": {"levels_now": {"path": "lake/levels_now", "mode": "merge"}},
        },
    )
    for day in range(3):
        at = pa.array([day], pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"sensor": ["roof"], "at": at, "value": [day]}), home.input / f"{day}.parquet")
    report = run(home, **QUICK)
    assert len(report.checkpoints) == 3
    assert report.quarantined == 0
    assert sink_rows(home.config(), "levels_now") == [("roof", 2.0)]
