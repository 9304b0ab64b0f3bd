"""Promise 1: the split into micro-batches, the parallelism and the backend do not change the results."""

from __future__ import annotations

import pytest

from tests.jobs.flight_days import compare_with_raw_tables
from tests.jobs.outcome import Outcome, assert_well_formed, checkpoints, outcome
from tests.jobs.purchase_files import day_name, day_start, purchases_of, write_days, write_rows
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

DAYS = range(3)
FLIGHT_DAYS = 5
BACKENDS = ("rocksdb", "hashmap", "delta")
# A Latin square: each value of each side meets each of the other two. The harness plays the rest, and many more, without Spark.
ALL_CUTS = [
    (files, tasks, BACKENDS[(row + column) % 3])
    for row, files in enumerate((3, 2, 1))
    for column, tasks in enumerate((1, 2, 7))
]
# These have each value once.
QUICK_CUTS = {(3, 1, "rocksdb"), (2, 2, "delta"), (1, 7, "hashmap")}
CUTS = [cut if cut in QUICK_CUTS else pytest.param(*cut, marks=pytest.mark.long) for cut in ALL_CUTS]


@pytest.fixture(scope="session")
def first_outcome() -> dict[str, Outcome]:
    """Return the outcome of the first run of a job; all others are compared with it."""
    return {}


@pytest.mark.parametrize(("files_per_batch", "parallelism", "backend"), CUTS)
def test_any_slicing_of_purchases_gives_same_results(home, run, first_outcome, files_per_batch, parallelism, backend):
    write_days(home.input, DAYS)
    home.configure({"sources": {"purchases": {"max_files_per_batch": files_per_batch}}})
    report = run(home, parallelism=parallelism, backend=backend)
    assert len(report.checkpoints) == -(-len(DAYS) // files_per_batch)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, DAYS)))
    result = outcome(home.config())
    assert result == first_outcome.setdefault("purchases", result)


def test_parallelism_and_backend_may_change_between_runs(home, run):
    changes = [
        (2, "rocksdb"),
        (7, "rocksdb"),
        (1, "hashmap"),
        (2, "delta"),
        (2, "rocksdb"),
    ]
    write_days(home.input, range(len(changes)))
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    for parallelism, backend in changes:
        run(home, parallelism=parallelism, backend=backend, max_batches=1)
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, range(len(changes)))))


def test_slices_without_own_watermark_change_nothing(home, run):
    # A file has seven rows, a bucket 20: so two of three files end without a new watermark. Purchases in them that
    # register a timer in the past get it at once nevertheless.
    days = range(7)
    write_days(home.input, days, rows=7)
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    run(home, parallelism=1, backend="hashmap")
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=7) for day in days))


def test_records_of_other_keys_fire_idle_keys_timers(home, run):
    write_days(home.input, [0])
    run(home, parallelism=7)
    waiting = len(outcome(home.config()).state["timers"])
    later = [{**row, "customer": "somebody else", "cents": 1} for row in purchases_of(1)]
    write_rows(home.input, day_name(1), later)
    run(home, parallelism=7)
    expected = by_hand([purchases_of(0), later])
    assert waiting > 0
    assert_as_by_hand(home.config(), expected)
    assert {key for _, key in expected.timers} <= {"somebody else"}


def test_empty_file_is_taken_in_without_effect(home, run):
    write_days(home.input, [0])
    write_rows(home.input, day_name(1), [])
    home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    report = run(home, parallelism=2)
    assert len(report.checkpoints) == 2
    assert_as_by_hand(home.config(), by_hand([purchases_of(0)]))


def test_run_without_new_input_commits_nothing(home, run):
    write_days(home.input, [0])
    run(home, parallelism=1)
    before = checkpoints(home.config())
    report = run(home, parallelism=1)
    assert (report.stopped_because, report.checkpoints) == ("drained", [])
    assert checkpoints(home.config()) == before


def test_checkpoint_interval_comes_from_its_files(home, run):
    write_days(home.input, [0, 1])
    run(home, parallelism=1)
    last = checkpoints(home.config())[-1]
    assert (last.interval_start, last.interval_end) == (day_start(0), day_start(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files_per_batch", "parallelism", "backend"),
    [
        (2, 2, "rocksdb"),
        pytest.param(FLIGHT_DAYS, 1, "hashmap", marks=pytest.mark.long),
    ],
)
def test_five_days_of_flights_equal_plain_computation(
    flights, run, first_outcome, files_per_batch, parallelism, backend
):
    home = flights(FLIGHT_DAYS, max_files_per_batch=files_per_batch)
    run(home, parallelism=parallelism, backend=backend)
    assert_well_formed(home.config())
    result = outcome(home.config())
    if "flights" not in first_outcome:
        assert compare_with_raw_tables(home.config(), FLIGHT_DAYS).total == 0
    assert result == first_outcome.setdefault("flights", result)


@pytest.mark.slow
def test_synchronous_state_gives_flights_same_results(flights, run, first_outcome):
    home = flights(FLIGHT_DAYS, max_files_per_batch=2)
    run(home, parallelism=2, async_state=False)
    result = outcome(home.config())
    assert result == first_outcome.setdefault("flights", result)


@pytest.mark.long
def test_strictly_ordered_watermarks_give_flights_same_results(flights, run, first_outcome):
    strictly = {"event-order.watermark": "strictly-ordered", "in-flight-records-limit": 50, "buffer-size": 7}
    home = flights(FLIGHT_DAYS, strictly, max_files_per_batch=2)
    run(home, parallelism=2)
    result = outcome(home.config())
    assert result == first_outcome.setdefault("flights", result)


JANUARY = [
    (31, 1, "hashmap"),
    (11, 2, "delta"),
    (6, 7, "rocksdb"),
]
"""Each backend and number of tasks is there. Properties over random graphs run all combinations without Spark."""


@pytest.mark.long
@pytest.mark.parametrize(("files_per_batch", "parallelism", "backend"), JANUARY)
def test_january_has_the_same_results(flights, run, first_outcome, files_per_batch, parallelism, backend):
    home = flights(31, max_files_per_batch=files_per_batch)
    report = run(home, parallelism=parallelism, backend=backend)
    assert len(report.checkpoints) == -(-31 // files_per_batch)
    result = outcome(home.config())
    if "january" not in first_outcome:
        assert compare_with_raw_tables(home.config(), 31).total == 0
    assert result == first_outcome.setdefault("january", result)
