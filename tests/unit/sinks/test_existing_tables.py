"""Tables that exist before a job writes to them: what is written there, and what is refused before a row is taken in."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Annotated

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Pipeline, Struct
from headrace.edits.restore import restore
from headrace.errors import ConfigError, HeadraceError, SinkMismatchError, UserFunctionError
from headrace.readers.difference import differences
from headrace.readers.job_at import JobAtCheckpoint
from headrace.records.value_arrays import UnfitRecord
from headrace.sinks.table_fit import Staging, is_cast
from headrace.storage.delta_schema import to_logged
from headrace.testing import PipelineHarness

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Row(Struct, frozen=True):
    """A row of a sink."""

    id: int
    at: datetime
    name: str | None
    day: date
    price: Annotated[Decimal, Digits(10, 2)]
    parts: list[int]


OWN = {
    "id": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
    "name": pa.string(),
    "day": pa.date32(),
    "price": pa.decimal128(10, 2),
    "parts": pa.list_(pa.int64()),
}
CHANGES = {
    "as it is": {},
    "narrow": {"id": pa.int32(), "parts": pa.list_(pa.int16()), "price": pa.decimal128(6, 2)},
    "wide": {"price": pa.decimal128(20, 4)},
    "as floats": {"price": pa.float64()},
}
PARTITIONS = [(), ("day",), ("id",), ("name", "day")]


def row(number, **changes):
    at = NOON + timedelta(hours=number)
    values = {"name": f"row {number}", "day": at.date(), "price": Decimal(number), "parts": [number]}
    return Row(number, at, **(values | changes))


def harness_over(mode, **sink):
    """Return a job that copies rows into a sink: appended, or merged by id."""
    rows = Pipeline("job").source("rows", Row, event_time="at")
    stream = rows if mode == "append" else rows.upsert_materialize("latest", primary_key=("id",))
    return PipelineHarness(stream.sink("taken"), job={"sinks": {"taken": sink}})


def make(harness, columns, partition_by=(), **rows):
    uri = harness.config.sinks["taken"].table_path
    schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()])
    DeltaTable.create(uri, schema, partition_by=[*partition_by] or None)
    if rows:
        write_deltalake(uri, pa.table(rows), mode="append", schema_mode="merge")
    return uri


def rows_at(uri):
    rows = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan()).read_all().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def written(rows, columns):
    """Return what a table with these columns holds, by a plain loop."""
    return [
        {name: as_stored(getattr(row, name), kind) for name, kind in columns.items()}
        for row in sorted(rows, key=lambda row: row.id)
    ]


def as_stored(value, kind):
    if pa.types.is_floating(kind):
        return float(value)
    return value.quantize(Decimal(1).scaleb(-kind.scale)) if pa.types.is_decimal(kind) else value


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize(("kind", "partition_by"), [*product(CHANGES, PARTITIONS)])
def test_rows_come_in_types_of_the_table(mode, kind, partition_by):
    columns = dict(reversed((OWN | CHANGES[kind]).items()))
    harness = harness_over(mode)
    uri = make(harness, columns, partition_by)
    before = DeltaTable(uri).schema().to_json()
    harness.feed("rows", [row(1), row(20), row(3, name=None)])
    harness.run()
    harness.feed("rows", [row(30)])
    harness.run()
    assert rows_at(uri) == written([row(1), row(20), row(3, name=None), row(30)], columns)
    assert DeltaTable(uri).schema().to_json() == before
    assert DeltaTable(uri).metadata().partition_columns == [*partition_by]


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_columns_of_others_stay(mode):
    harness = harness_over(mode)
    uri = make(harness, OWN | {"note": pa.string()}, id=[2], note=["theirs"])
    harness.feed("rows", [row(1), row(3)])
    harness.run()
    harness.feed("rows", [row(3, name="new")])
    harness.run()
    notes = [(stored["id"], stored["note"]) for stored in rows_at(uri)]
    assert notes == [(1, None), (2, "theirs"), (3, None), *([(3, None)] if mode == "append" else [])]


def test_merged_row_keeps_columns_of_others():
    harness = harness_over("merge")
    uri = make(harness, OWN | {"note": pa.string()}, id=[2], note=["theirs"])
    harness.feed("rows", [row(2)])
    harness.run()
    assert [(stored["name"], stored["note"]) for stored in rows_at(uri)] == [("row 2", "theirs")]


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("id", pa.int32(), {"number": 2**31}),
        ("price", pa.decimal128(4, 2), {"price": Decimal("100.00")}),
        ("price", pa.decimal128(10, 1), {"price": Decimal("1.01")}),
        ("parts", pa.list_(pa.int8()), {"parts": [1, 200]}),
    ],
)
def test_value_beyond_its_column_ends_the_run(mode, column, kind, value):
    harness = harness_over(mode)
    uri = make(harness, OWN | {column: kind})
    wrong = row(1)
    changes = {"id": value["number"]} if "number" in value else value
    harness.feed("rows", [row(0), Row(**{name: changes.get(name, getattr(wrong, name)) for name in OWN})])
    with pytest.raises(UserFunctionError, match=f"and {column} is .*, and the sink's table has"):
        harness.run()
    assert rows_at(uri) == []


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (
            {"ID": pa.int64()} | {name: OWN[name] for name in OWN if name != "id"},
            "has the column ID, and the pipeline writes id",
        ),
        (OWN | {"name": pa.int64()}, "column 'name' of sink 'taken' at .* is int64; the pipeline writes string"),
        ({"other": pa.string()}, "has the columns other; the pipeline writes id, at"),
        (OWN | {"day": pa.string()}, "column 'day' .* is string; the pipeline writes date32"),
    ],
)
def test_table_that_cannot_fit_is_refused(mode, columns, problem):
    harness = harness_over(mode)
    uri = make(harness, columns)
    harness.feed("rows", [row(1)])
    with pytest.raises(ConfigError, match=problem):
        harness.run()
    assert DeltaTable(uri).version() == 0


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_column_without_nulls_must_be_written(mode):
    harness = harness_over(mode)
    schema = pa.schema(
        [*(pa.field(name, kind) for name, kind in OWN.items()), pa.field("note", pa.string(), nullable=False)]
    )
    DeltaTable.create(harness.config.sinks["taken"].table_path, schema)
    harness.feed("rows", [row(1)])
    with pytest.raises(
        ConfigError, match="has the column note, which allows no null, and the pipeline does not write it"
    ):
        harness.run()


def test_column_once_written_cannot_be_left_out():
    harness = harness_over("append")
    harness.feed("rows", [row(1)])
    harness.run()

    class Less(Struct, frozen=True):
        id: int
        at: datetime

    stream = Pipeline("job").source("rows", Row, event_time="at").map(lambda r: Less(r.id, r.at), record=Less)
    harness.change(pipeline=stream.sink("taken"))
    harness.feed("rows", [row(2)])
    with pytest.raises(ConfigError, match="has the columns .*; the pipeline writes id, at"):
        harness.run()


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: pa.array([value], pa.int64())),
    st.floats(width=64).map(lambda value: pa.array([value], pa.float64())),
    st.decimals(-(10**9), 10**9, places=3).map(lambda value: pa.array([value], pa.decimal128(15, 3))),
)
KINDS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal128(38, 10),
]


@given(NUMBERS, st.sampled_from(KINDS))
def test_number_keeps_its_value_or_is_refused(values, kind):
    rows = pa.table({"n": values})
    staging = Staging(narrowed=to_logged(pa.schema([("n", kind)])))
    assert is_cast(kind, values.type)
    try:
        fitted = staging.fitted(rows)["n"][0].as_py()
    except UnfitRecord:
        return
    value = values[0].as_py()
    if pa.types.is_float32(kind) and pa.types.is_floating(values.type):
        value = values.cast(pa.float32(), safe=False)[0].as_py()
    if pa.types.is_floating(kind) and pa.types.is_decimal(values.type):
        fitted = Decimal(fitted).quantize(Decimal("0.001"))
    if pa.types.is_decimal(kind) and pa.types.is_floating(values.type):
        fitted = float(fitted)
    assert repr(fitted) == repr(value) if value is None or str(value) == "nan" else fitted == value


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", PARTITIONS)
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_promotion_keeps_the_form_of_a_table(mode, partition_by):
    harness = harness_over(mode)
    columns = OWN | CHANGES["narrow"] | {"note": pa.string()}
    uri = make(harness, columns, partition_by, id=pa.array([2], pa.int32()), note=["theirs"])
    before = DeltaTable(uri).schema().to_json()
    harness.feed("rows", [row(1), row(2)])
    harness.run()
    branch = harness.branch("again", at=0)
    branch.run()
    harness.feed("rows", [row(3)])
    harness.run()
    branch.run()
    branch.promote()
    stored = rows_at(uri)
    theirs = [value for value in stored if value["note"]]
    assert [value["id"] for value in theirs] == [2]
    rows = [{name: value[name] for name in OWN} for value in stored if mode == "merge" or not value["note"]]
    assert rows == written([row(1), row(2), row(3)], OWN | CHANGES["narrow"])
    assert DeltaTable(uri).schema().to_json() == before


@pytest.mark.slow
def test_branch_difference_omits_columns_of_others():
    harness = harness_over("merge")
    make(harness, OWN | {"note": pa.string()}, id=[2], note=["theirs"])
    harness.feed("rows", [row(1), row(2)])
    harness.run()
    branch = harness.branch("again", at=0)
    branch.run()
    sides = [JobAtCheckpoint(config) for config in (harness.config, branch.config)]
    assert [difference.table for difference in differences(*sides) if difference.is_sink] == []


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_restore_to_the_beginning_keeps_rows_of_others(mode):
    harness = harness_over(mode)
    uri = make(harness, OWN, id=[-1])
    harness.feed("rows", [row(1), row(2)])
    harness.run()
    restore(harness.config, 0, "", "somebody")
    assert [stored["id"] for stored in rows_at(uri)] == [-1]
    harness.run()
    assert [stored["id"] for stored in rows_at(uri)] == [-1, 1, 2]


DOUBLES = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.list_(pa.decimal128(10, 2)), pa.list_(pa.float64())),
        (pa.list_(pa.float64()), pa.list_(pa.decimal128(10, 2))),
        (pa.list_(pa.decimal128(10, 2)), pa.list_(pa.int64())),
        (pa.map_(pa.float32(), pa.int64()), pa.map_(pa.float64(), pa.int64())),
        (pa.map_(pa.date32(), pa.int64()), pa.map_(pa.timestamp("us", "UTC"), pa.int64())),
        (pa.string(), pa.int64()),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ],
)
def test_types_that_would_change_values_do_not_fit(kind, written):
    assert not is_cast(kind, written)


@pytest.mark.parametrize(
    ("values", "kind", "outcome"),
    [
        (pa.array([[1.5, 2.0], None], DOUBLES), pa.list_(pa.float32()), [[1.5, 2.0], None]),
        (pa.array([[0.5], [1e300]], DOUBLES), pa.list_(pa.float32()), 1),
        (pa.array([{"a": 1, "b": "x"}]), pa.struct([("b", pa.string()), ("a", pa.int8())]), [{"b": "x", "a": 1}]),
        (pa.array([[7], [300]]), pa.list_(pa.int8()), 1),
    ],
)
def test_nested_values_keep_theirs_or_are_refused(values, kind, outcome):
    staging = Staging(narrowed=to_logged(pa.schema([("n", kind)])))
    if isinstance(outcome, list):
        assert staging.fitted(pa.table({"n": values}))["n"].to_pylist() == outcome
        return
    with pytest.raises(UnfitRecord) as caught:
        staging.fitted(pa.table({"n": values}))
    assert caught.value.index == outcome


@pytest.mark.parametrize(
    ("text", "is_json"), [('{"a": [1, null]}', True), (None, True), ("free text", False), ("", False), ("[1", False)]
)
def test_texts_for_variants_must_be_json(text, is_json):
    rows = pa.table({"free": pa.array(["1", text], pa.string())})
    if is_json:
        assert Staging(variants=("free",)).fitted(rows) == rows
        return
    with pytest.raises(UnfitRecord, match="is no JSON .*VARIANT there") as caught:
        Staging(variants=("free",)).fitted(rows)
    assert caught.value.index == 1


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_keys_are_not_rounded(kind):
    harness = harness_over("merge")
    make(harness, OWN | {"id": kind})
    harness.feed("rows", [row(1)])
    with pytest.raises(
        ConfigError, match=r"column 'id' of sink 'taken' at .* is (float|double); the pipeline writes int64"
    ):
        harness.run()


def changed_before_publication(mode, change, **columns):
    """Return a job whose table changes between the commit of a checkpoint and its publication, and the table's location."""
    harness = harness_over(mode)
    uri = make(harness, OWN | columns)
    harness.feed("rows", [row(1)])
    harness.run()
    harness.feed("rows", [row(2), row(3)])
    with harness.crashing_at("commit.after"):
        harness.run()
    change(uri)
    return harness, uri


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_rows_follow_a_table_that_changes_before_publication(mode):
    def narrow(uri):
        rows = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan()).read_all()
        narrowed = rows.set_column(rows.schema.get_field_index("id"), "id", rows["id"].cast(pa.int8()))
        write_deltalake(uri, narrowed, mode="overwrite", schema_mode="overwrite", partition_by=["name"])

    harness, uri = changed_before_publication(mode, narrow)
    harness.run()
    rows = written([row(1), row(2), row(3)], OWN)
    assert [{name: stored[name] for name in OWN} for stored in rows_at(uri)] == rows
    assert {pa.schema(DeltaTable(uri).schema()).field("id").type} == {pa.int8()}


