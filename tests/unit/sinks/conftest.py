"""A job with an append sink of each format, and the rows that readers of the sink see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.memory_job import REMINDERS, MemoryJob


class AppendingJob(MemoryJob):
    """A job whose sink `reminders` gets a row for each customer."""

    def seen(self) -> list[Any]:
        """Return the customers in the sink, read through its format alone."""
        sink = self.config.sinks[REMINDERS]
        if sink.format == "delta":
            return self.sink_rows(REMINDERS, "customer")
        names = (name for name in Storage(sink.path).files() if not name.startswith("_"))
        tables = [Storage(f"{sink.path}/{name}").parquet() for name in names]
        return sorted(customer for table in tables for customer in table["customer"].to_pylist())


@pytest.fixture(params=["delta", "parquet"])
def appending_job(request, clock) -> Iterator[AppendingJob]:
    assert clock.now() == 1_000_000
    yield AppendingJob("appending", format=request.param)
    forget_disk("appending")
