"""How DAG files find their jobs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.airflow._home import find_home
from headrace.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dags(home, tmp_path, monkeypatch):
    """Return a folder of DAG files in the test's home.

    No variable names the home, and the current folder is elsewhere.
    """
    monkeypatch.delenv("HEADRACE_HOME")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return Path(shutil.copytree(PROJECT / "dags", home / "dags"))


def test_home_is_found_from_the_dag_file(dag_bag, dags, home):
    bag = dag_bag(dags)

    run = bag.dags["flights"].get_task("run")
    assert bag.import_errors == {}
    assert run.env_vars["HEADRACE_HOME"] == str(home)
    assert run.jars.startswith(f"{home}/var/jars/")


def test_linked_dag_file_finds_its_home(dags, home, tmp_path):
    link = tmp_path / "elsewhere" / "jobs.py"
    link.symlink_to(dags / "headrace_jobs.py")

    assert find_home("conf/jobs", str(link)) == home


def test_nearest_folder_with_jobs_wins(dags, home):
    nearer = home / "teams" / "a"
    (nearer / "conf" / "jobs").mkdir(parents=True)

    assert find_home("conf/jobs", str(nearer / "dags" / "jobs.py")) == nearer
    assert find_home("teams/a/conf/jobs", str(dags / "jobs.py")) == nearer


def test_named_home_wins(dags, home, tmp_path, monkeypatch):
    named = tmp_path / "named"
    (named / "conf" / "jobs").mkdir(parents=True)
    monkeypatch.setenv("HEADRACE_HOME", str(named))

    assert find_home("conf/jobs", str(dags / "jobs.py")) == named
    assert find_home(f"{home}/conf/jobs", str(dags / "jobs.py")) == home


@pytest.mark.parametrize("folder", ["conf/jobs", "/nowhere/conf/jobs"])
def test_missing_folder_is_an_error(dags, tmp_path, folder):
    with pytest.raises(ConfigError, match=r"there is no folder /.*/conf/jobs; .*jobs.py makes its DAGs"):
        find_home(folder, str(tmp_path / "elsewhere" / "jobs.py"))


def test_folder_of_another_name_is_refused(dags):
    with pytest.raises(ConfigError, match=r"'conf/batch' must end in conf/jobs"):
        find_home("conf/batch", str(dags / "jobs.py"))
