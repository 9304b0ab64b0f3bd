"""Corrected input of a backfill that would count twice, for nothing, or for other intervals is refused, and what was named is kept."""

from __future__ import annotations

import json

import pytest

from headrace import Timestamp
from headrace.commit.run_check import checked_plan
from headrace.config import with_settings
from headrace.edits.fork import drop_branch
from headrace.errors import ConfigError, IntervalError, SourceError
from headrace.run.backfill_branches import default_name
from headrace.run.backfill_plan import plan_backfill
from headrace.run.pending_corrections import changed_interval
from headrace.sources.corrected import connection_name
from headrace.sources.interval import Interval
from headrace.testing import PipelineHarness
from tests.unit.run.dated_table import DAY, FIRST, HOUR, DatedTable, IntervalJob, at, day_of, days
from tests.unit.run.dated_topic import DatedTopic, TopicIntervalJob
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.table_job import Row, pipeline
from tests.unit.support.topic_job import message

OTHER_TOPIC = {"replay.sources.rows": '{"topic": "shop.rows_fixed"}'}


class FolderJob(IntervalJob):
    """A job over folders with a file for each day."""

    def __init__(self, *more, topics=None):
        sources = {name: {"interval": "%Y-%m-%d"} for name in ("rows", *more)}
        self.harness = PipelineHarness(pipeline(*more), job={"sources": sources}, now=FIRST, topics=topics or {})

    def put(self, source, day, *names, hour=1):
        """Write the file of a day, with rows an hour apart."""
        file = f"{day_of(day)}.parquet"
        (self.harness.folder / f"input/{source}/{file}").unlink(missing_ok=True)
        rows = [Row("a", Timestamp(at(day) + HOUR * (hour + place)), name, 1) for place, name in enumerate(names)]
        self.harness.feed(source, rows, file=file)


def three_days(days=3):
    topic = DatedTopic("shop.rows")
    for when, name in ((0.5, "a"), (1.1, "b"), (1.9, "c"), (2.5, "d"), (3.5, "e")):
        topic.send(when, name)
    job = TopicIntervalJob(topic)
    job.sealed(days)
    return job


