"""Elements that wait for a service over micro-batches and runs, through Spark and Delta."""

from __future__ import annotations

import pytest

from headrace.edits.fork import fork
from headrace.edits.requeue import requeue
from headrace.errors import ConfigError, StateSchemaError
from headrace.readers.difference import differences
from headrace.readers.job_at import JobAtCheckpoint
from headrace.run.batch_sequence import BatchSequence
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from pipelines.flights.demo import outage as switch_outage
from tests.jobs.asking import Service
from tests.jobs.home import FLIGHTS, Home
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows, outcome, when_due
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.weather import weather_service

ROWS = 60
MODES = ("ordered", "unordered", "processing_time", "keyed")


@pytest.fixture
def service(tmp_path):
    return Service(tmp_path / "oracle")


@pytest.fixture
def asking(tmp_path, service):
    """A job that asks, in a mode."""

    def make(pipeline, days=2, **changes):
        home = Home(tmp_path / "asking")
        asks = {
            "pipeline": f"tests.jobs.asking:{pipeline}",
            "services": {"oracle": {"url": service.url, "health": None}},
        }
        home.configure({**asks, **changes})
        write_days(home.input, range(days), rows=ROWS)
        return home

    return make


@pytest.fixture(scope="module")
def plain(tmp_path_factory, run):
    """Return the outcome for the purchases without any service."""
    home = Home(tmp_path_factory.mktemp("plain"))
    write_days(home.input, range(2), rows=ROWS)
    run(home)
    return comparable(home)


def comparable(home):
    """Return the outcome without the positions in quarantine: outputs of the wait have longer positions."""
    result = outcome(home.config())
    quarantined = result.state.pop("quarantine")
    return result.sinks, result.state, len(quarantined), result.watermark


def of_customers(requests):
    """Return the part of the outcome that depends only on the order of each customer's purchases: several customers share a line of the board."""
    sinks, state, quarantined, watermark = requests
    return sinks["reminders"], state["keyed_state"], state["timers"], quarantined, watermark


def waiting(home):
    return live_rows(home.config(), checkpoints(home.config())[-1], "async_requests")


def run_until_done(run, home, **options):
    while checkpoints(home.config())[-1].work.pending:
        when_due(home.config())
        run(home, **options)


@pytest.mark.parametrize("mode", MODES)
def test_service_that_answers_changes_nothing(asking, service, run, plain, mode):
    home = asking(mode)
    run(home, parallelism=2)
    assert comparable(home) == plain
    assert waiting(home) == []
    assert set(service.noted("asked").values()) == {1}


@pytest.mark.parametrize("mode", ["ordered", "keyed", "unordered"])
def test_later_run_finishes_elements_parked_in_outage(asking, service, run, plain, mode):
    home = asking(mode)
    service.goes_down(30)
    first = run(home, parallelism=2)
    assert first.stopped_because == "drained"
    # On a slow machine, parked elements may become due within the run: then more than one micro-batch reports them.
    batches = checkpoints(home.config())
    assert sum(checkpoint.metrics.get("parked", 0) for checkpoint in batches) > 0
    assert sum(checkpoint.services["ask"].failures for checkpoint in batches if checkpoint.services) > 0
    assert checkpoints(home.config())[-1].work.pending == len(waiting(home)) > 0
    answered = service.noted("answered")
    service.comes_back()
    run_until_done(run, home, parallelism=3)
    assert waiting(home) == []
    assert live_rows(home.config(), checkpoints(home.config())[-1], "buffered_requests") == []
    if mode == "ordered":
        assert comparable(home) == plain
    if mode == "keyed":
        assert of_customers(comparable(home)) == of_customers(plain)
    assert comparable(home)[-1] == plain[-1]
    assert all(service.noted("answered")[number] == 1 for number in answered), "a result was asked for again"
    assert_well_formed(home.config())


def test_processing_time_mode_holds_no_records_up(asking, service, run, plain):
    home = asking("processing_time", days=1)
    service.goes_down(30)
    run(home)
    last = checkpoints(home.config())[-1]
    assert not last.work.held
    assert not last.timelines["purchases"].repeated
    service.comes_back()
    run_until_done(run, home)
    assert sum(service.noted("answered").values()) == len(list(purchases_of(0, rows=ROWS)))


def test_micro_batches_continue_behind_a_parked_element(asking, service, run, plain):
    """No element overtakes the parked element."""
    home = asking("ordered", days=2, sources={"purchases": {"max_files_per_batch": 1}})
    service.goes_down(10)
    run(home)
    assert len([c for c in checkpoints(home.config()) if c.metrics.get("rows_in")]) == 2
    service.comes_back()
    run_until_done(run, home)
    assert comparable(home) == plain


@pytest.mark.parametrize("mode", ["ordered", "keyed"])
def test_timed_out_run_leaves_unanswered_elements(asking, service, run, plain, mode, monkeypatch):
    home = asking(mode, async_io={"ask": {"capacity": 1, "park_after": 60}})
    service.goes_down(40)
    with monkeypatch.context() as patched:
        patched.setattr(BatchSequence, "stop_at", lambda _: 0)
        run(home, max_batches=1)
    assert {dict(zip(COLUMNS, row, strict=True))["status"] for row in waiting(home)} >= {"pending"}
    service.comes_back()
    home.configure({**home_of(home), "async_io": {"ask": {"capacity": 8}}})
    run_until_done(run, home)
    result = comparable(home)
    assert result == plain if mode == "ordered" else of_customers(result) == of_customers(plain)


COLUMNS = sorted(
    [
        "operator",
        "key_group",
        "key",
        "sequence",
        "status",
        "attempts",
        "first_attempt_at",
        "cost_ms",
        "next_attempt_at",
        "last_error",
        "element",
        "result",
    ]
)


