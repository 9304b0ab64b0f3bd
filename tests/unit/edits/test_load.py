"""Bulk load of a state from Parquet and Delta: a job goes on from it, as if user code had set each value."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace import (
    Digits,
    KeyedProcessFunction,
    ListState,
    MapState,
    Pipeline,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.commit.verify import verify
from headrace.edits.edit import apply, preview
from headrace.edits.load import LoadColumns, LoadEntries
from headrace.edits.restore import restore
from headrace.errors import ConfigError, StorageError
from headrace.testing import PipelineHarness

HOUR = 3_600_000
Money = Annotated[Decimal, Digits(12, 2)]


class Order(Struct, frozen=True):
    shop: str
    customer: int
    cents: int
    at: Timestamp


class Spent(Struct, frozen=True):
    orders: int
    total: Money
    note: str | None = None


class Line(Struct, frozen=True):
    customer: int
    spent: Spent
    items: list[int]
    days: dict[str, int]
    count: int


class Totals(KeyedProcessFunction[Order, Line]):
    spent = ValueState("spent", Spent)
    items = ListState("items", int)
    days = MapState("days", int, int)
    count = ValueState("count", int)

    def process(self, order, ctx, /):
        spent = self.spent.value() or Spent(0, Decimal("0.00"))
        count = self.count.value() or 0
        self.count.update(count + 1)
        days = {str(day): cents for day, cents in self.days.entries()}
        ctx.collect(Line(order.customer, spent, self.items.get(), days, count))


def new_job(backend="hashmap"):
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("shop", "customer")
    return PipelineHarness(stream.process("totals", Totals()).sink("lines"), backend=backend, now=0)


@pytest.fixture
def job():
    return new_job()


def load(job, state, path, columns=LoadColumns()):  # noqa: B008 - it is frozen
    with job.on_its_clock():
        edit = LoadEntries("totals", state, str(path), columns, "first load")
        effect = preview(job.config, edit)
        checkpoint = apply(job.config, edit, "somebody")
    assert checkpoint.metrics == {"entries_edited": effect.rows}
    return effect


def parquet(tmp_path, name="rows.parquet", **columns):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def lines(job, *customers):
    job.feed("orders", [Order("x", customer, 1, HOUR) for customer in customers])
    job.run()
    return {line.customer: line for line in job.sink("lines")}


SPENT = {
    "shop": ["x", "x", "y"],
    "customer": [1, 2, 1],
    "orders": [5, 6, 7],
    "total": pa.array([Decimal("1.5"), Decimal("12345678.25"), Decimal("3.00")], pa.decimal128(12, 2)),
    "ignored": [1, 2, 3],
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_new_job_begins_with_loaded_values(tmp_path, backend):
    job = new_job(backend)
    effect = load(job, "spent", parquet(tmp_path, **SPENT))
    assert (effect.rows, effect.samples[0]) == (3, ('["x",1]', '{"orders":5,"total":"1.50","note":null}'))
    load(job, "count", parquet(tmp_path, shop=["x"], customer=[2], value=[70]))
    load(job, "items", parquet(tmp_path, shop=["x"], customer=[1], value=[[3, 1]]))
    load(job, "days", parquet(tmp_path, shop=["x", "x"], customer=[1, 1], entry=[4, 2], value=[40, 20]))
    assert lines(job, 1, 2, 3) == {
        1: Line(1, Spent(5, Decimal("1.50")), [3, 1], {"2": 20, "4": 40}, 0),
        2: Line(2, Spent(6, Decimal("12345678.25")), [], {}, 70),
        3: Line(3, Spent(0, Decimal("0.00")), [], {}, 0),
    }
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_load_replaces_loaded_keys_alone(job, tmp_path):
    lines(job, 1, 2)
    load(job, "count", parquet(tmp_path, shop=["x"], customer=[2], value=[70]))
    job.feed("orders", [Order("x", customer, 2, 2 * HOUR) for customer in (1, 2)])
    job.run()
    assert sorted(line.count for line in job.sink("lines")) == [0, 0, 1, 70]


def test_columns_may_have_other_names(job, tmp_path):
    path = parquet(tmp_path, a=["x"], b=[1], c=[70])
    load(job, "count", path, LoadColumns(("a", "b"), "c"))
    assert lines(job, 1)[1].count == 70


def test_folders_and_delta_tables_are_read(job, tmp_path):
    parquet(tmp_path, "folder/a.parquet", shop=["x"], customer=[1], value=[1])
    parquet(tmp_path, "folder/b.parquet", shop=["x"], customer=[2], value=[2])
    load(job, "count", tmp_path / "folder")
    rows = pa.table({"shop": ["x", "x"], "customer": [3, 4], "value": [3, 4]})
    write_deltalake(tmp_path / "table", rows.slice(0, 1), partition_by=["shop"])
    write_deltalake(tmp_path / "table", rows, mode="overwrite")
    load(job, "count", tmp_path / "table")
    assert {customer: line.count for customer, line in lines(job, 1, 2, 3, 4).items()} == {1: 1, 2: 2, 3: 3, 4: 4}


def test_restore_undoes_a_load(job, tmp_path):
    lines(job, 1)
    before = job.facts[-1].checkpoint_id
    load(job, "count", parquet(tmp_path, shop=["x"], customer=[1], value=[70]))
    with job.on_its_clock():
        restore(job.config, before, "wrong table", "somebody")
    job.feed("orders", [Order("x", 1, 2, 2 * HOUR)])
    job.run()
    assert sorted(line.count for line in job.sink("lines")) == [0, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"shop": ["x"], "customer": [1]}, "has no column value .it has: shop, customer"),
        ({"shop": ["x"], "customer": ["one"], "value": [1]}, "1 row does not fit: row 0: customer"),
        ({"shop": ["x"] * 5, "customer": [1, None, None, None, None], "value": [1] * 5}, "4 rows do.* and 1 more"),
        ({"shop": ["x"], "customer": [1], "value": [1.5]}, "row 0: value"),
        ({"shop": ["x", "x"], "customer": [1, 1], "value": [1, 2]}, r'has the key \["x",1\] twice'),
        ({"shop": [], "customer": [], "value": []}, "has no rows"),
    ],
)
def test_rows_that_do_not_fit_load_nothing(job, tmp_path, columns, message):
    with job.on_its_clock(), pytest.raises(ConfigError, match=message):
        apply(job.config, LoadEntries("totals", "count", str(parquet(tmp_path, **columns)), why="x"), "somebody")
    assert job.facts == []
    assert lines(job, 1)[1].count == 0


def test_place_without_rows_is_refused(job, tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    for name, error, message in [
        ("nothing", ConfigError, "is no Delta table and no folder with Parquet files"),
        ("bad.parquet", StorageError, "cannot be read"),
    ]:
        with job.on_its_clock(), pytest.raises(error, match=message):
            preview(job.config, LoadEntries("totals", "count", str(tmp_path / name)))


def test_undeclared_names_are_refused(job, tmp_path):
    path = str(parquet(tmp_path, shop=["x"], customer=[1], value=[1]))
    for edit, message in [
        (LoadEntries("other", "count", path), "no operator 'other'"),
        (LoadEntries("totals", "other", path), "declares no state 'other'"),
        (LoadEntries("totals", "count", path, LoadColumns(("shop",))), "has 2 parts .*not 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            preview(job.config, edit)


def test_loaded_lists_replace_those_that_are_there(job, tmp_path):
    load(job, "items", parquet(tmp_path, shop=["x", "x"], customer=[1, 2], value=[[1, 2, 3], [4]]))
    load(job, "items", parquet(tmp_path, shop=["x", "x"], customer=[1, 3], value=[[9], []]))
    assert {customer: line.items for customer, line in lines(job, 1, 2, 3).items()} == {1: [9], 2: [4], 3: []}


class Optionals(KeyedProcessFunction[Order, Line]):
    count = ValueState("count", int | None)
    late = ValueState("late", int, ttl=StateTtl(timedelta(days=5)))

    def process(self, order, ctx, /):
        ctx.collect(Line(order.customer, Spent(0, Decimal(0)), [], {}, self.late.value() or 0))


def optional_job():
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("shop", "customer")
    return PipelineHarness(stream.process("totals", Optionals()).sink("lines"), now=0)


def test_null_values_are_refused(tmp_path):
    job, path = optional_job(), parquet(tmp_path, shop=["x"], customer=[1], value=pa.array([None], pa.int64()))
    with pytest.raises(ConfigError, match="row 0: the value is null: delete the key instead"):
        preview(job.config, LoadEntries("totals", "count", str(path)))


def test_lifetimes_of_loaded_values_need_a_time(tmp_path):
    job, day = optional_job(), 24 * HOUR
    path = parquet(tmp_path, shop=["x", "x"], customer=[1, 2], value=[7, 8], seen=[0, 3 * day])
    with pytest.raises(ConfigError, match="--time"):
        preview(job.config, LoadEntries("totals", "late", str(path)))
    load(job, "late", path, LoadColumns(time="seen"))
    job.clock.advance(6 * day)
    job.feed("orders", [Order("x", customer, 1, 6 * day) for customer in (9, 9)])
    job.change(job={"watermark": {"bucket": 1}})
    job.run()
    job.feed("orders", [Order("x", customer, 1, 6 * day + 1) for customer in (1, 2)])
    job.run()
    assert {line.customer: line.count for line in job.sink("lines")} == {9: 0, 1: 0, 2: 8}


def test_table_that_changes_meanwhile_is_refused(job, tmp_path, monkeypatch):
    lines(job, 1)
    path = parquet(tmp_path, shop=["x"], customer=[1], value=[70])
    edit = LoadEntries("totals", "count", str(path), why="first")
    effect = preview(job.config, edit)
    monkeypatch.setattr(LoadEntries, "look", lambda *_: effect)
    parquet(tmp_path, shop=["x", "x"], customer=[1, 2], value=[70, 71])
    with job.on_its_clock(), pytest.raises(ConfigError, match="was changed while it was read"):
        apply(job.config, edit, "somebody")
    assert job.facts[-1].checkpoint_id == 1


def test_hidden_files_are_left_out(job, tmp_path):
    parquet(tmp_path, "rows.parquet/a.parquet", shop=["x"], customer=[1], value=[1])
    for name in ("_temporary/0/b.parquet", ".c.parquet"):
        parquet(tmp_path, f"rows.parquet/{name}", shop=["x"], customer=[2], value=[2])
    assert load(job, "count", tmp_path / "rows.parquet").rows == 1
