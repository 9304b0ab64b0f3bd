"""A key is erased between two runs: local copies of its operators are rebuilt, and other keys are unchanged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.config import JobConfig
from headrace.edits.erase import erase, find_key
from headrace.edits.erased_key import ErasedKey
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, TIMERS
from tests.jobs.home import Home
from tests.jobs.outcome import checkpoints
from tests.jobs.purchase_files import write_days
from tests.unit.edits.test_erasure_in_sinks import KEYS, rows_of
from tests.unit.support.erasure_job import places_with

CUSTOMER = "customer 3"


@pytest.mark.parametrize(
    "backend",
    ["rocksdb", pytest.param("delta", marks=pytest.mark.slow), pytest.param("hashmap", marks=pytest.mark.slow)],
)
def test_erasure_leaves_other_keys_unchanged(tmp_path, run, backend):
    erased, control = (prepared(Home(tmp_path / name)) for name in ("erased", "control"))
    quick: dict[str, Any] = {"parallelism": 2, "backend": backend}
    for home in (erased, control):
        run(home, max_batches=1, **quick)
    config = erased.config()
    done = erase(config, "dpo", ErasedKey(CUSTOMER, with_mentions=True), why="request 17", purge=True)
    operators = {row.operator for row in done.survey.rows}
    assert operators
    assert [name for name in operators if (config.local_folder / name).exists()] == []
    assert find_key(config, ErasedKey(CUSTOMER)).is_empty
    assert not {place for place in places_with(config, CUSTOMER) if place.startswith("timers/")}
    for home in (erased, control):
        run(home, **quick)
    assert all(others(config).values())
    assert others(config) == others(control.config())


@pytest.mark.slow
def test_printed_statements_delete_their_keys_on_spark(tmp_path, spark):
    folder, left = tmp_path / "sink", [*KEYS]
    write_deltalake(folder, pa.table({"Id": left, "order": [7] * len(left)}))
    while left:
        spark.sql(rows_of(folder, left.pop()).statement.removesuffix(";"))
        assert sorted(DeltaTable(folder).to_pyarrow_table()["Id"].to_pylist()) == sorted(left)


def prepared(home: Home) -> Home:
    write_days(home.input, range(2))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    return home


def others(config: JobConfig) -> dict[str, list[str]]:
    """The live rows of other customers, without the numbers of checkpoints, which an erasure moves."""
    last = checkpoints(config)[-1]
    views = {name: JobFolder(config.job_folder).view(name, last.versions[name]) for name in (KEYED_STATE, TIMERS)}
    return {
        name: sorted(
            str({**row, "checkpoint_id": None})
            for row in view.of("customers").live_rows()
            if row["key"] != f'"{CUSTOMER}"'
        )
        for name, view in views.items()
    }
