"""Two jobs over Delta tables, the second by partitions of the first: Airflow's tasks, events and scheduler, and the engine without a JVM."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from headrace.airflow import _results as results
from tests.airflow.test_run_operator import FakeInstance

PIPELINE = """\
from headrace import Pipeline, Struct, Timestamp

class Order(Struct, frozen=True):
    name: str
    day: str
    at: Timestamp

def same(order: Order) -> Order:
    return order

silver = Pipeline("silver").source("bronze", Order, event_time="at").map(same).sink("orders")
gold = Pipeline("gold").source("orders", Order, event_time="at").map(same).sink("sales")
"""
DAYS = ["2026-03-01", "2026-03-02"]
KEYS = [f"{day}T00:00:00" for day in DAYS]
SCHEDULE = {"cron": "@daily", "start": "2026-03-01"}
BY_DAY = {"by": "partition", "column": "day"}


def job_of(name, source, sink, **changes):
    return {
        "job": name,
        "pipeline": f"orders_pipeline:{name}",
        "mode": "interval",
        "sources": {source: {"format": "delta", "path": f"var/lake/{source}", "interval": BY_DAY, "on_change": "skip"}},
        "sinks": {sink: {"path": f"var/lake/{sink}", "mode": "append", "partition_by": ["day"]}},
        "schedule": SCHEDULE,
        "compaction": {"every": None},
        **changes,
    }


@pytest.fixture
def lake(home):
    """Write both jobs, and a bronze table of two days; return the folder of the tables."""
    for file in (home / "conf" / "jobs").iterdir():
        file.unlink()
    shutil.rmtree(home / "conf" / "clusters")
    (home / "conf" / "clusters").mkdir()
    (home / "conf" / "clusters" / "local.yaml").write_text(
        "runner: local\nmaster: local[1]\nparallelism: 1\nconnectors: []\n"
    )
    (home / "orders_pipeline.py").write_text(PIPELINE)
    jobs = [
        job_of("silver", "bronze", "orders", replay={"promote": "automatic"}),
        job_of("gold", "orders", "sales", schedule={**SCHEDULE, "after": ["silver.orders"]}),
    ]
    for job in jobs:
        (home / "conf" / "jobs" / f"{job['job']}.yaml").write_text(yaml.safe_dump(job))
    for day in DAYS:
        write(home / "var" / "lake" / "bronze", day, f"{day} as it came")
    return home / "var" / "lake"


def write(table, day, *names):
    """Write the partition of a day, or write it anew."""
    time = round(datetime.fromisoformat(f"{day}T12:00:00Z").timestamp() * 1000)
    rows = pa.table({"name": names, "day": [day] * len(names), "at": [time] * len(names)})
    if not DeltaTable.is_deltatable(str(table)):
        write_deltalake(table, rows, partition_by=["day"])
    else:
        write_deltalake(table, rows, mode="overwrite", predicate=f"day = '{day}'")


def read(table):
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["name"].to_pylist())


def events_since(last):
    """Return the keys of the events of silver's sink behind an id, and the last id."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent.id, AssetEvent.partition_key).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        rows = session.execute(query.where(AssetModel.name == "silver.orders", AssetEvent.id > last)).all()
    return sorted((key for _, key in rows), key=str), max((number for number, _ in rows), default=last)


def scheduled_partitions():
    """Let Airflow's scheduler make the DAG runs of partitions; return the keys of the new ones of gold."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        known = set(session.scalars(select(DagRun.run_id).where(DagRun.dag_id == "gold")))
        SchedulerJobRunner(Job())._create_dagruns_for_partitioned_asset_dags(session)
        session.commit()
        rows = session.execute(select(DagRun.run_id, DagRun.partition_key).where(DagRun.dag_id == "gold")).all()
    return sorted(key for run, key in rows if run not in known)


def unpause():
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(
            update(DagModel).where(DagModel.dag_id.in_(["silver", "gold", "silver_replay"])).values(is_paused=False)
        )


def run_gold(dag_bag, key):
    """Run gold's task for a partition; return its result."""
    task = dag_bag().dags["gold"].get_task("run")
    task.allow_nested_operators = True
    task.application_args = [word for word in task.application_args if "{{" not in word]
    run = SimpleNamespace(
        conf=None, run_type="asset_triggered", logical_date=None, data_interval_start=None, data_interval_end=None,
        partition_key=key, partition_date=None, start_date=datetime.now(UTC),
    )  # fmt: skip
    events = {outlet: SimpleNamespace(extra={}) for outlet in task.outlets}
    return task.execute(
        {"ti": FakeInstance(), "task": task, "dag": task.dag, "run_id": key, "dag_run": run, "outlet_events": events}
    )


@pytest.mark.usefixtures("assets_released")
def test_days_go_from_job_to_job(dag_bag, lake, monkeypatch):
    silver, last = dag_bag().dags["silver"], 0
    for number, key in enumerate(KEYS):
        run = silver.test(logical_date=datetime(2026, 3, 2 + number, tzinfo=UTC))
        assert run.state == "success"
        if not number:
            unpause()
        events, last = events_since(last)
        assert events == [key, None]
    # The first event came before gold was unpaused.
    assert scheduled_partitions() == KEYS[1:]

    monkeypatch.setattr(results, "_last_told", lambda *_: None)
    assert [run_gold(dag_bag, key)["intervals"] for key in KEYS] == [
        [[f"{day}T00:00:00Z", f"{end}T00:00:00Z"]] for day, end in zip(DAYS, [DAYS[1], "2026-03-03"], strict=True)
    ]
    assert read(lake / "sales") == read(lake / "orders") == [f"{day} as it came" for day in DAYS]

    # A correction of the first day: the replay takes in both days again, and changes rows of the first one alone.
    write(lake / "bronze", DAYS[0], "corrected")
    replay = dag_bag().dags["silver_replay"].test(run_conf={"from": DAYS[0], "to": DAYS[1]})
    assert replay.state == "success"
    assert read(lake / "orders") == [f"{DAYS[1]} as it came", "corrected"]
    events, last = events_since(last)
    assert events == [KEYS[0], None]
    assert scheduled_partitions() == KEYS[:1]
