"""The ways to run a job in Airflow, each as a scenario with its own jobs; all scenarios run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from tests.airflow.live.flights import flights_approved_in_a_browser, flights_corrected_by_merge
from tests.airflow.live.jobs import DailyJob, intervals, start_of
from tests.airflow.live.runs import Runs
from tests.airflow.live.services import Airflow, ApiError
from tests.airflow.live.views import jobs_looked_at_in_a_browser

Scenario = Callable[[Airflow, dict[str, Any]], None]


def gap_after_a_pause(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A paused DAG is backfilled and unpaused: the scheduled run waits and is refused.

    The rest is backfilled, and the refused run is cleared.
    """
    job, runs, sensor = jobs["days"], Runs(airflow, "days"), Runs(airflow, "sensor")
    waiting = sensor.trigger(conf={"until": start_of(0).isoformat()})
    sensor.wait_for_task(waiting, "wait", "deferred")
    runs.backfill(5, 4)
    runs.unpause()
    runs.assert_succeeds(*(runs.of(start_of(ago)) for ago in intervals(5, 4)))
    scheduled = runs.of(start_of(1))
    runs.assert_refused(scheduled, "would leave a gap", "Run the interval that starts there first")
    assert runs.tries(scheduled, "run") == 1
    job.assert_has(intervals(5, 4))

    runs.backfill(3, 2)
    runs.assert_succeeds(*(runs.of(start_of(ago)) for ago in intervals(3, 2)))
    runs.clear(scheduled, "run")
    runs.assert_succeeds(scheduled)
    job.assert_has(intervals(5, 1))
    sensor.assert_succeeds(waiting)
    assert datetime.fromisoformat(sensor.result(waiting, "wait")["interval_end"]) == start_of(0)


