"""Cron expressions of schedules: read as Airflow reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from croniter import CroniterError, croniter
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import load_job
from headrace.config._values import check_cron
from headrace.errors import ConfigError

GOOD = [
    "0 5 * * *",
    "*/15 8-18 * * MON-FRI",
    "0 0 29 2 *",
    "0 0 L * *",
    "@hourly",
    "@daily",
    "@weekly",
    "@monthly",
    "@yearly",
]
BAD = [
    "61 * * * *",
    "* 24 * * *",
    "*/0 * * * *",
    "a b c d e",
    "* * * *",
    "0 * * * * *",
    "@midnight",
    "R * * * *",
    "daily",
]

FIELD = st.one_of(
    st.just("*"), st.integers(-1, 61).map(str), st.sampled_from(["00", "1-5", "*/7", "0-59/0", "L", "x", "1,2"])
)


def _schedule(cron: str) -> str:
    return f"schedule:\n  cron: '{cron}'\n  start: 2026-01-01\n"


@pytest.mark.parametrize("cron", GOOD)
def test_cron_expression_is_accepted(home, job_file, cron):
    job_file(_schedule(cron))
    assert load_job("demo").schedule.cron == cron


@pytest.mark.parametrize("cron", BAD)
def test_bad_cron_is_refused_with_its_line(home, job_file, cron):
    job_file(_schedule(cron))
    with pytest.raises(ConfigError, match=r"demo.yaml:11: schedule.cron: '.*' is not a cron expression.*@yearly"):
        load_job("demo")


def test_cron_without_any_date_is_refused(home, job_file):
    job_file(_schedule("0 0 30 2 *"))
    with pytest.raises(ConfigError, match=r"demo.yaml:11: schedule.cron: no timestamp matches .*'0 0 30 2 \*'"):
        load_job("demo")


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
