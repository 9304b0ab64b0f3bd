"""The last row of an entry is its state: in Arrow, in SQL, and in a plain loop."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tables.live_rows import in_order, last_rows, last_rows_sql, last_values_sql
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES

TABLE = STATE_TABLES[KEYED_STATE]
names = st.sampled_from(["a", "b"])
entries = st.tuples(names, st.just(1), names, names, st.none() | names, st.none() | names)


@st.composite
def histories(draw):
    """Draw changes in any order; a checkpoint has at most one of each entry."""
    places = draw(st.lists(st.tuples(entries, st.integers(0, 5)), unique=True, max_size=12))
    return [
        {
            **dict.fromkeys(TABLE.schema.names),
            **dict(zip(TABLE.entry, entry, strict=True)),
            "value": draw(st.none() | st.sampled_from("xyz")),
            "checkpoint_id": number,
            "deleted": draw(st.booleans()),
        }
        for entry, number in places
    ]


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def arrow(changes):
    return pa.Table.from_pylist(changes, TABLE.schema)


def entry_of(row):
    return tuple(row[name] for name in TABLE.entry)


def in_a_loop(changes):
    """Return the last change of each entry, by entry."""
    return {entry_of(row): row for row in sorted(changes, key=lambda row: row["checkpoint_id"])}


def by_entry(rows):
    result = {entry_of(row): row for row in rows}
    assert len(result) == len(rows)
    return result


@given(changes=histories())
def test_arrow_agrees_with_a_loop(changes):
    rows = last_rows(arrow(changes), TABLE)
    live = {entry: row for entry, row in in_a_loop(changes).items() if not row["deleted"]}
    assert by_entry(rows.to_pylist()) == live
    assert rows["checkpoint_id"].to_pylist() == sorted(rows["checkpoint_id"].to_pylist())


@given(changes=histories())
def test_sql_agrees_with_a_loop(connection, changes):
    connection.register("changes", arrow(changes))
    rows = connection.sql(last_rows_sql("changes", TABLE)).to_arrow_table()
    assert rows.schema.names == [name for name in TABLE.schema.names if name != "deleted"]
    live = {entry: row for entry, row in in_a_loop(changes).items() if not row.pop("deleted")}
    assert by_entry(rows.to_pylist()) == live


@given(changes=histories())
def test_unwanted_last_rows_hide_older_ones(connection, changes):
    connection.register("changes", arrow(changes))
    rows = connection.sql(last_rows_sql("changes", TABLE, unless="coalesce(value = 'x', false)")).to_arrow_table()
    last = in_a_loop(changes).items()
    assert {*by_entry(rows.to_pylist())} == {e for e, row in last if not row["deleted"] and row["value"] != "x"}


@given(changes=histories())
def test_last_values_agree_with_a_loop(connection, changes):
    connection.register("changes", arrow(changes))
    values = {"big": "upper(value)", "changed": "checkpoint_id"}
    rows = connection.sql(last_values_sql("changes", TABLE, values, unless="coalesce(big = 'X', false)"))
    names = (*(name for name in TABLE.entry if name != "key_group"), "big", "changed")
    result = {tuple(row[name] for name in names) for row in rows.to_arrow_table().to_pylist()}
    live = (row for row in in_a_loop(changes).values() if not row["deleted"] and row["value"] != "x")
    last = ({**row, "big": row["value"] and row["value"].upper(), "changed": row["checkpoint_id"]} for row in live)
    assert result == {tuple(row[name] for name in names) for row in last}


@given(changes=histories())
def test_changes_in_order_end_with_last_rows(changes):
    written = {entry_of(row): row for row in in_order(arrow(changes)).to_pylist()}
    assert written == in_a_loop(changes)
