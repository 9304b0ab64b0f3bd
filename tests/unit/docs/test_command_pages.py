"""The commands of docs/cli.md, state-tables.md, erasure.md and others print what the pages show (no JVM)."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import ANY

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from headrace.commit.protocol import open_job
from headrace.edits.restore import savepoint
from headrace.errors import SinkMismatchError, SourceError
from headrace.log.checkpoint import Kind
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, QUARANTINE, TIMERS
from headrace.testing._memory_disk import forget_disk
from tests.jobs.home import PROJECT, Home
from tests.jobs.local_runs import LocalRuns
from tests.unit.support.demo_job import HOUR, START, at_nine, entry, headrace, home, state
from tests.unit.support.doc_pages import blocks_of, calls_of, shows
from tests.unit.support.erasure_job import bought, commit_rows, history, quarantined, timer
from tests.unit.support.erasure_job import state as state_of
from tests.unit.support.memory_job import MemoryJob, board, commit_batch

__all__ = ["at_nine", "headrace", "home", "state"]


@pytest.fixture
def check(headrace, tmp_path):
    """Run commands, and compare what they print with what the page shows, unless it shows the command alone."""

    def run(calls, exit_codes=(0,), root="/srv"):
        for command, shown in calls:
            result = headrace(*shlex.split(command, comments=True)[1:])
            printed = result.output.replace(str(tmp_path), root).replace("memory://srv/", "")
            assert result.exit_code in exit_codes, printed
            assert not shown.strip() or shows(shown, printed), f"$ {command}\n{printed}"

    return run


@pytest.fixture
def expired(state):
    """The demonstration job after a micro-batch that has moved the watermark to 20:00."""
    state.commit(Kind.BATCH, watermark=START + 20 * HOUR)
    return state


@pytest.mark.slow
def test_cli_page_looks_back(check, state):
    checkpoints, listed, changes = calls_of("cli", "headrace checkpoints\n id")
    check([checkpoints, listed])
    state.commit(Kind.BATCH, watermark=START + 20 * HOUR)
    state.add("keyed_state", [], whole=True)
    state.commit(Kind.COMPACTION)
    check([changes, *calls_of("cli", "headrace sql")])


def test_cli_page_shows_expired_entries(check, expired):
    check(calls_of("cli", "headrace state expired"))


@pytest.mark.slow
def test_cli_page_compares_checkpoints(check, state):
    check(calls_of("cli", "headrace diff"))


def test_cli_page_draws_the_lines(check, state):
    state.commit(Kind.RESTORE, parent_id=1, restored_from=1, note="wrong input")
    check(calls_of("cli", "headrace checkpoints\n     id"))


def test_cli_page_prints_documents(check, state):
    check(calls_of("cli", "headrace state get N1"), (0, 2))


def test_state_tables_page_queries_changes(check, state):
    check(calls_of("state-tables", "headrace sql"))


@pytest.fixture
def anna(home, monkeypatch):
    """The job `purchases` with rows of anna at checkpoints 2 to 4; 4 is the savepoint `before_upgrade`."""
    monkeypatch.setenv("COLUMNS", "80")
    config = Home(home).config()
    record = '{"customer":"anna"}'
    rows = {
        KEYED_STATE: [state_of("anna", record), state_of("anna", record, state="items", user_key='"a"')],
        TIMERS: [timer("anna"), timer("anna", domain="processing_time")],
        MATERIALIZER_HISTORY: [history("anna", record)],
        QUARANTINE: [quarantined(record)],
    }
    with open_job(config, "run", create=True) as opened:
        commit_rows(opened, {KEYED_STATE: [state_of("bob")]})
        commit_rows(opened, rows, outputs=bought(opened, "anna"))
        commit_rows(opened, {KEYED_STATE: [state_of("order 1", '{"by":"anna"}')]})
    savepoint(config, "before_upgrade", "", "run")


@pytest.mark.slow
def test_erasure_page_lists_then_purges(check, anna):
    check(calls_of("erasure", "headrace erase purchases anna\n"))
    check(calls_of("erasure", "headrace savepoint purchases before_upgrade --drop"), exit_codes=(0, 1))


@pytest.mark.slow
def test_erasure_page_erases(check, headrace, anna):
    ((command, _),) = calls_of("erasure", "headrace erase purchases anna --mentions --apply --why")
    assert headrace(*shlex.split(command)[1:]).exit_code == 0


@pytest.fixture
def from_backup(monkeypatch):
    """The job `purchases` at checkpoint 1, from a backup of its folder; its sinks have what came up to checkpoint 4."""
    job = MemoryJob("srv")
    monkeypatch.setattr("headrace.cli.restore.load", lambda _: job.config)
    monkeypatch.setenv("COLUMNS", "120")
    with job.open() as opened:
        opened.commit(Kind.BATCH, files={}, outputs=board(opened, "ann"))
    backup = job.copy()
    with job.open() as opened:
        opened.commit(Kind.BATCH, files={}, outputs={})
        commit_batch(opened, "bob")
        opened.commit(Kind.BATCH, files={}, outputs=board(opened, "cyd"))
    lake = {path: list(versions) for path, versions in job.disk.tables.items() if path.startswith("lake/")}
    files = {path: content for path, content in job.disk.files.items() if path.startswith("lake/")}
    backup.bring_back()
    job.disk.tables.update(lake)
    job.disk.files.update(files)
    yield job
    forget_disk("srv")


def test_errors_page_reconciles_job_and_sinks(check, from_backup):
    with pytest.raises(SinkMismatchError, match="has what checkpoint 4 of this job published"):
        from_backup.run("ann")
    check(calls_of("errors", "headrace reconcile purchases\n"))
    check(calls_of("errors", "headrace reconcile purchases --apply"))


@pytest.fixture
def sensors(home, monkeypatch):
    """The job of docs/writing-a-pipeline.md with its input, made of the blocks of the page."""
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.chdir(home)
    blocks = [block for block in blocks_of("writing-a-pipeline") if block.language in {"python", "yaml"}]
    pipeline, script = (block.text for block in blocks if "Pipeline(" in block.text or "write_table" in block.text)
    (home / "documented_sensors.py").write_text(pipeline)
    (job,) = (yaml.safe_load(block.text) for block in blocks if block.language == "yaml")
    assert job["pipeline"] == "pipelines.sensors:pipeline"
    exec(compile(script, "docs/writing-a-pipeline.md", "exec"), {})  # noqa: S102 - our own page
    yield Home(home, {**job, "pipeline": "documented_sensors:pipeline"})
    sys.modules.pop("documented_sensors", None)


@pytest.fixture
def ran(sensors):
    """The same job after its first run."""
    LocalRuns()(sensors)
    return sensors


def deliver(sensors, file, **columns):
    """Write a file of two readings."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows = pa.table({"sensor": ["roof", "roof"], "at": [noon, noon], "celsius": [7.0, 8.0], **columns})
    pq.write_table(rows, sensors.folder / "var/data/readings" / file)


