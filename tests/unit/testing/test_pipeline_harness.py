"""The guarantees of `PipelineHarness` for its users."""

from __future__ import annotations

import gc
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    OutputMode,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
    ValueState,
    crash_points,
)
from headrace import clock as engine_clock
from headrace.errors import SourceError
from headrace.testing import PipelineHarness

pytestmark = pytest.mark.delta

ROOT = Path(__file__).parents[3]
MINUTE = 60_000


class Order(Struct, frozen=True):
    id: str | None
    at: Timestamp
    amount: float = 1.0


class Total(Struct, frozen=True):
    id: str
    amount: float
    at: Timestamp | None = None


class Totals(KeyedProcessFunction[Order, Total]):
    """Adds up amounts; small orders go to the side output, and after a minute without an order the total is emitted again."""

    amount = ValueState("amount", float)

    async def process(self, order, ctx, /):
        amount = (await self.amount.value() or 0.0) + order.amount
        await self.amount.update(amount)
        ctx.collect(Total(order.id, amount), RowKind.UPDATE_AFTER)
        ctx.timers.register_processing_time(ctx.processing_time + MINUTE)
        if order.amount < 1:
            ctx.output("small", order)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Total(ctx.key, await self.amount.value(), timestamp), RowKind.UPDATE_AFTER)


def totals(name="shop", *, merges=False):
    pipeline = Pipeline(name)
    results = pipeline.source("orders", Order, event_time="at").key_by("id").process("totals", Totals())
    results.side("small", Order).sink("small")
    if merges:
        results = results.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",))
    results.sink("totals")
    return pipeline


def amounts(harness):
    return sorted((total.id, total.amount) for total in harness.sink("totals"))


ORDERS = [Order("a", 1), Order("b", 2, 5.0), Order("a", 3, 0.5)]
RUNNING = [("a", 1.0), ("a", 1.5), ("b", 5.0)]
FINAL = [("a", 1.5), ("b", 5.0)]


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def backend(request):
    return request.param


# ------------------------------------------------------------------------------------------------- input and sinks


def test_sinks_are_appended_or_merged_into(backend):
    for merges, expected in ((False, RUNNING), (True, FINAL)):
        harness = PipelineHarness(totals(merges=merges), backend=backend)
        harness.feed("orders", ORDERS[:2])
        harness.run()
        harness.feed("orders", ORDERS[2:])
        report = harness.run()
        assert amounts(harness) == expected
        assert harness.sink("small") == [ORDERS[2]]
        assert (report.rows_in, report.stopped_because, report.quarantined) == (1, "drained", 0)


def test_harness_is_empty_before_first_run():
    harness = PipelineHarness(totals())
    assert harness.sink("totals") == []
    assert harness.sink_table("totals").num_rows == harness.table("keyed_state").num_rows == 0


def test_row_kinds_are_read_from_their_column():
    pipeline = Pipeline("kinds")
    rows = pipeline.source("orders", Order, event_time="at", row_kind="op")
    rows.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",)).sink("latest")
    harness = PipelineHarness(pipeline)
    harness.feed("orders", ORDERS[:2])
    harness.feed("orders", ORDERS[:1], kinds=[RowKind.DELETE])
    harness.run()
    assert harness.sink("latest") == ORDERS[1:2]


def test_raw_rows_may_be_bad():
    harness = PipelineHarness(totals())
    harness.feed_table("orders", pa.table({"id": ["a", "b", None], "at": [1, None, 3], "amount": [1.0, 1.0, 1.0]}))
    report = harness.run()
    assert amounts(harness) == [("a", 1.0)]
    reasons = {row["error"]: row["position"] for row in harness.table("quarantine").to_pylist()}
    assert reasons == {"at is null": "000001.parquet:1", "the key (id) is null": "0000000000000002"}
    assert report.quarantined == 2


