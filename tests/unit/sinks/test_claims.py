"""Claims on real Delta tables: each format, several spellings, other readers and writers, and processes that begin together (no Spark)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest
import yaml
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace.cli import app
from headrace.commit.protocol import open_job
from headrace.config import load_job
from headrace.edits.drop_job import drop_job
from headrace.edits.restore import restore
from headrace.edits.sink_owners import take_over
from headrace.errors import SinkMismatchError
from headrace.log.checkpoint import Kind
from headrace.storage.table import OWNER
from tests.jobs.home import PROJECT, PURCHASES, Home
from tests.unit.support.memory_job import REMINDERS, reminder
from tests.unit.support.purchase_job import SINK, commit_purchase

SPELLINGS = ["{home}/lake/board", "lake/x/../board/", "./lake//board", "file://{home}/lake/bo%61rd", "link/board"]


@pytest.fixture
def shared(tmp_path):
    """Make a job whose board is at one place. Its name and the spelling are the test's."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    home = Home(tmp_path)

    def job(name, spelling=SPELLINGS[0], *, sink=SINK, pipeline=PURCHASES["pipeline"], **reminders):
        sinks = {
            sink: {"path": spelling.format(home=tmp_path), "mode": "merge"},
            REMINDERS: {"path": f"lake/{name}", "mode": "append", **reminders},
        }
        content = yaml.safe_dump({**PURCHASES, "job": name, "pipeline": pipeline, "sinks": sinks})
        (tmp_path / f"conf/jobs/{name}.yaml").write_text(content)
        return load_job(name, home.folder)

    return job


def commit(config, customer):
    with open_job(config, "run", create=True) as job:
        commit_purchase(job, customer)


def lake(config):
    """Return the paths of all files below the lake, with their bytes."""
    return {path: path.read_bytes() for path in sorted((config.home / "lake").rglob("*")) if path.is_file()}


def readers(config):
    """Return the customers as three readers see them that know nothing of claims."""
    path = config.sinks[SINK].path
    table = DeltaTable(path)
    files = [str(file) for file in table.file_uris()]
    return {
        "deltalake": table.to_pyarrow_dataset().to_table()["customer"].to_pylist(),
        "arrow": ds.dataset(files).to_table()["customer"].to_pylist() if files else [],
        "duckdb": [row[0] for row in duckdb.sql(f"select customer from read_parquet({files})").fetchall()]
        if files
        else [],
    }


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_is_the_same_table(shared, spelling):
    one, two = shared("one"), shared("two", spelling)
    commit(one, "ann")
    before = lake(one)
    for command in (
        lambda: commit(two, "bob"),
        lambda: drop_job(two, "", "somebody", sinks=True),
    ):
        with pytest.raises(SinkMismatchError, match="is the table of sink 'lines_by_item' of job 'one'"):
            command()
    assert lake(one) == before
    take_over(two, SINK, "", "somebody")
    commit(two, "bob")
    assert set(map(str, readers(two).values())) == {"['bob']"}
    with pytest.raises(SinkMismatchError, match="of job 'two'"):
        restore(one, 1, "", "somebody")


def test_claim_outlives_a_restore_and_a_cut_log(shared):
    one = shared("one")
    commit(one, "ann")
    table = DeltaTable(one.sinks[SINK].path)
    owner = table.transaction_version(OWNER)
    table.restore(0)
    table = DeltaTable(one.sinks[SINK].path)
    table.create_checkpoint()
    for entry in Path(one.sinks[SINK].path, "_delta_log").glob("*.json"):
        if int(entry.stem) < table.version():
            entry.unlink()
    assert DeltaTable(one.sinks[SINK].path).transaction_version(OWNER) == owner
    with pytest.raises(SinkMismatchError, match="is the table of another job"):
        commit(shared("two"), "bob")


def append(config, customer):
    with open_job(config, "run", create=True) as job:
        job.commit(Kind.BATCH, outputs=reminder(job, customer))


