"""Tables of sinks that refuse rows by a rule: which rule, which row, and the ways on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace import Pipeline, Struct, Timestamp
from headrace.commit.run_check import checked_plan, stored_problems
from headrace.edits.reconcile import reconcile
from headrace.edits.restore import restore
from headrace.errors import SinkMismatchError
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    n: int | None = None


KEYS = {"primary_key": ("id",), "upsert_key": ("id",)}
NAMES = {"merge": "merged", "append": "plain"}


def pipeline(*sinks):
    job = Pipeline("rules")
    rows = job.source("rows", Row, event_time="at")
    if "plain" in sinks:
        rows.sink("plain")
    if "merged" in sinks:
        rows.upsert_materialize("last", **KEYS).sink("merged")
    return job


def with_metadata(path, change):
    """Commit a version with other metadata, as another program does."""
    log = Path(path) / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(action["metaData"] for action in first if "metaData" in action)
    fields = json.loads(metadata["schemaString"])
    change(next(field for field in fields["fields"] if field["name"] == "n"))
    metadata["schemaString"] = json.dumps(fields)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 4}
    actions = [{"commitInfo": {"operation": "CHANGE COLUMN"}}, {"metaData": metadata}, {"protocol": protocol}]
    version = DeltaTable(path).version() + 1
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def check(path):
    DeltaTable(path).alter.add_constraint({"positive": "n > 0"})


def append_only(path):
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})


def not_null(path):
    with_metadata(path, lambda field: field.update(nullable=False))


def generated(path):
    with_metadata(path, lambda field: field["metadata"].update({"delta.generationExpression": "length(id)"}))


def ruled(rule, *sinks):
    """Return a job whose last sink's table has a rule that its next rows break, and that table's path."""
    harness = PipelineHarness(pipeline(*sinks))
    harness.feed("rows", [Row("a", 1, 1), Row("b", 2, 1)])
    harness.run()
    path = str(harness.folder / "lake" / sinks[-1])
    rule(path)
    harness.feed("rows", [Row("bad", 3), Row("c", 4, 1)])
    return harness, path


def called(harness, command, *arguments):
    with harness.on_its_clock():
        return command(harness.config, *arguments)


@pytest.mark.parametrize("mode", NAMES)
@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (check, r"CHECK positive \(n > 0\)"),
        (not_null, "NOT NULL n"),
        (generated, r"generated column n \(length\(id\)\)"),
    ],
)
def test_refused_rows_name_rule_and_key(mode, rule, text):
    harness, path = ruled(rule, NAMES[mode])
    before = DeltaTable(path).version()
    words = rf"(?s)sink '{NAMES[mode]}' at .* refused the rows of checkpoint 2: .*\| bad .*Rules of the table: {text}\. Nothing was written"
    for _ in range(2):
        with pytest.raises(SinkMismatchError, match=words):
            harness.run()
    assert DeltaTable(path).version() == before


def test_merge_into_append_only_takes_nothing_in():
    harness, _ = ruled(append_only, "merged")
    with pytest.raises(
        SinkMismatchError, match=r"has the rule delta\.appendOnly .*a merge updates rows. Nothing was taken in"
    ):
        harness.run()
    assert harness.table("checkpoints")["kind"].to_pylist().count("batch") == 1
    log = CheckpointLog(JobFolder(harness.config.job_folder))
    problems = [*stored_problems(harness.config, log, checked_plan(harness.config))]
    assert [what for what, _ in problems] == ["sinks"]


def test_append_to_append_only_table_works():
    harness, _ = ruled(append_only, "plain")
    assert harness.run().rows_in == 2


@pytest.mark.slow
def test_dropped_rule_lets_the_next_run_publish():
    harness, path = ruled(check, "merged")
    with pytest.raises(SinkMismatchError):
        harness.run()
    DeltaTable(path).alter.drop_constraint("positive")
    harness.run()
    assert len(harness.sink("merged")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", NAMES)
def test_restore_passes_a_refused_checkpoint(mode):
    harness, path = ruled(check, NAMES[mode])
    with pytest.raises(SinkMismatchError):
        harness.run()
    assert called(harness, restore, 1, "because", "by-hand").restored_from == 1
    assert DeltaTable(path).metadata().configuration["delta.constraints.positive"] == "n > 0"
    (harness.folder / "input/rows/000002.parquet").unlink()
    harness.feed("rows", [Row("c", 4, 1)])
    harness.run()
    assert sorted(row.id for row in harness.sink(NAMES[mode])) == ["a", "b", "c"]


@pytest.mark.slow
def test_other_path_is_filled_from_the_start():
    harness, _ = ruled(check, "merged")
    with pytest.raises(SinkMismatchError):
        harness.run()
    harness.change(job={"sinks": {"merged": {"path": "lake/other"}}})
    called(harness, reconcile, "by-hand", "the rule stays")
    harness.run()
    assert len(harness.sink("merged")) == 4


def test_job_goes_on_without_the_sink():
    harness, _ = ruled(check, "plain", "merged")
    with pytest.raises(SinkMismatchError):
        harness.run()
    harness.change(pipeline=pipeline("plain"))
    harness.feed("rows", [Row("d", 5)])
    harness.run()
    assert len(harness.sink("plain")) == 5
