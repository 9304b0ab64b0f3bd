"""Runs of a job whose two sources meet, on real files and checkpoints (no JVM): daily purchases, and returns by half day."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace import clock
from headrace.checkpoint import restore
from headrace.errors import ConfigError, SourceError
from headrace.plan.stages import Plan
from tests.jobs.home import PURCHASES
from tests.jobs.outcome import checkpoints
from tests.jobs.purchase_files import day_name, day_start, write_rows
from tests.unit.support.noted_job import noted_job

HOUR = 3_600_000
RETURNS = {"path": "returns", "interval": "%Y-%m-%dT%H"}


@pytest.fixture
def job(tmp_path, monkeypatch):
    node = Plan.sources.fget
    monkeypatch.setattr(
        Plan, "sources", property(lambda plan: (*node(plan), replace(*node(plan), name="returns", order_by=())))
    )
    monkeypatch.setattr(Plan, "groups", property(lambda _plan: (("purchases", "returns"),)))
    made = noted_job(tmp_path, monkeypatch, sources={**PURCHASES["sources"], "returns": RETURNS})
    (tmp_path / "returns").mkdir()
    for day in range(4):
        (made.home.input / day_name(day)).unlink()
    return made


def bought(job, day, *hours):
    write_rows(job.home.input, day_name(day), rows(day, hours))


def returned(job, day, half, *hours):
    write_rows(job.home.folder / "returns", f"{day_name(day)[:-8]}T{half * 12:02}.parquet", rows(day, hours))


def rows(day, hours):
    return [{"seq": hour, "at": day_start(day) + hour * HOUR} for hour in hours]


def offsets(job):
    return checkpoints(job.home.config())[-1].offsets


def test_daily_and_half_daily_files_meet(job):
    bought(job, 0, 1, 5, 13, 22)
    returned(job, 0, 0, 3)
    returned(job, 0, 1, 14)
    job.run()
    assert (
        job.rows
        == [
            [
                ("purchases", day_name(0), 0, 3, 0),
                ("returns", "2024-03-01T00.parquet", 0, 1, 1),
                ("returns", "2024-03-01T12.parquet", 0, 1, 4),
            ]
        ]
        or len(job.rows) == 1
    )
    assert (offsets(job)["purchases"].unread, offsets(job)["purchases"].rows_taken) == ((day_name(0),), 3)
    assert "1 rows of 'purchases' wait for 'returns'" in job.told("ahead")


def test_intervals_and_caught_up_runs_agree(job):
    for day in range(2):
        bought(job, day, 1, 5, 13, 22)
        for half in range(2):
            returned(job, day, half, 3 + 12 * half)
    job.days(0)
    job.days(1)
    by_interval = sum(taken for slice_ in job.rows for _, _, _, taken, _ in slice_)
    places = {name: (offset.unread, offset.rows_taken) for name, offset in offsets(job).items()}
    restore(job.home.config(), 0, "again", "somebody")
    job.home.configure({"sources": {"returns": RETURNS, "purchases": {"max_files_per_batch": 1}}})
    job.run()
    assert sum(taken for slice_ in job.rows for _, _, _, taken, _ in slice_) == by_interval
    assert {name: (offset.unread, offset.rows_taken) for name, offset in offsets(job).items()} == places


def test_a_replay_repeats_what_idleness_let_pass(job, virtual_time):
    job.home.configure({"sources": {"returns": {**RETURNS, "idle_after": "1h"}}})
    bought(job, 0, 1, 5, 13)
    returned(job, 0, 0, 3)
    job.days(0)
    virtual_time.advance(2 * HOUR)
    job.days(1)
    returned(job, 2, 0, 6)
    bought(job, 2, 4, 8)
    job.days(2)
    straight = job.rows
    assert [len(one) for one in straight] == [2, 1, 2]
    job.days(0, replay=True)
    assert job.rows == straight


@pytest.mark.parametrize("late", [0, 1])
def test_a_replay_takes_a_late_file_of_a_group_in(job, late):
    for day in range(2):
        bought(job, day, 1, 23)
        returned(job, day, 0, 3)
        job.days(day)
    returned(job, late, 1, 15)
    name = f"2024-03-0{late + 1}T12.parquet"
    with pytest.raises(SourceError, match=name):
        job.days(2)
    job.days(late, replay=True)
    assert any(name in files for files in job.contents)
    job.days(2)


def test_a_late_file_before_a_partly_read_one_fails(job):
    bought(job, 1, 1, 2, 3)
    returned(job, 1, 0, 2)
    job.run()
    assert offsets(job)["purchases"].unread
    bought(job, 0, 1)
    with pytest.raises(SourceError, match=f"1 file.* appeared behind the last file read .* {day_name(0)}"):
        job.run()


def test_interval_runs_need_all_patterns(job):
    job.home.configure({"sources": {"returns": {"path": "returns"}}})
    with pytest.raises(ConfigError, match="source 'returns' has no 'interval' pattern"):
        job.days(0)


def test_the_end_releases_what_waits(job):
    bought(job, 0, 1, 5, 13)
    returned(job, 0, 0, 3)
    assert job.run(end_of_input=True).stopped_because == "ended"
    assert not any(offset.unread for offset in offsets(job).values())
    assert all(offset.ended for offset in offsets(job).values())


@pytest.fixture
def virtual_time():
    virtual = clock.VirtualClock(clock.now())
    previous = clock.use(virtual)
    yield virtual
    clock.use(previous)
