"""A condition means the same in deltalake's scan and on rows in memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.storage.predicate import BeginsWith, BetweenTimes, NoneOf, OneOf, Within, rows_that_meet
from headrace.storage.storage import Storage
from headrace.tables.schemas import ARROW_TIMESTAMP
from headrace.tables.view import entries_of

TEXTS = (None, "", "a", "ab", "it's", "ü/%_")
NUMBERS = (None, 0, 1, 5, 9)
TIMES = (None, 0, 10, 11, 20)
SCHEMA = pa.schema([("key", pa.string()), ("key_group", pa.int32()), ("at", ARROW_TIMESTAMP), ("number", pa.int64())])

texts = st.lists(st.sampled_from([*TEXTS[1:], "it", "%", "a'b"]), max_size=3).map(tuple)
bounds = st.none() | st.integers(-1, 21)
conditions = st.one_of(
    st.builds(OneOf, st.just("key"), texts),
    st.builds(NoneOf, st.just("key"), texts),
    st.builds(OneOf, st.just("key_group"), st.lists(st.integers(-1, 10), max_size=3).map(tuple)),
    st.builds(Within, st.just("key_group"), st.integers(-1, 10), st.integers(-1, 10)),
    st.builds(BetweenTimes, st.just("at"), bounds, bounds),
    st.builds(BeginsWith, st.just("key"), texts.filter(bool)),
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """Return all combinations of values, in files that a scan may skip."""
    store = Storage(str(tmp_path_factory.mktemp("table"))).table()
    store.create(SCHEMA)
    files = [Storage(store.uri).stage(f"{number}.parquet", rows) for number, rows in enumerate(all_rows())]
    store.append(0, SCHEMA, files)
    return store.latest()


def all_rows():
    for first, group in enumerate(NUMBERS):
        rows = [(text, group, time) for text in TEXTS for time in TIMES]
        numbers = range(first * len(rows), (first + 1) * len(rows))
        times = pa.array([time for *_, time in rows], pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(ARROW_TIMESTAMP)
        columns = [[text for text, *_ in rows], [group] * len(rows), times, numbers]
        yield pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )


@given(chosen=st.lists(conditions, min_size=1, max_size=3))
@example(chosen=[OneOf("key_group", (1, 9)), NoneOf("key", ("a",))])
def test_scan_and_mask_agree(snapshot, chosen):
    scanned = snapshot.read(SCHEMA, columns=["number"], conditions=chosen)["number"].to_pylist()
    masked = rows_that_meet(chosen, pa.concat_tables(all_rows()))["number"].to_pylist()
    assert sorted(scanned) == masked


def test_entries_without_conditions_are_all():
    assert entries_of() == []
    assert entries_of("op", keys=(), states="s") == [
        OneOf("operator", ("op",)),
        OneOf("key", ()),
        OneOf("state", ("s",)),
    ]
