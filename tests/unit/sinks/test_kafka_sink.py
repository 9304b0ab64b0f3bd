"""A topic as a sink: the messages sent, and the repeated messages (in memory, no Spark)."""

from __future__ import annotations

import pytest

from headrace.commit.publish import Publisher
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.restore import restore
from headrace.errors import ConfigError, ServiceError, StorageError
from headrace.log.declared import to_schemas
from headrace.sinks.kafka import CHECKPOINT, INCARNATION, JOB
from headrace.sinks.sink import SparkWriters
from headrace.storage.storage import Storage
from headrace.testing import PipelineHarness
from headrace.testing._memory_disk import forget_disk
from tests.unit.sinks.test_parquet_folder import pipeline
from tests.unit.support.memory_job import REMINDERS, MemoryJob, commit_batch, killed_at, places_of

TOPIC = {"format": "kafka", "servers": "broker:9092", "topic": "reminders"}


class SendingJob(MemoryJob):
    """A job whose runs send to a list; jobs opened by commands send nothing."""

    def __init__(self, name):
        super().__init__(name, **TOPIC)
        self.messages = []
        self.refusal = None

    def send(self, sink, files, headers):
        assert sink == REMINDERS
        for file in files:
            for customer in Storage(str(file)).parquet()["customer"].to_pylist():
                if self.refusal is not None:
                    raise self.refusal
                self.messages.append((customer, tuple(headers.items())))

    def open(self, run_id="run", **options):
        return super().open(run_id, **({"writers": SparkWriters(send=self.send)} | options))

    def customers(self):
        return [customer for customer, _ in self.messages]

    def without_spark(self, *customers):
        with self.open(writers=SparkWriters()) as opened:
            for customer in customers:
                commit_batch(opened, customer)


@pytest.fixture
def job(clock):
    assert clock.now() == 1_000_000
    yield SendingJob("sending")
    forget_disk("sending")


def delays(job):
    return [finding.detail for finding in verify(job.config) if not finding.ok]


def test_each_checkpoint_is_sent_once(job):
    job.run("ann")
    job.run("bob", "cyd")
    assert job.customers() == ["ann", "bob", "cyd"]
    assert job.sink_rows(REMINDERS, "customer") == ["ann", "bob", "cyd"]
    assert not delays(job)


def test_headers_name_the_checkpoint(job):
    job.run("ann")
    ((_, headers),) = job.messages
    assert dict(headers) == {JOB: "purchases", INCARNATION: f"{job.last.incarnation:x}", CHECKPOINT: "1"}


@pytest.mark.slow
@pytest.mark.parametrize("power", ["stays", "fails"])
def test_killed_publications_send_all_at_least_once(job, power):
    """The process dies at each place after the commit; repeats have equal headers, and no row overtakes another."""
    job.run("ann")
    before, places = job.copy(), []
    with places_of(job.disk, places):
        job.run("bob")
    repeated = set()
    for place, visit in places[[place for place, _ in places].index("commit.after") :]:
        before.bring_back()
        job.messages.clear()
        with killed_at(job.disk, place, visit):
            job.run("bob")
        if power == "fails":
            job.disk.lose_power()
        job.run("cyd")
        assert list(dict.fromkeys(job.customers())) == ["bob", "cyd"], (place, visit)
        assert len({*job.messages}) == 2, (place, visit)
        assert job.sink_rows(REMINDERS, "customer") == ["ann", "bob", "cyd"]
        assert not delays(job)
        repeated |= {place for customer in job.customers()[1:] if customer == "bob"}
    assert "deliver.half" in repeated


def test_dead_brokers_stop_run_until_they_return(job):
    job.run("ann")
    job.refusal = ServiceError("no broker answers")
    for _ in range(2):
        with pytest.raises(ServiceError, match="no broker answers"):
            job.run("bob")
    assert job.last.checkpoint_id == 2
    assert delays(job) == ["sent up to checkpoint 1 of 2; the next run sends the rest"]
    job.refusal = None
    job.run("cyd")
    assert job.customers() == ["ann", "bob", "cyd"]


