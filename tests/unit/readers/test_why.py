"""Why a key has what it has: each change with the rows that its micro-batch took in, as an independent reader finds them."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from msgspec.structs import replace

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    OutputMode,
    Pipeline,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.edits.compact import compact
from headrace.edits.edit import apply
from headrace.edits.entries.changes import DeleteEntries, SetEntry
from headrace.edits.entries.edit import EntryName
from headrace.edits.restore import restore
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.log.facts import JobWork
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.why import InputSearch, why
from headrace.testing import PipelineHarness
from headrace.testing._memory_topic import MemoryTopic

HOUR = 3_600_000


class Order(Struct, frozen=True):
    customer: str
    cents: int
    at: Timestamp


class Total(Struct, frozen=True):
    customer: str
    orders: int
    cents: int


class Totals(KeyedProcessFunction[Order, Total]):
    total = ValueState("total", Total)

    def process(self, order, ctx, /):
        before = self.total.value() or Total(order.customer, 0, 0)
        now = Total(order.customer, before.orders + 1, before.cents + order.cents)
        self.total.update(now)
        ctx.timers.register_event_time(order.at + 10 * HOUR)
        ctx.collect(now)


def job_of(pipeline, files=16):
    job = PipelineHarness(pipeline, now=HOUR, files_per_batch=files)
    for number in range(3):
        job.feed("orders", [Order("ab"[place % 2], number + place, HOUR) for place in range(5)])
    job.run()
    return job


def orders():
    return Pipeline("shop").source("orders", Order, event_time="at")


@pytest.fixture
def job():
    return job_of(
        orders().filter(lambda order: order.cents < 100).key_by("customer").process("totals", Totals()).sink("out"), 1
    )


def causes_of(job, key="a", **options):
    return why(JobAtCheckpoint(job.config), key, **options).causes


@pytest.mark.slow
def test_rows_are_those_of_an_independent_reader(job):
    causes = causes_of(job)
    assert [cause.checkpoint.checkpoint_id for cause in causes] == [3, 2, 1]
    for number, cause in zip((3, 2, 1), causes, strict=True):
        (rows,) = cause.inputs
        table = pq.read_table(job.folder / "input" / "orders" / rows.file)
        assert rows.file == f"{number:06d}.parquet"
        assert [place for place, name in enumerate(table["customer"].to_pylist()) if name == "a"] == [*rows.rows]


@pytest.mark.slow
def test_causes_name_edits_timers_and_differences(job):
    with job.on_its_clock():
        apply(job.config, SetEntry(EntryName("totals", "total", "a"), fields={"cents": "7"}, why="counted"), "somebody")
    newest, last, *_ = causes_of(job)
    assert (newest.checkpoint.kind, newest.checkpoint.note) == (Kind.EDIT, "state set of 'totals.total': counted")
    assert newest.inputs == newest.timers == []
    (change,) = newest.changes
    assert (change["what"], change["before"]) == ("changed by hand", '{"customer":"a","orders":9,"cents":27}')
    assert change["value"] == '{"customer":"a","orders":9,"cents":7}'
    assert causes_of(job)[-1].timers == ["totals: timer of event_time at 1970-01-01T11:00:00Z set"]
    assert last.checkpoint.kind is Kind.BATCH


@pytest.mark.slow
def test_field_limits_the_causes(job):
    with job.on_its_clock():
        apply(job.config, SetEntry(EntryName("totals", "total", "a"), fields={"cents": "7"}, why="counted"), "somebody")
    assert [cause.checkpoint.checkpoint_id for cause in causes_of(job, field_name="orders")] == [3, 2, 1]
    assert [cause.checkpoint.checkpoint_id for cause in causes_of(job, field_name="cents")] == [4, 3, 2, 1]
    with pytest.raises(ConfigError, match=r"has a field 'other' \(they have: customer, orders, cents\)"):
        causes_of(job, field_name="other")
    assert [cause.checkpoint.checkpoint_id for cause in causes_of(job, limit=1)] == [4]


@pytest.mark.slow
def test_restores_are_named(job):
    with job.on_its_clock():
        apply(job.config, DeleteEntries(EntryName("totals", "total", "a"), "wrong"), "somebody")
        restore(job.config, 2, "it was right", "somebody")
    answer = why(JobAtCheckpoint(job.config), "a")
    assert [cause.checkpoint.checkpoint_id for cause in answer.causes] == [2, 1]
    assert "Checkpoint 5 restored the job to 2 (it was right): what came between is undone." in answer.untold


@pytest.mark.slow
def test_input_that_is_gone_is_said(job):
    for file in (job.folder / "input" / "orders").iterdir():
        file.unlink()
    answer = why(JobAtCheckpoint(job.config), "a")
    assert len(answer.causes) == 3
    assert all(not cause.inputs for cause in answer.causes)


def same(order: Order) -> Order:
    return order


def test_files_alone_are_known_behind_a_map():
    mapped = orders().map(same).key_by("customer")
    answer = why(JobAtCheckpoint(job_of(mapped.process("totals", Totals()).sink("out")).config), "a")
    (cause,) = answer.causes
    assert [(rows.file, rows.rows) for rows in cause.inputs] == [
        (f"{number:06d}.parquet", None) for number in (1, 2, 3)
    ]
    assert answer.untold == [
        "source 'orders': its rows reach the operator changed, or through another operator, so only its files are known."
    ]


@pytest.mark.slow
def test_sink_limits_the_operators(job):
    assert len(causes_of(job, sink="out")) == 3
    assert causes_of(job, sink="other") == []
    with pytest.raises(ConfigError, match="operator"):
        causes_of(job, operator="other")


class Answer(Struct, frozen=True):
    customer: str


class Down(AsyncFunction[Order, Answer]):
    async def invoke(self, order, /):
        raise ConnectionError("down")


def test_calls_are_causes():
    keyed = orders().key_by("customer")
    keyed.process("totals", Totals()).sink("out")
    retry = FixedDelay(max_retries=5, delay=timedelta(hours=100))
    waits = keyed.async_wait(
        "ask", Down(), mode=OutputMode.KEYED_ORDERED, timeout=None, retry=retry, park_after=timedelta(0)
    )
    (cause,) = causes_of(job_of(waits.sink("answers")))
    assert cause.calls[0] == "ask: call waiting for retry, 1 attempt (last error: ConnectionError: down)"


def keyed_totals():
    return orders().key_by("customer").process("totals", Totals()).sink("out")


def test_table_rows_are_those_of_its_files(tmp_path):
    for version in range(2):
        columns = {
            "customer": ["a", "b", "a"],
            "cents": [version] * 3,
            "at": pa.array([HOUR] * 3, pa.timestamp("ms", "UTC")),
        }
        write_deltalake(tmp_path / "orders", pa.table(columns), mode="append")
    source = {"format": "delta", "path": str(tmp_path / "orders"), "max_files_per_batch": 1}
    job = PipelineHarness(keyed_totals(), now=HOUR, job={"sources": {"orders": source}})
    job.run()
    assert [[rows.rows for rows in cause.inputs] for cause in causes_of(job)] == [[(0, 2)], [(0, 2)]]


@pytest.mark.slow
def test_offsets_are_known_of_a_topic():
    topic = MemoryTopic("orders")
    job = PipelineHarness(keyed_totals(), now=HOUR, topics={"orders": topic})
    for _ in range(2):
        topic.append([Order("a", 1, HOUR), Order("b", 1, HOUR)])
        job.run()
    answer = why(JobAtCheckpoint(job.config), "a")
    assert [[rows.file for rows in cause.inputs] for cause in answer.causes] == [
        ["partition 0, offsets 2 to 3"],
        ["partition 0, offsets 0 to 1"],
    ]
    assert answer.untold == ["source 'orders' is a topic: its offsets are known, and its messages are not searched."]


def test_filtered_rows_are_no_causes():
    kept = orders().filter(lambda order: order.cents != 2).key_by("customer")
    (cause,) = causes_of(job_of(kept.process("totals", Totals()).sink("out")))
    assert [rows.rows for rows in cause.inputs] == [(0, 4), (0, 2, 4), (2, 4)]


class Known(AsyncFunction[Order, Total]):
    async def invoke(self, order, /):
        return [Total(order.customer, 1, order.cents)]


class Sums(KeyedProcessFunction[Total, Total]):
    total = ValueState("total", Total)

    def process(self, total, ctx, /):
        self.total.update(total)
        ctx.collect(total)


def test_calls_change_the_rows_behind_them():
    waits = orders().async_wait("ask", Known(), mode=OutputMode.UNORDERED, timeout=None).key_by("orders")
    (cause,) = causes_of(job_of(waits.process("sums", Sums()).sink("out")), "1")
    assert [rows.rows for rows in cause.inputs] == [None, None, None]


def test_failing_code_of_the_job_is_said():
    class Strict:
        fails = False

        def __call__(self, order):
            if self.fails:
                raise ValueError("no")
            return True

    strict = Strict()
    answer_of = job_of(orders().filter(strict).key_by("customer").process("totals", Totals()).sink("out"))
    strict.fails = True
    answer = why(JobAtCheckpoint(answer_of.config), "a")
    assert all(rows.rows is None for rows in answer.causes[0].inputs)
    assert any("the job's code failed at a row of" in sentence for sentence in answer.untold)


class Latest(Struct, frozen=True):
    customer: str
    cents: int


@pytest.mark.slow
def test_row_replaced_in_place_has_all_its_changes():
    pipeline = (
        orders()
        .map(lambda order: Latest(order.customer, order.cents), record=Latest)
        .upsert_materialize("latest", primary_key="customer", force=True)
        .sink("out")
    )
    job = job_of(pipeline, 1)
    table = pa.table(JobAtCheckpoint(job.config).changes("materializer_history", ()).read_all())
    stored = {row["checkpoint_id"] for row in table.to_pylist() if row["key"] == '"a"'}
    with job.on_its_clock():
        compact(job.config, "compaction")
    causes = causes_of(job)
    assert {cause.checkpoint.checkpoint_id for cause in causes} == stored
    assert stored == {1, 2, 3}


@pytest.mark.slow
def test_compaction_hides_no_timer(job):
    before = [cause.timers for cause in causes_of(job)]
    assert any(before)
    with job.on_its_clock():
        compact(job.config, "compaction")
    assert [cause.timers for cause in causes_of(job)] == before


@pytest.mark.slow
def test_rows_that_had_waited_are_said(job):
    answer = why(JobAtCheckpoint(job.config), "a")
    assert not any("had waited" in sentence for sentence in answer.untold)
    search = InputSearch(JobAtCheckpoint(job.config), None, "a", answer)
    one, other = answer.causes[1].checkpoint, answer.causes[0].checkpoint
    search._say_resumed(replace(one, work=JobWork(held=2, pending=1)), other)
    assert answer.untold[-1].startswith("checkpoint 3 also went on with 3 records that had waited")
