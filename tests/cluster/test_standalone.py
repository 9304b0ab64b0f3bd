"""A job on a cluster equals a plain loop, also with code of another repository."""

from __future__ import annotations

import shutil
import sys
import tarfile

import pytest

from tests.cluster.conftest import DAYS, ROWS, run, write_profile
from tests.jobs.home import LOCAL, PROJECT
from tests.jobs.outcome import assert_well_formed, sink_rows
from tests.jobs.own_repository import BILLS, CODE, own_home
from tests.jobs.purchase_files import purchases_of
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand


def test_cluster_result_equals_a_loop_by_hand(cluster_home):
    ran = run(cluster_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert_as_by_hand(cluster_home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(DAYS)))
    assert_well_formed(cluster_home.config())


def test_killed_worker_repeats_a_task_not_the_run(cluster_home, master, tmp_path):
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


@pytest.mark.slow
def test_executors_run_in_a_packed_environment(tmp_path, master):
    """The environment is a program that writes a marker file and runs the tests' Python, beside the job's code."""
    project, used = tmp_path / "project", tmp_path / "used"
    packed = {
        "bin/python": f'#!/bin/sh\necho "$0" >> {used}\n'
        f'PYTHONPATH="$PWD/environment/code:$PYTHONPATH" exec {sys.executable} "$@"\n',
        "code/travelling_store/__init__.py": "",
        "code/travelling_store/prices.py": "PRICE = 7\n",
        "code/travelling_store/job.py": CODE.format(package="travelling_store", job="travelling_store"),
    }
    for name, text in packed.items():
        (tmp_path / "packed" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packed" / name).write_text(text)
    (tmp_path / "packed/bin/python").chmod(0o755)
    project.mkdir()
    with tarfile.open(project / "env.tar.gz", "w:gz") as archive:
        for part in ("bin", "code"):
            archive.add(tmp_path / "packed" / part, part)
    settings = {**LOCAL["spark"], "spark.pyspark.python": "./environment/bin/python"}
    profile = {**LOCAL, "master": master, "spark": settings, "archives": ["env.tar.gz#environment"]}
    home = own_home(project, "travelling_store", profile)
    # The executors have the code from the archive alone.
    (tmp_path / "driver").mkdir()
    shutil.move(project / "travelling_store", tmp_path / "driver" / "travelling_store")
    ran = run(home, tmp_path / "driver", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert sink_rows(home.config(), "bills") == BILLS
    assert {*used.read_text().split()} == {"./environment/bin/python"}
