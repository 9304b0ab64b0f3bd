"""Interval runs and backfills over topics: which messages each takes, when it is over, and what a branch reads again (no broker)."""

from __future__ import annotations

import json

import pytest

from headrace.commit.run_check import checked_plan
from headrace.config import with_settings
from headrace.errors import ConfigError, IntervalError, OpenIntervalError, SourceError
from headrace.run.backfill_branches import default_name
from headrace.run.backfill_plan import plan_backfill
from headrace.sources.interval import Interval
from tests.unit.run.dated_table import DAY, FIRST, at, day_of, days
from tests.unit.run.dated_topic import DatedTopic, TopicIntervalJob
from tests.unit.support.topic_job import message

pytestmark = pytest.mark.delta


def three_days(partitions=1):
    """Return a topic with messages of three days."""
    topic = DatedTopic("shop.rows", partitions)
    topic.send(0.5, "a", "b")
    topic.send(1.1, "c")
    topic.send(1.9, "d")
    topic.send(2.5, "e")
    return topic


def test_each_day_takes_its_messages():
    job = TopicIntervalJob(three_days())
    job.harness.clock.advance(4 * DAY + 60_000)
    assert [job.took_days(number) for number in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]
    assert job.positions() == {0: 5}


@pytest.mark.slow
def test_week_gives_the_same_as_days():
    daily, weekly, caught_up = (TopicIntervalJob(three_days()) for _ in range(3))
    daily.sealed(4)
    weekly.harness.clock.advance(5 * DAY)
    weekly.days(0, 4)
    caught_up.harness.clock.advance(5 * DAY)
    caught_up.run()
    assert daily.arrived() == weekly.arrived() == caught_up.arrived() == ["a", "b", "c", "d", "e"]


def test_messages_before_the_first_interval_are_left_out():
    job = TopicIntervalJob(three_days())
    assert job.took_days(1) == ["c", "d"]
    assert job.facts.partitions[0].begins_at == 2


def test_times_that_go_back_follow_offsets():
    topic = DatedTopic("shop.rows")
    topic.send(0.5, "a")
    topic.send(1.1, "b")
    topic.send(0.9, "late")
    topic.send(2.1, "c")
    job = TopicIntervalJob(topic)
    assert [job.took_days(0), job.took_days(1)] == [["a"], ["b", "late"]]


def test_open_interval_waits_until_partitions_are_idle():
    topic = three_days(2)
    topic.send(0.2, "x", partition=1)
    job = TopicIntervalJob(topic)
    with pytest.raises(
        OpenIntervalError,
        match=r"interval 2024-03-01 to 2024-03-02 is not over: partition 1 has no message of 2024-03-02 or later yet.*"
        r"idle from 2024-03-02T00:01Z on \(sources.rows.interval.idle_after\)",
    ) as caught:
        job.days(0)
    assert caught.value.exit_code == 9
    assert not job.last.sources
    topic.send(0.95, "y", partition=1)  # delayed, and still of the day
    job.harness.clock.advance(60_000)
    job.days(0)
    assert job.positions() == {0: 2, 1: 2}
    topic.send(0.99, "z", partition=1)  # came when the partition was idle: of the next day, by its offset
    topic.send(2.0, "w", partition=1)
    job.days(1)
    assert job.positions() == {0: 4, 1: 3}


def test_time_of_idleness_is_a_setting():
    job = TopicIntervalJob(three_days(2), interval={"by": "committed", "idle_after": "2h"})
    job.harness.clock.advance(DAY + 2 * 3_600_000 - 1)
    with pytest.raises(OpenIntervalError, match="idle from 2024-03-02T02:00Z on"):
        job.days(0)
    job.harness.clock.advance(1)
    job.days(0)
    assert job.positions() == {0: 2, 1: 0}


def test_interval_in_the_future_is_open():
    job = TopicIntervalJob(three_days())
    with pytest.raises(OpenIntervalError, match="2024-03-04 to 2024-03-05 is not over"):
        job.run(mode="interval", interval_start=at(3), interval_end=at(4))