@pytest.mark.parametrize(
    "format_of", [{"format": "parquet"}, {"format": "kafka", "servers": "127.0.0.1:9", "topic": "reminders"}]
)
def test_folder_and_outbox_are_claimed(shared, format_of):
    one = shared("one", path="lake/taken", **format_of)
    two = shared("two", "lake/other", path="lake/./taken", **format_of)
    append(one, "ann")
    before = lake(one)
    with pytest.raises(SinkMismatchError, match="is the table of sink 'reminders' of job 'one'"):
        append(two, "bob")
    assert {path: content for path, content in lake(one).items() if "taken" in str(path)} == {
        path: content for path, content in before.items() if "taken" in str(path)
    }
    take_over(two, REMINDERS, "", "somebody")
    append(two, "bob")
    table = DeltaTable(two.sinks[REMINDERS].table_path).to_pyarrow_dataset().to_table()
    assert table["customer"].to_pylist() == ["bob"]
    if format_of["format"] == "parquet":
        assert ds.dataset(two.sinks[REMINDERS].path).to_table()["customer"].to_pylist() == ["bob"]


def test_sink_within_another_table_is_refused(shared):
    commit(shared("one"), "ann")
    two = shared("two", "lake/board/below")
    with pytest.raises(SinkMismatchError, match="would be in the folder of the Delta table"):
        commit(two, "bob")
    assert not Path(two.sinks[SINK].path).exists()


_RUN = """
import sys
from pathlib import Path
from headrace.config import load_job
from headrace.errors import HeadraceError
from tests.unit.sinks.test_claims import commit
config = load_job(sys.argv[1], Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
try:
    commit(config, sys.argv[1])
except HeadraceError as error:
    sys.exit(error.exit_code)
"""


def started(name, home):
    command = [sys.executable, "-c", _RUN, name, str(home)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT)


@pytest.mark.slow
def test_one_of_two_processes_gets_the_table(shared, tmp_path):
    names = ("one", "two")
    configs = {name: shared(name, spelling) for name, spelling in zip(names, SPELLINGS, strict=False)}
    processes = {name: started(name, tmp_path) for name in configs}
    for process in processes.values():
        assert process.stdout.readline() == "ready\n"
    for process in processes.values():
        process.stdin.write("\n")
        process.stdin.flush()
    codes = {}
    for name, process in processes.items():
        process.communicate(timeout=120)
        codes[name] = process.returncode
    assert sorted(codes.values()) == [0, 10]
    winner = next(name for name, code in codes.items() if not code)
    assert set(map(str, readers(configs[winner]).values())) == {f"['{winner}']"}


def test_commands_show_and_change_the_owner(shared, tmp_path):
    def headrace(*arguments):
        return CliRunner().invoke(app, [*arguments], env={"HEADRACE_HOME": str(tmp_path)})

    commit(shared("one"), "ann")
    shared("two")
    planned = headrace("sink", "take-over", "two", SINK)
    assert "is the table of sink 'lines_by_item' of job 'one'" in " ".join(planned.stdout.split())
    assert headrace("sink", "take-over", "two", SINK, "--apply").exit_code == 2
    done = headrace("sink", "take-over", "two", SINK, "--apply", "--why", "a trial", "--json")
    assert json.loads(done.stdout)["checkpoint"] == 1
    assert headrace("sink", "take-over", "two", SINK).exit_code == 2
    shared("two", pipeline="tests.jobs.purchases:other_sink", sink="board")
    moved = headrace("state", "rename", "two", "--sink", SINK, "--to", "board")
    assert "would become that of 'board', with its rows" in " ".join(moved.stdout.split())
    moved = headrace("state", "rename", "two", "--sink", SINK, "--to", "board", "--apply", "--json")
    assert (moved.exit_code, json.loads(moved.stdout)["applied"]) == (0, True)
    assert headrace("state", "rename", "two", "--to", "board").exit_code == 2
