"""Rows of state tables changed by hand: exit code 8 with table, row and column, and no table is changed (no JVM)."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import StorageError
from headrace.storage import pandas as late_pandas
from tests.unit.support.damaged_job import damaged_job, with_value


@pytest.fixture
def shop(monkeypatch):
    job = damaged_job("damaged-rows")
    job.whole()
    job.use("rocksdb")
    monkeypatch.setenv("HEADRACE_HOME", str(job.harness.folder))
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    job.feed()
    yield job
    job.whole()


def change(job, table, column, value):
    for path in job.files(table):
        job.write(path, with_value(job.read(path), column, value))


NULLS = [
    ("keyed_state", "value"),
    ("keyed_state", "deleted"),
    ("keyed_state", "checkpoint_id"),
    ("keyed_state", "state"),
    ("timers", "timestamp"),
    ("timers", "domain"),
    ("materializer_history", "row"),
    ("materializer_history", "row_kind"),
    ("materializer_history", "inserted_at"),
    ("async_requests", "status"),
    ("async_requests", "element"),
    ("async_requests", "attempts"),
    ("buffered_requests", "record"),
    ("buffered_requests", "sequence"),
]
GARBAGE = [
    ("timers", "domain", "tomorrow"),
    ("materializer_history", "row_kind", "+Z"),
    ("async_requests", "status", "asleep"),
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@pytest.mark.parametrize(("table", "column"), NULLS)
def test_null_stops_the_run(shop, table, column, backend):
    change(shop, table, column, None)
    shop.use(backend)
    before = shop.content()
    with pytest.raises(StorageError, match=rf"table .*/{table} is damaged: column '{column}' is null in the row of"):
        shop.harness.run()
    assert before.items() <= shop.content().items()


@pytest.mark.parametrize(("table", "column", "value"), GARBAGE)
def test_value_impossible_for_its_column_stops_run(shop, table, column, value):
    change(shop, table, column, value)
    with pytest.raises(
        StorageError,
        match=rf"/{table} is damaged: column '{column}' is '{re.escape(value)}', which it cannot be, in the row of",
    ):
        shop.harness.run()


@pytest.mark.parametrize("column", ["operator", "state", "checkpoint_id", "deleted"])
@pytest.mark.parametrize("command", ["state list shop", "state scan shop", "sql shop"])
def test_readers_leave_no_damaged_row_out(shop, command, column):
    change(shop, "keyed_state", column, None)
    words = command.split()
    result = CliRunner().invoke(app, [*words, "select * from keyed_state"] if words[0] == "sql" else words)
    assert result.exit_code == 8, result.output
    assert f"keyed_state is damaged: column '{column}' is null" in result.output


@pytest.mark.parametrize("column", ["deleted", "state"])
@pytest.mark.parametrize("words", ["state get shop a", "state history shop a", "state list shop"])
@pytest.mark.parametrize("place", [None, "damaged-rows"], ids=["local", "memory"])
def test_readers_report_rows_they_cannot_show(place, monkeypatch, words, column):
    job = damaged_job(place)
    job.whole()
    monkeypatch.setenv("HEADRACE_HOME", str(job.harness.folder))
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    change(job, "keyed_state", column, None)
    result = CliRunner().invoke(app, words.split())
    job.whole()
    assert result.exit_code == 8, result.output
    assert f"keyed_state is damaged: column '{column}' is null" in result.output


CHECKPOINTS = {
    "versions": ("{", "column 'versions' is no JSON in the row of checkpoint"),
    "sources": ('{"orders": 1}', "in the row of checkpoint"),
    "kind": ("batsh", "column 'kind' is 'batsh'"),
    "run_id": (None, "column 'run_id' is null in the row of"),
    "metrics": ("NaN", "column 'metrics' is no JSON"),
    "max_parallelism": (None, "column 'max_parallelism' is null in the row of checkpoint 1"),
}


@pytest.mark.parametrize("column", CHECKPOINTS)
def test_damaged_checkpoint_is_named(shop, column):
    value, message = CHECKPOINTS[column]
    path = next(path for path in shop.files("checkpoints") if shop.read(path)["kind"][0].as_py() == "batch")
    shop.write(path, with_value(shop.read(path), column, value))
    for words, code in ((["status"], 8), (["checkpoints"], 8), (["state", "list"], 8), (["verify"], 1)):
        result = CliRunner().invoke(app, [*words, "shop"])
        assert result.exit_code == code, result.output
        assert message in " ".join(result.output.split())


def test_two_rows_of_one_checkpoint_are_refused(shop):
    path = next(path for path in shop.files("checkpoints") if shop.read(path)["kind"][0].as_py() == "batch")
    row = shop.read(path)
    shop.write(path, pa.concat_tables([row, row]))
    with pytest.raises(StorageError, match=r"checkpoints is damaged: 2 rows have the checkpoint_id 1"):
        shop.harness.run()


def test_another_type_of_a_column_is_refused(shop):
    path = shop.files("keyed_state")[0]
    rows = shop.read(path)
    place = rows.schema.get_field_index("checkpoint_id")
    shop.write(path, rows.set_column(place, "checkpoint_id", pa.array([[1]] * rows.num_rows)))
    with pytest.raises(StorageError, match=r"keyed_state is damaged: column 'checkpoint_id' is list<.*>, not int64"):
        shop.harness.run()
