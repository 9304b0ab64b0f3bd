"""Files on an object store: moto's server, in this process."""

from __future__ import annotations

from unittest import mock

import pytest

from headrace.storage.files import Files
from headrace.storage.storage import Storage
from tests.unit.support.s3 import BUCKET


@pytest.fixture
def write(storage, tmp_path):
    """Return a function that writes a file, and returns its URI."""

    def write(name, content):
        uri = f"s3://{BUCKET}/{tmp_path.name}/{name}"
        store, path = Storage(uri, storage).file_system()
        with store.open_output_stream(path) as stream:
            stream.write(content)
        return uri

    return write


def test_size_of_file_is_none_without_a_file(write, storage):
    full, empty = write("folder/full", b"abc"), write("folder/empty", b"")
    sizes = {uri: Storage(uri, storage).size() for uri in (full, empty, f"{full}.json", full.rpartition("/")[0])}
    assert [*sizes.values()] == [3, 0, None, None]
    assert [Storage(uri, storage).has() for uri in sizes] == [True, True, False, False]


def test_missing_file_is_not_searched_as_a_folder(write, storage):
    """That would be a second request."""
    store, path = Storage(write("present", b"abc"), storage).file_system()
    only_opens = mock.Mock(spec=["open_input_file"], open_input_file=store.open_input_file)
    with mock.patch.object(Files, "file_system", return_value=(only_opens, f"{path}.json")):
        assert Storage("s3://anywhere").size() is None
