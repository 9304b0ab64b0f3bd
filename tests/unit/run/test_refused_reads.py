"""A file that a disk refuses to read is not damaged: nothing is set aside, and the next run takes its rows in."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.errors import HeadraceError, SourceError, StorageError
from headrace.sources.folder.format import is_damage, unreadable
from headrace.storage.storage import Storage
from headrace.testing import World
from headrace.testing import _memory_disk as module

NOW = 1_704_103_200_000
FILE = "2024-01-01.parquet"


class Row(Struct, frozen=True):
    id: str
    at: Timestamp


def harness_of(world, policy, *, complete):
    pipeline = Pipeline("rows").source("rows", Row, event_time="at").sink("taken")
    source = {"path": f"{world.storage}/input", "on_bad_file": policy, "complete_intervals": complete}
    job = {"sources": {"rows": {**source, "interval": "%Y-%m-%d"}}}
    return world.job(pipeline, job=job)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("policy", ["quarantine", "fail"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOENT])
def test_refused_file_is_read_by_the_next_run(number, policy, complete, monkeypatch):
    world = World(now=NOW)
    Storage(f"{world.storage}/input").stage(FILE, pa.table({"id": ["a", "b"], "at": [1, 2]}))
    harness = harness_of(world, policy, complete=complete)
    read = module._Handler.open_input_file

    def refuse(handler, path):
        if path.endswith(FILE):
            raise OSError(number, os.strerror(number), path)
        return read(handler, path)

    with monkeypatch.context() as patched:
        patched.setattr(module._Handler, "open_input_file", refuse)
        with pytest.raises(HeadraceError, match=rf"cannot read .*{FILE}: .*{os.strerror(number)}"):
            harness.run()
    assert harness.run().quarantined == 0
    assert harness.sink_table("taken")["id"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("Couldn't deserialize thrift"), SourceError),
        (pa.ArrowInvalid("Not a Parquet file"), SourceError),
        (FileNotFoundError(errno.ENOENT, "No such file"), SourceError),
        (OSError(errno.EIO, "Input/output error"), StorageError),
        (OSError("When reading information for key: AWS Error NETWORK_CONNECTION"), StorageError),
    ],
)
def test_only_refusals_of_storage_are_tried_again(error, expected):
    assert type(unreadable("rows", "x.parquet", error)) is expected
    assert is_damage(error) == (expected is SourceError and not isinstance(error, FileNotFoundError))