def test_harness_sinks_return_the_emitted_records():
    class Row(Struct, frozen=True):
        at: Timestamp
        number: float
        parts: list[Total]
        times: dict[str, Timestamp]

    def make_pair(order):
        return Row(order.at, math.inf, [Total("x", 1.0, order.at)], {"first": order.at})

    pipeline = Pipeline("nested")
    pipeline.source("orders", Order, event_time="at").map(make_pair, record=Row).sink("rows")
    harness = PipelineHarness(pipeline, job={"sources": {"orders": {"max_ahead": "none"}}})
    orders = [
        Order("a", -62_135_596_800_000),
        Order("b", 253_402_300_799_999),
    ]  # the first and the last time of a column
    harness.feed("orders", orders)
    harness.run()
    assert sorted(harness.sink("rows"), key=lambda row: row.at) == [make_pair(order) for order in orders]


@pytest.mark.parametrize(
    ("misuse", "match"),
    [
        (lambda _: PipelineHarness(Pipeline("x").source("a", Order, event_time="at")), "takes a Pipeline, not <"),
        (lambda h: h.feed("order", ORDERS), r"no source 'order'; did you mean 'orders'\? \(there are: orders\)"),
        (lambda h: h.feed("orders", [Total("a", 1.0)]), "records of type Order, not Total"),
        (lambda h: h.feed("orders", ORDERS, kinds=[RowKind.INSERT] * 3), "'orders' has no row kinds"),
        (lambda h: h.feed("orders", [Order(1, 1)]), "id is 1, which is not str"),
        (lambda h: [h.feed("orders", ORDERS, file="a.parquet") for _ in range(2)], "has a file a.parquet already"),
        (lambda h: h.sink("total"), "no sink 'total'; did you mean 'totals'"),
        (lambda h: h.sink_table("x"), r"no sink 'x' \(there are: small, totals\)"),
        (lambda h: h.table("timer"), "no table 'timer'; did you mean 'timers'"),
        (lambda h: h.run(crash_at="comit.before"), "no place 'comit.before'; did you mean 'commit.before'"),
        (lambda h: h.run(budget_ends_at="x:2"), "no place 'x'"),
        (lambda h: h.restore(PipelineHarness(totals("other")).snapshot()), "is of job 'other', and this harness runs"),
    ],
)
def test_misuse_raises_a_clear_message(misuse, match):
    with pytest.raises((ValueError, TypeError), match=match):
        misuse(PipelineHarness(totals()))


def test_every_crash_point_is_known():
    text = "".join(file.read_text() for file in (ROOT / "engine/headrace").rglob("*.py"))
    names = re.findall(r'(?:crash_points\.reached\(|crash_point: ClassVar\[str\] = )"([a-z_.]+)"', text)
    assert {*names} == crash_points.PLACES


# ------------------------------------------------------------------------------------------------- time and events


def test_clock_moves_only_on_demand_and_fires_timers():
    harness = PipelineHarness(totals(), now=0)
    harness.feed("orders", ORDERS[:1])
    harness.run()
    harness.clock.advance(MINUTE - 1)
    assert harness.run().checkpoints == []
    harness.clock.advance(1)
    harness.run()
    assert Total("a", 1.0, MINUTE) in harness.sink("totals")
    assert [event.kind for event in harness.events if event.kind == "timers"] == ["timers"]


def test_run_events_report_waiting_elements():
    pipeline = Pipeline("two")
    left, right = (pipeline.source(name, Order, event_time="at") for name in ("left", "right"))
    left.union(right).key_by("id").process("totals", Totals()).sink("totals")
    harness = PipelineHarness(pipeline, job={"sources": {"right": {"idle_after": "1h"}}})
    harness.feed("left", ORDERS[:1])
    harness.run()
    assert "1 row of 'left' waits for 'right'" in harness.events[-1].message
    harness.clock.advance(60 * MINUTE)
    harness.run()
    assert len(harness.sink("totals")) == 1


def test_harnesses_do_not_disturb_each_other():
    first, second = PipelineHarness(totals(), now=0), PipelineHarness(totals(merges=True), now=MINUTE)
    for harness in (first, second):
        harness.feed("orders", ORDERS)
        harness.clock.advance(5)
    first.run()
    second.run()
    assert (amounts(first), amounts(second)) == (RUNNING, FINAL)
    assert (first.clock.now(), second.clock.now()) == (5, MINUTE + 5)
    assert isinstance(engine_clock.use(engine_clock.SystemClock()), engine_clock.SystemClock)


