"""Tasks of Spark run in this process, which is no worker."""

from __future__ import annotations

import pytest

from headrace import logs


@pytest.fixture(autouse=True)
def process_is_no_worker(monkeypatch):
    """Let tasks set up no lines: a worker keeps them until it ends, and so would all tests behind these ones."""
    monkeypatch.setattr(logs, "set_up_worker", lambda: None)
