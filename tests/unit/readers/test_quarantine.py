"""The quarantined rows."""

from __future__ import annotations

from headrace.readers.waiting import list_quarantine
from tests.unit.readers.opened_jobs import opened


def test_quarantine_keeps_the_reason(state):
    (row,) = list_quarantine(opened()).dicts()
    assert (row["position"], row["raw"], row["error"]) == ("f:7", "[bold]", "no tail")
