"""Shares of keyed tasks: each row in transit belongs to one task, which gets its rows in arrival order."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct
from headrace.records.order import record_order
from headrace.records.record_columns import to_struct_array
from headrace.run.rows import ColumnarRows, read_transit, share_of, transit_table
from headrace.state.codec import encode
from headrace.state.key_groups import key_group, key_group_range
from headrace.storage.files import ParquetLayout
from headrace.storage.storage import Storage


class Item(Struct, frozen=True):
    key: str
    number: int


def staged(folder, name, items):
    orders = pa.array([record_order(item.number) for item in items], pa.binary())
    times = pa.array([item.number for item in items], pa.int64())
    kinds = pa.array([0] * len(items), pa.int32())
    keys = pa.array([encode(item.key) for item in items], pa.binary())
    rows = ColumnarRows(Item, orders, times, kinds, to_struct_array(items, Item))
    Storage(str(folder)).stage(
        name, transit_table((Item,), 0, rows, keys, 128), layout=ParquetLayout("lz4"), survives=False
    )
    return f"{folder}/{name}"


@given(
    keys=st.lists(st.sampled_from("abcdefghij"), max_size=60),
    tasks=st.integers(1, 9),
    files=st.integers(1, 3),
    data=st.data(),
)
def test_tasks_share_all_rows_in_arrival_order(tmp_path_factory, keys, tasks, files, data):
    items = [Item(key, number) for number, key in enumerate(keys)]
    folder = str(tmp_path_factory.mktemp("transit"))
    mixed = data.draw(st.permutations(items))
    paths = [staged(folder, f"{at}.parquet", mixed[at::files]) for at in range(files) if mixed[at::files]]
    rows = read_transit(paths, (Item,), Storage(""))
    batch = SimpleNamespace(max_parallelism=128, parallelism=tasks)
    for index in range(tasks):
        groups = key_group_range(index, 128, tasks)
        wanted = [item.number for item in items if key_group(encode(item.key), 128) in groups]
        assert [time for part in share_of(rows, index, batch) for time in part["timestamp"].to_pylist()] == wanted