# -------------------------------------------------------------------------------------------- crashes and snapshots

PLACES = ("create.half", "ingest.after", "task.half", "prepare.before", "prepare.half", "prepare.after", "run.after")
PLACES = (*PLACES, "commit.before", "commit.after", "publish.half", "publish.after", "fence.after")


def crashed_at(*places):
    """Run a job with an append sink and a merge sink, with a crash in each of its first runs."""
    harness = PipelineHarness(totals(merges=True))
    harness.feed("orders", ORDERS[:2])
    crashes = [harness.run(crash_at=place) is None for place in places]
    harness.feed("orders", ORDERS[2:])
    harness.run()
    assert amounts(harness) == FINAL
    assert harness.sink("small") == [ORDERS[2]]
    return crashes


@pytest.mark.parametrize("place", PLACES)
def test_crash_loses_and_doubles_nothing(place):
    assert crashed_at(place, place)[0]


def test_crash_during_return_of_answers_loses_nothing():
    assert crashed_at("prepare.after", "fence.table", "fence.after") == [True] * 3


@pytest.mark.parametrize("place", ["commit.before", "commit.after", "task.half"])
def test_crash_while_timers_fire_loses_nothing(place, backend):
    harness = PipelineHarness(totals(), backend=backend)
    harness.feed("orders", ORDERS[:2])
    harness.run()
    harness.clock.advance(MINUTE)
    assert harness.run(crash_at=place) is None
    harness.run()
    assert len(harness.sink("totals")) == 4


def test_snapshot_continues_in_another_harness(backend):
    first = PipelineHarness(totals(), backend=backend, now=0)
    first.feed("orders", ORDERS[:1])
    first.run()
    first.feed("orders", ORDERS[1:])
    assert first.run(crash_at="commit.after") is None
    snapshot = first.snapshot()
    first.run()
    expected = amounts(first)
    del first
    gc.collect()
    second = PipelineHarness(totals(), backend=backend, parallelism=1)
    second.restore(snapshot)
    assert second.clock.now() == snapshot.now
    second.run()
    assert amounts(second) == expected == RUNNING
    second.restore(snapshot)
    second.run()
    assert amounts(second) == expected


def test_change_continues_with_the_state():
    harness = PipelineHarness(totals())
    harness.feed("orders", ORDERS[:2])
    harness.run()
    changed = Pipeline("shop")
    rows = changed.source("orders", Order, event_time="at")
    results = rows.filter(lambda order: order.amount < 1).key_by("id").process("totals", Totals())
    results.side("small", Order).sink("small")
    results.sink("totals")
    harness.change(pipeline=changed, parallelism=3)
    harness.feed("orders", ORDERS)
    harness.run()
    assert amounts(harness) == RUNNING
    harness.change(parallelism=1, job={"max_parallelism": 64})
    with pytest.raises(Exception, match="128 key groups, not 64"):
        harness.run()


# --------------------------------------------------------------------------------------------- services, branches


class Down(AsyncFunction[Order, Total]):
    """A service that is down for some ids."""

    down = frozenset({"b"})

    async def invoke(self, order):
        if order.id in self.down:
            raise ConnectionError(order.id)
        return [Total(order.id, order.amount)]


class Up(Down):
    down = frozenset()


def calling(function):
    pipeline = Pipeline("calls")
    orders = pipeline.source("orders", Order, event_time="at")
    retry = FixedDelay(delay=timedelta(minutes=10), max_retries=5)
    orders.async_wait(
        "call",
        function,
        mode=OutputMode.ORDERED,
        timeout=timedelta(hours=5),
        park_after=timedelta(minutes=1),
        retry=retry,
    ).sink("totals")
    return pipeline


