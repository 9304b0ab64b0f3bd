"""Held records, written to their table and read back (deltalake, no JVM)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.errors import StorageError
from headrace.execution.drain import BufferedRequest
from headrace.records.order import record_order
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.changelog import Changelog
from headrace.tables.folder import JobFolder
from headrace.tables.requests import load_buffered_requests, numbered_requests
from headrace.tables.schemas import BUFFERED_REQUESTS

ALL = KeyGroupRange(0, 127)


def request(ordinal, **more):
    return BufferedRequest(
        order=record_order(ordinal), timestamp=ordinal, kind=0, key_json=b'"a"', raw=b'{"n":1}', **more
    )


@pytest.fixture
def stored(tmp_path):
    def store(*requests, without=(), **columns):
        rows = Changelog("paid", 3, 128).buffered([], numbered_requests(requests, 3))
        for name, text in columns.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array([text] * rows.num_rows))
        rows = rows.drop_columns([*without]) if without else rows
        write_deltalake(tmp_path / BUFFERED_REQUESTS, pa.table(rows))
        return [
            load_buffered_request.request
            for load_buffered_request in load_buffered_requests(JobFolder(str(tmp_path)), 0, "paid", ALL)
        ]

    return store


def test_held_records_are_loaded_with_their_input(stored):
    held = [request(1, input=1), request(2), request(3, input=1, block_id="add", state="total", index=2)]
    assert stored(*held) == held


def test_rows_of_older_formats_are_first_input(stored):
    assert stored(request(1), without=["input"]) == [request(1, input=0)]


@pytest.mark.parametrize("damage", [{"request": ""}, {"request": "null"}, {"record": "{}"}, {"record": "["}])
def test_unreadable_records_name_table_and_row(stored, damage):
    with pytest.raises(StorageError, match="buffered_requests is damaged: column 'record' or 'request' is unreadable"):
        stored(request(1), **damage)
