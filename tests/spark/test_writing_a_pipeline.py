"""The job of docs/writing-a-pipeline.md: its code, file, input and results as the page shows them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.jobs.home import PROJECT, Home
from tests.jobs.outcome import checkpoints, live_rows, sink_rows

PAGE = (PROJECT / "docs" / "writing-a-pipeline.md").read_text(encoding="utf-8")
NOON = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - as the page has it


def block(heading: str, language: str) -> str:
    """The first block of a language below a heading."""
    match = re.search(rf"^## {heading}.*?^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"no block of {language} below {heading}"
    return match[1]


@pytest.fixture
def documented(tmp_path: Path, spark, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return the job, under a separate module name."""
    module = tmp_path / "documented_sensors.py"
    module.write_text(block("1", "python"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(module))
    job = yaml.safe_load(block("2", "yaml"))
    assert job["pipeline"] == "pipelines.sensors:pipeline"
    return Home(tmp_path, {**job, "pipeline": "documented_sensors:pipeline", "state": {"root": "s", "local": "l"}})


def test_documented_job_gives_the_documented_output(documented, run, monkeypatch):
    monkeypatch.chdir(documented.folder)
    exec(compile(block("3", "python"), "docs/writing-a-pipeline.md", "exec"), {})  # noqa: S102 - our own page
    run(documented)
    board = sink_rows(documented.config(), "sensors_now")
    assert [row[1:] for row in board] == [(9.0, 1, "cellar"), (15.0, 4, "roof")]
    for _, celsius, readings, sensor in board:
        assert re.search(rf"^ {sensor} +{celsius} +{readings}$", PAGE, re.MULTILINE), f"the page shows another {sensor}"
    assert sink_rows(documented.config(), "silent_sensors") == []
    assert len(live_rows(documented.config(), checkpoints(documented.config())[-1], "quarantine")) == 1

    later = NOON.replace(hour=13, minute=20)
    more = pa.table({"sensor": ["roof", "roof"], "at": [later, later], "celsius": [15.0, 15.1]})
    pq.write_table(more, documented.folder / "var/data/readings/2026-03-02.parquet")
    run(documented)
    since = round(NOON.replace(minute=1, tzinfo=UTC).timestamp() * 1000)
    assert sink_rows(documented.config(), "silent_sensors") == [("cellar", since)]
