"""State of every kind through Spark and Delta: results do not depend on the backend or on the split of the input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headrace.edits.compact import compact
from headrace.readers import state as keyed_state
from headrace.readers.job_at import JobAtCheckpoint
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from tests.jobs.clicks import JOB, write_clicks
from tests.jobs.home import Home
from tests.jobs.outcome import Outcome, assert_well_formed, checkpoints, outcome


def come_to(run, folder: Path, *backends: str) -> Outcome:
    """Run one micro-batch on each backend, with compactions between them and changing numbers of tasks."""
    home = Home(folder, JOB)
    for day, backend in enumerate(backends):
        write_clicks(home.input, day)
        run(home, backend=backend, parallelism=2 - day % 2)
        if day == 1:
            compact(home.config(), "test")
    assert_well_formed(home.config())
    return outcome(home.config(), with_expired=False)


@pytest.fixture(scope="module")
def expected(run, tmp_path_factory) -> Outcome:
    return come_to(run, tmp_path_factory.mktemp("hashmap"), "hashmap", "hashmap", "hashmap")


def test_each_state_kind_stores_its_own_entries(expected):
    names = sorted(set(STATE_TABLES[KEYED_STATE].schema.names) - {"checkpoint_id", "deleted"})
    rows = [dict(zip(names, row, strict=True)) for row in expected.state[KEYED_STATE]]
    counted = Counter(row["state"] for row in rows)
    assert set(counted) == {"pages", "looks", "total", "span", "last"}
    assert {row["state"] for row in rows if row["user_key"] is not None} == {"pages", "looks"}
    assert {row["state"] for row in rows if row["namespace"] is not None} >= {"last", "looks"}
    assert len(expected.sinks["told"]) > 50


@pytest.mark.parametrize("backends", [("rocksdb",) * 3, ("delta",) * 3, ("delta", "rocksdb", "delta")], ids="-".join)
def test_every_backend_writes_the_same_tables(run, tmp_path, expected, backends):
    assert come_to(run, tmp_path, *backends) == expected


def test_reader_shows_namespaces_and_user_keys(run, tmp_path):
    home = Home(tmp_path, JOB)
    write_clicks(home.input, 0)
    run(home, backend="rocksdb", parallelism=2)
    job = JobAtCheckpoint(home.config())
    result = keyed_state.get(job, "user 3").dicts()
    order = [(row["state"], row["namespace"] or "", row["user_key"] or "") for row in result]
    assert {state for state, _, _ in order} == {"pages", "looks", "total", "span", "last"}
    assert any(namespace for _, namespace, _ in order)
    assert {name for state, _, name in order if state == "pages"} <= {f'"/{page}"' for page in "abcdé"}
    assert checkpoints(home.config())[-1].metrics["timers_fired"] > 0
