"""Kinds of sources, and what a new one has to say."""

from __future__ import annotations

import typing

import msgspec
import pyarrow as pa
import pytest

from headrace.config._source import SOURCE_FORMATS, SourceConfig
from headrace.errors import ConfigError
from headrace.sources import registry
from headrace.sources.folder.format import FileRows
from headrace.sources.position import FolderPosition
from headrace.sources.registry import KINDS
from headrace.sources.row_check import event_times_of
from headrace.sources.source import Ahead, Remark, Source, SourceFile
from headrace.testing import PipelineHarness
from tests.unit.support.table_job import pipeline


def test_each_format_has_a_kind():
    names = typing.get_args(typing.get_type_hints(SourceConfig)["format"])
    assert {*names} == {*SOURCE_FORMATS} == {*KINDS}


class Hours(Source):
    """A kind of source: one row for each hour, of which no file exists."""

    position = FolderPosition
    last = 3

    def __init__(self, node, config):
        self.node, self.config = node, config

    @classmethod
    def of(cls, node, job, _connection=None):
        return cls(node, job.sources[node.name])

    @staticmethod
    def read(file, _node, _storage=None):
        hour = msgspec.json.decode(file.facts, type=int)
        return FileRows(pa.table({"shop": ["a"], "at": [hour * 3_600_000], "name": [f"hour {hour}"]}))

    def remarks(self):
        yield Remark("ok", f"{self.last} hours")

    def _file(self, hour):
        return SourceFile(f"{hour:02}", f"hours/{hour}", 0, "delta", msgspec.Raw(b"%d" % hour))

    def plan(self, since, want):
        files = tuple(self._file(hour) for hour in range(int(since.last or -1) + 1, self.last))
        return Ahead(want, files, files)

    def find(self, names):
        return {name: self._file(int(name)) for name in names}

    def within_limits(self, files, rows_taken=0):
        return files[: self.config.max_files_per_batch]

    def rows(self, file):
        return 1

    def event_times(self, file, limit=None):
        return event_times_of(self.read(file, self.node), self.node, limit)

    def facts_after(self, since, ahead, files):
        last = max([since.last, *(file.name for file in files)])
        return msgspec.structs.replace(since, position=FolderPosition(last, since.begun, since.rows))


@pytest.fixture
def hours(monkeypatch):
    """A job whose source is of the kind `Hours`, in place of that of Delta tables."""
    monkeypatch.setitem(KINDS, "delta", Hours)
    monkeypatch.setitem(registry._READERS, "delta", Hours.read)
    source = {"format": "delta", "path": "hours", "max_files_per_batch": 2}
    return PipelineHarness(pipeline(), job={"sources": {"rows": source}})


def names(job):
    return [row.name for row in sorted(job.sink("arrived"), key=lambda row: row.number)]


def test_new_kind_needs_its_class_alone(hours, monkeypatch):
    hours.run()
    assert names(hours) == ["hour 0", "hour 1", "hour 2"]
    monkeypatch.setattr(Hours, "last", 4)
    hours.run()
    assert names(hours) == ["hour 0", "hour 1", "hour 2", "hour 3"]


def test_kind_without_intervals_refuses_interval_runs(hours):
    with pytest.raises(ConfigError, match="source 'rows' has no 'interval' in its configuration"):
        hours.run(mode="interval", interval_start=0, interval_end=1)
