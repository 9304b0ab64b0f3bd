"""Cron expressions: plain ones are accepted without croniter, as croniter would."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from croniter import CroniterError, croniter
from hypothesis import given
from hypothesis import strategies as st

from headrace.config._cron import check_cron

FIELD = st.one_of(
    st.just("*"), st.integers(-1, 61).map(str), st.sampled_from(["00", "1-5", "*/7", "0-59/0", "7", "L", "x", "1,2"])
)


@given(fields=st.lists(FIELD, min_size=5, max_size=5))
def test_check_agrees_with_croniter(fields):
    text = " ".join(fields)
    try:
        croniter(text, datetime(2000, 1, 1, tzinfo=UTC)).get_next()
    except CroniterError:
        with pytest.raises(ValueError, match="cron expression"):
            check_cron(text)
    else:
        check_cron(text)


@pytest.mark.parametrize("text", ["0 5 * * *", "59 23 28 12 6", "0 0 1 1 0"])
def test_plain_expressions_are_allowed(text):
    check_cron(text)
