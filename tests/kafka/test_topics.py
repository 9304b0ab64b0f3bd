"""A job reads topics of a real broker through Spark."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from headrace.config import Promote
from headrace.edits.fork import fork
from headrace.edits.promote import promoting
from headrace.errors import ConfigError, ServiceError, SourceError
from headrace.log.log import CheckpointLog
from headrace.run.backfill import BackfillOutcome, BackfillRequest
from headrace.run.options import RunOptions
from headrace.sources.interval import Interval
from headrace.spark.runner import run_in
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from tests.jobs.ports import free_port
from tests.unit.support.topic_job import merged_by_hand, message


def positions(job):
    (facts,) = CheckpointLog(JobFolder(job.home.config().job_folder)).last.sources.values()
    return {number: partition.next for number, partition in facts.partitions.items()}


def test_partitions_merge_by_event_time_over_runs(broker, job):
    topic = broker.topic(3)
    job.configure(topic=topic, max_rows_per_batch=9)
    sent = [[], [], []]
    for burst in range(3):
        for partition in range(3):
            rows = [(f"{burst}.{partition}.{at}", 7 * burst + (5 * at + partition) % 11) for at in range(4 + partition)]
            sent[partition] += rows
            broker.send(topic, [message(*row) for row in rows], partition)
        job.run(max_batches=2)
    assert job.run(end_of_input=True) == merged_by_hand(sent)
    assert positions(job) == {partition: len(rows) for partition, rows in enumerate(sent)}


def test_aborted_transactions_are_never_read(broker, job):
    topic = broker.topic()
    broker.send(topic, [message("p")], aborts=False)
    broker.send(topic, [message("never")], aborts=True)
    job.configure(topic=topic, max_rows_per_batch=1)
    assert job.run() == ["p"]
    assert positions(job) == {0: 4}
    broker.send(topic, [message("q")], aborts=False)
    assert job.run() == ["p", "q"]


def test_bad_messages_name_their_offsets(broker, job):
    topic = broker.topic()
    broker.send(topic, [message("p"), b"{", None, message("q")])
    job.configure(topic=topic)
    assert job.run() == ["p", "q"]
    config = job.home.config()
    view = JobFolder(config.job_folder).view(
        QUARANTINE, CheckpointLog(JobFolder(config.job_folder)).last.versions[QUARANTINE]
    )
    rows = sorted(view.live_rows(), key=lambda row: row["position"])
    assert [row["error"].split(": ")[0] for row in rows] == [f"{topic}-0@1", f"{topic}-0@2"]
    raw = json.loads(rows[0]["raw"])
    assert (raw["key"], raw["value"], raw["topic"], raw["headers"][0]["key"]) == ("key", "{", topic, "source")


def test_start_timestamp_selects_the_first_offset(broker, job):
    topic = broker.topic(2)
    for partition, timestamp in ((0, 59_999), (0, 60_000), (1, 10)):
        broker.send(topic, [message(f"{timestamp}")], partition, timestamp=timestamp)
    job.configure(topic=topic, start="1970-01-01T00:01Z", idle_after="0s")
    assert job.run() == ["60000"]
    assert positions(job) == {0: 2, 1: 1}


def test_grown_topics_are_read_from_the_beginning(broker, job):
    topic = broker.topic()
    broker.send(topic, [message("p")])
    job.configure(topic=topic)
    assert job.run() == ["p"]
    broker.grow(topic, 2)
    broker.send(topic, [message("x", 1)], 1)
    broker.send(topic, [message("q", 2)])
    assert job.run() == ["p", "x"]
    assert job.run(end_of_input=True) == ["p", "x", "q"]


def test_expired_messages_stop_the_run(broker, job):
    topic = broker.topic()
    broker.send(topic, [message("p")])
    job.configure(topic=topic)
    job.run()
    broker.send(topic, [message("q"), message("r"), message("s")])
    broker.expire(topic, 3)
    with pytest.raises(SourceError, match=r"begins at offset 3, .*skip_offsets: 0:1-2\. "):
        job.run()
    job.configure(skip_offsets="0:1-2")
    assert job.run() == ["p", "s"]


def test_promoted_branch_reads_expired_messages_once(broker, job):
    topic = broker.topic(2)
    job.configure(topic=topic, idle_after="0s")
    broker.send(topic, [message("p", 1), message("q", 2)])
    job.run()
    broker.send(topic, [message("x", 3)], 1)
    job.run()
    fork(job.home.config(), "again", 0, "test")
    broker.expire(topic, 2)
    assert job.run("again") == ["p", "q", "x"]
    broker.send(topic, [message("r", 4)])
    assert job.run("again") == ["p", "q", "x", "r"]
    with promoting(job.home.config(), "again", "test") as promotion:
        promotion.promote()
    assert positions(job) == {0: 3, 1: 1}
    broker.send(topic, [message("s", 5)], 1)
    assert job.run() == ["p", "q", "x", "r", "s"]


def test_recreated_topic_stops_the_run(broker, job):
    topic = broker.topic()
    broker.send(topic, [message("p")])
    job.configure(topic=topic)
    job.run()
    broker.delete(topic)
    broker.topic(name=topic)
    with pytest.raises(SourceError, match="is another topic than the one that was read"):
        job.run()


def test_unknown_topic_is_named(job):
    job.configure(topic="nobody.made.it")
    with pytest.raises(SourceError, match=r"there is no topic nobody\.made\.it at 127\.0\.0\.1"):
        job.run()


def test_broker_that_is_down_is_named(job):
    fast = {"kafka.request.timeout.ms": 1000, "kafka.default.api.timeout.ms": 2000}
    job.configure(topic="rows", servers=f"127.0.0.1:{free_port()}", options=fast)
    with pytest.raises(ServiceError, match="no broker answers for topic rows at 127"):
        job.run()


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ({"options": {"kafka.security.protocol": "NONSENSE"}}, ConfigError, "no client of Kafka can start"),
        ({"servers": "nonsense"}, ConfigError, "no client of Kafka can start"),
        ({"servers": "no.such.host.invalid:9092"}, ServiceError, "no broker answers"),
    ],
)
def test_wrong_settings_are_named(job, source, error, match):
    job.configure(topic="rows", **source)
    with pytest.raises(error, match=match):
        job.run()


def test_intervals_and_backfills_by_times_of_messages(broker, job):
    topic, fixed = (broker.topic(number, **{"retention.ms": "-1"}) for number in (2, 1))  # the times are old
    for day, names in ((0, "ab"), (1, "cd"), (2, "e")):
        for place, name in enumerate(names):
            broker.send(topic, [message(name, at=86_400 * day + place)], timestamp=NOON + day * DAY)
    broker.send(topic, [message("x", at=2)], partition=1, timestamp=NOON)
    broker.send(topic, [message("late", at=3)], partition=1, timestamp=NOON + DAY)
    broker.send(topic, [message("never")], partition=1, timestamp=NOON + DAY, aborts=True)
    job.configure(topic=topic, interval={"by": "committed"})
    cuts = []
    for day in range(2):
        job.run(mode="interval", interval_start=FIRST + day * DAY, interval_end=FIRST + (day + 1) * DAY)
        cuts.append(positions(job))
    assert cuts == [{0: 2, 1: 1}, {0: 4, 1: 3}]  # the marker of the aborted transaction has the broker's time
    broker.expire(topic, 4)  # partition 0 has landed files alone
    broker.send(fixed, [message("C", at=86_400)], timestamp=NOON + DAY)
    ended = backfill(job, FIRST + DAY, {"replay.sources.rows": f"{{topic: {fixed}}}"})
    assert ended.outcome is BackfillOutcome.PROMOTED
    assert positions(job) == {0: 4, 1: 3}
    assert job.run(end_of_input=True) == ["a", "b", "x", "C", "e"]
    ended = backfill(job, FIRST, {}, end=FIRST + DAY)
    assert (ended.outcome, ended.changes_nothing) == (BackfillOutcome.PROMOTED, True)


FIRST = 1_709_251_200_000  # 1 March 2024
DAY = 86_400_000
NOON = FIRST + DAY // 2


def backfill(job, start, settings, end=None):
    """Compute a day again with these settings of the branch; return the result."""
    config = job.home.config()
    config = replace(config, replay=replace(config.replay, promote=Promote.AUTOMATIC))
    request = BackfillRequest(config, Interval(start, end or start + DAY), f"again_{start}", settings=settings)

    def run_branch(branch, options):
        return run_in(job.spark, branch, options, lambda _: None)

    return request.run(RunOptions(run_id="backfill"), run_branch)[1]
