"""A job on a real YARN in cluster deploy mode: a driver or an executor is lost, and the results are a plain loop's."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import ROWS, asleep, ended, executor_of, sleeping_at
from tests.cluster.yarn import fetched, kill, minicluster
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

pytestmark = pytest.mark.long

DAYS = 2
DRIVER = "deploy.yarn.ApplicationMaster"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory):
    """YARN with one node, on this machine."""
    jars = fetched()
    with minicluster(tmp_path_factory.mktemp("yarn"), jars) as cluster:
        yield cluster


@pytest.fixture
def home(tmp_path, yarn) -> Home:
    """The job on YARN, a micro-batch for each day. The container of the driver is not in the job's folder, so its paths are absolute."""
    home = Home(tmp_path)
    yarn.write_profile(home)
    home.configure(
        {
            "cluster": "yarn",
            "state": {"root": str(tmp_path / "state")},
            "sources": {"purchases": {"path": str(home.input), "max_files_per_batch": 1}},
            "sinks": {name: {"path": str(tmp_path / "lake" / name)} for name in ("lines_by_item", "reminders")},
        }
    )
    write_days(home.input, range(DAYS), rows=ROWS)
    return home


def assert_right(home: Home) -> None:
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(DAYS)))
    assert_well_formed(home.config())


def test_next_run_continues_after_lost_driver(home, yarn, tmp_path):
    once = tmp_path / "asleep"
    place = {"HEADRACE_KILL_AT": "commit.before:2", "HEADRACE_KILL_ONCE": str(once), "HEADRACE_KILL_WITH": "SIGSTOP"}
    yarn.write_profile(home, **place)
    lost = yarn.submit(home)
    kill(executor_of(asleep(once, lost), DRIVER))
    assert ended(lost).returncode != 0
    assert checkpoints(home.config())[-1].checkpoint_id == 1
    yarn.write_profile(home)
    ran = ended(yarn.submit(home))
    assert ran.returncode == 0, ran.stdout + yarn.drivers_logs()
    assert [checkpoint.checkpoint_id for checkpoint in checkpoints(home.config())] == [*range(DAYS + 1)]
    assert_right(home)


def test_lost_executor_repeats_only_its_tasks(home, yarn, tmp_path):
    once = tmp_path / "asleep"
    yarn.write_profile(home, sleeping_at("task.half", once))
    running = yarn.submit(home)
    kill(executor_of(asleep(once, running)))
    ran = ended(running)
    assert ran.returncode == 0, ran.stdout + yarn.drivers_logs()
    assert_right(home)
