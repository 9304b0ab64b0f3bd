"""Live entries of keyed state, of one key or in key order."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.readers import state as keyed_state
from tests.unit.readers.opened_jobs import opened, values
from tests.unit.support.demo_job import entry


def test_last_change_of_entry_is_its_state(state):
    assert values(keyed_state.get(opened(), "N1", state="last_leg")) == ['"LAX-SFO"']


def test_removed_entry_stays_in_the_history(state):
    assert values(keyed_state.get(opened(2), "N2")) == []
    assert values(keyed_state.get(opened(1), "N2")) == ['"JFK-BOS"']


def test_expired_entries_hide_exactly_at_the_watermark(state):
    assert values(keyed_state.get(opened(2), "N3")) == []
    assert values(keyed_state.get(opened(2, with_expired=True), "N3")) == ['"X"']


def test_materializer_rows_belong_to_their_key(state):
    (row,) = keyed_state.get(opened(2), "N1", state="history").dicts()
    assert (row["operator"], row["user_key"], row["value"]) == ("latest", "4", '{"tail":"N1"}')


def test_scanning_goes_by_prefix_in_key_order(state):
    assert values(keyed_state.scan(opened(1), prefix="N")) == ['"JFK-LAX"', '"JFK-BOS"']
    assert values(keyed_state.scan(opened(1), prefix="N2")) == ['"JFK-BOS"']
    with pytest.raises(ConfigError, match="has no state 'nope'"):
        keyed_state.scan(opened(1), state="nope")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3, 50])
def test_scan_is_the_same_for_any_split(state, monkeypatch, limit):
    rows = [entry(f"N{number}", f'"{number}"', 5) for number in range(6)]
    state.add("keyed_state", [rows[0] | {"user_key": '"u"'}, rows[0] | {"namespace": '"n"'}, *rows])
    state.commit(Kind.BATCH)
    whole = keyed_state.scan(opened(), limit=limit)
    monkeypatch.setattr("headrace.tables.view.RANGE_BYTES", 1)
    assert keyed_state.scan(opened(), limit=limit) == whole
