"""Drivers are suspended, lose their job, and resume: they fail and change nothing.

zombie     claim --- micro-batch 1 --- asleep ................ awake --- FencedError
winner                                        claim --- all --- end
"""

from __future__ import annotations

import pytest

from headrace import clock
from headrace.errors import FencedError
from tests.fault.conftest import DAYS, ready
from tests.fault.drivers import wait_until_asleep, wake
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome

pytestmark = pytest.mark.slow

ASLEEP = {"HEADRACE_KILL_WITH": "SIGSTOP"}
PLACES = ["run.after:2", "prepare.half:2", "prepare.after:2", "commit.before:2", "commit.after:2", "publish.half:2"]
OFTEN = {"prepare.half:2", "commit.before:2", "publish.half:2"}
"""Places of each run of the slow tests; all are in the long ones."""


@pytest.mark.parametrize(
    "place", [place if place in OFTEN else pytest.param(place, marks=pytest.mark.long) for place in PLACES]
)
def test_zombie_fails_and_names_the_winner(tmp_path, drivers, undisturbed, run, place):
    home = ready(tmp_path)
    with drivers.started(home, {**ASLEEP, "HEADRACE_KILL_AT": place}, {"run_id": "zombie"}) as zombie:
        wait_until_asleep(zombie)
        run(home, run_id="winner", force_fail_over=True)
        code, message = wake(zombie)
    assert code == FencedError.exit_code, message
    assert "winner" in message
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())


def test_awakened_zombie_writes_nothing(tmp_path, drivers, undisturbed, run):
    """The zombie resumes in the middle of the winner's run."""
    home = ready(tmp_path)
    with drivers.started(home, {**ASLEEP, "HEADRACE_KILL_AT": "publish.half:2"}, {"run_id": "zombie"}) as zombie:
        wait_until_asleep(zombie)
        run(home, run_id="winner", force_fail_over=True, max_batches=1)
        code, message = wake(zombie)
    assert code == FencedError.exit_code, message
    run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())


def test_expired_lease_of_paused_driver_is_taken(tmp_path, drivers, undisturbed, run):
    home = ready(tmp_path)
    with drivers.started(home, {**ASLEEP, "HEADRACE_KILL_AT": "run.after:2"}, {"run_id": "zombie"}) as zombie:
        wait_until_asleep(zombie)
        with pytest.raises(FencedError, match="run zombie.* holds the job"):
            run(home, run_id="winner")
        seconds = home.config().run.lease.total_seconds()
        with clock.installed(clock.VirtualClock(clock.now() + round(seconds * 1000))):
            run(home, run_id="winner")
        code, message = wake(zombie)
    assert code == FencedError.exit_code, message
    assert outcome(home.config()) == outcome(undisturbed.config())


def test_paused_driver_with_valid_lease_continues(tmp_path, drivers, undisturbed):
    home = ready(tmp_path)
    with drivers.started(home, {**ASLEEP, "HEADRACE_KILL_AT": "prepare.half:2"}, {"run_id": "sleeper"}) as sleeper:
        wait_until_asleep(sleeper)
        assert wake(sleeper) == (0, "")
    assert outcome(home.config()) == outcome(undisturbed.config())


def test_simultaneous_drivers_have_one_winner(tmp_path, drivers, undisturbed):
    home = ready(tmp_path)
    with (
        drivers.started(home, {}, {"run_id": "one"}) as one,
        drivers.started(home, {}, {"run_id": "two"}) as two,
        drivers.started(home, {}, {"run_id": "three"}) as three,
    ):
        messages = [process.communicate(timeout=300)[1] for process in (one, two, three)]
    codes = [process.returncode for process in (one, two, three)]
    assert set(codes) <= {0, FencedError.exit_code}, messages
    assert 0 in codes
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert len(checkpoints(home.config())) == DAYS + 1
    assert_well_formed(home.config())
