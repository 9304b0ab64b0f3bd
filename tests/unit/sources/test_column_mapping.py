"""Tables whose files have other names of columns than the table: by name, by field id, in structs, and after a rename."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, Struct, Timestamp
from headrace.sources.delta.mapping import columns_in_file, in_table_names
from headrace.storage.delta_schema import logged_columns
from headrace.testing import PipelineHarness
from tests.unit.sources.hand_table import HandTable, column
from tests.unit.support.table_job import TableJob

DAY = 1_767_225_600_000


class Place(Struct, frozen=True):
    x: int
    y: int | None = None


class Row(Struct, frozen=True):
    id: str
    at: Timestamp
    n: int | None = None
    g: str | None = None
    parts: list[Place] | None = None


def mapped(name, kind, number, physical=None):
    stored = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical or f"col-{number}"}
    return column(name, kind, **stored)


PLACE = {"type": "struct", "fields": [mapped("x", "long", 6), mapped("y", "long", 7)]}
PARTS = {"type": "array", "elementType": PLACE, "containsNull": True}
COLUMNS = [
    mapped("id", "string", 1),
    mapped("at", "timestamp", 2),
    mapped("n", "long", 3),
    mapped("g", "string", 4),
    mapped("parts", PARTS, 5),
]
MODE = "delta.columnMapping.mode"


def files_rows(ids=("a", "b"), n=(1, 2), names="col-{}", *, with_ids=False):
    """Rows as a file has them; the column `g` is one of the partition."""

    def named(number, kind):
        metadata = {"PARQUET:field_id": str(number)} if with_ids else None
        return pa.field(names.format(number), kind, metadata=metadata)

    place = pa.struct([named(7, pa.int64()), named(6, pa.int64()), named(99, pa.string())])
    values = [{names.format(6): 10 * number, names.format(7): None, names.format(99): "dropped"} for number in n]
    columns = {
        named(3, pa.int64()): pa.array(n, pa.int64()),
        named(1, pa.string()): pa.array(ids),
        named(2, pa.timestamp("us", "UTC")): pa.array([DAY * 1000] * len(ids), pa.timestamp("us", "UTC")),
        named(5, pa.list_(place)): pa.array([[value] for value in values], pa.list_(place)),
        named(98, pa.string()): pa.array(["dropped"] * len(ids)),
    }
    return pa.table([*columns.values()], pa.schema([*columns]))


def job_over(written, **source):
    bound = {"format": "delta", "path": str(written.path), **source}
    pipeline = Pipeline("job").source("rows", Row, event_time="at").sink("out")
    return PipelineHarness(pipeline, job={"sources": {"rows": bound}}, now=DAY)


def rows_of(harness):
    harness.run()
    return sorted(harness.sink("out"), key=lambda row: row.id)


def new_table(tmp_path, mode):
    return HandTable(
        tmp_path / "table", COLUMNS, features=["columnMapping"], partition=["g"], configuration={MODE: mode}
    )


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize(("mode", "names"), [("name", "col-{}"), ("id", "other-{}"), ("id", "col-{}")])
def test_columns_are_found_by_their_mapping(tmp_path, start, mode, names):
    written = new_table(tmp_path, mode)
    with_ids = names != "col-{}" or start == "snapshot"
    written.commit(written.add(files_rows(names=names, with_ids=with_ids), values={"col-4": "here"}))
    assert rows_of(job_over(written, start=start)) == [
        Row("a", DAY, 1, "here", [Place(10)]),
        Row("b", DAY, 2, "here", [Place(20)]),
    ]


def test_renamed_and_dropped_columns_keep_their_files(tmp_path):
    written = new_table(tmp_path, "name")
    written.commit(written.add(files_rows(["a"], [1]), values={"col-4": None}))
    fields = [mapped("key", "string", 8), *COLUMNS[:2], mapped("n", "long", 9), *COLUMNS[3:]]
    written.commit(written.metadata(fields, {MODE: "name"}), operation="CHANGE COLUMNS")
    written.commit(written.add(files_rows(["b"], [2]), values={"col-4": None}))
    assert [(row.id, row.n) for row in rows_of(job_over(written))] == [("a", 1), ("b", None)]
    # In the snapshot, both files are read with the columns of its version.
    assert [(row.id, row.n) for row in rows_of(job_over(written, start="snapshot"))] == [("a", None), ("b", None)]


def test_table_without_mapping_may_get_one(tmp_path):
    plain = [column(field["name"], field["type"]) for field in COLUMNS[:3]]
    written = HandTable(tmp_path / "table", plain)
    rows = files_rows(["a"], [1]).select(["col-1", "col-2", "col-3"]).rename_columns(["id", "at", "n"])
    written.commit(written.add(rows))
    fields = [mapped("id", "string", 1, "id"), mapped("at", "timestamp", 2, "at"), mapped("m", "long", 3, "n")]
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    written.commit(protocol, written.metadata([*fields, mapped("n", "long", 4)], {MODE: "name"}))
    written.commit(written.add(rows))
    assert [row.n for row in rows_of(job_over(written))] == [1, None]


def test_change_files_are_mapped(tmp_path):
    names = {"shop": "string", "at": "timestamp", "name": "string", "size": "long"}
    fields = [mapped(name, kind, number) for number, (name, kind) in enumerate(names.items())]
    feed = {MODE: "id", "delta.enableChangeDataFeed": "true"}
    written = HandTable(tmp_path / "table", fields, features=["columnMapping"], configuration=feed)
    stored = pa.schema(
        [
            pa.field(f"other-{number}", kind, metadata={"PARQUET:field_id": str(number)})
            for number, kind in enumerate((pa.string(), pa.timestamp("us", "UTC"), pa.string(), pa.int64()))
        ]
    )
    rows = pa.table([["a"], pa.array([DAY * 1000], pa.timestamp("us", "UTC")), ["p"], [1]], stored)
    added = written.add(rows)
    written.commit(added)
    (written.path / "_change_data").mkdir()
    change = written.add(rows.append_column("_change_type", pa.array(["delete"])), path="_change_data/c.parquet")
    written.commit(written.remove(added), {"cdc": {**change["add"], "dataChange": False}}, operation="DELETE")
    assert TableJob(written, change_feed=True).took() == ["p", "-Dp"]


NUMBERS = st.none() | st.integers(0, 9)
PLACES = st.none() | st.fixed_dictionaries({"x": NUMBERS, "y": NUMBERS})
VALUES = st.fixed_dictionaries(
    {
        "one": PLACES,
        "many": st.none() | st.lists(PLACES, max_size=3),
        "named": st.none() | st.dictionaries(st.sampled_from("ab"), PLACES, max_size=2),
    }
)


@given(rows=st.lists(VALUES, max_size=8), cut=st.integers(0, 8))
def test_nested_values_stay_as_they_are(rows, cut):
    fields = [
        mapped("one", PLACE, 1),
        mapped("many", PARTS, 2),
        mapped("named", {"type": "map", "keyType": "string", "valueType": PLACE, "valueContainsNull": True}, 3),
    ]
    columns = logged_columns(_json(fields), "name")

    def arrow(names):
        place = pa.struct([(names[0], pa.int64()), (names[1], pa.int64())])
        return [place, pa.list_(place), pa.map_(pa.string(), place)]

    table = pa.Table.from_pylist(rows, pa.schema(list(zip(("one", "many", "named"), arrow("xy"), strict=True))))
    stored = pa.Table.from_pylist(
        _stored(rows), pa.schema(list(zip(("col-1", "col-2", "col-3"), arrow(("col-6", "col-7")), strict=True)))
    )
    stored = pa.concat_tables([stored.slice(0, cut), stored.slice(cut)])
    read = in_table_names(stored, columns_in_file(stored.schema, columns))
    read.validate(full=True)
    assert read.to_pylist() == table.to_pylist()
    assert read.schema.types == table.schema.types


def _json(fields):

    return json.dumps({"type": "struct", "fields": fields})


def _stored(rows):
    def place(value):
        return value if value is None else {"col-6": value["x"], "col-7": value["y"]}

    return [
        {
            "col-1": place(row["one"]),
            "col-2": row["many"] if row["many"] is None else [place(value) for value in row["many"]],
            "col-3": row["named"]
            if row["named"] is None
            else [(key, place(value)) for key, value in row["named"].items()],
        }
        for row in rows
    ]


class Sized(Struct, frozen=True):
    y: int | None = None
    z: int | None = None


class Nested(Struct, frozen=True):
    id: str
    at: Timestamp
    s: Sized | None = None
    many: list[Sized] | None = None


def test_field_added_again_is_null_before(tmp_path):
    """The old file has the struct under the name that the new field has in the table, and no field of the new one."""

    def columns(*fields):
        struct = {"type": "struct", "fields": [mapped(*field) for field in fields]}
        many = {"type": "array", "elementType": struct, "containsNull": True}
        return [
            mapped("id", "string", 1, "id"),
            mapped("at", "timestamp", 2, "at"),
            mapped("s", struct, 3, "s"),
            mapped("many", many, 8, "many"),
        ]

    written = HandTable(
        tmp_path / "table", columns(("y", "long", 4, "y")), features=["columnMapping"], configuration={MODE: "name"}
    )
    old = pa.struct([("y", pa.int64())])
    rows = {
        "id": ["a", "b"],
        "at": pa.array([DAY * 1000] * 2, pa.timestamp("us", "UTC")),
        "s": pa.array([{"y": 5}, None], old),
        "many": pa.array([[{"y": 5}], None], pa.list_(old)),
    }
    written.commit(written.add(pa.table(rows)))
    written.commit(written.metadata(columns(("z", "long", 5, "c5"), ("y", "long", 6, "c6")), {MODE: "name"}))
    pipeline = Pipeline("nested").source("rows", Nested, event_time="at").sink("out")
    source = {"format": "delta", "path": str(written.path), "start": "snapshot"}
    h = PipelineHarness(pipeline, job={"sources": {"rows": source}}, now=DAY)
    h.run()
    assert [row.s for row in h.sink("out")] == [Sized(), None]
    assert [row.many for row in h.sink("out")] == [[Sized()], None]
