"""Names of backfills' branches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.names import is_name
from headrace.run.backfill_branches import default_name
from headrace.sources.interval import Interval

DAY = 86_400_000
TIMESTAMPS = st.integers(0, 4_000_000_000_000)


@given(TIMESTAMPS, TIMESTAMPS)
def test_default_name_is_a_name(one, other):
    assert is_name(default_name(Interval(min(one, other), max(one, other) + 1)))


def test_name_has_times_only_if_needed():
    assert default_name(Interval(0, 2 * DAY)) == "backfill_19700101_19700103"
    assert default_name(Interval(0, DAY // 2)) == "backfill_19700101t000000_19700101t120000"
