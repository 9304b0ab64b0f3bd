"""Any commits of a table and any runs of its intervals, with crashes, against a loop over the table's versions (no JVM)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace import Timestamp
from headrace.commit.input_report import input_remarks
from headrace.errors import IntervalError
from headrace.sources.interval import Interval
from tests.unit.run.dated_table import DAY, FIRST, HOUR, DatedTable, IntervalJob, day_of, days, rows_by_version
from tests.unit.support.fuzzing import examples
from tests.unit.support.table_job import Row, table

END = 4
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a job takes too long for many shorter ones
CRASHES = st.sampled_from([None, None, "ingest.after", "prepare.after", "commit.after"])
HOURS = st.integers(0, 24 * END - 1)
COMMITS = st.tuples(HOURS, st.lists(st.integers(0, END - 1), min_size=1, max_size=3))
SPLITS = st.sets(st.integers(1, END - 1)).map(lambda inner: [0, *sorted(inner), END])


class Model:
    """The table as a plain loop sees it: the day of each row, and the order of the rows of each day."""

    def __init__(self, *, by_day):
        self.written, self.times, self.count = DatedTable(by_day=by_day), {0: -1.0}, 0

    def commit(self, hour, of):
        names = [f"{self.count + place:03d}" for place in range(len(of))]
        self.count += len(of)
        # Rows of one day are one file, and its rows are in the order of their names.
        version = self.written.append_at(hour / 24, *names, of=sorted(of))
        self.times[version] = hour / 24
        return version

    def correct(self, how, number):
        """Delete a row, give it another name, or write its partition anew with another row."""
        names = sorted(self.written.names())
        if not names:
            return
        name = names[number % len(names)]
        if how == "delete":
            self.written.delete(name)
        elif how == "update":
            self.written.delta.update(predicate=f"name = '{name}'", updates={"name": f"'{name}u'"})
        else:
            day = next(day for _, own, day in rows_by_version(self.written) if own == name)
            self.written.overwrite_day(day, f"{self.written.version:03d}w")
        self.written.date(self.written.version, 0)

    def day_of_version(self):
        """Return the day of each version's commit: no commit is earlier than the one before it."""
        reached, result = -float(DAY), {}
        for version, time in sorted(self.times.items()):
            reached = max(FIRST + round(time * DAY), reached + 1)
            result[version] = int((reached - FIRST) // DAY)
        return result

    def rows(self):
        """Return (day, version, name) of all rows, in the order of arrival."""
        committed = self.day_of_version()
        return sorted(
            (committed[version] if day is None else int(day[-2:]) - 1, version, name)
            for version, name, day in rows_by_version(self.written)
        )


def run_with_crash(job, interval, crash):
    """Run an interval; if the run crashes, run it again as a retry does."""
    if crash is not None:
        job.interval(interval, crash_at=crash)
    return job.interval(interval)


@pytest.mark.slow
@settings(examples(10), phases=PHASES)
@given(
    by_day=st.booleans(),
    commits=st.lists(COMMITS, min_size=1, max_size=6),
    splits=st.lists(SPLITS, min_size=2, max_size=2),
    crashes=st.lists(CRASHES, min_size=END, max_size=END),
)
def test_any_split_takes_the_same_rows(by_day, commits, splits, crashes):
    model = Model(by_day=by_day)
    for hour, of in commits:
        model.commit(hour, of)
    for split in splits:
        job = IntervalJob(model.written, harness={"now": FIRST + END * DAY})
        for (first, end), crash in zip(pairwise(split), crashes, strict=False):
            run_with_crash(job, days(first, end), crash)
            assert job.arrived() == [name for day, _, name in model.rows() if day < end]


ACTS = st.one_of(COMMITS, st.tuples(st.sampled_from(["run", "run", "backfill"]), CRASHES))


@pytest.mark.slow
@settings(examples(10), phases=PHASES)
@given(by_day=st.booleans(), acts=st.lists(ACTS, min_size=3, max_size=10))
def test_no_row_is_lost_or_taken_twice(by_day, acts):
    model, position, taken, late = Model(by_day=by_day), 0, [], defaultdict(set)
    job = IntervalJob(model.written, harness={"now": FIRST + END * DAY})
    for act in acts:
        if act[0] == "backfill":
            if changed := [day for day in late if late[day]]:
                backfill_with_crash(job, days(changed[0]), act[1])
                taken = [name for day, _, name in model.rows() if day < position]
                late.clear()
                assert job.arrived() == taken
                assert_reported(job, set())
        elif act[0] != "run":
            model.commit(*act)
        elif position < END:
            run_with_crash(job, days(position), act[1])
            known = {*taken, *(name for names in late.values() for name in names)}
            for day, _, name in model.rows():
                if day < position and name not in known:
                    late[day].add(name)
            taken += [name for day, _, name in model.rows() if day == position]
            position += 1
            assert job.arrived() == taken
            assert_reported(job, {day for day in late if late[day]})
    for day in range(position):
        unknown = {name for own, _, name in model.rows() if own == day} - {*taken}
        assert_done_unless(job, day, has_late=bool(unknown))


def backfill_with_crash(job, interval, crash):
    if crash is not None:
        job.backfill(interval, crash_at=crash)
    assert job.backfill(interval).outcome.value == "promoted"


def assert_reported(job, wanted):
    assert reported_days(job) == wanted


def reported_days(job):
    remarks = input_remarks(job.harness.config, job.log.lineage.checkpoints)
    assert {remark.kind.value for remark in remarks} <= {"added_file"}
    return {(remark.interval.start - FIRST) // DAY for remark in remarks}


def assert_done_unless(job, day, *, has_late):
    if not has_late:
        assert job.days(day).stopped_because == "done"
        return
    with pytest.raises(IntervalError, match="Its input has changed since") as caught:
        job.days(day)
    assert caught.value.is_taken_in


CORRECTIONS = st.tuples(st.sampled_from(["delete", "update", "overwrite"]), st.integers(0, 9))


@pytest.mark.slow
@settings(examples(10), phases=PHASES)
@given(acts=st.lists(st.one_of(ACTS, CORRECTIONS), min_size=4, max_size=10))
def test_no_correction_of_a_partition_is_silent(acts):
    model, position = Model(by_day=True), 0
    job = IntervalJob(model.written, on_change="skip", harness={"now": FIRST + END * DAY})
    model.commit(0, [0, 1])
    for act in acts:
        if act[0] in {"delete", "update", "overwrite"}:
            model.correct(*act)
        elif act[0] == "backfill":
            if differing_days(model, job, position):
                backfill_with_crash(job, days(0, position), act[1])
                assert differing_days(model, job, position) == set()
                assert_reported(job, set())
        elif act[0] != "run":
            model.commit(*act)
        elif position < END:
            run_with_crash(job, days(position), act[1])
            position += 1
            assert differing_days(model, job, position) <= reported_days(job)
    for day in differing_days(model, job, position):
        assert_done_unless(job, day, has_late=True)


def differing_days(model, job, position):
    """Return the days before a position of which the job has other rows than the table."""
    taken, present = defaultdict(set), defaultdict(set)
    day_of = {name: int(day[-2:]) - 1 for _, name, day in rows_by_version(model.written)}
    for name in job.arrived():
        assert name not in taken[day_of[name]]
        taken[day_of[name]].add(name)
    for name in model.written.names():
        present[day_of[name]].add(name)
    return {day for day in range(position) if taken[day] != present[day]}


STEPS = st.lists(st.none() | st.integers(1, 30), max_size=6)
STEPS_OF_DAYS = st.lists(st.none() | st.sampled_from([24, 48]), max_size=6)
"""Steps that do not cut through the files of days, unless a caught-up run ended within one."""


def take_steps(job, steps):
    """Run up to the end of each step (hours), or one micro-batch of a caught-up run where it is None."""
    for hours in steps:
        start = next((own.interval_end for own in reversed(job.log.lineage.checkpoints) if own.interval_end), None)
        if hours is None:
            job.run(max_batches=1)
        elif (end := start + hours * HOUR) <= FIRST + END * DAY:
            job.interval(Interval(start, end))


@pytest.mark.slow
@settings(examples(10), phases=PHASES)
@given(by_day=st.booleans(), commits=st.lists(COMMITS, min_size=1, max_size=6), steps=STEPS)
def test_runs_with_and_without_intervals_continue(by_day, commits, steps):
    model = Model(by_day=by_day)
    for hour, of in commits:
        model.commit(hour, of)
    job = IntervalJob(model.written, by={"by": "committed"}, harness={"now": FIRST + END * DAY}, max_files_per_batch=1)
    job.interval(days(-2, 0))
    take_steps(job, steps)
    assert_backfill_changes_nothing(job)
    job.run()
    assert job.arrived() == [name for _, name, _ in rows_by_version(model.written)]
    assert_backfill_changes_nothing(job)


def assert_backfill_changes_nothing(job):
    before = job.arrived()
    backfill_with_crash(job, days(-2, 0), None)
    assert job.arrived() == before
    assert_reported(job, set())


@pytest.mark.slow
@settings(examples(10), phases=PHASES)
@given(
    hours=st.lists(st.lists(HOURS, min_size=1, max_size=4).map(sorted), min_size=2, max_size=2),
    of_folder=st.lists(st.integers(0, END - 1), max_size=3, unique=True),
    steps=STEPS,
    steps_of_days=STEPS_OF_DAYS,
    limit=st.sampled_from([1, 16]),
)
def test_sources_that_meet_are_followed(hours, of_folder, steps, steps_of_days, limit):
    tables, sources = [DatedTable(), DatedTable()], {}
    for number, written in enumerate(tables):
        own = {"format": "delta", "path": written.path, "interval": {"by": "committed"}}
        sources["rows" if number == 0 else "more"] = {**own, "max_files_per_batch": limit}
        for hour in hours[number]:
            written.append_at(hour / 24, rows=table(f"{number} {hour}", at=hour * 3600))
    if of_folder:
        sources["files"] = {"interval": "%Y-%m-%d"}
    job = IntervalJob(tables[0], *list(sources)[1:], harness={"now": FIRST + END * DAY})
    job.harness.change(job={"sources": sources})
    for day in of_folder:
        row = Row("a", Timestamp(day * DAY), f"folder {day}", 1)
        job.harness.feed("files", [row], file=f"{day_of(day)}.parquet")
    job.interval(days(-2, 0))
    take_steps(job, steps_of_days if of_folder else steps)
    assert_backfill_changes_nothing(job)
    job.run()
    assert_backfill_changes_nothing(job)
