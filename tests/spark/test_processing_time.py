"""Timers of processing time fire once in runs without input, also after crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import clock as engine_clock
from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.run.due_timers import any_timer_due
from tests.jobs.home import Home
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows, sink_rows
from tests.jobs.purchase_files import day_name, day_start
from tests.jobs.wake_ups import JOB, SNOOZE

QUICK: dict[str, Any] = {"parallelism": 2, "backend": "rocksdb"}
MINUTE = 60_000


class ShiftedClock(engine_clock.SystemClock):
    """The driver's clock, moved by a test."""

    ahead = 0

    def now(self) -> int:
        return super().now() + self.ahead


@pytest.fixture
def clock():
    shifted = ShiftedClock()
    with engine_clock.installed(shifted):
        yield shifted


@pytest.fixture
def hotel(tmp_path: Path) -> Home:
    return Home(tmp_path, JOB)


def write(home: Home, day: int, *orders: tuple[str, int, int]) -> None:
    rows = [{"at": day_start(day), "guest": who, "delay": delay, "snoozes": snoozes} for who, delay, snoozes in orders]
    schema = pa.schema(
        [("at", pa.timestamp("ms", tz="UTC")), ("guest", pa.string()), ("delay", pa.int64()), ("snoozes", pa.int64())]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), home.input / day_name(day))


def calls(home: Home) -> list[tuple[str, int]]:
    """Return the calls: guest and number."""
    return sorted((guest, number) for _, guest, number in sink_rows(home.config(), "calls"))


def timers(home: Home) -> int:
    return len(live_rows(home.config(), checkpoints(home.config())[-1], "timers"))


def test_due_timers_fire_once_without_input(hotel, run, clock):
    write(hotel, 0, ("ann", MINUTE, 1), ("bob", 3 * MINUTE, 0), ("cid", 0, 0))
    assert len(run(hotel, **QUICK).checkpoints) == 1
    assert (calls(hotel), timers(hotel)) == ([("cid", 1)], 2)
    assert run(hotel, **QUICK).checkpoints == []

    clock.ahead = 2 * MINUTE
    report = run(hotel, **QUICK)
    assert (len(report.checkpoints), report.rows_in, report.stopped_because) == (1, 0, "drained")
    assert calls(hotel) == [("ann", 1), ("ann", 2), ("cid", 1)]
    assert run(hotel, **QUICK).checkpoints == []

    clock.ahead = 4 * MINUTE
    run(hotel, **QUICK)
    assert calls(hotel) == [("ann", 1), ("ann", 2), ("bob", 1), ("cid", 1)]
    assert (run(hotel, **QUICK).checkpoints, timers(hotel)) == ([], 0)
    assert_well_formed(hotel.config())


def test_repeating_timers_do_not_keep_run_alive(hotel, run, clock, monkeypatch):
    write(hotel, 0, ("ann", MINUTE, 50))
    run(hotel, **QUICK)
    clock.ahead = 2 * MINUTE

    def later(place: str) -> None:
        if place == "run.after":
            clock.ahead += 2 * SNOOZE

    with monkeypatch.context() as patched:
        patched.setattr("headrace.crash_points.reached", later)
        assert len(run(hotel, **QUICK).checkpoints) == 1
        before = len(calls(hotel))
        assert len(run(hotel, **QUICK).checkpoints) == 1
    assert len(calls(hotel)) > before


def test_interrupted_run_fires_timers_when_repeated(hotel, run, clock, monkeypatch):
    write(hotel, 0, ("ann", MINUTE, 0), ("bob", MINUTE, 0))
    looks_up = {**QUICK, "backend": "delta"}
    run(hotel, **looks_up)
    clock.ahead = 2 * MINUTE

    def give_out(place: str) -> None:
        if place == "commit.before":
            raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("headrace.crash_points.reached", give_out)
        with pytest.raises(ZeroDivisionError):
            run(hotel, **looks_up)
    assert calls(hotel) == []
    run(hotel, parallelism=1, backend="delta")
    assert calls(hotel) == [("ann", 1), ("bob", 1)]


def test_timers_fire_before_records_and_after_intervals(hotel, run, clock):
    """Timers fire before the records of a micro-batch, and after an interval."""
    write(hotel, 0, ("ann", MINUTE, 0))
    write(hotel, 1, ("bob", MINUTE, 0))
    run(hotel, mode="interval", interval_start=day_start(0), interval_end=day_start(1), **QUICK)
    clock.ahead = 2 * MINUTE
    run(hotel, mode="interval", interval_start=day_start(1), interval_end=day_start(2), **QUICK)
    assert calls(hotel) == [("ann", 1)]
    write(hotel, 2, ("cid", 0, 0))
    clock.ahead = 4 * MINUTE
    run(hotel, mode="interval", interval_start=day_start(2), interval_end=day_start(3), **QUICK)
    assert calls(hotel) == [("ann", 1), ("bob", 1), ("cid", 1)]
    assert checkpoints(hotel.config())[-1].interval_end == day_start(3)


def test_compaction_keeps_timers_and_their_domain(hotel, run, clock):
    write(hotel, 0, ("ann", MINUTE, 0), ("bob", 3 * MINUTE, 0))
    run(hotel, **QUICK)
    clock.ahead = 2 * MINUTE
    run(hotel, **QUICK)
    compact(hotel.config(), "test")
    with open_job(hotel.config(), "test") as job:
        now = engine_clock.now()
        assert [any_timer_due(job, now + ahead) for ahead in (0, 5 * MINUTE)] == [False, True]
    clock.ahead = 4 * MINUTE
    run(hotel, parallelism=1, backend="hashmap")
    assert calls(hotel) == [("ann", 1), ("bob", 1)]
