"""The delta backend over tables on an object store: moto's server, in this process."""

from __future__ import annotations

import pytest
from pyarrow import fs

from headrace.errors import StorageError
from headrace.materializer.stored_history import history_entry
from headrace.state.backend import value_entry
from headrace.state.codec import encode
from headrace.state.rocksdb import StateCache
from headrace.state.timers import Timer, timer_entry
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from tests.unit.support.committed_state import EVERYTHING, CommittedState, Memory
from tests.unit.support.s3 import BUCKET


@pytest.fixture
def committed(storage, tmp_path):
    return CommittedState(JobFolder(f"s3://{BUCKET}/{tmp_path.name}", storage))


@pytest.mark.slow
def test_delta_backend_has_the_committed_entries(committed):
    committed.values("counts", "n", {encode(number): b"%d" % number for number in range(200)})
    committed.values("counts", "n", {encode(number): None for number in range(0, 200, 3)})
    committed.timers("counts", {Timer(number, encode(number)): True for number in range(20)})
    committed.histories("counts", {encode("a"): [b"1", b"2"]})
    for _ in ("as appended", "compacted"):
        backend, expected = committed.backend(StateCache(Memory(), 1 << 20)), committed.of(EVERYTHING)
        asked = [*(value_entry("n", encode(number)) for number in range(250)), history_entry(encode("a"))]
        assert backend.get_many(asked) == [expected.get(entry) for entry in asked]
        assert len(list(backend.scan(timer_entry(Timer(5, b"")), timer_entry(Timer(9, b""))))) == 4
        assert dict(backend.items()) == expected
        committed.compact(KEYED_STATE)


def test_missing_file_is_error_naming_the_table(committed):
    committed.values("counts", "n", {encode("a"): b"1"})
    store = committed.backend(StateCache(Memory(), 1))._table(KEYED_STATE)._store
    folder = committed.folder.uri.removeprefix("s3://")
    for file in store.get_file_info(fs.FileSelector(f"{folder}/{KEYED_STATE}")):
        if file.extension == "parquet":
            store.delete_file(file.path)
    with pytest.raises(StorageError, match=r"to read s3://.*keyed_state"):
        committed.backend(StateCache(Memory(), 1)).get_many([value_entry("n", encode("a"))])