def home_of(home):
    config = home.config()
    return {
        "pipeline": config.pipeline,
        "services": {"oracle": {"url": config.services["oracle"].url, "health": None}},
    }


def test_branch_takes_kept_answers_of_dead_service(asking, service, run):
    oracle = {"url": service.url, "health": None, "keep_responses": "90d"}
    home = asking("kept", services={"oracle": oracle})
    run(home)
    fork(home.config(), "again", 0, "test")
    asked = service.noted("asked")
    service.goes_down(0)
    branch = home.config().on_branch("again")
    report = run_in(run.spark, branch, RunOptions(run_id="again"), run.events.append)
    assert (report.responses_taken, report.waiting) == (asked.total(), 0)
    assert service.noted("asked") == asked
    assert not [*differences(JobAtCheckpoint(home.config()), JobAtCheckpoint(branch))]


def test_abandoned_element_is_quarantined_with_last_error(asking, service, run):
    home = asking("careful", days=1)
    service.goes_down(50)
    run(home)
    config = home.config()
    rows = live_rows(config, checkpoints(config)[-1], "quarantine")
    ours = [row for row in rows if "ask" in row]
    assert len(ours) == sum(1 for p in service.noted("asked") if p >= 50) > 0
    assert all("no response for" in repr(row) for row in ours)
    assert waiting(home) == []


def test_abandoned_element_can_be_requested_again(asking, service, run):
    home = asking("careful", days=1)
    service.goes_down(50)
    run(home)
    given_up = [number for number in service.noted("asked") if number >= 50]
    service.comes_back()
    result = requeue(home.config(), "by-hand", operator="ask", why="it is back")
    assert result.metrics["requeued"] == len(given_up) == len(waiting(home))
    assert requeue(home.config(), "by-hand") is None
    assert run(home).stopped_because == "drained"
    assert waiting(home) == []
    assert all(service.noted("answered")[number] == 1 for number in given_up)
    assert all("ask" not in row for row in live_rows(home.config(), checkpoints(home.config())[-1], "quarantine"))
    assert_well_formed(home.config())


def test_only_async_operators_accept_requeue_requests(asking, run):
    home = asking("careful", days=1)
    run(home)
    with pytest.raises(ConfigError, match=r"no async operator or source 'customers' \(it has: ask, purchases\)"):
        requeue(home.config(), "by-hand", operator="customers")


@pytest.mark.slow
def test_breaker_parks_rest_and_next_run_probes(asking, service, run, plain):
    """The next run probes with one call."""
    home = asking("breaking")
    service.goes_down(0)
    run(home, parallelism=1)
    asked = sum(service.noted("asked").values())
    assert asked < 15
    result = checkpoints(home.config())[-1].services["ask"]
    assert result.breaker == "open"
    when_due(home.config())
    run(home, parallelism=1, max_batches=1)
    assert sum(service.noted("asked").values()) == asked + 1
    service.comes_back()
    run_until_done(run, home, parallelism=1)
    assert comparable(home) == plain


def test_elements_of_removed_operator_are_not_lost_silently(asking, service, run):
    home = asking("ordered", days=1)
    service.goes_down(5)
    run(home)
    home.configure({"pipeline": "tests.jobs.purchases:pipeline"})
    with pytest.raises(StateSchemaError, match="elements wait for operator 'ask'"):
        run(home)


@pytest.mark.slow
def test_finish_leaves_no_waiting_or_held_records(asking, service, run, tmp_path):
    """The elements that the first wait releases at the end are new to the second wait, whose service is still down."""
    second = Service(tmp_path / "second")
    urls = {"oracle": {"url": service.url, "health": None}, "second": {"url": second.url, "health": None}}
    home = asking("twice", days=1, services=urls)
    service.goes_down(30)
    second.goes_down(20)
    cut_short = run(home, finish=True, max_batches=1)
    assert (cut_short.stopped_because, cut_short.waiting) == ("max_batches", len(waiting(home)))
    assert cut_short.waiting > 0
    service.comes_back()
    second.goes_down(50)
    numbers = {purchase["seq"] for purchase in purchases_of(0, rows=ROWS)}
    report = run(home, finish=True)
    assert (report.stopped_because, report.waiting) == ("finished", 0)
    assert waiting(home) == []
    assert live_rows(home.config(), checkpoints(home.config())[-1], "buffered_requests") == []
    given_up = [row for row in live_rows(home.config(), checkpoints(home.config())[-1], "quarantine") if "then" in row]
    assert len(given_up) == sum(1 for number in numbers if number >= 50) > 0
    assert set(second.noted("answered")) == {number for number in numbers if number < 50}
    assert all(calls == 2 for number, calls in second.noted("asked").items() if number >= 50)
    assert_well_formed(home.config())
    again = run(home, finish=True)
    assert (again.stopped_because, again.checkpoints) == ("finished", [])


@pytest.mark.slow
def test_board_after_outage_equals_undisturbed_board(flights, run, monkeypatch, tmp_path):
    """The demo's outage: the weather service is down for the second half of a run."""
    home = flights(3)
    run(home)
    expected = outcome(home.config())
    with weather_service() as url:
        monkeypatch.setenv("WEATHER_URL", url)
        hit = Home(tmp_path / "hit", FLIGHTS)
        hit.configure({"sources": {"flight_events": {"path": home.config().sources["flight_events"].path}}})
        switch_outage(url, begins_after=100)
        run(hit)
        assert checkpoints(hit.config())[-1].work.pending > 500
        switch_outage(url, begins_after=None)
        when_due(hit.config())
        run(hit, parallelism=3)
    assert checkpoints(hit.config())[-1].work.pending == 0
    assert outcome(hit.config()) == expected