def test_commands_without_spark_leave_rows_for_run(job):
    job.run("ann")
    job.without_spark("bob", "cyd")
    compact(job.config, "command")
    assert job.customers() == ["ann"]
    assert delays(job) == ["sent up to checkpoint 1 of 3; the next run sends the rest"]
    with job.open():
        pass
    assert job.customers() == ["ann", "bob", "cyd"]
    assert [dict(headers)[CHECKPOINT] for _, headers in job.messages] == ["1", "2", "3"]


def test_restores_undo_no_message_and_repeat_none(job):
    job.run("ann", "bob")
    restore(job.config, 1, "test", "command")
    assert job.sink_rows(REMINDERS, "customer") == ["ann"]
    restore(job.config, 2, "test", "command")
    job.run("cyd")
    assert job.customers() == ["ann", "bob", "cyd"]
    assert job.sink_rows(REMINDERS, "customer") == ["ann", "bob", "cyd"]


def test_restored_rows_were_sent_before(job):
    """A restore abandons a checkpoint that is not sent yet, and a second restore returns to it."""
    job.run("ann")
    job.without_spark("bob")
    restore(job.config, 1, "test", "command")
    job.run("cyd")
    restore(job.config, 2, "test", "command")
    job.run("dan")
    assert job.customers() == ["ann", "bob", "cyd", "dan"]
    assert job.sink_rows(REMINDERS, "customer") == ["ann", "bob", "dan"]


def test_lost_rows_are_named_before_any_skip(job):
    job.run("ann")
    job.without_spark("bob")
    (file,) = job.last.outputs[REMINDERS]
    compact(job.config, "command")
    job.disk.files.pop(f"lake/{REMINDERS}/{file.path}")
    with pytest.raises(StorageError, match=f"staged file .*{file.path} is gone"):
        job.run("cyd")
    assert job.customers() == ["ann"]


def test_two_publishers_lose_nothing(job):
    job.run("ann")
    with job.open(writers=SparkWriters()) as opened:
        commit_batch(opened, "bob")
        last, lineage, schemas = job.last, job.log.lineage, to_schemas(job.last.sink_tables)

        def send(sink, files, headers):
            if len(job.messages) == 1:
                job.send(sink, files, headers)
                Publisher(job.config, schemas, SparkWriters(send=job.send)).publish(last, lineage)

        Publisher(job.config, schemas, SparkWriters(send=send)).publish(last, lineage)
    assert job.customers() == ["ann", "bob", "bob"]
    assert not delays(job)
    job.run("cyd")
    assert job.customers()[-1] == "cyd"


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({"mode": "merge"}, "rows are only added to a topic"),
        ({"partition_by": ["day"]}, "messages go to partitions by their keys"),
        ({"topic": "a/b"}, "'a/b' is no topic's name"),
        ({"topic": ""}, "the key 'topic' is missing"),
        ({"options": {"acks": 1}}, "write settings of Kafka's clients"),
        ({"options": {"kafka.acks": 0}}, "the engine sets it"),
        ({"key": "nobody"}, r"sinks.taken.key: there is no column nobody \(the sink has: id"),
        ({"key": "at"}, "sinks.taken.key: at is timestamp"),
        ({"format": "delta"}, "the format delta does not have it: write format: kafka"),
    ],
)
def test_wrong_bindings_are_refused(sink, problem):
    harness = PipelineHarness(pipeline(), job={"sinks": {"taken": TOPIC | sink}})
    with pytest.raises(ConfigError, match=problem):
        harness.run()


def test_values_of_options_are_hidden():
    harness = PipelineHarness(pipeline(), job={"sinks": {"taken": TOPIC | {"options": {"kafka.a": "secret"}}}})
    assert "secret" not in f"{harness.config!r}{harness.config.shown()}"
