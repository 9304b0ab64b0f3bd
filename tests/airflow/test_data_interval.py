"""The interval of a run of a trigger timetable: "@daily" in one's own DAG."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, DeltaTriggerTimetable
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.airflow._run_operator import interval_of_trigger
from headrace.airflow._words import with_interval

AT = datetime(2026, 1, 3, tzinfo=UTC)


def interval(schedule, start, end):
    with DAG("mine", schedule=schedule) as dag:
        pass
    run = SimpleNamespace(data_interval_start=start, data_interval_end=end)
    return interval_of_trigger({"dag": dag, "dag_run": run})


def test_daily_run_has_the_day_that_ended():
    assert interval("@daily", AT, AT) == ("2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")


@pytest.mark.parametrize(
    ("cron", "at", "start"),
    [
        ("@hourly", datetime(2026, 1, 3, 5, tzinfo=UTC), "2026-01-03T04:00:00+00:00"),
        ("0 6 * * 1-5", datetime(2026, 1, 5, 6, tzinfo=UTC), "2026-01-02T06:00:00+00:00"),
        ("@monthly", datetime(2026, 3, 1, tzinfo=UTC), "2026-02-01T00:00:00+00:00"),
    ],
)
def test_interval_begins_at_the_previous_trigger(cron, at, start):
    assert interval(cron, at, at) == (start, at.isoformat())


def test_run_by_hand_has_the_last_complete_interval():
    noon = AT + timedelta(hours=12)
    assert interval("@daily", noon, noon) == ("2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")


@pytest.mark.parametrize(
    ("schedule", "start", "end"),
    [
        (CronDataIntervalTimetable("@daily", timezone="UTC"), AT - timedelta(days=1), AT),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), AT, AT),
        (DeltaTriggerTimetable(timedelta(days=1)), AT, AT),
        ("@daily", AT - timedelta(hours=2), AT),
        ("@daily", None, None),
        (None, None, None),
    ],
)
def test_other_runs_keep_their_interval(schedule, start, end):
    assert interval(schedule, start, end) is None


@given(
    st.dates(date(2020, 1, 1), date(2030, 1, 1)),
    st.sampled_from(["Europe/Berlin", "America/New_York"]),
)
@settings(max_examples=25, deadline=None)
def test_days_of_a_zone_join_without_a_gap(day, zone):
    from airflow.sdk import CronTriggerTimetable

    midnights = [datetime(*(day + timedelta(days=n)).timetuple()[:3], tzinfo=ZoneInfo(zone)) for n in range(3)]
    timetable = CronTriggerTimetable("0 0 * * *", timezone=zone)
    intervals = [interval(timetable, at.astimezone(UTC), at.astimezone(UTC)) for at in midnights[1:]]

    timestamps = [[datetime.fromisoformat(timestamp).astimezone(UTC) for timestamp in pair] for pair in intervals]
    assert timestamps == [[at.astimezone(UTC) for at in pair] for pair in pairwise(midnights)]


def test_interval_replaces_the_words_of_the_run():
    words = ["run", "j", "--interval-start=a", "--mode=auto", "--interval-end=a"]
    assert with_interval(words, ("b", "c")) == ["run", "j", "--mode=auto", "--interval-start=b", "--interval-end=c"]
