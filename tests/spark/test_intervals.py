"""Interval runs: day by day, in order, again after a restore, and refused where they would leave a gap or go back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.edits.restore import restore
from headrace.errors import ConfigError, IntervalError
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome
from tests.jobs.purchase_files import day_name, day_start, purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand


@pytest.fixture
def run_days(home, run) -> Any:
    """Run the interval from one day to before another, each time as another run."""
    write_days(home.input, range(4), rows=40)
    ids = (f"run {number}" for number in itertools.count())

    def run_interval(first: int, end: int, *, at: Home = home, **options: Any):
        interval = {"interval_start": day_start(first), "interval_end": day_start(end)}
        options = {"mode": "interval", "parallelism": 1, "backend": "hashmap", "run_id": next(ids), **options}
        return run(at, **interval, **options)

    return run_interval


def expected(*days: int):
    return by_hand(purchases_of(day, rows=40) for day in days)


def test_intervals_in_order_equal_a_caught_up_run(home, run_days):
    for day in range(3):
        assert run_days(day, day + 1).stopped_because == "interval"
    assert_as_by_hand(home.config(), expected(0, 1, 2))


def test_interval_taken_in_already_is_done(home, run_days):
    for day in range(3):
        run_days(day, day + 1)
    before = (checkpoints(home.config()), outcome(home.config()))
    for first, end in ((1, 2), (2, 3)):
        assert run_days(first, end).stopped_because == "done"
    assert (checkpoints(home.config()), outcome(home.config())) == before


def test_intervals_after_a_restore_equal_the_straight_run(home, run_days):
    for day in range(3):
        run_days(day, day + 1)
    restore(home.config(), 1, "the second day was wrong", "somebody")
    for day in (1, 2):
        run_days(day, day + 1)
    assert_as_by_hand(home.config(), expected(0, 1, 2))
    assert_well_formed(home.config())


def test_interval_after_a_gap_is_refused(home, run_days):
    run_days(0, 1)
    before = checkpoints(home.config())
    with pytest.raises(IntervalError, match="2024-03-03 to 2024-03-04 would leave a gap.*up to 2024-03-02"):
        run_days(2, 3)
    assert checkpoints(home.config()) == before


def test_interval_without_files_is_taken_in(home, run_days):
    run_days(0, 1)
    (home.input / day_name(1)).unlink()
    run_days(1, 2)
    run_days(2, 3)
    assert_as_by_hand(home.config(), expected(0, 2))


def test_interval_continues_a_caught_up_run(home, run, run_days):
    home.configure({"sources": {"purchases": {"max_files_per_batch": 2}}})
    run(home, parallelism=1, backend="hashmap", max_batches=1)
    run_days(2, 3)
    run(home, parallelism=1, backend="hashmap")
    assert_as_by_hand(home.config(), expected(0, 1, 2, 3))


@pytest.mark.parametrize("interval", [{}, {"interval_start": 5}, {"interval_start": 5, "interval_end": 5}])
def test_impossible_interval_is_a_configuration_error(home, run, interval):
    with pytest.raises(ConfigError, match="interval"):
        run(home, mode="interval", **interval)


@pytest.mark.parametrize("target", [0, 1])
def test_gap_is_found_after_a_manual_restore(home, run, run_days, target):
    run_days(0, 1)
    run_days(1, 2)
    restore(home.config(), target, "by hand", "somebody")
    with pytest.raises(IntervalError, match="would leave a gap"):
        run_days(2, 3)
