"""Partitions of assets: keys of intervals, DAG runs for a partition, and the events of runs, as Airflow's own scheduler reads them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.partition_mappers.temporal import StartOfDayMapper, StartOfMonthMapper
from airflow.sdk import DAG, Asset, CronPartitionTimetable, PartitionedAssetTimetable
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import clock
from headrace.airflow import HeadraceRunOperator
from headrace.airflow._partitions import add_keys, interval_of_partition, keys_of
from headrace.errors import ConfigError
from tests.airflow.test_run_operator import GAP, REPORT, context_of, execute, last_published

__all__ = ["last_published"]

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "America/Sao_Paulo",
]
"""The clocks of the last three have changed at midnight."""
DAY = "2026-03-01T00:00:00"


def job_with(cron="@daily", zone="UTC", sources=()):
    schedule = None if cron is None else SimpleNamespace(cron=cron, timezone=zone)
    return SimpleNamespace(schedule=schedule, sources=dict(sources), file="job.yaml")


def midnight(day, zone):
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def interval_of(job, key, timetable=None, partition_date=None):
    with DAG("mine", schedule=timetable or PartitionedAssetTimetable(assets=Asset("a.b"))) as dag:
        pass
    run = SimpleNamespace(partition_key=key, data_interval_start=None, partition_date=partition_date)
    interval = interval_of_partition({"dag": dag, "dag_run": run}, job)
    return interval and tuple(datetime.fromisoformat(text).astimezone(UTC) for text in interval)


@given(st.dates(date(2015, 1, 1), date(2026, 1, 1)), st.integers(1, 9), st.sampled_from(ZONES))
@settings(max_examples=25, deadline=None)
def test_keys_name_each_day_once(day, count, zone):
    job, days = job_with(zone=zone), [day + timedelta(days=n) for n in range(count + 1)]
    start, end = midnight(days[0], zone), midnight(days[-1], zone)
    keys = keys_of(job, [(start.isoformat(), end.isoformat())])

    assert [key[:10] for key in keys] == [day.isoformat() for day in days[:-1]]
    # With Airflow's own mappers.
    assert [StartOfDayMapper(timezone=zone).to_downstream(key) for key in keys] == [key[:10] for key in keys]
    assert {StartOfMonthMapper(timezone=zone).to_downstream(key) for key in keys} == {key[:7] for key in keys}
    intervals = [interval_of(job, key) for key in keys]
    assert [begin for begin, _ in intervals] == [midnight(day, zone) for day in days[:-1]]
    assert [end for _, end in intervals] == [midnight(day, zone) for day in days[1:]]


@given(
    st.integers(0, 300 * 1440),
    st.sampled_from(["@hourly", "@weekly", "@monthly", "0 6 * * 1-5"]),
)
@settings(max_examples=25, deadline=None)
def test_key_gives_its_interval_back(minutes, cron):
    job, moment = job_with(cron), datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    (key,) = keys_of(job, [(moment.isoformat(), (moment + timedelta(minutes=1)).isoformat())])
    begin, end = interval_of(job, key)
    assert begin <= moment < end
    assert keys_of(job, [(begin.isoformat(), end.isoformat())]) == [key]


def test_changed_zone_gives_other_keys():
    day = ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")
    assert keys_of(job_with(zone="Europe/Berlin"), [day]) == ["2026-03-29T00:00:00"]
    assert keys_of(job_with(), [day]) == ["2026-03-28T00:00:00", "2026-03-29T00:00:00"]
    in_berlin = {"rows": SimpleNamespace(timezone="Europe/Berlin")}
    assert keys_of(job_with(None, sources=in_berlin), [day]) == ["2026-03-29T00:00:00"]


@pytest.mark.parametrize("key", ["2026-03-01", "2026-03-01T01:00:00", "monday", "", "2026-02-30T00:00:00"])
def test_strange_key_names_no_interval(key):
    with pytest.raises(ConfigError, match="no interval of the schedule '@daily'"):
        interval_of(job_with(), key)


def test_key_without_a_schedule_is_refused():
    with pytest.raises(ConfigError, match="has no schedule that says how long it lasts"):
        interval_of(job_with(None), DAY)


def test_cron_partition_timetable_names_its_day():
    timetable = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="day %d.%m.%Y")
    begin = pendulum.datetime(2026, 3, 29, tz="Europe/Berlin")
    interval = interval_of(job_with(None), "day 29.03.2026", timetable, begin)
    assert interval == (midnight(date(2026, 3, 29), "Europe/Berlin"), midnight(date(2026, 3, 30), "Europe/Berlin"))


def test_partition_that_lasts_is_refused():
    today = datetime.fromtimestamp(clock.now() / 1000, UTC).strftime("%Y-%m-%dT00:00:00")
    with pytest.raises(ConfigError, match="is not over.*run_offset=-1"):
        interval_of(job_with(), today, CronPartitionTimetable("@daily", timezone="UTC"))


@pytest.fixture
def run(dag_bag, edit_job):
    """Return the task `run` of a DAG that runs by partitions."""
    edit_job(
        "flights",
        mode="interval",
        schedule={"cron": "@daily", "start": "2013-01-01", "after": ["raw.events", "raw.weather"]},
    )
    dag = dag_bag().dags["flights"]
    assert isinstance(dag.timetable, PartitionedAssetTimetable)
    names: Any = dag.timetable.asset_condition
    assert [ref.name for ref in names.objects] == ["raw.events", "raw.weather"]
    task = dag.get_task("run")
    task.allow_nested_operators = True
    return task


def partition_run(task, key=DAY):
    context = context_of(task, run_type="asset_triggered", logical_date=None, start=None)
    context["dag_run"].partition_key, context["dag_run"].partition_date = key, None
    context["outlet_events"] = OutletEventAccessors()
    return context


def test_run_takes_in_its_partition(run):
    context = partition_run(run)
    execute(run, context=context)
    words = {word.partition("=")[0]: word.partition("=")[2] for word in run.application_args}
    assert (words["--interval-start"], words["--interval-end"]) == (
        "2026-03-01T00:00:00+00:00",
        "2026-03-02T00:00:00+00:00",
    )


def test_missing_partition_is_waited_for(run):
    with pytest.raises(AirflowRescheduleException):
        execute(run, 9, {**GAP, "leaves_gap": True}, context=partition_run(run))


def test_other_runs_wait_for_no_gap(run):
    with pytest.raises(AirflowFailException, match="there would be a gap"):
        execute(run, 9, {**GAP, "leaves_gap": True})


def test_strange_partition_holds_up_no_run(run):
    with pytest.raises(AirflowSkipException):
        execute(run, context=partition_run(run, "monday"))
    assert run._hook.applications == []


def events_of(context):
    """Return the keys that Airflow sends with the events of each asset."""
    from airflow.sdk.execution_time.task_runner import _serialize_outlet_events

    sent = {}
    events: list[Any] = [*_serialize_outlet_events(context["outlet_events"])]
    for event in events:
        sent.setdefault(event["dest_asset_key"]["name"], []).append(event.get("partition_key"))
    return {name: sorted(keys, key=str) for name, keys in sent.items()}


DAYS = [["2013-01-30T00:00:00Z", "2013-01-31T00:00:00Z"], ["2013-01-31T00:00:00Z", "2013-02-01T00:00:00Z"]]


def test_run_announces_its_days(dag_bag, edit_job, last_published):
    """A sink without news has the event of its day, and none that starts DAGs with a plain schedule."""
    edit_job("flights", schedule={"cron": "@daily", "start": "2013-01-01"})
    task = dag_bag().dags["flights"].get_task("run")
    task.allow_nested_operators = True
    last_published["overdue_alerts"] = REPORT["sinks"]["overdue_alerts"]
    context = context_of(task)
    context["outlet_events"] = OutletEventAccessors()
    execute(task, report={**REPORT, "intervals": DAYS}, context=context)

    keys = ["2013-01-30T00:00:00", "2013-01-31T00:00:00"]
    assert events_of(context) == {
        "flights.flight_board": [*keys, None],
        "flights.overdue_alerts": keys,
        "flights.hourly_departures": keys,
    }


def test_caught_up_run_has_plain_events(dag_bag):
    task = dag_bag().dags["flights"].get_task("run")
    task.allow_nested_operators = True
    context = context_of(task)
    context["outlet_events"] = OutletEventAccessors()
    execute(task, context=context)
    assert set(map(tuple, events_of(context).values())) == {(None,)}


def test_own_key_is_left_to_airflow():
    event = OutletEventAccessors()[Asset("a.b")]
    add_keys(event, [DAY], DAY, with_plain=True)
    assert not event.partition_keys
    add_keys(event, [DAY, "2026-03-02T00:00:00"], DAY, with_plain=False)
    assert event.partition_keys == {DAY, "2026-03-02T00:00:00"}


def test_own_dag_may_name_the_interval(home):
    with DAG("mine", schedule=PartitionedAssetTimetable(assets=Asset("a.b"))):
        task = HeadraceRunOperator(
            task_id="run", job="flights", home=home, mode="interval", interval_start="2013-01-30"
        )
    task.allow_nested_operators = True
    assert task._interval_of_partition(partition_run(task, "whatever")) is None
