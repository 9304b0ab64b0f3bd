"""Any messages of a topic, alone or beside a folder and a table, and any runs of its intervals, with crashes, against a plain loop (no broker)."""

from __future__ import annotations

import itertools
import json
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace import Timestamp
from headrace.errors import OpenIntervalError
from headrace.log.intervals import intervals_of, position_of
from headrace.sources.interval import Interval
from tests.unit.run.dated_table import DAY, FIRST, HOUR, DatedTable, at, day_of, days
from tests.unit.run.dated_topic import DatedTopic, TopicIntervalJob
from tests.unit.support.fuzzing import examples
from tests.unit.support.table_job import Row, table
from tests.unit.support.topic_job import merged_by_hand

END = 4
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a job takes too long for many shorter ones
CRASHES = st.sampled_from([None, None, "ingest.after", "commit.before", "commit.after"])
HOURS = st.integers(0, 24 * END - 1)
MESSAGES = st.tuples(st.integers(0, 1), HOURS, st.integers(-30, 30))
"""Partition, hour of the message, and minutes between it and the event."""
SPLITS = st.sets(st.integers(1, END - 1)).map(lambda inner: [0, *sorted(inner), END])


class Model:
    """The topic as a plain loop sees it."""

    def __init__(self, partitions=2):
        self.topic, self.sent = DatedTopic("shop.rows", partitions), [[] for _ in range(partitions)]

    def send(self, partition, hour, minutes):
        name = f"{partition}.{len(self.sent[partition])}"
        event = at(hour / 24) + 60_000 * minutes
        self.sent[partition].append((name, event, at(hour / 24)))
        self.topic.append([{"shop": "a", "at": event, "name": name}], partition=partition, timestamp=at(hour / 24))

    def ends(self, day):
        """Return by partition where the interval that ends with a day has to end."""
        return {
            number: next((offset for offset, own in enumerate(sent) if own[2] >= at(day)), len(sent))
            for number, sent in enumerate(self.sent)
        }

    def arrived(self, ends=None):
        """Return the names of the messages before some offsets in arrival order."""
        cut = [sent if ends is None else sent[: ends[number]] for number, sent in enumerate(self.sent)]
        return merged_by_hand([[(name, event) for name, event, _ in sent] for sent in cut])


def run_with_crash(job, interval, crash):
    """Run an interval; if the run crashes, run it again as a retry does."""
    if crash is not None:
        job.interval(interval, crash_at=crash)
    return job.interval(interval)


def backfill_with_crash(job, interval, crash=None, **more):
    if crash is not None:
        job.backfill(interval, crash_at=crash, **more)
    assert job.backfill(interval, **({} if crash is not None else more)).outcome.value == "promoted"


@pytest.mark.slow
@settings(examples(4), phases=PHASES)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=8),
    splits=st.lists(SPLITS, min_size=2, max_size=2),
    crashes=st.lists(CRASHES, min_size=END, max_size=END),
    limit=st.sampled_from([None, 2]),
)
def test_any_split_cuts_at_the_same_offsets(messages, splits, crashes, limit):
    model = Model()
    for own in messages:
        model.send(*own)
    for split in splits:
        job = TopicIntervalJob(
            model.topic,
            harness={"now": FIRST + (END + 1) * DAY},
            **({} if limit is None else {"max_rows_per_batch": limit}),
        )
        for (first, end), crash in zip(pairwise(split), crashes, strict=False):
            run_with_crash(job, days(first, end), crash)
            assert job.positions() == model.ends(end)
        job.run(end_of_input=True)
        assert job.arrived() == model.arrived()


ACTS = st.one_of(
    MESSAGES, MESSAGES, st.tuples(st.sampled_from(["run", "run", "catch up", "backfill", "lapse"]), CRASHES)
)