def test_value_beyond_a_narrowed_table_is_named():
    def narrow(uri):
        rows = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan()).read_all()
        price = rows["price"].cast(pa.decimal128(3, 2))
        narrowed = rows.set_column(rows.schema.get_field_index("price"), "price", price)
        write_deltalake(uri, narrowed, mode="overwrite", schema_mode="overwrite")

    harness = harness_over("append")
    uri = make(harness, OWN)
    harness.feed("rows", [row(1)])
    harness.run()
    harness.feed("rows", [row(12)])
    with harness.crashing_at("commit.after"):
        harness.run()
    narrow(uri)
    with pytest.raises(SinkMismatchError, match=r"price is Decimal\('12.00'\), .* the table has changed since"):
        harness.run()


@pytest.mark.slow
def test_second_branch_follows_a_promotion_of_two_commits():
    harness = harness_over("append")
    uri = make(harness, OWN)
    DeltaTable(uri).alter.add_constraint({"small": "id < 1000"})
    harness.feed("rows", [row(1), row(2)])
    harness.run()
    branches = [harness.branch(name, at=0) for name in ("one", "two")]
    for branch in branches:
        branch.run()
    branches[0].promote()
    assert [stored["id"] for stored in rows_at(uri)] == [1, 2]
    with pytest.raises(HeadraceError, match="cannot be promoted") as caught:
        branches[1].promote()
    assert "somebody else has written" not in str(caught.value)


def test_append_only_table_takes_no_promotion():
    harness = harness_over("append")
    uri = make(harness, OWN)
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    harness.feed("rows", [row(1)])
    harness.run()
    branch = harness.branch("again", at=0)
    branch.run()
    with pytest.raises(SinkMismatchError, match=r"cannot be promoted: the table .* has the rule delta.appendOnly"):
        branch.promote()
    assert [stored["id"] for stored in rows_at(uri)] == [1]


def test_empty_text_in_a_partition_is_refused_apart():
    harness = harness_over("append")
    uri = make(harness, OWN, ("name",))
    DeltaTable(uri).alter.add_constraint({"small": "id < 1000"})
    harness.feed("rows", [row(1, name="")])
    with pytest.raises(SinkMismatchError, match="is partitioned by name, .* name is ''"):
        harness.run()
