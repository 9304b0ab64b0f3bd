"""Interval runs over Delta tables: which rows each takes, when it is done, and what comes late (no JVM)."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from headrace import Timestamp
from headrace.commit.input_report import input_remarks
from headrace.edits.acknowledge import acknowledge
from headrace.errors import ConfigError, IntervalError, SourceError
from headrace.sources.interval import Interval
from tests.unit.run.dated_table import DAY, DatedTable, IntervalJob, at, day_of, days
from tests.unit.support.table_job import Row, table


def committed():
    """Return a table with rows of three days, the second with two commits."""
    written = DatedTable()
    written.append_at(0.5, "a", "b")
    written.append_at(1.1, "c")
    written.append_at(1.9, "d")
    written.append_at(2.5, "e")
    return written


def remarks_on(job):
    return input_remarks(job.harness.config, job.log.lineage.checkpoints)


def test_each_day_takes_its_commits():
    job = IntervalJob(committed())
    assert [job.took_days(number) for number in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]


def test_week_gives_the_same_as_days():
    written = committed()
    daily, weekly = IntervalJob(written), IntervalJob(written)
    for number in range(4):
        daily.days(number)
    weekly.days(0, 4)
    assert daily.arrived() == weekly.arrived() == ["a", "b", "c", "d", "e"]


def test_done_interval_does_nothing():
    job = IntervalJob(committed())
    job.days(0)
    job.days(1)
    before = job.last.checkpoint_id
    assert [job.days(0).stopped_because, job.days(1).stopped_because] == ["done", "done"]
    assert job.last.checkpoint_id == before


def test_gap_is_refused():
    job = IntervalJob(committed())
    job.days(0)
    with pytest.raises(IntervalError, match=r"interval 2024-03-03 to 2024-03-04 would leave a gap"):
        job.days(2)


def test_rows_of_partitions_come_by_day():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", "d", of=[0, 1])
    written.append_at(0.6, "b", of=[0])
    job = IntervalJob(written)
    assert job.took_days(0) == ["a", "b"]
    written.append_at(1.5, "e", "f", of=[1, 2])
    assert job.took_days(1) == ["d", "e"]
    assert job.took_days(2) == ["f"]


def test_late_rows_of_a_partition_change_its_day():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    job = IntervalJob(written)
    job.days(0)
    assert job.days(0).stopped_because == "done"
    written.append_at(1.5, "late", "b", of=[0, 1])
    with pytest.raises(IntervalError, match=r"Its input has changed since: file .*day=2024-03-01.* is new") as caught:
        job.days(0)
    assert caught.value.is_taken_in
    report = job.days(1)
    assert job.arrived() == ["a", "b"]
    assert [warning.kind for warning in report.warnings] == ["added_file"]
    with pytest.raises(IntervalError, match=r"Its input has changed since: file .*day=2024-03-01.* is new"):
        job.days(0)
    assert job.days(1).stopped_because == "done"


@pytest.mark.slow
@pytest.mark.parametrize("by_day", [False, True])
def test_backfill_takes_late_rows_in(by_day):
    written = DatedTable(by_day=by_day)
    for number in range(3):
        written.append_at(number + 0.5, f"day {number}", of=[number])
    job = IntervalJob(written)
    for number in range(3):
        job.days(number)
    written.append_at(1.7, "late", of=[1])  # behind the commit of the third day, whose time its own cannot precede
    written.append_at(3.5, "day 3", of=[3])
    job.days(3)
    assert job.arrived() == [f"day {number}" for number in range(4)]
    changed = 1 if by_day else 2
    plan = job.plan(days(changed))
    assert [str(change) for change in plan.changes if "is new since checkpoint" in str(change)]
    assert (plan.estimate.files, plan.begins_at) == (5 - changed, days(changed).start)
    result = job.backfill(days(changed))
    straight = IntervalJob(written)
    straight.days(0, 4)
    assert result.outcome.value == "promoted"
    assert job.arrived() == straight.arrived()
    assert job.days(changed).stopped_because == "done"
    written.append_at(4.5, "day 4", of=[4])
    assert job.days(4).warnings == ()
    assert job.arrived()[-1] == "day 4"


def corrected(*, on_change="skip"):
    """Return a table of three days, and a job that has taken them in. Then a row of the second day is deleted, another one rewritten."""
    written = DatedTable(by_day=True)
    for number in range(3):
        written.append_at(number + 0.5, f"{number} a", f"{number} b", of=[number, number])
    written.append_at(2.6, "4 a", of=[4])
    job = IntervalJob(written, on_change=on_change)
    for number in range(3):
        job.days(number)
    written.date(written.delete("1 a"), 3.1)
    written.delta.update(predicate="name = '1 b'", updates={"name": "'1 c'"})
    written.date(written.version, 3.2)
    return written, job


@pytest.mark.slow
def test_rewritten_partition_is_read_again():
    written, job = corrected()
    report = job.days(3)
    assert {warning.kind for warning in report.warnings} == {"added_file"}
    with pytest.raises(IntervalError, match=r"/rewrite/DELETE of source 'rows' is new"):
        job.days(1)
    assert job.days(2).stopped_because == "done"
    result = job.backfill(days(1))
    assert result.outcome.value == "promoted"
    assert sorted(job.arrived()) == ["0 a", "0 b", "1 c", "2 a", "2 b"]
    assert job.days(1).stopped_because == "done"
    written.append_at(4.1, "4 b", of=[4])
    assert job.days(4).warnings == ()
    assert sorted(job.arrived()) == sorted(written.names())


@pytest.mark.slow
def test_promoted_job_sees_the_next_correction():
    written, job = corrected()
    job.days(3)
    assert job.backfill(days(1)).outcome.value == "promoted"
    written.date(written.delete("2 a"), 3.3)
    with pytest.raises(IntervalError, match=r"rewrite/DELETE"):
        job.days(2)
    assert job.backfill(days(2)).outcome.value == "promoted"
    assert sorted(job.arrived()) == ["0 a", "0 b", "1 c", "2 b"]
    assert job.took_days(4) == ["4 a"]


@pytest.mark.slow
def test_partition_rewritten_before_its_day_is_current():
    written, job = corrected()
    written.append_at(3.3, "4 b", of=[4])
    written.date(written.delete("4 a"), 3.4)
    job.days(3)
    assert job.took_days(4) == ["4 b"]
    assert job.days(4).stopped_because == "done"


def test_rewriting_commits_stop_a_job_by_default():
    _, job = corrected(on_change="fail")
    with pytest.raises(SourceError, match=r"removes or rewrites rows"):
        job.days(3)
    assert job.days(1).stopped_because == "done"


def test_snapshot_of_partitions_is_read_by_day():
    written, _ = corrected()
    job = IntervalJob(written, start="snapshot", on_change="skip")
    assert [sorted(job.took_days(number)) for number in range(3)] == [["0 a", "0 b"], ["1 c"], ["2 a", "2 b"]]
    written.append_at(3.5, "3 a", of=[3])
    assert [job.took_days(3), job.took_days(4)] == [["3 a"], ["4 a"]]


def test_acknowledged_files_are_reported_no_more():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    job = IntervalJob(written)
    job.days(0)
    written.append_at(1.5, "late", of=[0])
    job.days(1)
    line = job.log.lineage.checkpoints
    (remark,) = input_remarks(job.harness.config, line)
    with job.on_its_clock():
        acknowledge(job.harness.config, [remark.file], "not ours", "by-hand")
    assert input_remarks(job.harness.config, job.log.lineage.checkpoints) == []
    assert job.days(0).stopped_because == "done"
    assert job.days(2).warnings == ()


@pytest.mark.slow
@pytest.mark.parametrize("on_changed_file", ["warn", "fail"])
@pytest.mark.parametrize("day", [0, 1, 2])
def test_acknowledged_rows_stay_out_of_backfills(day, on_changed_file):
    written = DatedTable(by_day=True)
    for number in range(3):
        written.append_at(number + 0.5, f"{number}", of=[number])
    job = IntervalJob(written)
    for number in range(3):
        job.days(number)
    written.append_at(3.1, "late", "3", of=[0, 3])
    job.days(3)
    acknowledge_all(job)
    job.configure(on_changed_file=on_changed_file)
    assert job.backfill(days(day)).outcome.value == "promoted"
    assert job.arrived() == ["0", "1", "2", "3"]
    assert remarks_on(job) == []
    assert [job.days(number).stopped_because for number in range(4)] == ["done"] * 4
    assert job.took_days(4) == []


def test_branch_takes_over_acknowledgements_of_its_job():
    written = DatedTable(by_day=True)
    for number in range(3):
        written.append_at(number + 0.5, f"{number}", of=[number])
    job = IntervalJob(written)
    for number in range(3):
        job.days(number)
    branch = job.harness.branch("other", at=2)
    written.append_at(3.1, "late", "3", of=[0, 3])
    job.days(3)
    acknowledge_all(job)
    for number in (2, 3):
        branch.run(mode="interval", **interval_options(number, number + 1))
    branch.promote()
    assert (job.arrived(), remarks_on(job)) == (["0", "1", "2", "3"], [])


def acknowledge_all(job):
    with job.on_its_clock():
        acknowledge(job.harness.config, ["all"], "not ours", "by-hand")


def test_run_ends_before_late_rows_on_request():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    job = IntervalJob(written, on_changed_file="fail")
    job.days(0)
    written.append_at(1.5, "late", "b", of=[0, 1])
    for _ in range(2):
        with pytest.raises(SourceError, match=r"came to intervals that were taken in already.*on_changed_file: fail"):
            job.days(1)
    job.configure(on_changed_file="warn").days(1)
    assert job.arrived() == ["a", "b"]
    with pytest.raises(SourceError, match=r"came to intervals that the job had taken in before.*on_changed_file: fail"):
        job.configure(on_changed_file="fail").days(2)


def test_rows_that_end_runs_can_be_acknowledged():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    job = IntervalJob(written, on_changed_file="fail")
    job.days(0)
    written.append_at(1.5, "late", "b", of=[0, 1])
    with pytest.raises(SourceError, match=r"'headrace input reader --acknowledge FILE'"):
        job.days(1)
    assert [(remark.kind.value, remark.interval) for remark in remarks_on(job)] == [("added_file", days(0))]
    with pytest.raises(IntervalError, match="Its input has changed since"):
        job.days(0)
    acknowledge_all(job)
    assert remarks_on(job) == []
    assert (job.took_days(1), job.days(0).stopped_because) == (["b"], "done")
    shutil.rmtree(written.path)
    assert remarks_on(job) == []


# ------------------------------------------------------------------------------------------------- clocks and bad tables


def test_recorded_commit_times_outlive_a_copy():
    written = DatedTable()
    for number in range(3):
        written.append_at(number + 0.5, f"day {number}")
    for version, when in ((1, 0.5), (2, 1.5), (3, 2.5)):
        written.date(version, None)
        os.utime(written.commit_file(version), (at(when) / 1000,) * 2)
    job = IntervalJob(written)
    assert job.took_days(0) == ["day 0"]
    os.utime(written.commit_file(2), (at(2.1) / 1000,) * 2)  # as a copy of the table does
    assert [job.took_days(1), job.took_days(2)] == [["day 1"], ["day 2"]]


def test_in_commit_timestamp_comes_first():
    written = DatedTable()
    written.append_at(0.5, "a")
    actions = [json.loads(line) for line in written.commit_file(1).read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["inCommitTimestamp"] = at(1.5)
    written.commit_file(1).write_text("\n".join(map(json.dumps, actions)))
    job = IntervalJob(written)
    assert [job.took_days(0), job.took_days(1)] == [[], ["a"]]


def test_clock_that_went_back_moves_no_version_back():
    written = DatedTable()
    written.append_at(1.5, "a")
    written.append_at(0.5, "b")
    written.append_at(1.8, "c")
    job = IntervalJob(written)
    assert [job.took_days(number) for number in range(2)] == [[], ["a", "b", "c"]]


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("kind", ["optimize", "delete", "set", "skip"])
def test_commits_without_files_hold_the_clock(kind, looks):
    written = DatedTable()
    written.append_at(0.5, "a")
    written.append_at(1.9, "b")
    if kind == "skip":
        written.append("c")
    elif kind == "set":
        written.set(logRetentionDuration="interval 10 days")
    else:
        getattr(written, kind)(*(["a"] if kind == "delete" else []))
    written.date(3, 1.95)
    job = IntervalJob(written, on_change="skip", **({"skip_versions": "3"} if kind == "skip" else {}))
    job.harness.clock.advance(4 * DAY)
    if looks == 2:
        job.run()
    written.append_at(1.2, "behind")
    written.append_at(2.5, "d")
    job.run()
    assert job.arrived() == ["a", "b", "behind", "d"]
    assert remarks_on(job) == []


def test_commit_far_ahead_of_the_clock_is_refused():
    written = DatedTable()
    written.append_at(0.5, "a")
    written.append_at(30, "b")
    written.append_at(0.7, "c")
    job = IntervalJob(written)
    with pytest.raises(SourceError, match=r"version 2 of .* 2024-03-31 by its log.*\.skip_versions: 2"):
        job.days(0)
    assert job.configure(skip_versions="2").took_days(0) == ["a", "c"]


def test_interval_that_is_not_over_is_refused():
    written = DatedTable()
    written.append_at(0.5, "a")
    job = IntervalJob(written)
    job.days(0)
    with pytest.raises(IntervalError, match=r"2024-03-02 to 2024-03-03 is not over, and all commits up to 2024-03-03"):
        job.run(mode="interval", interval_start=at(1), interval_end=at(2))


def test_commits_before_the_first_interval_are_left_out():
    written = committed()
    job = IntervalJob(written)
    assert job.took_days(1) == ["c", "d"]
    assert job.days(2).warnings == ()
    assert job.days(1).stopped_because == "done"


def test_commits_before_the_first_interval_are_not_read():
    written = committed()
    written.date(written.delete("a"), 2.6)
    written.append_at(3.5, "f")
    for first in (0, 3):
        written.forget(first)
        assert IntervalJob(written).took_days(3) == ["f"]
    written.forget(6)
    with pytest.raises(SourceError, match=r"does not have version 0-5 any more"):
        IntervalJob(written).days(3)


def test_gap_behind_runs_without_intervals_is_refused():
    written = committed()
    job = IntervalJob(written, max_files_per_batch=1)
    job.harness.clock.advance(4 * DAY)
    job.configure(interval=None).run(max_batches=2)
    assert job.arrived() == ["a", "b", "c"]
    job.configure(interval={"by": "committed"})
    with pytest.raises(IntervalError, match=r"has rows of 2024-03-02T21:36Z behind what was read"):
        job.days(2)
    assert job.took_days(1) == ["d"]
    assert job.took_days(2) == ["e"]


@pytest.mark.slow
def test_late_rows_count_behind_runs_without_intervals():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    written.append_at(0.6, "b", of=[1])
    job = IntervalJob(written)
    job.harness.clock.advance(3 * DAY)
    job.configure(interval=None).run()
    job.configure(interval={"by": "partition", "column": "day"})
    written.append_at(2.5, "c", of=[2])
    assert job.took_days(2) == ["c"]
    written.append_at(3.5, "late", "d", of=[1, 3])
    assert job.took_days(3) == ["d"]
    assert [remark.interval for remark in remarks_on(job)] == [days(1)]
    assert job.backfill(days(1)).outcome.value == "promoted"
    assert (sorted(job.arrived()), remarks_on(job)) == (["a", "b", "c", "d", "late"], [])


def test_caught_up_and_interval_runs_alternate():
    written = committed()
    job = IntervalJob(written, max_files_per_batch=1)
    job.days(0)
    job.harness.clock.advance(4 * DAY)
    job.run(max_batches=1)
    assert job.arrived() == ["a", "b", "c"]
    start = job.last.interval_end
    job.interval(Interval(start, at(2)))
    job.run()
    assert job.arrived() == ["a", "b", "c", "d", "e"]
    assert job.days(0).stopped_because == "done"


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 2, 3, None])
def test_backfill_follows_cuts_within_a_version(batches):
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    written.append_at(1.5, "b", "c", "d", of=[0, 1, 2])
    written.append_at(2.5, "e", of=[1])
    job = IntervalJob(written, by={"by": "committed"}, max_files_per_batch=1)
    job.days(0)
    job.harness.clock.advance(4 * DAY)
    job.run(max_batches=batches)
    before = job.arrived()
    assert job.plan(days(0)).changes == ()
    assert job.backfill(days(0)).outcome.value == "promoted"
    assert job.arrived() == before
    job.run()
    assert job.arrived() == ["a", "b", "c", "d", "e"]
    assert remarks_on(job) == []


@pytest.mark.parametrize(
    ("by", "of", "match"),
    [
        ({"column": "dy"}, [0], r"column 'dy', and .* is partitioned by day at version 1"),
        ({"column": "shop"}, [0], r"column 'shop', and .* is partitioned by day"),
        (
            {"column": "day"},
            ["abc"],
            r"day=abc/.* of version 1 .* day is 'abc', which names no interval by the pattern '%Y-%m-%d'",
        ),
        ({"column": "day"}, [None], r"day=__HIVE_DEFAULT_PARTITION__/.*: day is null"),
        ({"column": "day"}, ["2024-02-30"], r"day is '2024-02-30'"),
        ({"column": "day"}, ["9999-12-31"], r"day is '9999-12-31'"),
        ({"column": "day", "pattern": "%Y%m%d"}, [0], r"day is '2024-03-01', .* pattern '%Y%m%d'"),
    ],
)
def test_partition_without_an_interval_stops_the_run(by, of, match):
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=of)
    with pytest.raises(SourceError, match=match) as caught:
        IntervalJob(written, by={"by": "partition", **by}).days(0)
    assert "Nothing was taken in" in str(caught.value)


def test_version_without_an_interval_can_be_skipped():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", "x", of=[0, None])
    written.append_at(0.6, "b", of=[0])
    assert IntervalJob(written, skip_versions="1").took_days(0) == ["b"]


@pytest.mark.slow
def test_partitions_without_an_interval_go_to_the_quarantine():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", "x", "y", of=[0, None, "abc"])
    job = IntervalJob(written, on_bad_file="quarantine", max_quarantined="none")
    report = job.days(0)
    assert (job.arrived(), report.quarantined, len(job.quarantine())) == (["a"], 2, 2)
    assert {error.partition(": day is ")[2][:5] for _, error in job.quarantine()} == {"null,", "'abc'"}
    written.append_at(1.5, "z", "b", of=["abc", 1])
    assert job.days(0).stopped_because == "done"
    assert (job.took_days(1), len(job.quarantine())) == (["b"], 3)
    assert (job.took_days(2), len(job.quarantine())) == ([], 3)
    written.append_at(2.5, "late", of=[0])
    job.days(3)
    job.backfill(days(0))
    assert (job.arrived(), len(job.quarantine())) == (["a", "late", "b"], 3)


def test_partitions_of_hours_in_a_zone():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", "b", of=["2024-03-01T00+0100", "2024-03-01T01+0100"])
    by = {"by": "partition", "column": "day", "pattern": "%Y-%m-%dT%H%z"}
    job = IntervalJob(written, by=by, timezone="Europe/Berlin")
    assert [job.took_days(-1), job.took_days(0)] == [["a"], ["b"]]


def test_partitions_need_interval_runs():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    with pytest.raises(ConfigError, match=r"has intervals by partition, and a run must say which it takes in"):
        IntervalJob(written).run()


def test_vacuumed_file_stops_the_run():
    written = committed()
    job = IntervalJob(written)
    job.days(0)
    written.optimize()
    written.date(written.version, 2.6)
    written.vacuum()
    for version in range(6, written.version + 1):
        written.date(version, 2.7)
    with pytest.raises(SourceError, match=r"VACUUM has removed it before its rows were taken in"):
        job.days(1)
    assert job.days(0).stopped_because == "done"


def test_expired_versions_stop_the_run():
    written = committed()
    job = IntervalJob(written)
    job.days(0)
    written.forget(3)
    with pytest.raises(SourceError, match=r"does not have version 2 any more"):
        job.days(1)


@pytest.mark.parametrize("by_day", [False, True])
def test_taken_versions_may_expire(by_day):
    written = DatedTable(by_day=by_day)
    for number in range(3):
        written.append_at(number + 0.5, f"day {number}", of=[number])
    job = IntervalJob(written)
    job.days(0)
    job.days(1)
    written.forget(3)
    assert job.days(0).stopped_because == "done"
    assert job.took_days(2) == ["day 2"]


def test_replaced_table_stops_the_run():
    written = committed()
    job = IntervalJob(written)
    job.days(0)
    shutil.rmtree(written.path)
    DatedTable(folder=written.path).append_at(1.5, "x")
    with pytest.raises(SourceError, match=r"another table than the one that was read"):
        job.days(1)


def test_commit_that_rewrites_stops_its_interval_alone():
    written = committed()
    written.delete("a")
    written.date(5, 3.5)
    job = IntervalJob(written)
    for number in range(3):
        job.days(number)
    assert job.arrived() == ["a", "b", "c", "d", "e"]
    assert job.days(1).stopped_because == "done"
    with pytest.raises(SourceError, match=r"version 5 of .* removes or rewrites rows"):
        job.days(3)
    assert [own.version for own in (job.configure(on_change="skip").days(3), job.facts)[1].passed_over] == [5]


def test_changes_belong_to_the_interval_of_their_commit():
    written = DatedTable(feed=True)
    written.append_at(0.5, "a", "b")
    written.date(written.delete("a"), 1.5)
    written.append_at(1.6, "c")
    job = IntervalJob(written, change_feed=True)
    assert [job.took_days(0), job.took_days(1)] == [["a", "b"], ["-Da", "c"]]
    net = IntervalJob(written, on_change="as_changes")
    assert [net.took_days(0), net.took_days(1)] == [["a", "b"], ["-Da", "c"]]


def test_way_of_telling_intervals_cannot_change():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    job = IntervalJob(written)
    job.days(0)
    with pytest.raises(ConfigError, match=r"was read in another order up to 2024-03-02T000000\.000Z: interval\.by"):
        job.configure(interval={"by": "committed"}).days(1)
    with pytest.raises(ConfigError, match=r"was read in another order"):
        job.configure(interval=None).run()


def test_two_tables_meet_by_intervals():
    one, other = DatedTable(), DatedTable()
    one.append_at(0.5, "a")
    one.append_at(1.5, "c")
    other.append_at(0.6, "b")
    other.append_at(1.4, "d")
    job = IntervalJob(one, "more")
    more = {"format": "delta", "path": other.path, "interval": {"by": "committed"}}
    job.harness.change(job={"sources": {**job.harness.job["sources"], "more": more}})
    whole = IntervalJob(one, "more")
    whole.harness.change(job=job.harness.job)
    for number in range(2):
        job.days(number)
    whole.days(0, 2)
    assert sorted(job.arrived()) == sorted(whole.arrived())


def two_tables(**source):
    """Return a job over two tables by commit, whose last commits have different times."""
    one, other = DatedTable(), DatedTable()
    for number in range(3):
        one.append_at(number + 0.3, rows=table(f"1.{number}a", f"1.{number}b", at=number * 86_400 + 1000))
        one.append_at(number + 0.6, rows=table(f"1.{number}c", at=number * 86_400 + 3000))
        other.append_at(number + 0.4, rows=table(f"2.{number}a", at=number * 86_400 + 2000))
        other.append_at(number + 0.7, rows=table(f"2.{number}b", f"2.{number}c", at=number * 86_400 + 2500))
    job = IntervalJob(one, "more", **source)
    job.others.append(other)
    more = {"format": "delta", "path": other.path, "interval": {"by": "committed"}, **source}
    job.harness.change(job={"sources": {**job.harness.job["sources"], "more": more}})
    return job


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"max_files_per_batch": 1}])
def test_backfill_follows_caught_up_runs_of_two_tables(limits):
    job = two_tables(**limits)
    job.days(0)
    job.harness.clock.advance(4 * DAY)
    job.run()
    before = job.arrived()
    assert job.plan(days(0)).changes == ()
    assert job.backfill(days(0)).outcome.value == "promoted"
    assert job.arrived() == before
    assert remarks_on(job) == []


@pytest.mark.parametrize("by_day", [False, True])
def test_branch_follows_interval_runs(by_day):
    written = DatedTable(by_day=by_day)
    for number in range(4):
        written.append_at(number + 0.5, f"{number} a", f"{number} b", of=[number, number])
    job = IntervalJob(written)
    job.days(0)
    branch = job.harness.branch("again")
    job.days(1, 3)
    job.days(3)
    branch.run(mode="caught-up" if not by_day else "interval", **({} if not by_day else interval_options(1, 3)))
    if by_day:
        branch.run(mode="interval", **interval_options(3, 4))
    assert {row.name for row in branch.sink("arrived")} == {*job.arrived()}
    branch.promote()
    assert len(job.arrived()) == 8


def interval_options(first, end):
    return {"interval_start": at(first), "interval_end": at(end)}


def test_table_meets_a_folder_by_days():
    written = DatedTable(by_day=True)
    for number in range(2):
        written.append_at(number + 0.5, f"table {number}", of=[number])
    job = IntervalJob(written, "more")
    own = {**job.harness.job["sources"], "more": {"interval": "%Y-%m-%d"}}
    job.harness.change(job={"sources": own})
    for number in range(2):
        row = Row("a", Timestamp(5000 + number), f"folder {number}", 1)
        job.harness.feed("more", [row], file=f"{day_of(number)}.parquet")
    for number in range(2):
        job.days(number)
    job.harness.clock.advance(DAY)
    assert {name.split()[0] for name in job.arrived()} <= {"table", "folder"}
    assert job.days(0).stopped_because == "done"
    written.append_at(2.5, "late", of=[0])
    with pytest.raises(IntervalError, match="Its input has changed since"):
        job.days(0)


@pytest.mark.parametrize("by_day", [False, True])
def test_start_to_come_waits_and_loses_nothing(by_day):
    written = DatedTable(by_day=by_day)
    written.append_at(0.5, "before", of=[0])
    job = IntervalJob(written, start="2024-03-02T12:00:00Z")
    assert [job.took_days(0), job.days(0).stopped_because] == [[], "done"]
    written.append_at(1.6, "a", "b", of=[1, 2])
    assert job.took_days(1) == (["a"] if by_day else ["a", "b"])
    assert job.took_days(2) == (["b"] if by_day else [])


def test_backfill_repeats_empty_intervals_where_sources_meet():
    one, other = DatedTable(), DatedTable()
    one.append_at(0.5, "a")
    other.append_at(0.6, rows=table("b"))
    more = {"format": "delta", "path": other.path, "interval": {"by": "committed"}}
    job = IntervalJob(one, "more")
    job.others.append(other)
    job.harness.change(job={"sources": {"rows": {**more, "path": one.path}, "more": more}})
    for number in range(4):
        job.days(number)
    before = job.arrived()
    assert job.backfill(days(0)).outcome.value == "promoted"
    assert (job.arrived(), job.last.interval_end) == (before, at(4))