def test_done_interval_does_nothing():
    job = TopicIntervalJob(three_days())
    job.days(0)
    job.days(1)
    before = job.last.checkpoint_id
    job.topic.compact(0, 2)
    assert [job.days(0).stopped_because, job.days(1).stopped_because] == ["done", "done"]
    assert job.last.checkpoint_id == before
    with pytest.raises(IntervalError, match="would leave a gap"):
        job.days(3)


def test_days_without_messages_are_empty():
    topic = DatedTopic("shop.rows")
    topic.send(0.5, "a")
    topic.send(3.5, "b")
    job = TopicIntervalJob(topic)
    job.harness.clock.advance(4 * DAY + 60_000)
    assert [job.took_days(number) for number in range(3)] == [["a"], [], []]
    assert job.took_days(3) == ["b"]


def test_offsets_without_messages_count_for_nothing():
    topic = three_days()
    topic.skip(3)
    topic.send(3.2, "f")
    topic.compact(1, 2, 4)
    job = TopicIntervalJob(topic)
    job.harness.clock.advance(4 * DAY)
    assert [job.took_days(number) for number in range(3)] == [["a"], ["d"], []]
    assert job.positions() == {0: 8}


def test_time_far_ahead_ends_no_interval():
    topic = DatedTopic("shop.rows")
    topic.send(0.5, "a")
    topic.send(9000, "wrong", event=0.6)
    topic.send(0.7, "b")
    topic.send(1.2, "c")
    topic.send(2.2, "d")
    job = TopicIntervalJob(topic)
    assert [job.took_days(0), job.took_days(1)] == [["a", "wrong", "b"], ["c"]]
    with pytest.raises(OpenIntervalError, match="partition 0 has no message of 2024-03-04"):
        job.days(2)
    job.harness.clock.advance(60_000)
    assert job.took_days(2) == ["d"]


def test_messages_without_times_follow_their_neighbours():
    topic = DatedTopic("shop.rows")
    topic.send(0.5, "a")
    topic.append([{"shop": "a", "at": at(0.6), "name": "none"}], timestamp=-1)
    topic.send(1.5, "b")
    topic.append([{"shop": "a", "at": at(1.6), "name": "last"}], timestamp=-1)
    job = TopicIntervalJob(topic)
    assert job.took_days(0) == ["a", "none"]
    job.harness.clock.advance(DAY + 60_000)
    assert job.took_days(1) == ["b", "last"]


@pytest.mark.slow
def test_interval_behind_a_caught_up_run_goes_on():
    topic = three_days()
    job = TopicIntervalJob(topic, max_rows_per_batch=3)
    job.harness.clock.advance(3 * DAY)
    job.run(max_batches=1)
    assert job.arrived() == ["a", "b", "c"]
    assert (job.last.interval_start, job.last.interval_end) == (at(0.5), at(1.1))
    job.interval(Interval(at(1.1), at(2)))
    assert job.arrived() == ["a", "b", "c", "d"]
    job.run()
    assert job.arrived() == ["a", "b", "c", "d", "e"]


def test_new_partition_begins_at_its_first_message():
    job = TopicIntervalJob(three_days())
    job.days(0)
    job.topic.grow()
    job.topic.send(0.7, "early", partition=1, event=1.2)
    job.topic.send(2.7, "later", partition=1)
    job.days(1)
    assert job.positions() == {0: 4, 1: 1}


def test_topic_made_anew_stops_interval_and_backfill():
    job = TopicIntervalJob(three_days(2))
    job.harness.clock.advance(DAY + 60_000)
    job.days(0)
    before = job.last
    job.topic.recreate(1)
    job.topic.send(1.5, "other")
    for act in (lambda: job.days(1), lambda: job.backfill(days(0))):
        with pytest.raises(
            SourceError, match=r"is another topic than the one that was read.*deleted and made anew"
        ) as caught:
            act()
        assert caught.value.exit_code == 7
    assert job.last == before


