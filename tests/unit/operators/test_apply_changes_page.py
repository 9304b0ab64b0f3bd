"""The pipelines of docs/apply-changes.md: the rows that the page shows, and a run into a Delta table that DuckDB compares with the events."""

from __future__ import annotations

import json
import random
import re
import sys
from datetime import timedelta
from operator import itemgetter
from typing import Annotated

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace import DEBEZIUM, History, Lifetime, Pipeline, Struct, Timestamp, field
from headrace.cli import app
from headrace.operators import ValidFrom, ValidTo
from headrace.testing import PipelineHarness
from tests.jobs.home import PROJECT
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.doc_pages import page_module

TEXT = (PROJECT / "docs" / "apply-changes.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def page(monkeypatch):
    return page_module("apply-changes", monkeypatch)


def shown_tables():
    """Return the rows of the page's first two tables of data: events, and versions."""
    tables = re.findall(r"^\| id .*?\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [
        [[cell.strip() or None for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for table in tables
    ]


def test_page_shows_real_versions(page):
    events, rows = shown_tables()
    harness = PipelineHarness(page.pipeline, bucket=1)
    changes = [
        page.Change(int(key), int(lsn), at, op, tier, city) for at, (key, lsn, op, tier, city) in enumerate(events)
    ]
    harness.feed("changes", changes)
    assert harness.run().quarantined == 0
    expected = [
        page.CustomerVersion(int(key), tier, city, int(begins), int(ends)) for key, tier, city, begins, ends in rows
    ]
    assert by_fields(harness.sink("customers")) == by_fields(expected)


class Account(Struct, frozen=True):
    id: int
    email: str
    lsn: int = field(name="__source_lsn")
    changed: Timestamp = field(name="__source_ts_ms")


class Email(Struct, frozen=True):
    id: int
    email: str


def test_debezium_deletes_by_row_kind():
    accounts = (
        Pipeline("accounts")
        .source("accounts", Account, event_time="changed", row_kind=DEBEZIUM)
        .apply_changes("emails", key=("id",), sequence_by="lsn", record=Email, tombstones=timedelta(days=30))
        .upsert_materialize("latest", primary_key=("id",))
        .sink("accounts")
    )
    harness = PipelineHarness(accounts, bucket=1)
    rows = [("c", 1, "a@b", 5), ("u", 1, "c@d", 9), ("u", 1, "old", 7), ("d", 2, None, 4), ("c", 2, "e@f", 3)]
    kinds, ids, emails, places = zip(*rows, strict=True)
    columns = {"__op": kinds, "id": ids, "email": emails, "__source_lsn": places, "__source_ts_ms": range(5)}
    harness.feed_table("accounts", pa.table({name: list(values) for name, values in columns.items()}))
    assert harness.run().quarantined == 0
    assert harness.sink("accounts") == [Email(1, "c@d")]


class Step(Struct, frozen=True):
    id: int
    committed: Timestamp
    number: int
    tier: str


class Period(Struct, frozen=True):
    id: int
    tier: str
    begins: Annotated[Timestamp, ValidFrom()]
    number: Annotated[int, ValidFrom("number")]
    ends: Annotated[Timestamp | None, ValidTo()]


def test_steps_of_a_transaction_have_numbers():
    periods = (
        Pipeline("periods")
        .source("steps", Step, event_time="committed")
        .apply_changes(
            "periods",
            key=("id",),
            sequence_by=("committed", "number"),
            history=History.SCD2,
            record=Period,
            corrections=Lifetime.FOREVER,
        )
        .upsert_materialize("latest", primary_key=("id", "begins", "number"))
        .sink("periods")
    )
    harness = PipelineHarness(periods, bucket=1)
    harness.feed("steps", [Step(1, 5, 2, "b"), Step(1, 5, 1, "a")])
    harness.run()
    assert by_fields(harness.sink("periods")) == [Period(1, "a", 5, 1, 5), Period(1, "b", 5, 2, None)]


def test_missing_keys_of_extracts_are_deleted(page):
    harness = PipelineHarness(page.extracts, bucket=1)
    day = 86_400_000
    harness.feed(
        "extracts", [page.Row(1, 0, "a"), page.Row(2, 0, "b"), page.Row(1, day, "c"), page.Row(1, 2 * day, "c")]
    )
    harness.run()
    assert harness.sink("rows") == [page.Row(1, day, "c")]


VERSIONS = """
with events as (
    select *, lag(op) over by_place as op_before, lag(tier) over by_place as tier_before, lead(lsn) over by_place as next_lsn
    from read_parquet('{events}') window by_place as (partition by id order by lsn)
), numbered as (
    select *, sum(cast(op_before is null or op_before = 'd' or tier is distinct from tier_before as int))
        over (partition by id order by lsn) as version
    from events where op <> 'd'
)
select id, last(tier order by lsn) as tier, last(city order by lsn) as city, min(lsn) as valid_from,
    last(next_lsn order by lsn) as valid_to
from numbered group by id, version order by id, valid_from
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a project with the page's job, which runs without a JVM."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    job = {
        "job": "customers",
        "pipeline": "customers_of_page:pipeline",
        "sources": {"changes": {"path": "changes"}},
        "sinks": {"customers": {"path": "lake/customers", "mode": "merge"}},
    }
    files = {
        "conf/jobs/customers.yaml": yaml.safe_dump(job),
        "conf/clusters/local.yaml": "master: local[2]\nrunner: local\nparallelism: 2\n",
        "customers_of_page.py": CODE[0],
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path
    sys.modules.pop("customers_of_page", None)


def call(words):
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_table_equals_that_of_duckdb(home):
    draw = random.Random(5)
    places = [(key, lsn) for key in range(8) for lsn in range(12)]
    draw.shuffle(places)
    events = [
        {
            "id": key,
            "lsn": lsn,
            "changed": pa.scalar(number, pa.timestamp("ms", "UTC")).as_py(),
            "op": draw.choice("uuuud"),
            "tier": draw.choice(["basic", "gold", None]),
            "city": draw.choice(["Rome", "Bonn", None]),
        }
        for number, (key, lsn) in enumerate(places)
    ]
    (home / "changes").mkdir()
    for number in range(3):
        pq.write_table(pa.Table.from_pylist(events[number::3]), home / "changes" / f"{number}.parquet")
        call("run customers --runner local")
    table = pa.table(DeltaTable(str(home / "lake" / "customers")).to_pyarrow_table())
    rows = [tuple(row[name] for name in ("id", "tier", "city", "valid_from", "valid_to")) for row in table.to_pylist()]
    expected = duckdb.sql(VERSIONS.format(events=home / "changes" / "*.parquet")).fetchall()
    assert sorted(rows, key=itemgetter(0, 3)) == expected
    assert "corrections: an event can be put before another one for 7d" in call("explain customers")
    shown = call("state get customers 3")
    assert '"lsn":11' in shown.replace(" ", "")
    behind = json.loads(call("history customers 3 --json"))["events"]
    assert [event["sequence"]["lsn"] for event in behind] == [*range(12)]


@pytest.mark.slow
def test_history_shows_the_input_of_versions(home, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    events, _ = shown_tables()
    rows = [
        {
            "id": int(key),
            "lsn": int(lsn),
            "changed": pa.scalar(at, pa.timestamp("ms", "UTC")).as_py(),
            "op": op,
            "tier": tier,
            "city": city,
        }
        for at, (key, lsn, op, tier, city) in enumerate(events)
    ]
    (home / "changes").mkdir()
    for number, some in enumerate((rows[:3], rows[3:]), 1):
        pq.write_table(
            pa.Table.from_pylist(some, schema=pa.Table.from_pylist(rows).schema),
            home / "changes" / f"2026-03-0{number}.parquet",
        )
        call("run customers --runner local")
    (block,) = re.findall(r"```\n\$ headrace (history customers 7)\n(.*?)```", TEXT, re.DOTALL)
    assert call(block[0]) == block[1]


def test_truncate_empties_the_table(page):
    emptied = (
        Pipeline("emptied")
        .source("changes", page.Change, event_time="changed")
        .apply_changes(
            "current",
            key=("id",),
            sequence_by="lsn",
            deletes=("op", "d"),
            truncates=("op", "t"),
            tombstones=timedelta(days=30),
        )
        .upsert_materialize("latest", primary_key="id")
        .sink("customers")
    )
    harness = PipelineHarness(emptied, bucket=1)
    places = [(1, 1, "c"), (2, 2, "c"), (7, 4, "t"), (1, 3, "u"), (2, 5, "u")]
    harness.feed("changes", [page.Change(key, lsn, lsn, op, "gold", None) for key, lsn, op in places])
    assert harness.run().quarantined == 0
    assert [(row.id, row.lsn) for row in harness.sink("customers")] == [(2, 5)]
