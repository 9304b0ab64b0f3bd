"""Input for the queries, made once."""

from __future__ import annotations

import pytest

from pipelines.nexmark.generator import Shape, write_events

HOURS = frozenset({"q10", "q14", "q15", "q16", "q17"})
"""Queries by hour or day: their input goes over 25 hours, that of the others over some minutes."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """The folder with the input of a query, split into `files` files."""
    result = {}

    def folder(query, files, events=1000):
        gap = 90_000_000 // events if query in HOURS else 150
        if (gap, files, events) not in result:
            result[gap, files, events] = tmp_path_factory.mktemp(f"nexmark-{files}")
            write_events(result[gap, files, events], Shape(events, gap_ms=gap), files=files)
        return result[gap, files, events]

    return folder
