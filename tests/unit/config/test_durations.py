from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import format_duration, parse_duration


@given(st.integers(min_value=0, max_value=10**12))
def test_formatted_durations_can_be_parsed(milliseconds):
    span = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(span)) == span


@pytest.mark.parametrize("text", ["", "m", "5x", "30m1h", "1h1h", "-5s", "1.5h", " 5s", "5 s", "5s\n", "9" * 30])
def test_malformed_durations_are_refused(text):
    with pytest.raises(ValueError, match=r"duration|hundred"):
        parse_duration(text)
