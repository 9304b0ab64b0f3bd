"""A damaged `_delta_log` of any table: exit code 8 with the table's name, and the job continues after the repair (no JVM)."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress

import pytest

from headrace import KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState
from headrace.commit.branch_code import on_branch
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.fork import fork
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import SinkMismatchError, StorageError
from headrace.readers import state as keyed_state
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.sql import ask_sql, views
from headrace.readers.waiting import list_quarantine
from headrace.storage.delta_commits import OPENED_TABLES
from headrace.testing import PipelineHarness
from tests.unit.support.branched_job import BranchedJob


class Order(Struct, frozen=True):
    id: str
    at: Timestamp


class Count(Struct, frozen=True):
    id: str
    orders: int


class Counts(KeyedProcessFunction[Order, Count]):
    seen = ValueState("seen", int)

    async def process(self, order, ctx, /):
        orders = (await self.seen.value() or 0) + 1
        await self.seen.update(orders)
        ctx.collect(Count(order.id, orders), RowKind.UPDATE_AFTER)


def pipeline():
    counts = Pipeline("shop").source("orders", Order, event_time="at").key_by("id").process("counts", Counts())
    return counts.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",)).sink("board")


@pytest.fixture(scope="module")
def done():
    """Two micro-batches, as they were committed."""
    harness = PipelineHarness(pipeline())
    for at in (1, 2):
        harness.feed("orders", [Order("a", at)])
        harness.run()
    return harness, harness.snapshot()


@pytest.fixture
def shop(done):
    harness, snapshot = done
    harness.restore(snapshot)
    with harness.on_its_clock():
        yield harness


def last_commit(log):
    return max(log.glob("*.json"))


def cut_off(log):
    commit = last_commit(log)
    commit.write_bytes(commit.read_bytes()[:50])


def overwrite(log):
    last_commit(log).write_bytes(b"\xff\xfe\x00 no JSON")


def lose_the_first(log):
    (log / f"{0:020}.json").unlink()


def lose_one_between(log):
    sorted(log.glob("*.json"))[-2].unlink()


DAMAGES = [cut_off, overwrite, lose_the_first, lose_one_between]
TABLES = {"keyed_state": "state/shop/keyed_state", "checkpoints": "state/shop/checkpoints", "board": "lake/board"}


@contextmanager
def damaged(folder, damage):
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    damage(folder / "_delta_log")
    OPENED_TABLES.forget()  # another process has read the log before
    yield
    shutil.rmtree(folder)
    kept.rename(folder)


def opened(shop):
    return JobAtCheckpoint(shop.config)


WRITERS = {
    "run": lambda shop: shop.run(),
    "compact": lambda shop: compact(shop.config, "nightly"),
    "savepoint": lambda shop: savepoint(shop.config, "before", "", "somebody"),
    "restore": lambda shop: restore(shop.config, 1, "", "somebody"),
    "vacuum": lambda shop: vacuum(shop.config, "weekly", dry_run=False),
}
READERS = {
    "state get": lambda shop: keyed_state.get(opened(shop), "a"),
    "quarantine": lambda shop: list_quarantine(opened(shop)),
    "vacuum --dry-run": lambda shop: vacuum(shop.config, "weekly"),
    "sql": lambda shop: [ask_sql(opened(shop), f"select * from {view}") for view in views(opened(shop))],
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", TABLES)
def test_damaged_log_is_named(shop, table, damage):
    folder = shop.folder / TABLES[table]
    with damaged(folder, damage):
        for act in WRITERS.values():
            with pytest.raises(StorageError, match=f"{table}.*(?:damaged|_delta_log)") as caught:
                act(shop)
            assert caught.value.exit_code == 8
            assert "unknown>" not in str(caught.value)
    shop.feed("orders", [Order("a", 3)])
    shop.run()
    assert shop.sink("board") == [Count("a", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reader", READERS)
def test_readers_answer_or_blame_the_storage(shop, table, damage, reader):
    with damaged(shop.folder / TABLES[table], damage), suppress(StorageError):
        READERS[reader](shop)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", ["keyed_state", "board"])
def test_verify_finds_a_damaged_log(shop, table, damage):
    with damaged(shop.folder / TABLES[table], damage):
        assert any(table in finding.check for finding in verify(shop.config) if not finding.ok)
    assert all(finding.ok for finding in verify(shop.config))


@pytest.mark.parametrize("table", TABLES)
def test_empty_log_is_no_table(shop, table):
    with damaged(shop.folder / TABLES[table], lambda log: [file.unlink() for file in log.iterdir() if file.is_file()]):
        for act in WRITERS.values():
            with pytest.raises((StorageError, SinkMismatchError), match=table):
                act(shop)


@pytest.mark.parametrize("table", TABLES)
def test_hint_to_missing_log_checkpoint_is_repaired(shop, table):
    before = shop.folder / TABLES[table] / "_delta_log"
    (before / "_last_checkpoint").write_text('{"version": 1, "size": 5}')
    assert [finding for finding in verify(shop.config) if not finding.ok] == []
    assert not (before / "_last_checkpoint").exists()


@pytest.mark.slow
def test_run_with_local_copies_notices_lost_state():
    harness = PipelineHarness(pipeline(), job={"state": {"backend": "rocksdb"}})
    harness.feed("orders", [Order("a", 1)])
    harness.run()
    file = next((harness.folder / "state" / "shop" / "keyed_state").glob("*.parquet"))
    content = file.read_bytes()
    harness.feed("orders", [Order("a", 2)])
    for damage in (file.unlink, lambda: file.write_bytes(content[:-1]), lambda: file.write_bytes(bytes(len(content)))):
        damage()
        with pytest.raises(StorageError, match=rf"file {file} .*Nothing was committed\. Bring the file back"):
            harness.run()
    file.write_bytes(content)
    harness.run()
    assert {(count.id, count.orders) for count in harness.sink("board")} == {("a", 2)}


@pytest.mark.slow
def test_branch_notices_damaged_state_of_its_job():
    job = BranchedJob(job={"state": {"backend": "rocksdb"}})
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    job.feed(("ann", 2))
    job.run("other")
    file = next((job.harness.folder / "state" / "shop" / "keyed_state").glob("*.parquet"))
    file.write_bytes(bytes(file.stat().st_size))
    job.feed(("ann", 3))
    with pytest.raises(
        StorageError, match=f"file {file} is damaged .*, or the whole job folder {file.parent.parent} from"
    ):
        job.run("other")


@pytest.mark.parametrize("damage", ["file", "log"])
def test_readers_of_a_branch_blame_its_base(damage):
    job = BranchedJob()
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    base = job.harness.folder / "state" / "shop" / "keyed_state"
    for file in base.glob("*.parquet" if damage == "file" else "_delta_log/*1.json"):
        file.unlink()
    OPENED_TABLES.forget()
    opened = JobAtCheckpoint(on_branch(job.config, "other"))
    with pytest.raises(StorageError, match=f"^{base}, on which .*/lines/other/keyed_state builds, cannot be read"):
        opened.changes("keyed_state")
