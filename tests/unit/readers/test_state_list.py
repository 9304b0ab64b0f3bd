"""Counting the live entries of each state."""

from __future__ import annotations

import pytest

from headrace.log.checkpoint import Kind
from headrace.readers import state as keyed_state
from headrace.readers.state import list_states
from tests.unit.readers.opened_jobs import opened
from tests.unit.support.demo_job import entry


@pytest.mark.slow
def test_expired_entries_are_not_counted(state):
    result = {(row["operator"], row["state"]): row for row in list_states(opened(2)).dicts()}
    assert result["legs", "last_leg"] == {
        "operator": "legs", "state": "last_leg", "kind": None, "entries": 1, "keys": 1, "bytes": 9, "last_change": 2,
        "type": None,
    }  # fmt: skip
    assert result["latest", "history"]["entries"] == 1
    assert result["legs", "event_time"]["entries"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("with_expired", "entries"), [(False, 1), (True, 2)])
def test_state_counts_equal_a_scan(state, with_expired, entries):
    state.add("keyed_state", [entry("N3", '"X"', 5, expires=0)])
    state.commit(Kind.BATCH)
    result = {row["state"]: row["entries"] for row in list_states(opened(with_expired=with_expired)).dicts()}
    assert (
        result["last_leg"] == len(keyed_state.scan(opened(with_expired=with_expired), state="last_leg").rows) == entries
    )


@pytest.mark.slow
def test_counts_are_the_same_for_any_split(state, monkeypatch):
    state.add("keyed_state", [entry(f"N{number}", '"X"', 5) for number in range(4)])
    state.commit(Kind.BATCH)
    whole = list_states(opened())
    monkeypatch.setattr("headrace.tables.view.RANGE_BYTES", 1)
    assert len(opened().ranges("keyed_state")) > 1
    assert list_states(opened()) == whole
