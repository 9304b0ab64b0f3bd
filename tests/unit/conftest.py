"""A virtual clock, and every state backend: one test body runs on every backend."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from contextlib import contextmanager, nullcontext

import hypothesis
import pytest

from headrace import clock as engine_clock
from headrace.config import allow_scheme
from headrace.state.backend import HashMapBackend
from headrace.state.rocksdb import RocksDbBackend, StateCache
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness
from headrace.testing._memory_disk import forget_disk
from headrace.testing._memory_table import open_memory
from tests.jobs.home import Home
from tests.jobs.quick_syncs import without_waiting
from tests.unit.support.command_line import make_applications_once
from tests.unit.support.committed_state import CommittedState, Memory
from tests.unit.support.fuzzing import FACTOR
from tests.unit.support.memory_job import MemoryJob
from tests.unit.support.purchase_job import put_on_object_store
from tests.unit.support.s3 import object_store

# Files of jobs may name places in memory, also in a process whose first test makes no `PipelineHarness`.
allow_scheme(open_memory())

# The machine is shared, so a slow example proves nothing; a failure prints what reproduces it. Developers draw new examples
# in each run. `.ci/run` draws the same ones for the same tests, so that it fails for what was changed.
hypothesis.settings.register_profile(
    "engine",
    deadline=None,
    max_examples=round(25 * FACTOR),
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("engine")
make_applications_once()


def pytest_collection_modifyitems(items):
    """Mark the properties: `make test-long` draws more examples for them."""
    for item in items:
        if getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker("drawn")


@pytest.fixture(autouse=True)
def real_time():
    """Check that no test leaves its clock installed."""
    yield
    left = engine_clock.use(engine_clock.SystemClock())
    assert isinstance(left, engine_clock.SystemClock), "the test has left a clock of its own in place"


@pytest.fixture(autouse=True)
def own_lines():
    """Check that no test leaves its lines set up: then those of the next tests are in another form."""
    before = [*logging.getLogger("headrace").handlers]
    yield
    assert logging.getLogger("headrace").handlers == before, "the test has left its lines set up"


@pytest.fixture(autouse=True)
def quick_syncs():
    """Wait for no disk. The tests of durability have a fixture of this name that changes nothing."""
    with without_waiting():
        yield


@contextmanager
def tables_in_memory():
    """Let harnesses keep state and sinks in memory: commits to Delta tables are most of the time of a small job.

    `storage/test_store_contract.py` holds both kinds of tables to one contract.
    """
    begin = PipelineHarness.__post_init__

    def begin_in_memory(harness, now):
        if harness.storage is None:
            name = f"harness-{next(DISKS)}"
            harness.storage = f"memory://{name}"
            weakref.finalize(harness, forget_disk, name)
        begin(harness, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineHarness, "__post_init__", begin_in_memory)
        yield


DISKS = itertools.count(1)
DELTA = {"cli", "commit", "docs", "edits", "readers", "sinks", "storage"}
"""Folders whose tests are about tables, or show what people see of them."""


@pytest.fixture(autouse=True, scope="module")
def quick_tables(request):
    """Let harnesses write no Delta tables, except in modules that are marked with `delta`. In long tests all of them write some."""
    is_about_tables = request.path.parent.name in DELTA or request.node.get_closest_marker("delta")
    with nullcontext() if FACTOR > 1 or is_about_tables else tables_in_memory():
        yield


@pytest.fixture
def clock():
    """A clock that stands still until the test moves it."""
    virtual = engine_clock.VirtualClock(1_000_000)
    with engine_clock.installed(virtual):
        yield virtual


@pytest.fixture(scope="session")
def storage():
    """The options that lead to an object store, which all tests share: each has a folder of its own there."""
    with object_store() as storage:
        yield storage


class Backends:
    """Lends empty backends of one kind and takes them back: opening a RocksDB costs 20 ms, emptying it 0.1 ms."""

    def __init__(self, kind, folder):
        self.kind = kind
        self._folder = folder
        self._free = []
        self._made = 0
        self._tables = None
        self._opened = {}

    @contextmanager
    def lent(self):
        """A function that gives an empty backend with each call; all are taken back at the end of the block."""
        lent = []

        def new():
            backend = self._free.pop() if self._free else self._open()
            lent.append(backend)
            return backend

        yield new
        if self.kind == "delta":
            return  # another one over the same empty tables is made in no time
        for backend in lent:
            backend.write_batch([(entry, None) for entry in dict(backend.items())])
        self._free += lent

    def close(self):
        for backend in self._free:
            backend.close()

    def _open(self):
        self._made += 1
        if self.kind == "hashmap":
            return HashMapBackend()
        if self.kind == "rocksdb":
            return RocksDbBackend(self._folder / str(self._made))
        if self.kind == "rocksdb that waits":
            return RocksDbBackend(self._folder / str(self._made), inline_reads_below=0)
        self._tables = self._tables or CommittedState(JobFolder(str(self._folder)))
        backend = self._tables.backend(StateCache(Memory(), 1 << 20))
        backend._tables = self._opened  # the same empty tables for all: opening them costs 10 ms
        return backend


@pytest.fixture(params=["hashmap", "rocksdb", "rocksdb that waits", "delta"], scope="session")
def backends(request, tmp_path_factory):
    """Lends as many backends as an example of a property needs."""
    result = Backends(request.param, tmp_path_factory.mktemp("backends"))
    yield result
    result.close()


@pytest.fixture
def backend(backends):
    """One empty backend."""
    with backends.lent() as new:
        yield new()


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