def test_calls_wait_for_their_service():
    harness = PipelineHarness(calling(Down()))
    harness.feed("orders", ORDERS)
    report = harness.run()
    assert (report.waiting, amounts(harness)) == (2, [("a", 1.0)])  # in order: the last one waits for the second
    assert harness.table("async_requests").num_rows == 2
    harness.change(pipeline=calling(Up()))
    assert harness.run().waiting == 2
    harness.clock.advance(10 * MINUTE)
    assert harness.run().waiting == 0
    assert amounts(harness) == [("a", 0.5), ("a", 1.0), ("b", 5.0)]


def test_finish_makes_one_last_call():
    harness = PipelineHarness(calling(Down()))
    harness.feed("orders", ORDERS)
    harness.run()
    harness.change(pipeline=calling(Up()))
    report = harness.run(finish=True)
    assert (report.waiting, report.stopped_because, len(amounts(harness))) == (0, "finished", 3)


def test_two_branches_merge_into_two_sinks():
    pipeline = Pipeline("branches")
    orders = pipeline.source("orders", Order, event_time="at")
    orders.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",)).sink("latest")
    orders.first_value("first", key=("id",)).sink("first")
    harness = PipelineHarness(pipeline)
    for order in ORDERS:
        harness.feed("orders", [order])
    harness.run(max_batches=1)
    harness.run()
    assert {order.id: order.at for order in harness.sink("latest")} == {"a": 3, "b": 2}
    assert {order.id: order.at for order in harness.sink("first")} == {"a": 1, "b": 2}


# ---------------------------------------------------------------------------------------------- what it leaves behind


def test_no_folder_and_no_module_is_left_behind():
    harness = PipelineHarness(totals())
    harness.feed("orders", ORDERS)
    harness.run(crash_at="run.after")
    snapshot = harness.snapshot()
    folders = [harness.folder.parent, snapshot.folder.parent]
    modules = [name for name in sys.modules if name.startswith("_headrace_harness_")]
    del harness, snapshot
    gc.collect()
    assert not any(folder.exists() for folder in folders)
    assert {name for name in sys.modules if name.startswith("_headrace_harness_")} < {*modules}


def test_snapshot_removes_only_copies_of_harnesses(tmp_path):
    folder = tmp_path / "of_a_user" / "job"
    folder.mkdir(parents=True)
    harness = PipelineHarness(totals())
    snapshot = harness.snapshot()
    later = replace(snapshot, now=5)
    users, of_harness = replace(snapshot, folder=folder), replace(snapshot, folder=harness.folder)
    del users, of_harness, snapshot
    gc.collect()
    assert (folder.exists(), harness.folder.exists(), later.folder.exists()) == (True, True, True)
    copy = later.folder.parent
    del later
    gc.collect()
    assert not copy.exists()


WITHOUT = """
import sys
for name in ("pyspark", "py4j", "deltalake", "duckdb", "airflow"):
    sys.modules[name] = None
import headrace.testing
"""


def test_import_loads_neither_spark_nor_delta():
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
from tests.unit.testing.test_pipeline_harness import ORDERS, PipelineHarness, amounts, totals
harness = PipelineHarness(totals())
harness.feed("orders", ORDERS)
harness.run()
print(len(amounts(harness)), harness.folder.parent)
"""


@pytest.mark.slow
def test_needs_no_spark_and_cleans_up():
    command = [sys.executable, "-c", WITHOUT_SPARK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, folder = done.stdout.split()
    assert rows == "3"
    assert not Path(folder).exists()


def test_run_errors_equal_those_of_the_command():
    harness = PipelineHarness(totals())
    harness.feed("orders", ORDERS, file="b.parquet")
    harness.run()
    harness.feed("orders", ORDERS, file="a.parquet")
    with pytest.raises(SourceError, match=r"appeared behind the last file read \(b.parquet\)"):
        harness.run()


def test_clock_follows_files_that_were_copied_in():
    fed = PipelineHarness(totals())
    name = fed.feed("orders", [Order("a", 4_000_000_000_000)])
    copied = PipelineHarness(totals("copied"))
    shutil.copy(fed.folder / "input" / "orders" / name, copied.folder / "input" / "orders" / name)
    assert copied.run().quarantined == 0
    assert amounts(copied) == [("a", 1.0)]
