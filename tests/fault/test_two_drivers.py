"""Two drivers of one job: one wins, the other stops and names the holder."""

from __future__ import annotations

import pytest

from headrace import clock
from headrace.commit.protocol import open_job
from headrace.errors import FencedError
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog, lease_until
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from tests.fault.conftest import ready
from tests.jobs.outcome import checkpoints, outcome


def test_second_driver_stops_and_names_the_first(tmp_path, command):
    home = ready(tmp_path)
    with open_job(home.config(), "first-run", create=True):
        second = command(home, "run", "purchases")
    assert second.returncode == FencedError.exit_code
    assert "first-run" in second.stderr
    assert "holds the job" in second.stderr


def test_second_run_in_same_process_is_refused(tmp_path, run):
    home = ready(tmp_path)
    with open_job(home.config(), "first-run", create=True), pytest.raises(FencedError, match="first-run"):
        run(home)


def test_driver_that_lost_its_job_cannot_commit(tmp_path, undisturbed, run):
    home = ready(tmp_path)
    with open_job(home.config(), "zombie", create=True) as zombie:
        run(home, run_id="winner", force_fail_over=True)
        with pytest.raises(FencedError, match="winner"):
            zombie.commit(Kind.SAVEPOINT, name="late")
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert {c.run_id for c in checkpoints(home.config())[1:]} == {"winner"}


def test_driver_without_its_lease_cannot_write_tables(tmp_path, run):
    home = ready(tmp_path)
    with open_job(home.config(), "zombie", create=True) as zombie:
        run(home, run_id="winner", force_fail_over=True)
        staged = {"keyed_state": [_staged(home)]}
        with pytest.raises(FencedError, match="winner"):
            zombie.commit(Kind.BATCH, files=staged)


@pytest.mark.slow
def test_lease_of_dead_process_is_taken_at_once(tmp_path, run):
    home = ready(tmp_path)
    _leave_lease(home, holder=f"{_host()}:999999:1.00", seconds=3600)
    assert run(home).stopped_because == "drained"


def test_lease_on_another_machine_is_waited_for(tmp_path, run):
    home = ready(tmp_path)
    _leave_lease(home, holder="elsewhere:1:1.00", seconds=2)
    before = clock.now()
    run(home)
    assert clock.now() >= before


def _host() -> str:
    from headrace.log.lease import this_process

    return this_process().split(":")[0]


def _leave_lease(home, *, holder, seconds) -> None:
    with open_job(home.config(), "former", create=True):
        pass
    log = CheckpointLog(JobFolder(home.config().job_folder))
    log.claim(lease_until("former", "attempt", holder, seconds))


def _staged(home):
    from headrace.tables.schemas import STATE_TABLES

    empty = STATE_TABLES["keyed_state"].schema.empty_table()
    return Storage(home.config().job_folder).below("keyed_state").stage("late.parquet", empty)