def fixed_file(job, day, *names, name=None, **section):
    """Write corrected rows of a day as JSON, and return the settings of a branch that reads them."""
    folder = job.harness.folder / "fixed"
    folder.mkdir(exist_ok=True)
    rows = (message(own, at(day) // 1000 + 3600 * (place + 1)) for place, own in enumerate(names))
    (folder / f"{name or day_of(day)}.json").write_text("\n".join(map(json.dumps, rows)))
    return {"replay.sources.rows": json.dumps({"format": "json", "path": str(folder), **section})}


def named(job, interval, name):
    """Return the plan of a backfill on a branch with this name."""
    with job.on_its_clock():
        return plan_backfill(job.harness.config, checked_plan(job.harness.config), interval, name)


def changed_days(job):
    """Return the interval whose input has changed."""
    with job.on_its_clock():
        return changed_interval(job.harness.config, checked_plan(job.harness.config))


def fixed_topic(job, *messages):
    """Let another topic have messages at some times, and return the settings of a branch that reads it."""
    fixed = job.topic.others.setdefault("shop.rows_fixed", DatedTopic("shop.rows_fixed"))
    for when, name in messages:
        fixed.send(when, name)
    return OTHER_TOPIC


# ------------------------------------------------------------------------------- intervals that can be corrected


def test_partition_read_ahead_cannot_be_corrected():
    topic = DatedTopic("shop.rows", 2)
    for when, partition in ((0.5, 0), (1.5, 0), (2.5, 0), (0.4, 1), (0.6, 1)):
        topic.send(when, f"{partition} {when}", partition=partition)
    job = TopicIntervalJob(topic)
    job.harness.clock.advance(4 * DAY)
    job.run()
    taken = Interval(job.last.interval_start, job.last.interval_end)
    topic.send(3.5, "0 late", partition=0)
    topic.send(3.6, "1 late", partition=1)
    job.run()
    with pytest.raises(IntervalError, match=r"had read more of 'rows' already, ahead of other input"):
        job.plan(taken, fixed_file(job, 0, "fixed"))


def test_file_read_ahead_cannot_be_corrected():
    job = FolderJob("more")
    job.put("rows", 0, "A0")
    job.put("rows", 1, "A1", hour=5)
    job.put("more", 0, "B0")
    job.put("more", 1, "B1", hour=7)
    job.harness.clock.advance(6 * DAY)
    job.run()
    job.put("more", 2, "B2")
    job.put("rows", 2, "A2")
    job.run()
    assert job.log.lineage.checkpoints[1].sources["rows"].position.last == "2024-03-02.parquet"
    settings = fixed_file(job, 0, "fixed")
    with pytest.raises(IntervalError, match="taken in everything up to 2024-03-02, it had read more of 'rows' already"):
        job.plan(days(0), settings)
    with pytest.raises(IntervalError, match="taken in everything up to 2024-03-02, it had read more of 'rows' already"):
        job.plan(days(1), settings)


def test_days_without_micro_batch_cannot_be_corrected():
    job = FolderJob()
    job.put("rows", 0, "A0")
    job.put("rows", 2, "A2")
    job.harness.clock.advance(6 * DAY)
    job.run()
    job.put("rows", 4, "A4")
    job.run()
    with pytest.raises(
        IntervalError, match=r"took in 2024-03-04 to 2024-03-05, so none .* --from 2024-03-01 --to 2024-03-04"
    ):
        job.plan(days(0, 5), fixed_file(job, 3, "fixed"))


@pytest.mark.slow
def test_corrected_input_ends_at_the_position():
    job = three_days(2)
    settings = fixed_topic(job, (1.5, "B"), (2.5, "D"), (3.5, "E"))
    with pytest.raises(
        IntervalError, match=r"2024-03-02 to 2024-03-05 ends behind it.* --from 2024-03-02 --to 2024-03-03\."
    ):
        job.backfill(days(1, 4), settings=settings)
    assert job.backfill(days(1), settings=settings, promote="approval").outcome.value == "needs_approval"
    job.days(2)
    with pytest.raises(ConfigError, match="reads corrected input in 2024-03-02 to 2024-03-03, and not in all of"):
        named(job, days(1, 3), default_name(days(1)))
    assert job.backfill(days(1)).outcome.value == "promoted"
    assert job.arrived() == ["a", "B", "d"]


def test_corrected_table_by_column_is_refused():
    job = three_days()
    given = {"replay.sources.rows": "{format: delta, path: x, interval: {by: column, column: seen}}"}
    with pytest.raises(
        ConfigError, match="replay.sources.rows.interval: rows by a column that come after their lateness count"
    ) as caught:
        with_settings(job.harness.config, given)
    assert caught.value.exit_code == 2


def test_topic_cannot_correct_complete_intervals():
    given = {"replay.sources.rows": "{format: kafka, servers: 'b:1', topic: x, interval: {by: committed}}"}
    job = FolderJob()
    config = job.harness.config
    assert with_settings(config, given).replay.sources
    with pytest.raises(ConfigError, match="replay.sources.rows: a topic has no punctuations"):
        with_settings(config, {"sources.rows.complete_intervals": "true", **given})


def test_corrected_file_of_a_month_is_refused():
    job = three_days()
    settings = fixed_file(job, 0, "month", name="2024-03", interval="%Y-%m")
    with pytest.raises(
        SourceError,
        match=r"2024-03.json has the rows of 2024-03-01 to 2024-04-01, and those of 2024-03-01 to 2024-03-02 alone",
    ):
        job.backfill(days(0), settings=settings)
    assert job.arrived() == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_times_of_corrected_topic_must_not_go_back():
    job = three_days()
    settings = fixed_topic(job, (2.5, "D"))
    assert job.backfill(days(2), settings=settings).outcome.value == "promoted"
    fixed_topic(job, (1.5, "B"))
    with pytest.raises(
        SourceError, match="offset 1 of partition 0 of topic shop.rows_fixed .* lies in another interval"
    ):
        job.backfill(days(1), settings=settings)
    assert job.arrived() == ["a", "b", "c", "D"]


# ------------------------------------------------------------------------------------- what was corrected, later


@pytest.mark.slow
def test_own_file_of_corrected_day_is_no_change():
    job = FolderJob()
    for day in range(3):
        job.put("rows", day, f"A{day}")
    for day in range(3):
        job.days(day)
    job.put("rows", 1, "wrong", "again")
    assert changed_days(job) == days(1)
    assert job.backfill(days(1), settings=fixed_file(job, 1, "fixed")).outcome.value == "promoted"
    assert changed_days(job) is None
    job.put("rows", 1, "written", "once", "more")
    assert changed_days(job) is None
    job.put("rows", 0, "B0", "B1")
    assert changed_days(job) == days(0)
    assert job.backfill(days(0)).outcome.value == "promoted"
    assert job.arrived() == ["B0", "B1", "fixed", "A2"]


@pytest.mark.slow
def test_late_rows_before_corrected_day_are_taken_in():
    written = DatedTable(by_day=True)
    for day in range(3):
        written.append_at(day + 0.5, f"T{day}", of=[day])
    job = IntervalJob(written)
    for day in range(3):
        job.days(day)
    job.backfill(days(1), settings=fixed_file(job, 1, "fixed"))
    written.append_at(4.5, "late", of=[0])
    assert job.backfill(days(0)).outcome.value == "promoted"
    assert job.arrived() == ["T0", "late", "fixed", "T2"]
    written.append_at(4.6, "T3", of=[3])
    assert job.took_days(3) == ["T3"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "changed"])
def test_other_corrected_file_is_refused_later(how):
    job = three_days()
    settings = fixed_file(job, 1, "B")
    fixed_file(job, 0, "not asked for")
    job.backfill(days(1), settings=settings)
    assert job.backfill(days(0)).changes_nothing
    file = job.harness.folder / "fixed/2024-03-02.json"
    if how == "gone":
        file.unlink()
    else:
        fixed_file(job, 1, "C")
    match = f"the corrected input of 2024-03-02 to 2024-03-03 is not what was taken in there: 2024-03-02.json .* {how}"
    with pytest.raises(SourceError, match=match):
        job.backfill(days(0), renews=True)
    drop_branch(job.harness.config, default_name(days(0)), "test")
    assert job.backfill(days(1), settings=fixed_file(job, 1, "C")).outcome.value == "promoted"
    assert job.backfill(days(0)).changes_nothing


@pytest.mark.slow
def test_days_keep_the_topics_that_corrected_them():
    topics = {name: DatedTopic(name) for name in ("one", "two")}
    for when in (0.5, 1.5, 2.5, 3.5):
        for name, topic in topics.items():
            topic.send(when, f"{name} {when}")
            topic.others = topics
    job = FolderJob(topics={connection_name("rows"): topics["one"]})
    for day in range(3):
        job.put("rows", day, f"A{day}")
    for day in range(3):
        job.days(day)
    for day, name in ((2, "two"), (1, "one")):
        place = {"format": "kafka", "servers": "broker:9092", "topic": name, "interval": {"by": "committed"}}
        job.backfill(days(day), settings={"replay.sources.rows": json.dumps(place)})
    assert job.arrived() == ["A0", "one 1.5", "two 2.5"]
    assert job.backfill(days(0)).changes_nothing


def test_corrected_folder_without_the_day_is_refused():
    job = three_days()
    with pytest.raises(
        SourceError, match="fixed of source 'rows' has nothing for 2024-03-02 to 2024-03-03, so nothing would be left"
    ):
        job.plan(days(1), fixed_file(job, 0, "B"))


@pytest.mark.slow
def test_more_messages_of_corrected_day_are_refused():
    job = three_days()
    job.backfill(days(1), settings=fixed_topic(job, (1.5, "B")))
    fixed_topic(job, (1.6, "C"))
    with pytest.raises(SourceError, match="is not what was taken in there: partition 0 has changed"):
        job.backfill(days(0))
    assert job.arrived() == ["a", "B", "d"]


# ------------------------------------------------------------------------------------------------- branches


@pytest.mark.slow
def test_interrupted_renewal_keeps_corrected_input():
    job = three_days()
    job.backfill(days(1), settings=fixed_topic(job, (1.5, "B")), promote="approval")
    job.configure(max_quarantined="none")  # the branch ran with other settings
    with pytest.raises(Killed), dying_at("branch.dropped"):
        job.backfill(days(1), renews=True)
    assert job.backfill(days(1), renews=True).outcome.value == "promoted"
    assert job.arrived() == ["a", "B", "d"]
