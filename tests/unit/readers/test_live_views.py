"""`headrace views`: other engines see the live entries that the readers see."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.readers.sql import DIALECTS, ask_sql, live_views
from headrace.state.key_groups import key_group
from tests.unit.readers.opened_jobs import opened
from tests.unit.support.demo_job import HOUR, START, entry, timer

TABLES = ("keyed_state", "timers", "materializer_history", "quarantine", "buffered_requests")


@pytest.fixture
def aged(state):
    """Entries in many key groups: live, renewed, deleted, expired, and two with a TTL of their own; the clock is at 20:00."""
    rows = [entry(f"K{number}", f'"{number}"', 5, expires=number * HOUR) for number in range(12, 29)]
    rows.append({**entry("own-long", '"o"', 5, expires=13 * HOUR), "ttl_ms": 30 * HOUR})
    rows.append({**entry("own-short", '"o"', 5, expires=30 * HOUR), "ttl_ms": HOUR})
    rows.append(
        {**entry("map", '"m"', 5, expires=40 * HOUR), "state": "other", "namespace": "n", "user_key": '"it\'s"'}
    )
    state.add("keyed_state", rows)
    state.commit(Kind.BATCH, watermark=START + 10 * HOUR)
    state.add("keyed_state", [entry("K27", None, 6, deleted=True), entry("K13", '"new"', 6, expires=32 * HOUR)])
    state.add("timers", [timer("N1", 3 * HOUR, 6, deleted=True), timer("N9", 30 * HOUR, 6)])
    state.commit(Kind.BATCH, watermark=START + 20 * HOUR)
    assert len({key_group(f'"K{number}"'.encode(), 128) for number in range(12, 29)}) > 5
    return state


def by_duckdb(text: str, table: str) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(text)
    return sorted(connection.sql(f"FROM {table}").fetchall(), key=repr)


def by_readers(job: Any, table: str) -> list[tuple[Any, ...]]:
    return sorted(ask_sql(job, f"FROM {table}").rows, key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("at", [None, "5", "1"])
def test_duckdb_views_equal_the_readers(aged, at):
    text = live_views(opened(at), DIALECTS["duckdb"])
    for table in TABLES:
        assert by_duckdb(text, table) == by_readers(opened(at), table)


def test_views_omit_expired_entries(aged):
    keys = {row[2] for row in by_duckdb(live_views(opened(), DIALECTS["duckdb"]), "keyed_state")}
    assert keys == {*(f'"K{number}"' for number in range(21, 29) if number != 27), '"K13"', '"own-long"', '"map"'}


def test_polars_views_equal_the_readers(aged):
    pytest.importorskip("polars", reason="Polars is no dependency of the project")
    names: dict[str, Any] = {}
    exec(live_views(opened(), DIALECTS["polars"]), names)  # noqa: S102 - the text is what the command prints
    for table in TABLES:
        frame = names["views"].execute(f"SELECT * FROM {table}").collect()
        assert sorted(frame.rows(), key=repr) == by_readers(opened(), table)


def test_spark_view_names_versions(aged):
    text = live_views(opened(), DIALECTS["spark"], ["keyed_state"])
    assert f"delta.`{aged.folder}/keyed_state` VERSION AS OF {aged.versions['keyed_state']}" in text
    assert "unix_millis(last_access) <= " in text


@pytest.mark.parametrize("words", ["--for oracle", "--table nope"])
def test_unknown_names_of_views_are_refused(headrace, aged, words):
    assert headrace(f"views {words}").exit_code == ConfigError.exit_code


def test_printed_sql_runs(headrace, aged):
    printed = headrace("views --as-of 2013-01-31T10:00").stdout
    assert len(by_duckdb(printed, "timers")) == 1
