"""What errors of storage advise: each cause has its own way out."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest

from headrace.errors import StorageError
from headrace.storage import files
from headrace.storage.refusals import doing, storage_advice
from headrace.storage.storage import Storage
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES

CAUSES = {
    errno.ENOSPC: "free space, then",
    errno.EDQUOT: "free space, then",
    errno.ENOENT: "correct the path",
    errno.ENOTDIR: "correct the path",
    errno.EACCES: "the right to read and write",
    errno.EPERM: "the right to read and write",
    errno.EROFS: "mount the file system for writing",
    errno.EIO: "repair what it reports",
    errno.ECONNREFUSED: "repair what it reports",
}
ROWS = pa.table({"key": ["a"]})


def refused_by(number):
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(("number", "advice"), CAUSES.items())
def test_each_cause_has_its_advice(number, advice):
    with pytest.raises(StorageError, match=advice), doing("to read x"):
        raise refused_by(number)
    assert advice in storage_advice(f"task failed: {refused_by(number)}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_refused_write_names_its_cause(tmp_path, monkeypatch, number):
    def refuse(*_arguments, **_options):
        raise refused_by(number)

    monkeypatch.setattr(files, "make_folder", refuse)
    with pytest.raises(StorageError, match=CAUSES[number]):
        Storage(str(tmp_path / "table")).stage("x.parquet", ROWS)


def test_path_below_a_file_is_no_full_disk(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="correct the path") as refusal, doing("to create a table"):
        Storage(str(tmp_path / "file" / "table")).table().create(STATE_TABLES[KEYED_STATE].schema)
    assert "free space" not in str(refusal.value)
