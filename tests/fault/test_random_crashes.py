"""Drivers are killed repeatedly at places drawn from a seed: the final tables equal an undisturbed run.

`HEADRACE_KILL_SEEDS=100-149` runs other seeds than the few of each run, for example over a night.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fault.conftest import ready
from tests.fault.drivers import KILLED
from tests.jobs.outcome import assert_well_formed, outcome

pytestmark = pytest.mark.slow

PLACES = [
    "create.half",
    "fence.table",
    "fence.after",
    "run.after",
    "prepare.before",
    "prepare.half",
    "prepare.after",
    "commit.before",
    "commit.after",
    "publish.half",
    "publish.after",
]
FIRST, _, LAST = os.environ.get("HEADRACE_KILL_SEEDS", "100-101").partition("-")


def story(seed: int) -> list[tuple[str, dict[str, object]]]:
    """Return the place of death and the settings of each driver of a seed."""
    chance = random.Random(seed)
    events = []
    for _ in range(chance.randint(2, 5)):
        place = f"{chance.choice(PLACES)}:{chance.randint(1, 3)}"
        events.append(
            (place, {"parallelism": chance.choice((1, 2, 3)), "backend": chance.choice(("rocksdb", "hashmap"))})
        )
    return events


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST) + 1))
def test_drivers_that_die_anywhere_leave_no_trace(tmp_path, runner, undisturbed, seed):
    home = ready(tmp_path)
    died = []
    for place, options in story(seed):
        code, output = runner.drivers.run(home, {"HEADRACE_KILL_AT": place}, **options)
        assert code in {0, KILLED}, f"seed {seed}, {place}: {output}"
        died.append((place, code))
    code, output = runner.drivers.run(home)
    assert code == 0, f"seed {seed}: {output}"
    assert outcome(home.config()) == outcome(undisturbed.config()), f"seed {seed}: {died}"
    assert_well_formed(home.config())


@pytest.mark.slow
@pytest.mark.parametrize("places", [("create.half", "create.half"), ("prepare.after", "fence.table:2", "fence.after")])
def test_killed_recovery_can_be_recovered(tmp_path, drivers, undisturbed, places):
    home = ready(tmp_path)
    for place in places:
        code, message = drivers.run(home, {"HEADRACE_KILL_AT": place})
        assert code == KILLED, message
    assert drivers.run(home) == (0, "")
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())