def test_expired_messages_stop_the_next_interval():
    job = TopicIntervalJob(three_days())
    job.days(0)
    job.topic.expire(4)
    with pytest.raises(
        SourceError, match=r"begins at offset 4, and this job has read it up to offset 2.*skip_offsets: 0:2-3"
    ):
        job.days(1)
    job.configure(skip_offsets="0:2-3")
    assert job.took_days(1) == []
    job.harness.clock.advance(60_000 + DAY)
    assert job.took_days(2) == ["e"]


# ---------------------------------------------------------------------------------------------------------------- backfills


def landed(job):
    return job.harness.folder / "state/reader/landed/rows"


def promoted(job, interval):
    result = job.backfill(interval)
    assert result.outcome.value == "promoted"
    return job.arrived()


@pytest.mark.slow
def test_backfill_reads_recorded_offsets_again():
    job = TopicIntervalJob(three_days())
    before = job.sealed(3)
    assert [str(step) for step in job.plan(days(1)).steps] == ["2024-03-02 to 2024-03-03", "2024-03-03 to 2024-03-04"]
    for file in landed(job).iterdir():
        file.unlink()
    assert promoted(job, days(1)) == before == ["a", "b", "c", "d", "e"]
    assert job.positions() == {0: 5}
    job.topic.send(3.5, "f")
    job.topic.send(4.5, "g")
    assert job.took_days(3) == ["f"]


@pytest.mark.slow
def test_backfill_reads_expired_messages_from_landed_files():
    job = TopicIntervalJob(three_days())
    before = job.sealed(3)
    job.topic.expire(5)
    reads = job.topic.reads
    assert promoted(job, days(0)) == before
    assert job.topic.reads == reads


def test_backfill_of_messages_that_nobody_has_is_refused():
    job = TopicIntervalJob(three_days())
    before = job.sealed(3)
    job.topic.expire(3)
    for file in landed(job).iterdir():
        file.unlink()
    with pytest.raises(
        SourceError, match=r"the branch needs offsets 2 of partition 0.*Branch .* stays open, and the live tables"
    ):
        job.backfill(days(1))
    assert job.arrived() == before


def test_backfill_forks_before_all_its_messages():
    topic = DatedTopic("shop.rows", 2)
    topic.send(0.5, "a", "b")
    topic.send(1.5, "c", event=0.6)
    topic.send(0.3, "w", partition=1)
    topic.send(0.4, "x", partition=1)
    topic.send(0.7, "y", partition=1, event=0.8)  # waits for partition 0
    job = TopicIntervalJob(topic)
    job.harness.clock.advance(3 * DAY)
    job.run()
    last = job.last
    assert last.sources["rows"].position.latest == at(1.5)
    assert (last.interval_start, last.interval_end) == (at(0.3), at(0.4))
    assert job.plan(Interval(at(0.3), at(0.4))).fork_id < last.checkpoint_id
    for partition, when in ((0, 2.5), (1, 2.5), (0, 3.1), (1, 3.1)):
        topic.send(when, f"{partition} {when}", partition=partition)
    job.run()
    assert job.plan(Interval(at(1), at(2))).fork_id < last.checkpoint_id


def test_backfill_without_intervals_names_the_setting():
    job = TopicIntervalJob(three_days(), interval=None)
    job.harness.clock.advance(4 * DAY)
    job.run()
    with pytest.raises(ConfigError, match="source 'rows' has no 'interval'"):
        job.plan(days(0))
    job.configure(interval={"by": "committed"})
    with pytest.raises(
        IntervalError, match="was not taken in by job 'reader' yet: none of its checkpoints has an interval"
    ):
        job.plan(days(0))