@pytest.mark.slow
def test_pipeline_page_shows_results(check, ran):
    _, _, *queries = calls_of("writing-a-pipeline", "headrace check sensors")
    check(queries)


@pytest.mark.slow
def test_pipeline_page_goes_back(check, ran):
    ((command, shown), _) = calls_of("writing-a-pipeline", "headrace restore sensors")
    check([(f"{command} --yes", shown)])
    assert LocalRuns()(ran).rows_in == 6


@pytest.mark.slow
def test_errors_page_requeues_rows(check, sensors):
    (sensors.folder / "var/data/readings/2026-03-01.parquet").unlink()
    sensors.configure({"sources": {"readings": {"max_quarantined": "none"}}})
    for file, columns in (("a", {}), ("b", {}), ("c", {"celsius": ["warm", "7.0"]})):
        deliver(sensors, f"2026-03-01-{file}.parquet", **columns)
        LocalRuns()(sensors)
    check(calls_of("errors", "headrace quarantine sensors -n 2"))
    check(calls_of("errors", "headrace quarantine sensors --requeue"))


def test_errors_page_refuses_a_file(sensors):
    deliver(sensors, "2026-03-01-c.parquet")
    file = sensors.folder / "var/data/readings/2026-03-01-c.parquet"
    pq.write_table(pq.read_table(file).drop(["at"]), file)
    (block,) = [block for block in blocks_of("errors") if "no column at" in block.text]
    with pytest.raises(SourceError) as refused:
        LocalRuns()(sensors)
    assert shows(block.text, f"SourceError: {refused.value}".replace(f"{sensors.folder}/", ""))


def test_configuration_page_names_all_problems(headrace, home):
    text = (PROJECT / "conf/jobs/flights.yaml").read_text()
    wrong = text.replace("  budget:", "  budgett:").replace("backend: rocksdb", "backend: rocks")
    (home / "conf/jobs/flights.yaml").write_text(wrong)
    ((command, shown),) = calls_of("configuration", "headrace check flights")
    result = headrace(command.removeprefix("headrace "))
    assert result.exit_code == 2
    assert shows(shown, result.stderr.replace(f"{home}/", ""))


