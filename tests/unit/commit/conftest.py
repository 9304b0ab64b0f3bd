"""A job on a disk in memory, on a clock that stands still; and one on a local disk and on an object store."""

from __future__ import annotations

import pytest

from headrace.tables.memory_disk import forget_disk
from tests.jobs.home import Home
from tests.unit.support.memory_job import MemoryJob
from tests.unit.support.purchase_job import put_on_object_store


@pytest.fixture
def memory_job(clock):
    """A job that was never run. Its time is the test's."""
    assert clock.now() == 1_000_000
    yield MemoryJob("job")
    forget_disk("job")


@pytest.fixture(params=["disk", pytest.param("object store", marks=pytest.mark.slow)])
def new_job(request, tmp_path, monkeypatch):
    """The configuration of a job that was never run, on each kind of storage."""
    home = Home(tmp_path)
    if request.param == "object store":
        put_on_object_store(home, request.getfixturevalue("storage"), monkeypatch)
    return home.config()
