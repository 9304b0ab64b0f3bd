"""A job on a disk in memory, on a clock that stands still."""

from __future__ import annotations

import pytest

from headrace.tables.memory_disk import forget_disk
from tests.unit.support.memory_job import MemoryJob


@pytest.fixture
def memory_job(clock):
    """A job that was never run. Its time is the test's."""
    assert clock.now() == 1_000_000
    yield MemoryJob("job")
    forget_disk("job")
