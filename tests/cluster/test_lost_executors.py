"""An executor dies in the middle of a run: the results are the same."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.cluster.conftest import DAYS, ROWS, asleep, ended, executor_of, run, sleeping_at, start, write_profile
from tests.jobs.home import PROJECT
from tests.jobs.outcome import assert_well_formed
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

ELASTIC = {
    "spark.dynamicAllocation.enabled": True,
    "spark.dynamicAllocation.shuffleTracking.enabled": True,
    "spark.dynamicAllocation.initialExecutors": 1,
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}
"""Executors come when tasks wait, and go when they are idle."""

SPECULATIVE = {
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.quantile": 0.5,
    "spark.speculation.task.duration.threshold": "5s",
}
"""A task that lasts is started twice."""


def assert_right(home, days: int = DAYS) -> None:
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(days)))
    assert_well_formed(home.config())


@pytest.mark.parametrize("place", ["task.half", "task.half:2"])
def test_lost_executor_repeats_only_its_tasks(cluster_home, master, tmp_path, place):
    once = tmp_path / "asleep"
    write_profile(cluster_home, master, sleeping_at(place, once))
    running = start(cluster_home, PROJECT)
    executor = executor_of(asleep(once, running))
    for process in (*executor.children(recursive=True), executor):
        process.kill()
    ran = ended(running)
    assert ran.returncode == 0, ran.stderr
    assert_right(cluster_home)


def test_paused_task_is_replaced_and_harmless(cluster_home, master, tmp_path):
    once = tmp_path / "asleep"
    write_profile(cluster_home, master, sleeping_at("task.half", once) | SPECULATIVE | ELASTIC)
    running = start(cluster_home, PROJECT)
    worker = asleep(once, running)
    ran = ended(running)
    assert ran.returncode == 0, ran.stderr
    assert_right(cluster_home)
    if worker.is_running():
        worker.send_signal(signal.SIGCONT)
        psutil.wait_procs([worker], timeout=60)
    assert_right(cluster_home)
    write_days(cluster_home.input, range(DAYS, DAYS + 1), rows=ROWS)
    ran = run(cluster_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert_right(cluster_home, DAYS + 1)
