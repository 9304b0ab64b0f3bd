"""The job on a cluster comes to what a loop by hand comes to, also with code of another repository."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import DAYS, ROWS, run, write_profile
from tests.jobs.home import LOCAL, PROJECT
from tests.jobs.outcome import assert_well_formed, sink_rows
from tests.jobs.own_repository import BILLS, own_home
from tests.jobs.purchase_files import purchases_of
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand


def test_a_cluster_comes_to_the_same_as_a_loop_by_hand(cluster_home):
    ran = run(cluster_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert_as_by_hand(cluster_home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(DAYS)))
    assert_well_formed(cluster_home.config())


def test_a_worker_killed_on_the_cluster_costs_a_task_not_the_run(cluster_home, master, tmp_path):
    once = tmp_path / "killed"
    settings = {"spark.executorEnv.HEADRACE_KILL_AT": "task.half", "spark.executorEnv.HEADRACE_KILL_ONCE": str(once)}
    write_profile(cluster_home, master, settings)
    ran = run(cluster_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert once.exists()
    assert_as_by_hand(cluster_home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(DAYS)))


@pytest.mark.parametrize("packed", [False, True], ids=["home", "py_files"])
def test_workers_find_code_of_another_repository(tmp_path, master, packed):
    package = "packed_store" if packed else "corner_store"
    home = own_home(tmp_path / "project", package, {**LOCAL, "master": master}, packed=packed)
    ran = run(home, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert sink_rows(home.config(), "bills") == BILLS
