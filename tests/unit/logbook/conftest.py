"""The raw tables of some flights, made once."""

from __future__ import annotations

import pytest

from tests.jobs.logbook_days import write_raw


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("logbook") / "raw")
