"""The job of `tests.unit.support.table_job` as a module, for tests with Spark: rows are numbered as they arrive, by shop."""

from __future__ import annotations

from tests.unit.support.table_job import pipeline as made

pipeline = made()
