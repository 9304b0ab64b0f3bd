"""The check detects a row that is missing, doubled or wrong, and counts disorder and histories."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace.testing import PipelineHarness
from pipelines.logbook import pipeline
from pipelines.logbook.verify import Disorder, Histories, main, verify, verify_midway
from tests.jobs.logbook_days import LAST, deliver, write_days

pytestmark = pytest.mark.delta


@pytest.fixture(scope="module")
def done(tmp_path_factory, raw):
    """A job that has processed all input."""
    folder = tmp_path_factory.mktemp("days")
    harness = PipelineHarness(pipeline, files_per_batch=100)
    deliver(folder, harness.folder / "input", write_days(folder, 1, raw))
    harness.run(end_of_input=True)
    return harness


def renamed(table):
    """Give one flight another tail number."""
    tailnums = ["N0", *table["tailnum"].to_pylist()[1:]]
    return table.set_column(table.column_names.index("tailnum"), "tailnum", pa.array(tailnums))


DAMAGE = {
    "missing": lambda table: table.slice(1),
    "unexpected": lambda table: pa.concat_tables([table, table.slice(3, 1)]),
    "different": renamed,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_row_is_found(raw, done, kind):
    damaged = DAMAGE[kind](done.sink_table("logbook"))
    for result in (verify(damaged, LAST, raw=raw), verify_midway(damaged, done.folder / "input")):
        assert (result.total, getattr(result, kind)) == (1, 1)


def write_changes_of(folder, name, rows):
    schema = {
        "entries": ["flight_id", "carrier", "tailnum", "origin", "dest"],
        "planes": ["tailnum", "manufacturer", "model"],
        "weather": ["origin"],
    }
    timestamps = {"entries": ["departed_at", "hour"], "planes": [], "weather": ["hour"]}
    numbers = {"entries": ["flight"], "planes": ["built", "seats"], "weather": ["temp", "wind_speed", "visib"]}
    columns = {field: pa.array([row.get(field, "x") for row in rows], pa.string()) for field in schema[name]}
    columns |= {field: pa.array([0] * len(rows), pa.timestamp("ms", tz="UTC")) for field in timestamps[name]}
    columns |= {field: pa.array([1] * len(rows), pa.int64()) for field in numbers[name]}
    columns["kind"] = pa.array([row["kind"] for row in rows], pa.string())
    columns["recorded_at"] = pa.array([row["at"] for row in rows], pa.timestamp("ms", tz="UTC"))
    (folder / name).mkdir()
    pq.write_table(pa.table(columns), folder / name / "1970-01-01.parquet")


OLD, NEW = {"tailnum": "N1", "at": 1}, {"tailnum": "N2", "at": 2}


@pytest.mark.parametrize(
    ("rows", "late", "shown"),
    [
        ([("+I", OLD), ("-U", OLD), ("+U", NEW)], 0, "N2"),
        ([("+I", OLD), ("+U", NEW), ("-U", OLD)], 1, "N2"),
        ([("+I", OLD), ("+U", NEW), ("-U", NEW)], 0, "N1"),
        ([("+I", OLD), ("+U", NEW)], 0, "N2"),
    ],
)
def test_row_added_last_is_expected(tmp_path, rows, late, shown):
    write_changes_of(tmp_path, "entries", [{"kind": kind, **row, "flight_id": "f"} for kind, row in rows])
    write_changes_of(tmp_path, "planes", [])
    write_changes_of(tmp_path, "weather", [])
    names = ["flight_id", "carrier", "flight", "tailnum", "origin", "dest", "departed_at", "manufacturer", "model"]
    line = dict(zip(names, ["f", "x", 1, shown, "x", "x", 0, None, None], strict=True))
    nothing = dict.fromkeys(["built", "seats", "temp", "wind_speed", "visib"])
    assert verify_midway(pa.Table.from_pylist([{**line, **nothing}]), tmp_path).total == 0
    assert verify_midway(pa.Table.from_pylist([{**line, **nothing, "tailnum": "N9"}]), tmp_path).different == 1
    assert Disorder.of(tmp_path).late == late


def test_histories_are_measured_after_micro_batches():
    changes = [("a", 1, 1, False), ("a", 2, 1, False), ("a", 1, 2, True), ("b", 1, 1, False), ("b", 1, 2, True)]
    names = ("key", "sequence_number", "checkpoint_id", "deleted")
    table = pa.Table.from_pylist([dict(zip(names, change, strict=True)) for change in changes])
    assert Histories.of(table) == Histories({1: 1, 2: 1}, several_now=0)
    assert Histories.of(table.slice(0, 2)) == Histories({2: 1}, several_now=1)
    assert str(Histories.of(table.slice(0, 0))) == "histories: none"


def test_command_reports_and_fails_on_differences(done, raw, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("pipelines.logbook.verify.data_folder", lambda: raw)
    given = ["--to", str(LAST), "--changes", str(done.folder / "input"), "--state", str(done.folder / "state/logbook")]
    assert main([*given, "--logbook", str(done.folder / "lake/logbook")]) == 0
    report = capsys.readouterr().out
    assert "expected, as expected\n" in report
    assert "after the row that replaces theirs\n" in report
    assert "0 have several now\n" in report
    write_deltalake(str(tmp_path), done.sink_table("logbook").slice(1))
    assert main([*given, "--midway", "--logbook", str(tmp_path)]) == 1
    assert "missing: 1" in capsys.readouterr().out
