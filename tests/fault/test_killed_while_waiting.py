"""Kill -9 while elements wait for a service: no element is lost or doubled, and no committed answer is requested again."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace import clock
from tests.fault.drivers import KILLED
from tests.jobs.asking import Service
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows, outcome, when_due
from tests.jobs.purchase_files import write_days

pytestmark = pytest.mark.slow

ROWS = 60


@pytest.fixture
def asking(tmp_path):
    """A job whose service is down for the second half of its first day."""
    service = Service(tmp_path / "oracle")
    home = Home(tmp_path / "home")
    home.configure(
        {
            "pipeline": "tests.jobs.asking:ordered",
            "services": {"oracle": {"url": service.url, "health": None}},
            "sources": {"purchases": {"max_files_per_batch": 1}},
        }
    )
    write_days(home.input, range(2), rows=ROWS)
    service.goes_down(30)
    return home, service


def sinks_and_state(home):
    result = outcome(home.config())
    return result.sinks, {name: rows for name, rows in result.state.items() if name != "quarantine"}, result.watermark


def committed_responses(home):
    """Return the elements whose answer is stored in the last checkpoint because an earlier element waits."""
    last = checkpoints(home.config())[-1]
    return [row for row in live_rows(home.config(), last, "async_requests") if "completed" in row]


# The simulation kills anywhere, also while elements wait. Here a real driver dies at each place once.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "visit"),
    [("ingest.after", 2), ("run.after", 1), ("prepare.half", 2), ("commit.before", 1), ("commit.after", 2)],
)
def test_killed_driver_leaves_waiting_elements_in_one_place(
    tmp_path, undisturbed_day, run, drivers, asking, place, visit
):
    home, service = asking
    code, message = drivers.run(home, {"HEADRACE_KILL_AT": f"{place}:{visit}"})
    assert code == KILLED, message
    run(home)
    parked = checkpoints(home.config())[-1].work.pending
    assert parked > 0
    answered = service.noted("answered")
    held = len(committed_responses(home))
    service.comes_back()
    asked_before = Counter(service.noted("asked"))
    while checkpoints(home.config())[-1].work.pending:
        when_due(home.config())
        run(home)
    again = service.noted("asked") - asked_before
    # Elements that the checkpoint has neither emitted nor completed are requested again, and no others.
    assert sum(again.values()) == parked - held
    assert not set(again) & set(answered), "an answer that was committed was asked for again"
    assert sinks_and_state(home) == sinks_and_state(undisturbed_day)
    assert_well_formed(home.config())


@pytest.fixture(scope="module")
def undisturbed_day(run, tmp_path_factory):
    """Return the outcome for the same purchases without any service and without a kill."""
    home = Home(tmp_path_factory.mktemp("undisturbed"))
    write_days(home.input, range(2), rows=ROWS)
    run(home)
    return home


def test_driver_terminated_during_calls_keeps_waiting_elements(undisturbed_day, run, drivers, asking):
    """The next run processes the waiting elements."""
    home, service = asking
    service.comes_back()
    home.configure(
        {
            "pipeline": "tests.jobs.asking:slow",
            "services": {"oracle": {"url": service.url, "health": None}},
        }
    )
    with drivers.started(home, {}, {}) as process:
        while sum(service.noted("answered").values()) < 5:
            clock.sleep(0.05)
        process.terminate()
        _, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    assert checkpoints(home.config())[-1].work.pending > 0
    home.configure(
        {"pipeline": "tests.jobs.asking:ordered", "services": {"oracle": {"url": service.url, "health": None}}}
    )
    run(home)
    assert checkpoints(home.config())[-1].work.pending == 0
    assert sinks_and_state(home) == sinks_and_state(undisturbed_day)
