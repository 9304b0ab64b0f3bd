"""Rows in transit: each row belongs to one keyed task, which reads its rows in arrival order, and no others."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct
from headrace.records.order import record_order
from headrace.records.record_columns import to_struct_array
from headrace.run import transit
from headrace.run.rows import ColumnarRows
from headrace.run.transit import block_limit, blocks, read_share, transit_table, write_transit
from headrace.state.codec import encode
from headrace.state.key_groups import key_group, key_group_range
from headrace.storage.files import Files
from headrace.storage.storage import Storage

GROUPS = 128


class Item(Struct, frozen=True):
    key: str
    number: int
    parts: list[float | None] | None = None


class Other(Struct, frozen=True):
    text: str | None


def settings(tasks, memory=None):
    def memory_for(part):
        return None if memory is None else max(1, memory // part)

    return SimpleNamespace(max_parallelism=GROUPS, parallelism=tasks, max_memory=memory, memory_for=memory_for)


def table_of(records, takes=(Item,), number=0):
    """Return records, whose places are their numbers, as rows for transit."""
    orders = pa.array([record_order(place) for place, _, _ in records], pa.binary())
    times = pa.array([place for place, _, _ in records], pa.int64())
    kinds = pa.array([0] * len(records), pa.int32())
    keys = pa.array([encode(key) for _, key, _ in records], pa.binary())
    columns = to_struct_array([record for _, _, record in records], takes[number])
    rows = ColumnarRows(takes[number], orders, times, kinds, columns)
    return transit_table(takes, number, rows, keys, GROUPS)


def staged(folder, name, records, tasks, *, takes=(Item,), number=0):
    """Write records as a file in transit."""
    return write_transit(folder, name, table_of(records, takes, number), settings(tasks))


def staged_in_blocks(folder, name, records, tasks, memory):
    """Write records as files in transit, with a limit of memory."""
    batch = settings(tasks, memory)
    parts = blocks(table_of(records), block_limit(batch, 1))
    return [write_transit(folder, f"{name}-{at}.arrows", part, batch) for at, part in enumerate(parts)]


def items(keys):
    return [(number, key, Item(key, number, [number / 3, None])) for number, key in enumerate(keys)]


def share(files, index, folder, takes=(Item,), limit=None):
    return [row for part in read_share(files, index, takes, folder, limit) for row in part.to_pylist()]


@pytest.fixture(params=["disk", "object store"])
def folder(request, tmp_path):
    if request.param == "disk":
        return Storage(str(tmp_path))
    return Storage(f"memory://transit-{request.node.name}-{tmp_path.name}")


@given(
    keys=st.lists(st.sampled_from("abcdefghij"), max_size=60),
    tasks=st.integers(1, 9),
    files=st.integers(1, 3),
    data=st.data(),
)
def test_tasks_share_all_rows_in_arrival_order(tmp_path_factory, keys, tasks, files, data):
    folder = Storage(str(tmp_path_factory.mktemp("transit")))
    records = items(keys)
    mixed = data.draw(st.permutations(records))
    parts = [sorted(part) if data.draw(st.booleans()) else part for at in range(files) if (part := mixed[at::files])]
    written = [staged(folder, f"{at}.arrows", part, tasks) for at, part in enumerate(parts)]
    for index in range(tasks):
        groups = key_group_range(index, GROUPS, tasks)
        own = [record for _, key, record in records if key_group(encode(key), GROUPS) in groups]
        assert [row["in0"] for row in share(written, index, folder)] == [
            {"key": item.key, "number": item.number, "parts": item.parts} for item in own
        ]


@given(
    keys=st.lists(st.sampled_from("abcdefghij"), max_size=60),
    tasks=st.integers(1, 5),
    writers=st.integers(1, 3),
    memory=st.sampled_from([1, 2000, 20_000, 100_000]),
    data=st.data(),
)
def test_limits_of_memory_keep_rows_and_order(tmp_path_factory, keys, tasks, writers, memory, data):
    folder = Storage(str(tmp_path_factory.mktemp("transit")))
    mixed = data.draw(st.permutations(items(keys)))
    parts = [
        sorted(part) if data.draw(st.booleans()) else part for at in range(writers) if (part := mixed[at::writers])
    ]
    whole = [staged(folder, f"{at}.arrows", part, tasks) for at, part in enumerate(parts)]
    divided = [file for at, part in enumerate(parts) for file in staged_in_blocks(folder, str(at), part, tasks, memory)]
    with mock.patch.object(transit, "ROWS_AT_ONCE", data.draw(st.sampled_from([3, 100]))):
        for index in range(tasks):
            assert share(divided, index, folder, limit=memory) == share(whole, index, folder)


@contextmanager
def counted_memory():
    """Note the bytes of rows that a reader puts in order at once."""
    sizes, real = [], transit._in_order

    def in_order(tables):
        sizes.append(sum(table.nbytes for table in tables))
        return real(tables)

    with mock.patch.object(transit, "_in_order", in_order):
        yield sizes


@pytest.mark.parametrize("keys", [[f"key-{number % 500}" for number in range(8000)], ["hot"] * 8000])
@pytest.mark.parametrize("tasks", [1, 4])
def test_readers_hold_a_part_of_their_memory(tmp_path, keys, tasks):
    """Each task is a writer, too, of rows between those of all others. Also where one key has all rows, memory is enough."""
    folder, memory, records = Storage(str(tmp_path)), 300_000, items(keys)
    files = [
        file for at in range(tasks) for file in staged_in_blocks(folder, str(at), records[at::tasks], tasks, memory)
    ]
    whole = table_of(records).nbytes
    assert whole > 2 * memory
    assert max(map(max, (file.sizes for file in files))) <= memory / (8 * tasks)
    for index in range(tasks):
        with counted_memory() as sizes:
            share(files, index, folder, limit=memory)
        assert max(sizes, default=0) <= memory / 4


def test_row_beyond_all_memory_comes_alone(tmp_path):
    folder = Storage(str(tmp_path))
    records = [(0, "a", Item("a", 0)), (1, "a", Item("x" * 100_000, 1)), (2, "a", Item("a", 2))]
    files = staged_in_blocks(folder, "0", records, 1, 10_000)
    assert [file.rows for file in files] == [[1], [1], [1]]
    assert [row["timestamp"] for row in share(files, 0, folder, limit=10_000)] == [0, 1, 2]


def test_files_are_plain_streams(tmp_path):
    file = staged(Storage(str(tmp_path)), "0.arrows", items("abcabc"), 4)
    with pa.ipc.open_stream(file.path) as stream:
        assert sorted(stream.read_all()["timestamp"].to_pylist()) == [0, 1, 2, 3, 4, 5]


def test_inputs_of_a_stage_keep_their_records(folder):
    takes = (Item, Other)
    files = [
        staged(folder, "0.arrows", items("ab"), 2, takes=takes),
        staged(folder, "1.arrows", [(2, "a", Other(None)), (3, "b", Other("x"))], 2, takes=takes, number=1),
    ]
    rows = sorted(
        (row for index in range(2) for row in share(files, index, folder, takes)), key=lambda row: row["order"]
    )
    assert [(row["input"], row["in0"] is None, row["in1"]) for row in rows] == [
        (0, False, None), (0, False, None), (1, True, {"text": None}), (1, True, {"text": "x"}),
    ]  # fmt: skip


@contextmanager
def counted_reads(monkeypatch):
    """Count the bytes that are read from files."""
    total, opened = [0], Files.open

    class Counted:
        def __init__(self, file):
            self._file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def read_at(self, size, begin):
            content = self._file.read_at(size, begin)
            total[0] += len(content)
            return content

    with monkeypatch.context() as patched:
        patched.setattr(Files, "open", lambda at, path="": Counted(opened(at, path)))
        yield total


@pytest.mark.slow
def test_tasks_together_read_each_row_once(folder, monkeypatch):
    """Bytes and rows of 32 tasks together are at most a tenth more than those of one task."""
    keys = [f"key-{number % 5000}" for number in range(80_000)]
    costs = {}
    for tasks in (1, 32):
        files = [
            staged(folder, f"{tasks}-{at}.arrows", [(n, key, Item(key, n)) for n, key in enumerate(keys)][at::2], tasks)
            for at in range(2)
        ]
        with counted_reads(monkeypatch) as total:
            rows = [sum(part.num_rows for part in read_share(files, index, (Item,), folder)) for index in range(tasks)]
        costs[tasks] = total[0], sum(rows)
        assert max(rows) < 3 * len(keys) / tasks
    assert costs[32][1] == costs[1][1] == len(keys)
    assert costs[32][0] <= 1.1 * costs[1][0]


@pytest.mark.parametrize("damage", ["shorter", "other rows", "gone"])
def test_incomplete_files_raise_raw_errors(tmp_path, damage):
    file = staged(Storage(str(tmp_path)), "0.arrows", items("a"), 1)
    path = tmp_path / "0.arrows"
    if damage == "shorter":
        path.write_bytes(path.read_bytes()[: file.ends[0] // 2])
    elif damage == "other rows":
        path.write_bytes(b"")
    else:
        path.unlink()
    with pytest.raises((OSError, pa.ArrowInvalid)):
        share([file], 0, Storage(str(tmp_path)))


def test_task_without_rows_reads_nothing(tmp_path):
    file = staged(Storage(str(tmp_path)), "0.arrows", items("a"), 128)
    (tmp_path / "0.arrows").unlink()
    empty = next(index for index, rows in enumerate(file.rows) if not rows)
    assert share([file], empty, Storage(str(tmp_path))) == []


@given(keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=40), most=st.integers(1, 5), data=st.data())
def test_texts_beyond_a_column_come_in_parts(tmp_path_factory, keys, most, data):
    """Rows whose texts one column cannot hold have the same order. `most` is the number of rows that a column can hold here."""

    def refuse(tables):
        raise pa.ArrowInvalid

    def concatenated(parts):
        if len(parts) > 1 and sum(part.num_rows for part in parts) > most:
            raise pa.ArrowInvalid
        return pa.concat_batches(parts)

    folder = Storage(str(tmp_path_factory.mktemp("transit")))
    mixed = data.draw(st.permutations(items(keys)))
    files = [staged(folder, f"{at}.arrows", part, 2) for at in range(3) if (part := mixed[at::3])]
    for index in range(2):
        expected = share(files, index, folder)
        with (
            mock.patch.object(transit, "_combined", refuse),
            mock.patch.object(transit, "_concatenated", concatenated),
            mock.patch.object(transit, "ROWS_AT_ONCE", 7),
        ):
            assert share(files, index, folder) == expected