@pytest.mark.slow
@settings(examples(4), phases=PHASES)
@given(acts=st.lists(ACTS, min_size=4, max_size=12), limit=st.sampled_from([100, 2]))
def test_no_message_is_lost_or_taken_twice(acts, limit):
    model = Model()
    job = TopicIntervalJob(model.topic, max_rows_per_batch=limit, max_ahead="none", harness={"now": FIRST + 60_000})
    job.interval(days(-2, 0))
    for number, act in enumerate(acts):
        if act[0] == "lapse":
            for partition, place in job.positions().items():
                model.topic.expire(place, partition=partition)
        elif act[0] == "backfill":
            assert_backfill_changes_nothing(job, number, act[1])
        elif act[0] == "catch up":
            job.run(max_batches=1, crash_at=act[1])
        elif act[0] == "run":
            start = position_of(job.log.lineage.checkpoints)
            take_day(job, Interval(start, (start // DAY + 1) * DAY), act[1])
        else:
            partition, hour, minutes = act
            model.send(partition, hour, minutes)
    job.harness.clock.advance(END * DAY)
    assert_backfill_changes_nothing(job, 0, None)
    job.run(end_of_input=True)
    assert job.arrived() == model.arrived()


def take_day(job, interval, crash):
    """Take a day in, later if it is still open."""
    try:
        run_with_crash(job, interval, crash)
    except OpenIntervalError:
        job.harness.clock.advance(60_000)
        run_with_crash(job, interval, None)


def assert_backfill_changes_nothing(job, number, crash):
    """Compute one of the intervals that the job has taken in again."""
    known = [interval for interval, _ in intervals_of(job.log.lineage.checkpoints)]
    before, positions = job.arrived(), job.positions()
    backfill_with_crash(job, known[number % len(known)], crash)
    assert (job.arrived(), job.positions()) == (before, positions)


CLOSING = ([(12, "closing")],) * 3


class Mix:
    """A job whose topic meets a folder and a table; each has rows by day."""

    def __init__(self, rows):
        self.count, self.written, self.topic = itertools.count(), DatedTable(by_day=True), DatedTopic("shop.rows")
        self.job = TopicIntervalJob(
            self.topic,
            "files",
            "more",
            harness={"now": FIRST + (END + 2) * DAY},
            sources={
                "files": {"interval": "%Y-%m-%d"},
                "more": {
                    "format": "delta",
                    "path": self.written.path,
                    "interval": {"by": "partition", "column": "day"},
                },
            },
        )
        for day, (of_topic, of_folder, of_table) in enumerate([*rows, CLOSING]):
            self.topic.append([self.message(day, *own) for own in of_topic], timestamp=at(day + 0.5))
            self.put_file(day, of_folder)
            self.put_table(day, of_table)

    def message(self, day, hour, kind):
        return {"shop": "a", "at": at(day) + hour * HOUR, "name": f"{kind}{day}.{hour}"}

    def put_file(self, day, rows):
        path = self.job.harness.folder / f"input/files/{day_of(day)}.parquet"
        path.unlink(missing_ok=True)
        records = [Row("a", Timestamp(at(day) + hour * HOUR), f"{kind}{day}.{hour}", 1) for hour, kind in rows]
        self.job.harness.feed("files", records, file=path.name)

    def put_table(self, day, rows):
        for hour, kind in rows:
            self.written.append_at(day + 0.9, of=[day], rows=table(f"{kind}{day}.{hour}", at=at(day) + hour * HOUR))

    def corrected_topic(self, day, rows):
        """Return settings of a backfill that has other messages of a day."""
        folder = self.job.harness.folder / "fixed"
        folder.mkdir(exist_ok=True)
        lines = [json.dumps(self.message(day, *own)) for own in rows]
        (folder / f"{day_of(day)}.json").write_text("\n".join(lines))
        return {"replay.sources.rows": json.dumps({"format": "json", "path": str(folder)})}

    def sealed(self):
        for day in range(END):
            self.job.days(day)
        return self

    def ended(self):
        """Return the names of all rows in arrival order: those of a further day let no row wait."""
        self.job.days(END)
        return [name for name in self.job.arrived() if not name.startswith("closing")]


def rows_of(kind):
    """Return a strategy of rows of a day: hours in order, each with the kind."""
    hours = st.lists(st.integers(0, 23), max_size=2, unique=True).map(sorted)
    return hours.map(lambda own: [(hour, kind) for hour in own])


ROWS = st.lists(st.tuples(*map(rows_of, ("topic", "folder", "table"))), min_size=END, max_size=END)
KINDS = ("topic", "folder", "table")


@pytest.mark.slow
@settings(examples(4), phases=PHASES)
@given(
    rows=ROWS,
    day=st.integers(0, END - 1),
    new=rows_of("new"),
    kinds=st.sets(st.sampled_from(KINDS), min_size=1),
    crash=CRASHES,
)
def test_backfill_of_a_mix_equals_a_straight_run(rows, day, new, kinds, crash):
    mix, given = Mix(rows).sealed(), {}
    if "folder" in kinds:
        mix.put_file(day, new)
    if "table" in kinds:
        mix.put_table(day, new)
    if "topic" in kinds:
        given = {"settings": mix.corrected_topic(day, new)}
    backfill_with_crash(mix.job, days(day), crash, **given)
    corrected = [new if kind in kinds else own for kind, own in zip(KINDS, rows[day], strict=True)]
    corrected[2] = [*rows[day][2], *(new if "table" in kinds else [])]
    straight = Mix([corrected if number == day else own for number, own in enumerate(rows)])
    assert mix.ended() == straight.sealed().ended()
