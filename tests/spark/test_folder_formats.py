"""A job gives the same results with the same rows as JSON lines, CSV and Parquet."""

from __future__ import annotations

import json

import pytest

from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from tests.jobs.outcome import sink_rows
from tests.jobs.purchase_files import day_name, purchases_of, write_days

QUICK = {"parallelism": 2, "backend": "hashmap"}
BROKEN = '{"seq": 1, "at": '


def as_json(rows):
    return "\n".join(map(json.dumps, rows)) + "\n"


def as_csv(rows):
    def text(value):
        return "" if value is None else json.dumps(value)

    return "\r\n".join([",".join(rows[0]), *(",".join(map(text, row.values())) for row in rows)]) + "\n"


WRITERS = {"json": as_json, "csv": as_csv}


@pytest.mark.parametrize("kind", WRITERS)
def test_text_files_equal_parquet_files(kind, home, new_home, run):
    write_days(home.input, range(2))
    run(home, **QUICK)
    other = new_home(kind)
    other.configure({"sources": {"purchases": {"format": kind}}})
    for day in range(2):
        name = day_name(day).replace("parquet", kind)
        broken = BROKEN if day == 1 else ""  # at the end, since it has an ordinal as well
        (other.input / name).write_text(WRITERS[kind](purchases_of(day)) + broken, encoding="utf-8")
    run(other, **QUICK)
    for sink in home.config().sinks:
        assert sink_rows(other.config(), sink) == sink_rows(home.config(), sink)
    assert refused(other) == [f"{day_name(1).replace('parquet', kind)}:90"]


def refused(home):
    folder = home.config().job_folder
    view = JobFolder(str(folder)).view(QUARANTINE, CheckpointLog(JobFolder(str(folder))).last.versions[QUARANTINE])
    return sorted(row["position"] for row in view.live_rows() if row["raw"] == BROKEN)
