"""Twelve queries of Nexmark on Spark equal SQL, after a crash at a drawn place and a restore of a drawn checkpoint."""

from __future__ import annotations

import itertools
import random
import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace import UpsertMaterialize, crash_points
from headrace.edits.restore import restore
from pipelines.nexmark.check import compare
from pipelines.nexmark.generator import Shape, write_events
from pipelines.nexmark.queries import load
from pipelines.nexmark.runs import sources
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints

TWELVE = ("q3", "q4", "q5", "q7", "q8", "q9", "q11", "q13", "q16", "q18", "q19", "q20")
PLACES = (
    "ingest.after",
    "run.after",
    "prepare.before",
    "prepare.after",
    "commit.before",
    "commit.after",
    "publish.after",
)
FILES = 4


class DeadError(Exception):
    """Stands for the death of the driver."""


def dies_at(place, visit):
    visits = itertools.count(1)

    def reached(name):
        if name == place and next(visits) == visit:
            raise DeadError

    return reached


def job_of(query):
    merges = any(isinstance(operator, UpsertMaterialize) for operator in load(query).operators)
    return {
        "job": f"nexmark_{query}",
        "pipeline": f"pipelines.nexmark.queries.{query}:pipeline",
        "state": {"root": "state", "local": "local"},
        "watermark": {"bucket": 50},
        "sources": {name: {"path": f"input/{name}", "max_files_per_batch": 1} for name in sources(query)},
        "sinks": {"result": {"path": "lake/result", "mode": "merge" if merges else "append"}},
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nexmark")
    write_events(folder, Shape(1500, gap_ms=100), files=FILES)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("query", TWELVE)
def test_query_result_survives_crash_and_restore(query, tmp_path, inputs, run):
    home, chance = Home(tmp_path, job_of(query)), random.Random(query)
    for name in sources(query):
        shutil.copytree(inputs / name, home.input / name, dirs_exist_ok=True)

    def drawn():
        return {"parallelism": chance.choice([1, 2, 3]), "backend": chance.choice(["hashmap", "rocksdb", "delta"])}

    place, visit = chance.choice(PLACES), chance.randint(1, 2)
    with crash_points.observed(dies_at(place, visit)), pytest.raises(DeadError):
        run(home, end_of_input=True, **drawn())
    run(home, max_batches=2, **drawn())
    line = checkpoints(home.config())
    restore(home.config(), chance.choice(line).checkpoint_id, "to go through it again", "somebody")
    run(home, end_of_input=True, **drawn())
    rows = pa.RecordBatchReader.from_stream(DeltaTable(home.config().sinks["result"].path).scan()).read_all()
    differences = compare(query, rows, home.input)
    assert not differences, f"{query}, death at {place}:{visit}: {differences}"
    assert differences.expected > 0
    assert_well_formed(home.config())
