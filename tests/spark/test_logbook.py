"""The logbook on Spark: right between runs, at the end, and after a restore to histories of several rows."""

from __future__ import annotations

import pytest

from headrace.commit.verify import verify as verify_tables
from headrace.edits.restore import restore
from pipelines.comparison import read_table
from pipelines.logbook.changes import SOURCES
from pipelines.logbook.verify import Histories, verify, verify_midway
from tests.jobs.home import Home
from tests.jobs.logbook_days import LAST, deliver, write_days, write_raw

JOB = {
    "job": "logbook",
    "pipeline": "pipelines.logbook:pipeline",
    "state": {"root": "state", "local": "local"},
    "sources": {
        name: {"path": f"input/{name}", "interval": "%Y-%m-%d", "complete_intervals": True, "max_files_per_batch": 100}
        for name in SOURCES
    },
    "sinks": {"logbook": {"path": "lake/logbook", "mode": "merge"}},
}


def by_flight(logbook):
    return {row["flight_id"]: row for row in logbook.to_pylist()}


@pytest.mark.slow
def test_corrections_reach_the_logbook_after_a_restore(tmp_path, run):
    raw = write_raw(tmp_path / "raw")
    files = write_days(tmp_path / "changes", 1, raw)
    home = Home(tmp_path / "home", JOB)
    config = home.config()

    deliver(tmp_path / "changes", home.input, files[:3])
    report = run(home, parallelism=2, backend="rocksdb")
    midway = read_table(config.sinks["logbook"].path)
    assert verify_midway(midway, home.input).total == 0
    histories = Histories.of(read_table(f"{config.job_folder}/materializer_history"))
    assert histories.several_now > 20
    assert max(histories.keys_by_length) >= 3

    deliver(tmp_path / "changes", home.input, files[3:])
    for backend, parallelism in (("delta", 1), ("hashmap", 3)):
        run(home, parallelism=parallelism, backend=backend)
        differences = verify(read_table(config.sinks["logbook"].path), LAST, raw=raw)
        assert differences.total == 0, [*differences.lines("logbook")]
        restore(config, report.checkpoints[-1], "to take the corrections again", "somebody")
        assert by_flight(read_table(config.sinks["logbook"].path)) == by_flight(midway)
    assert all(finding.ok for finding in verify_tables(config))