def interval_again(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """An interval that was taken in before is refused: when cleared, run by hand, or backfilled."""
    job, runs = jobs["again"], Runs(airflow, "again")
    runs.backfill(3, 2)
    runs.unpause()
    first, second, scheduled = (runs.of(start_of(ago)) for ago in intervals(3, 1))
    runs.assert_succeeds(first, second, scheduled)

    runs.clear(first, "run")
    runs.assert_refused(first, "has been taken in already", "somebody asked for it again")
    runs.mark_success(first, "run")
    runs.assert_succeeds(first)

    job.deliver([2])
    with pytest.raises(ApiError, match="depends_on_past"):
        runs.backfill(3, 2, run_backwards=True)
    runs.backfill(2, 2)
    runs.assert_refused(second, "has been taken in already", "headrace backfill")
    job.assert_has(intervals(3, 1))


def interval_again_on_a_branch(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A cleared run of a corrected day starts a replay: a rejected replay leaves nothing behind.

    After an approved replay the tables equal a straight run.
    """
    _corrected_day(airflow, jobs["corrected"])


def table_corrected_by_merge(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """The same for a day of a Delta table, which somebody corrects by MERGE."""
    _corrected_day(airflow, jobs["table"])


def _corrected_day(airflow: Airflow, job: DailyJob) -> None:
    runs, replay = Runs(airflow, job.name), Runs(airflow, f"{job.name}_replay")
    runs.backfill(4, 2)
    runs.unpause()
    runs.assert_succeeds(*(runs.of(start_of(ago)) for ago in intervals(4, 1)))
    job.correct(3)
    cleared = runs.of(start_of(3))
    runs.clear(cleared, "run")
    runs.assert_succeeds(cleared)
    assert runs.result(cleared)["registered"] is True
    assert "replay" in runs.note(cleared)  # it was registered, or its replay says already where it stands

    rejected = replay.latest("asset_triggered")
    assert "lines_by_item (sink)" in replay.question(rejected, "approve")["body"]
    replay.answer(rejected, "approve", "Reject")
    replay.assert_succeeds(rejected)
    assert replay.task_state(rejected, "promote") == "skipped"
    job.assert_has(intervals(4, 1))

    runs.backfill(3, 3)
    approved = replay.latest("asset_triggered", after=rejected)
    replay.question(approved, "approve")
    job.assert_has(intervals(4, 1))
    assert "| lines_by_item (sink) |" in replay.note(approved, "backfill")
    replay.answer(approved, "approve", "Approve")
    replay.assert_succeeds(approved)
    assert replay.task_state(approved, "drop") == "skipped"
    job.assert_has(intervals(4, 1), corrected=True)


def started_by_hand(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A run by hand for a logical date gets the interval before that date.

    A backfill of the date is refused until the run is deleted.
    """
    job, runs = jobs["hand"], Runs(airflow, "hand")
    airflow.command("dags", "test", "hand", start_of(3).isoformat())
    job.assert_has([4])
    runs.unpause()
    scheduled = runs.of(start_of(1))
    runs.assert_refused(scheduled, "would leave a gap")

    dated = runs.trigger(start_of(2))
    runs.assert_succeeds(dated)
    job.assert_has(intervals(4, 3))

    for ago in intervals(3, 2):
        runs.backfill(ago, ago)
        taken_over = runs.of(start_of(ago))
        runs.assert_refused(taken_over, "was made by hand", "Delete that DAG run")
        runs.delete(taken_over)
    runs.backfill(2, 2)
    runs.assert_succeeds(runs.of(start_of(2)))
    runs.clear(scheduled, "run")
    runs.assert_succeeds(scheduled)
    job.assert_has(intervals(4, 1))

    undated = runs.trigger()
    runs.assert_refused(undated, "ConfigError", "this DAG run has no data interval: trigger it with a logical date")


def held_up_in_order(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A run fails and later runs wait; once the failed run is repaired and cleared, they continue in order."""
    job, runs = jobs["held"], Runs(airflow, "held")
    job.deliver_garbage(4)
    first, second = runs.trigger(start_of(3)), runs.trigger(start_of(2))
    assert {runs.state(first), runs.state(second)} == {"queued"}
    runs.unpause()
    runs.assert_refused(first, "SourceError")
    scheduled = runs.of(start_of(1))
    for waiting in second, scheduled:
        runs.wait_until_active(waiting)
        assert runs.task_state(waiting, "run") is None

    job.deliver([4])
    runs.clear(first, "run")
    runs.assert_succeeds(first, second)
    runs.assert_refused(scheduled, "would leave a gap")
    job.assert_has(intervals(4, 3))


def held_up_without_dates(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """Runs without a logical date overlap, and take turns.

    They wait behind a failed run, and continue when that run is cleared.
    """
    job, runs = jobs["all"], Runs(airflow, "all")
    runs.unpause()
    overlapping = [runs.trigger(), runs.trigger(), runs.of(start_of(1))]
    runs.assert_succeeds(*overlapping)
    assert sorted(runs.result(run)["rows_in"] > 0 for run in overlapping) == [False, False, True]
    job.assert_has(intervals(3, 2))

    job.deliver_garbage(1)
    failed = runs.trigger()
    runs.assert_refused(failed, "SourceError")
    waiting = runs.trigger()
    runs.wait_for_task(waiting, "run", "up_for_reschedule")
    assert f"task run of run {failed} failed, and holds up the runs after it" in runs.log(waiting)

    job.deliver([1])
    runs.clear(failed, "run")
    runs.assert_succeeds(failed, waiting)
    job.assert_has(intervals(3, 1))


def started_by_an_asset(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A run on a real Spark returns what it did, and starts the job that reads its sink.

    A run that changes no sink starts no job.
    """
    job, runs, chain = jobs["board"], Runs(airflow, "board"), Runs(airflow, "chain")
    runs.unpause()
    first = runs.trigger()
    runs.assert_succeeds(first)
    result = runs.result(first)
    assert result["rows_in"] == 180
    assert result["sinks"]["lines_by_item"]["rows"] > 0

    started = chain.latest("asset_triggered")
    chain.assert_succeeds(started)
    assert chain.result(started)["rows_in"] == result["sinks"]["lines_by_item"]["rows"]
    events = airflow.api.get("/assets/events?source_dag_id=board")["asset_events"]
    assert sorted(event["extra"]["sink"] for event in events) == ["lines_by_item", "reminders"]
    assert {event["extra"]["checkpoint"] for event in events} == {result["checkpoint"]}

    runs.clear(first, "run")
    runs.assert_succeeds(first)
    assert runs.result(first)["rows_in"] == 0
    assert airflow.api.get("/assets/events?source_dag_id=board")["total_entries"] == len(events)
    job.assert_has(intervals(3, 2))


def refused_triggers(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A trigger with a typo in a param, and one that asks for an interval that it has not, hold up no run after them."""
    job, runs = jobs["typo"], Runs(airflow, "typo")
    runs.unpause()
    scheduled = runs.of(start_of(1))
    runs.assert_succeeds(scheduled)
    hour = timedelta(hours=1)
    typo = runs.trigger(start_of(1) + hour, {"max_batch": 1})
    undated = runs.trigger(conf={"mode": "interval", "budget": "9h"})
    for refused, message in (typo, "did you mean 'max_batches'"), (undated, "longer than the job's own budget"):
        assert runs.ended(refused) == "failed"
        assert message in runs.log(refused, "refused")
        assert runs.task_state(refused, "run") == runs.task_state(refused, "uncompacted") == "skipped"

    job.deliver([2])
    runs.assert_succeeds(runs.trigger(start_of(1) + 2 * hour), runs.trigger())
    assert runs.task_state(scheduled, "refused") == "skipped"


def cancelled_backfill(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """A backfill is cancelled while its runs wait for a failed one: they do nothing, and hold up nobody."""
    job, runs = jobs["cancelled"], Runs(airflow, "cancelled")
    job.deliver_garbage(5)
    runs.backfill(5, 3, max_active_runs=100)
    runs.unpause()
    failed, *waiting = [runs.of(start_of(ago)) for ago in intervals(5, 3)]
    runs.assert_refused(failed, "SourceError")
    for run in waiting:
        runs.wait_until_active(run)
    runs.cancel_backfill()

    job.deliver([5])
    runs.backfill(5, 5)  # Airflow starts no run of a cancelled backfill again, cleared or not
    runs.assert_succeeds(failed)
    for run in waiting:
        assert runs.ended(run) == "failed"
        assert "the backfill of this run was cancelled" in runs.log(run, "refused")
    job.assert_has([5])
    runs.backfill(4, 3)
    runs.assert_succeeds(*waiting)
    job.assert_has(intervals(5, 3))


SCENARIOS: Final[tuple[Scenario, ...]] = (
    gap_after_a_pause,
    interval_again,
    interval_again_on_a_branch,
    table_corrected_by_merge,
    started_by_hand,
    held_up_in_order,
    held_up_without_dates,
    started_by_an_asset,
    refused_triggers,
    cancelled_backfill,
    flights_corrected_by_merge,
    flights_approved_in_a_browser,
    jobs_looked_at_in_a_browser,
)
