"""Interval runs: a day at a time, in order, again, and refused where they would leave a gap or overlap."""

from __future__ import annotations

from typing import Any

import pytest

from engine.checkpoint import restore
from engine.checkpoint.checkpoint import Kind
from engine.errors import ConfigError, IntervalError
from tests.jobs.outcome import checkpoints, outcome
from tests.jobs.purchase_files import day_name, day_start, purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand


@pytest.fixture
def run_days(home, run) -> Any:
    """Run the interval from one day to before another."""
    write_days(home.input, range(4), rows=40)

    def run_interval(first: int, end: int):
        interval = {"interval_start": day_start(first), "interval_end": day_start(end)}
        return run(home, mode="interval", parallelism=1, backend="hashmap", **interval)

    return run_interval


def expected(*days: int):
    return by_hand(purchases_of(day, rows=40) for day in days)


def test_intervals_in_order_come_to_the_same_as_a_caught_up_run(home, run_days):
    for day in range(3):
        assert run_days(day, day + 1).stopped_because == "interval"
    assert_as_by_hand(home.config(), expected(0, 1, 2))


def test_an_old_interval_is_replayed_from_where_it_began(home, run, run_days):
    run_days(0, 1)
    run_days(1, 2)
    run_days(2, 3)
    assert len(run_days(1, 2).checkpoints) == 2
    assert_as_by_hand(home.config(), expected(0, 1))
    assert [c.kind for c in checkpoints(home.config())[-2:]] == [Kind.RESTORE, Kind.BATCH]
    run_days(2, 3)
    assert_as_by_hand(home.config(), expected(0, 1, 2))


def test_the_first_interval_can_be_run_again(home, run_days):
    run_days(0, 1)
    run_days(1, 2)
    run_days(0, 1)
    assert_as_by_hand(home.config(), expected(0))


def test_the_same_interval_twice_is_the_same_as_once(home, run_days):
    run_days(0, 1)
    run_days(1, 2)
    before = outcome(home.config())
    run_days(1, 2)
    assert outcome(home.config()) == before


def test_an_interval_after_a_gap_is_refused(home, run_days):
    run_days(0, 1)
    before = checkpoints(home.config())
    with pytest.raises(IntervalError, match="2024-03-03 to 2024-03-04 would leave a gap.*up to 2024-03-02"):
        run_days(2, 3)
    assert checkpoints(home.config()) == before


def test_an_interval_inside_a_committed_slice_replays_the_slice_up_to_it(home, run, run_days):
    run_days(0, 3)
    assert len(run_days(1, 2).checkpoints) == 3
    assert_as_by_hand(home.config(), expected(0, 1))
    run(home, parallelism=1, backend="hashmap")
    assert_as_by_hand(home.config(), expected(0, 1, 2, 3))


def test_an_interval_without_files_is_taken_in_all_the_same(home, run_days):
    run_days(0, 1)
    (home.input / day_name(1)).unlink()
    run_days(1, 2)
    run_days(2, 3)
    assert_as_by_hand(home.config(), expected(0, 2))


def test_an_interval_goes_on_from_a_caught_up_run(home, run, run_days):
    home.configure({"sources": {"purchases": {"max_files_per_batch": 2}}})
    run(home, parallelism=1, backend="hashmap", max_batches=1)
    run_days(2, 3)
    run(home, parallelism=1, backend="hashmap")
    assert_as_by_hand(home.config(), expected(0, 1, 2, 3))


@pytest.mark.parametrize("interval", [{}, {"interval_start": 5}, {"interval_start": 5, "interval_end": 5}])
def test_an_interval_that_is_none_is_a_configuration_error(home, run, interval):
    with pytest.raises(ConfigError, match="interval"):
        run(home, mode="interval", **interval)


def test_a_replay_that_broke_off_is_taken_up_again_by_the_same_interval(home, run, run_days, monkeypatch):
    # 0 to 4 were one slice, so the interval 2 to 3 goes back to 0 and replays two days; a try ends in between.
    run(home, parallelism=1, backend="hashmap")

    def give_out(place: str) -> None:
        if place == "run.after":
            raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("engine.faults.reached", give_out)
        with pytest.raises(ZeroDivisionError):
            run_days(2, 3)
    assert checkpoints(home.config())[-1].kind is Kind.RESTORE
    run_days(2, 3)
    assert_as_by_hand(home.config(), expected(0, 1, 2))


@pytest.mark.parametrize("target", [0, 1])
def test_an_interval_after_a_restore_by_hand_still_finds_a_gap(home, run, run_days, target):
    run_days(0, 1)
    run_days(1, 2)
    restore(home.config(), target, "by hand", "somebody")
    with pytest.raises(IntervalError, match="would leave a gap"):
        run_days(2, 3)