ORDERS = """\
from datetime import timedelta
from headrace import Pipeline, Struct, Timestamp

class Order(Struct, frozen=True):
    at: Timestamp
    customer: str
    cents: int
    currency: str

pipeline = Pipeline("orders")
orders = pipeline.source("orders", Order, event_time="at", out_of_orderness=timedelta(0))
orders.filter(lambda order: order.cents > 100).sink("alerts")
orders.upsert_materialize("totals", primary_key=("customer",)).sink("totals")
"""


@pytest.fixture
def orders(home, monkeypatch):
    """A job `orders` with two sinks; the table of one lacks a column, and the other table has twelve small files."""
    monkeypatch.syspath_prepend(str(home))
    (home / "documented_orders.py").write_text(ORDERS)
    (home / "orders").mkdir()
    order = '{"at": 0, "customer": "ann", "cents": 7, "currency": "EUR"}\n'
    (home / "orders/2026-03-01.json").write_text(f'{order}{order}{{"at')
    paths = {"totals": "merge", "alerts": "append"}
    sinks = {name: {"path": f"lake/{name}", "mode": mode} for name, mode in paths.items()}
    sources = {"orders": {"format": "json", "path": "orders"}}
    yield Home(home, {"job": "orders", "pipeline": "documented_orders:pipeline", "sources": sources, "sinks": sinks})
    sys.modules.pop("documented_orders", None)


@pytest.mark.slow
def test_sinks_page_announces_columns(check, orders):
    start = datetime(2026, 3, 1, tzinfo=UTC)
    write_deltalake(orders.folder / "lake/totals", pa.table({"at": [start], "customer": ["ann"], "cents": [7]}))
    check(calls_of("sinks", "headrace check orders"), (0, 1), root="")


@pytest.mark.slow
def test_sinks_page_compacts_small_files(headrace, check, orders):
    def without_sizes(text):
        """Return a text without numbers of bytes, which differ between versions of pyarrow."""
        return re.sub(r"\d+,\d+", "SIZE", text)

    LocalRuns()(orders)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    for number in range(12):
        row = pa.table({"at": [start], "customer": [f"c{number}"], "cents": [101], "currency": ["EUR"]})
        write_deltalake(orders.folder / "lake/alerts", row, mode="append")
    dry_run, compaction = calls_of("sinks", "headrace maintain orders")
    printed = headrace(*shlex.split(dry_run[0])[1:]).stdout
    assert shows(without_sizes(dry_run[1]), without_sizes(printed))
    check([compaction])
    assert len(DeltaTable(orders.folder / "lake/alerts").file_uris()) == 1


def test_sources_page_shows_refused_rows(check, orders):
    LocalRuns()(orders)
    check(calls_of("sources", "headrace quarantine orders"))


def test_state_tables_page_queries_values(headrace, state):
    (block,) = [block for block in blocks_of("state-tables") if "last_event" in block.text]
    state.add("keyed_state", [{**entry("N9", '{"last_seq":7}', 5), "state": "legs"}])
    state.commit(Kind.BATCH)
    result = headrace("sql", block.text)
    assert (result.exit_code, result.stdout.split()) == (0, ["key", "last_event", ANY, '"N9"', "7"])


def test_state_tables_page_queries_work(headrace, state):
    (block,) = [block for block in blocks_of("state-tables") if block.text.startswith("select checkpoint_id, held")]
    assert headrace("sql", block.text).exit_code == 0


def test_state_tables_page_opens_changes_in_python(state, monkeypatch):
    (block,) = [block for block in blocks_of("state-tables") if block.language == "python"]
    version = state.log.last.versions["keyed_state"]
    state.add("keyed_state", [entry("N9", "7", 5)])  # not committed
    names = {}
    exec(block.text.replace("var/state/flights", str(state.folder)), names)  # noqa: S102 - code of our own page
    assert names["changes"].version() == version


@pytest.mark.slow
def test_restore_names_a_checkpoint_with_all_files(headrace, home):
    config = Home(home).config()
    with open_job(config, "run", create=True) as opened:
        for customer in ("ann", "bob", "cyd", "dan"):
            commit_rows(opened, {KEYED_STATE: [state_of(customer)]}, outputs=bought(opened, customer))
    table = DeltaTable(home / "lake/lines_by_item", version=2)
    for file in table.file_uris():
        Path(file).unlink()
    refused = headrace("restore", "purchases", "--to", "2", "--why", "bad prices", "--yes")
    assert (refused.exit_code, "Checkpoint 3 can be restored" in " ".join(refused.output.split())) == (8, True)