@pytest.mark.slow
@pytest.mark.parametrize("crash", ["ingest.after", "commit.before", "promotion.committed"])
def test_backfill_goes_on_after_a_crash(crash):
    job = TopicIntervalJob(three_days(2))
    job.topic.send(0.7, "x", partition=1)
    job.topic.send(2.6, "y", partition=1)
    job.sealed(3)
    before, positions = job.arrived(), job.positions()
    job.backfill(days(1), crash_at=crash)
    assert promoted(job, days(1)) == before
    assert job.positions() == positions
    assert job.last.interval_end == FIRST + 3 * DAY


# ---------------------------------------------------------------------------------------------------------- corrected input


CORRECTED_TOPIC = {"replay.sources.rows": '{"topic": "shop.rows_fixed"}'}


def corrected_by(job, topic):
    """Let a topic have the corrected input of the job's source."""
    job.topic.others[topic.name] = topic
    return job


def day_file(job, number, *names):
    """Write a file of a day beside the job's input: JSON, with the rows an hour apart."""
    folder = job.harness.folder / "fixed"
    folder.mkdir(exist_ok=True)
    rows = (message(name, at(number) // 1000 + 3600 * place) for place, name in enumerate(names))
    (folder / f"{day_of(number)}.json").write_text("\n".join(map(json.dumps, rows)))
    return {"replay.sources.rows": json.dumps({"format": "json", "path": str(folder)})}


@pytest.mark.slow
def test_corrected_topic_takes_the_place_of_days():
    job = TopicIntervalJob(three_days())
    job.sealed(3)
    fixed = DatedTopic("shop.rows_fixed")
    fixed.send(0.1, "not asked for")
    fixed.send(1.2, "C")
    fixed.send(1.3, "D", "more")
    fixed.send(2.4, "not asked for either")
    result = corrected_by(job, fixed).backfill(days(1), settings=CORRECTED_TOPIC)
    assert result.outcome.value == "promoted"
    assert job.arrived() == ["a", "b", "C", "D", "more", "e"]
    assert job.positions() == {0: 5}
    job.topic.send(3.5, "f")
    job.topic.send(4.1, "g")
    assert job.took_days(3) == ["f"]


@pytest.mark.slow
def test_later_backfills_keep_corrected_input():
    job = TopicIntervalJob(three_days())
    job.sealed(3)
    settings = day_file(job, 2, "E")
    job.backfill(days(2), settings=settings)
    fixed = DatedTopic("shop.rows_fixed")
    fixed.send(1.2, "C")
    corrected_by(job, fixed).backfill(days(1), settings=CORRECTED_TOPIC)
    assert job.arrived() == ["a", "b", "C", "E"]
    job.topic.expire(5)
    result = job.backfill(days(0))
    assert result.changes_nothing
    assert job.arrived() == ["a", "b", "C", "E"]
    job.topic.send(3.5, "f")
    job.topic.send(4.1, "g")
    assert job.took_days(3) == ["f"]
    assert job.facts.corrected is None
    assert job.backfill(days(1, 3)).changes_nothing


@pytest.mark.slow
def test_folder_takes_the_place_of_messages():
    job = TopicIntervalJob(three_days(2))
    job.topic.send(0.7, "x", partition=1)
    job.topic.send(1.95, "y", partition=1)
    job.topic.send(2.6, "z", partition=1)
    job.sealed(3)
    job.run(end_of_input=True)
    settings = day_file(job, 1, "C", "D")
    assert job.backfill(days(1), settings=settings, promote="approval").outcome.value == "needs_approval"
    assert job.backfill(days(1)).outcome.value == "promoted"
    assert [name for name in job.arrived() if name not in {"e", "z"}] == ["a", "b", "x", "C", "D"]


def test_corrected_days_need_whole_intervals():
    job = TopicIntervalJob(three_days())
    job.harness.clock.advance(4 * DAY)
    job.days(0, 3)
    settings = day_file(job, 1, "C")
    with pytest.raises(
        IntervalError,
        match=r"took in 2024-03-01 to 2024-03-04, and the corrected input of 'rows' for 2024-03-02 to 2024-03-03 .* --from 2024-03-01 --to 2024-03-04",
    ):
        job.plan(days(1), settings)


@pytest.mark.slow
def test_open_branch_keeps_its_corrected_input():
    job = TopicIntervalJob(three_days())
    job.sealed(3)
    settings = day_file(job, 1, "C")
    job.backfill(days(1), settings=settings, promote="refuse")
    with pytest.raises(ConfigError, match="reads other input than --source names now.*--renew"):
        job.backfill(days(1), settings=CORRECTED_TOPIC)
    day_file(job, 1, "E", "F")
    assert job.backfill(days(1), settings=settings, promote="refuse").outcome.value == "compared"
    assert job.backfill(days(1), settings=settings, renews=True).outcome.value == "promoted"
    assert job.arrived() == ["a", "b", "E", "F", "e"]


@pytest.mark.slow
def test_corrected_input_is_for_its_interval_alone():
    job = TopicIntervalJob(three_days())
    job.sealed(3)
    job.backfill(days(1), settings=day_file(job, 1, "C"), promote="refuse")
    config = job.harness.config
    with (
        job.on_its_clock(),
        pytest.raises(
            ConfigError,
            match="anew for 2024-03-01 to 2024-03-03, and corrected input was named for 2024-03-02 to 2024-03-03 alone",
        ),
    ):
        plan_backfill(config, checked_plan(config), days(0), default_name(days(1)), renews=True)


@pytest.mark.slow
def test_other_branches_repeat_corrected_input():
    job = TopicIntervalJob(three_days())
    job.sealed(3)
    job.backfill(days(1), settings=day_file(job, 1, "C"))
    branch = job.harness.branch("again", at=0)
    branch.run()
    assert sorted(row.name for row in branch.sink("arrived")) == ["C", "a", "b", "e"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"replay.sources.nobody": "{path: x}"}, "replay.sources.nobody: the job has no such source"),
        ({"replay.sources.rows": "{format: delta, path: x}"}, "replay.sources.rows.interval: this key is missing"),
        (
            {"replay.sources.rows": "{format: delta, path: x, interval: {by: committed}}"},
            "commit times of corrected rows are those of the correction",
        ),
        ({"replay.sources.rows": "{format: json}"}, "replay.sources.rows: the key 'path' is missing"),
        ({"replay.sources.rows": "{topic: 'a b'}"}, "'a b' is no topic's name"),
        ({"replay.sources.rows": "{format: json, path: x, interval: '%d'}"}, "'%d' gives no intervals"),
        ({"replay.sources.rows": "{format: json, path: x, by: y}"}, "unknown key"),
    ],
)
def test_unclear_corrected_input_is_refused(given, match):
    job = TopicIntervalJob(three_days())
    with pytest.raises(ConfigError, match=match) as caught:
        with_settings(job.harness.config, given)
    assert caught.value.exit_code == 2


@pytest.mark.slow
def test_time_ahead_stays_without_meaning_in_backfills():
    topic = DatedTopic("shop.rows")
    topic.send(0.5, "a")
    topic.send(6.5, "ahead", event=0.6)
    topic.send(1.5, "b")
    job = TopicIntervalJob(topic)
    job.sealed(2)
    latest = job.facts.position.latest
    job.harness.clock.advance(5 * DAY)
    assert job.backfill(days(0)).outcome.value == "promoted"
    assert (latest, job.facts.position.latest) == (at(1.5), at(1.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip", "left"), [("0:2-2", ["a", "b", "d"]), ("0:1-2", ["a", "d"]), ("0:1-1", ["a", "c", "d"])]
)
def test_offsets_skipped_since_then_are_left_out(skip, left):
    topic = DatedTopic("shop.rows")
    topic.send(0.5, "a")
    topic.send(1.1, "b", "c")
    topic.send(2.5, "d")
    job = TopicIntervalJob(topic)
    job.sealed(3)
    job.configure(skip_offsets=skip)
    assert job.backfill(days(1)).outcome.value == "promoted"
    assert job.arrived() == left
