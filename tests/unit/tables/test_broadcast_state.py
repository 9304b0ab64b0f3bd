"""Broadcast state in `keyed_state`: rows like any others, read by all tasks (deltalake, no JVM)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from headrace import BroadcastState, KeyedBroadcastFunction, Migration, Pipeline, Struct, Timestamp
from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.edits.migrate import settle_schemas
from headrace.errors import StateSchemaError
from headrace.log.checkpoint import Kind
from headrace.log.facts import OperatorFacts
from headrace.plan.planner import plan_stages
from headrace.readers import state as keyed_state
from headrace.readers.job_at import JobAtCheckpoint
from headrace.state.backend import HashMapBackend
from headrace.state.broadcast import BroadcastRow, BroadcastStore, broadcast_rows
from headrace.tables.changelog import Changelog, stage_state
from headrace.tables.entries import broadcast_groups, load_broadcast_state, rebuild
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from tests.jobs import wake_ups
from tests.jobs.home import Home


class Event(Struct, frozen=True):
    at: Timestamp
    key: str


class Price(Struct, frozen=True):
    cents: int


class PriceIn(Struct, frozen=True):
    cents: int
    currency: str


def plan(declared):
    """A pipeline with one operator that declares the state."""

    class Prices(KeyedBroadcastFunction[Event, Event, Event]):
        prices = declared

        async def process(self, record, ctx, /): ...

        def process_broadcast(self, record, ctx, /): ...

    source = Pipeline("p").source("events", Event, event_time="at")
    priced = source.key_by("key").connect(source.broadcast()).process("board", Prices())
    return plan_stages(priced.sink("out"))


class Job:
    """Micro-batches that change the prices, each in a store of its own."""

    def __init__(self, folder):
        self.config = Home(folder, wake_ups.JOB).config()
        self.names = itertools.count()

    def run(self, declared, **prices):
        with open_job(self.config, "run", create=True) as job:
            settle_schemas(job, plan(declared))
            store = BroadcastStore(declared, "board")
            store.load(load_broadcast_state(JobFolder.of(self.config), job.versions[KEYED_STATE], "board", 128))
            store.writable_at = 1_000 * job.next_id
            for item, price in prices.items():
                store.put(item, price)
            rows = Changelog("board", job.next_id, 128).values(store, store.changes())
            name = f"{next(self.names)}.parquet"
            staged = [stage_state(JobFolder(self.config.job_folder), KEYED_STATE, name, rows)] if rows.num_rows else []
            job.commit(
                Kind.BATCH, files={KEYED_STATE: staged}, operators={"board": OperatorFacts(local_copies={"0-127": "a"})}
            )

    def rows(self, operator="board"):
        with open_job(self.config, "looking") as job:
            return sorted(load_broadcast_state(JobFolder.of(self.config), job.versions[KEYED_STATE], operator, 128))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


PRICES = BroadcastState("prices", str, Price)


def test_rows_are_loaded_in_their_last_state(job):
    job.run(PRICES, egg=Price(30), ham=Price(90))
    job.run(PRICES, egg=Price(31), ham=None, tea=Price(5))
    assert job.rows() == [
        BroadcastRow("prices", b'"egg"', b'{"cents":31}', 2_000),
        BroadcastRow("prices", b'"tea"', b'{"cents":5}', 2_000),
    ]
    assert job.rows("another") == []


def test_rows_are_read_compacted_and_rebuilt_like_others(job):
    job.run(PRICES, egg=Price(30), ham=Price(90))
    job.run(PRICES, ham=None)
    before = job.rows()
    compact(job.config, "somebody")
    assert job.rows() == before
    (row,) = keyed_state.get(JobAtCheckpoint(job.config), "null").dicts()
    assert (row["state"], row["user_key"], msgspec.json.decode(row["value"])) == ("prices", '"egg"', {"cents": 30})
    backend = HashMapBackend()
    with open_job(job.config, "looking") as opened:
        rebuild(backend, JobFolder(job.config.job_folder).views(opened.versions), "board", broadcast_groups(128))
    assert broadcast_rows(backend, "prices") == before


def test_state_of_another_type_is_migrated(job):
    job.run(PRICES, egg=Price(30))
    in_euro = Migration(Price, lambda price: PriceIn(price.cents, "EUR"))
    job.run(BroadcastState("prices", str, PriceIn, migrate=in_euro))
    assert [row.value for row in job.rows()] == [b'{"cents":30,"currency":"EUR"}']


def test_incompatible_state_is_refused(job):
    job.run(PRICES, egg=Price(30))
    with pytest.raises(StateSchemaError, match=r"operator 'board', state 'prices': .*currency"):
        job.run(BroadcastState("prices", str, PriceIn))
    with pytest.raises(StateSchemaError, match="its keys are stored as str, and declared as int"):
        job.run(BroadcastState("prices", int, Price))
