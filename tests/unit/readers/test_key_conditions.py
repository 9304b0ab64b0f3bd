"""Keys in the spelling of people."""

from __future__ import annotations

import pytest

from headrace.readers import state as keyed_state
from tests.unit.readers.opened_jobs import opened


@pytest.mark.parametrize("key", ["N1", '"N1"'])
def test_text_key_needs_no_quotes(state, key):
    assert len(keyed_state.get(opened(), key, "legs").rows) == 1


@pytest.mark.parametrize("key", ["' OR 1=1 --", "N1' OR '1'='1", '"', "", "\x00", "ü"])
def test_odd_key_text_is_not_found(state, key):
    assert keyed_state.get(opened(), key).rows == []
