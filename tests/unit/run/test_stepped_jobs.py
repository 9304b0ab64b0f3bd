"""Jobs whose source has a step, from file to sink: crashes, restores, refused rows. The step is one in Python (no JVM)."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.edits.requeue import requeue
from headrace.edits.restore import restore
from headrace.edits.vacuum import KeptCheckpoints, unneeded_landed
from headrace.log.warnings import row_times_of
from headrace.plan.loader import plan_of
from headrace.run import job_run
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from headrace.testing import PipelineHarness
from tests.unit.support.stepped_job import Copies, order, pipeline


class SteppedJob:
    """The job in a harness whose runs make the step."""

    def __init__(self, monkeypatch, **source):
        bound = {"format": "json", "tables": {"dims": "dims"}, **source}
        self.harness = PipelineHarness(pipeline(), job={"sources": {"rows": bound}})
        self.change_dims()
        run_on = job_run.run_on
        monkeypatch.setattr(job_run, "run_on", lambda *args, **options: run_on(*args, **options, steps=self.steps()))

    def steps(self):
        return {
            "rows": Copies(
                plan_of(self.harness.config.code).sources[0], self.harness.config, self.harness.folder / "dims"
            )
        }

    def change_dims(self):
        write_deltalake(str(self.harness.folder / "dims"), pa.table({"id": [1]}), mode="append")

    def write(self, name, *rows):
        text = "\n".join(row if isinstance(row, str) else json.dumps(order(*row)) for row in rows)
        (self.harness.folder / "input/rows" / name).write_text(text, encoding="utf-8")

    def copies(self):
        return sorted((row.name, row.label) for row in self.harness.sink("copies"))

    def quarantine(self):
        return sorted((row["position"], row["error"], row["raw"]) for row in self.harness.live(QUARANTINE))


@pytest.fixture(params=["name", "first_seen"])
def job(request, monkeypatch):
    return SteppedJob(monkeypatch, order=request.param)


def test_doubtful_times_behind_a_step_count(job):
    job.write("a.json", ("a", 2, 1767261600), ("b", 1, 20260131), ("c", 2, 1))
    job.harness.run()
    assert row_times_of(job.harness.facts)["rows"].doubtful == 3


@pytest.mark.parametrize("place", ["ingest.after", "commit.before", "commit.after", "publish.after"])
def test_crash_changes_no_row(job, place):
    job.write("a.json", ("a", 2, 1))
    assert job.harness.run(crash_at=place) is None
    job.change_dims()
    job.write("b.json", ("b", 1, 2))
    job.harness.run()
    assert job.copies()[:2] == [("a.0", 0), ("a.1", 0)]
    assert [name for name, _ in job.copies()] == ["a.0", "a.1", "b.0"]


def test_restored_job_takes_in_the_same_rows(job):
    job.write("a.json", ("a", 1, 1))
    job.harness.run()
    first = job.harness.facts[-1].checkpoint_id
    job.change_dims()
    job.write("b.json", ("b", 2, 2))
    job.harness.run()
    assert job.copies() == [("a.0", 0), ("b.0", 1), ("b.1", 1)]
    job.change_dims()
    restore(job.harness.config, first, "back", "restoring")
    job.harness.run()
    assert job.copies() == [("a.0", 0), ("b.0", 1), ("b.1", 1)]
    assert [table.version for table in job.harness.facts[-1].sources["rows"].tables] == [1]


def test_refused_rows_can_be_requeued(job):
    generation = "0000000001/" if job.harness.config.sources["rows"].order == "first_seen" else ""
    bad = '{"name": "x", "copies": "many", "at": 1}'
    job.write("a.json", ("a", 1, 1), bad, ("null", 1, 2))
    for _ in range(2):
        job.harness.run()
        (first, error, row), (second, reason, text) = job.quarantine()
        assert (first, error) == (f"{generation}a.json~00000001.parquet:1", "label is null")
        assert (second, reason) == (
            f"{generation}a.json~00000001.parquet:2",
            "a.json:1, before the transform: copies is 'many', which is not int64",
        )
        assert (json.loads(row)["name"], text) == ("null.0", bad)
        assert requeue(job.harness.config, "again") is not None
        assert job.quarantine() == []
    assert job.copies() == [("a.0", 0)]


def test_landed_files_of_generations_are_vacuumed(monkeypatch):
    job = SteppedJob(monkeypatch, order="first_seen")
    for name in ("b.json", "a.json"):
        job.write(name, (name, 1, 1))
        job.harness.run()
    job.write("0.json", ("0", 1, 1))
    assert job.harness.run(crash_at="ingest.after") is None
    landed = sorted(f"landed/{path}" for path in JobFolder.of(job.harness.config).files("landed"))
    names = [f"000000000{number}%2F{stem}.json~00000001.parquet" for number, stem in ((1, "b"), (2, "a"), (3, "0"))]
    assert [path.rpartition("/")[2] for path in landed] == names
    assert unneeded_landed(landed, KeptCheckpoints((), ()), job.harness.facts[-1]) == {*landed[:2]}
