"""A job sends rows to a topic of a real broker, and another job reads them there."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace import crash_points
from headrace.commit.verify import verify
from headrace.errors import ServiceError, StorageError
from headrace.log.log import CheckpointLog
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from tests.jobs.home import Home
from tests.jobs.ports import free_port
from tests.jobs.shop_messages import Line

STATE = {"state": {"root": "state", "local": "local"}}


class Killed(BaseException):
    """The process is gone."""


class Sending:
    """A job that turns rows of files into messages, and a job that turns messages into Parquet files."""

    def __init__(self, spark, folder, servers, topic):
        self.spark = spark
        sink = {
            "format": "kafka",
            "path": "lake/sent",
            "mode": "append",
            "servers": servers,
            "topic": topic,
            "key": "shop",
        }
        source = {"format": "kafka", "servers": servers, "topic": topic, "idle_after": "0s"}
        self.sender, self.receiver = Home(folder / "sender", job("sender")), Home(folder / "receiver", job("receiver"))
        self.sink = sink
        self.configure()
        kept = {"format": "parquet", "path": "lake/kept", "mode": "append", "partition_by": ["shop"]}
        self.receiver.configure({"sources": {"received": source}, "sinks": {"kept": kept}})
        self.fed = 0

    def configure(self, **sink):
        self.sender.configure({"sources": {"lines": {"path": "input"}}, "sinks": {"sent": self.sink | sink}})

    def feed(self, *lines):
        self.fed += 1
        folder = self.sender.folder / "input"
        folder.mkdir(exist_ok=True)
        columns = {name: [getattr(line, name) for line in lines] for name in Line.__struct_fields__}
        columns["at"] = pa.array(columns["at"], pa.timestamp("ms", "UTC"))
        columns["notes"] = pa.array(columns["notes"], pa.list_(pa.string()))
        pq.write_table(pa.table(columns), folder / f"{self.fed:03}.parquet")

    def run(self, home, **options):
        from headrace.spark.runner import run_in

        return run_in(self.spark, home.config(), RunOptions(run_id="test", **options), lambda _: None)

    def landed(self):
        """Return the messages read by the receiver, partition by partition."""
        files = sorted((self.receiver.folder / "state/receiver/landed/received").glob("*.parquet"))
        return [message for file in files for message in Storage(str(file)).parquet().to_pylist()]

    def kept(self):
        types = pa.schema([("shop", pa.string())])
        folder = self.receiver.folder / "lake" / "kept"
        return ds.dataset(folder, partitioning=ds.partitioning(types, flavor="hive")).to_table()


def job(name):
    pipeline = f"tests.jobs.shop_messages:{name}"
    return {"job": name, "pipeline": pipeline, **STATE, "watermark": {"bucket": 3}, "sources": {}, "sinks": {}}


def line(number, shop="a"):
    return Line(f"{number}", 1_000 * number + 7, shop, number / 4 if number % 3 else None, number % 2 == 0, ["é", "\n"])


@pytest.fixture
def jobs(broker, spark, servers, tmp_path):
    return Sending(spark, tmp_path, servers, broker.topic(3))


def test_second_job_reads_messages_of_the_first(jobs, spark):
    """The sender dies between sending and recording: the receiver gets the rows again, and detects the repeat."""
    shops = ["a", "b", None, "c"]
    lines = [line(number, shops[number % 4]) for number in range(40)]
    jobs.feed(*lines[:13])
    jobs.run(jobs.sender)
    jobs.feed(*lines[13:])

    def kill(place):
        if place == "deliver.half":
            raise Killed

    with pytest.raises(Killed), crash_points.observed(kill):
        jobs.run(jobs.sender)
    jobs.run(jobs.sender)
    assert [result for result in verify(jobs.sender.config()) if not result.ok] == []

    jobs.run(jobs.receiver, end_of_input=True)
    messages = jobs.landed()
    headers = [tuple((header["key"], bytes(header["value"])) for header in message["headers"]) for message in messages]
    assert len(messages) == 40 + 27
    first = dict(reversed([*zip(headers, messages, strict=True)]))
    assert len(first) == 40
    by_shop = defaultdict(list)
    for identity, message in zip(headers, messages, strict=True):
        assert message["value"] == first[identity]["value"]
        by_shop[message["key"]].append(identity)
    expected = {shop: [line.id for line in lines if line.shop == shop] for shop in shops}
    for shop, identities in by_shop.items():
        ids = [first[key]["value"].decode().partition('"id":"')[2].partition('"')[0] for key in identities]
        name = None if shop is None else shop.decode()
        if name is not None:
            once = expected[name]
            assert ids == [*once, *(key for key in once if int(key) >= 13)], "repeats come behind, in the same order"
        assert sorted({*ids}, key=int) == expected[name]

    kept = jobs.kept().to_pylist()
    result = {sent["id"]: sent for sent in kept}
    assert len(kept) == 67
    assert {key: (sent["shop"], sent["amount"], sent["paid"], sent["notes"]) for key, sent in result.items()} == {
        sent.id: (sent.shop, sent.amount, sent.paid, sent.notes) for sent in lines
    }
    assert {key: round(sent["at"].timestamp() * 1000) for key, sent in result.items()} == {
        sent.id: sent.at for sent in lines
    }
    folder = str(jobs.receiver.folder / "lake" / "kept")
    read = spark.read.parquet(folder)
    assert (read.count(), read.where("shop = 'b'").count()) == (67, len(expected["b"]) + 7)


def test_unavailable_brokers_stop_the_run(jobs):
    fast = {"kafka.request.timeout.ms": 1000, "kafka.default.api.timeout.ms": 2000}
    jobs.configure(servers=f"127.0.0.1:{free_port()}", options=fast)
    jobs.feed(line(1))
    with pytest.raises(ServiceError, match=r"sink 'sent': no broker answers for topic .*The rows are committed"):
        jobs.run(jobs.sender)
    assert CheckpointLog(JobFolder(jobs.sender.config().job_folder)).last.checkpoint_id == 1
    jobs.configure(topic="nobody.made.it")
    with pytest.raises(StorageError, match=r"sink 'sent': there is no topic nobody\.made\.it"):
        jobs.run(jobs.sender)
    jobs.configure()
    jobs.run(jobs.sender)
    jobs.run(jobs.receiver, end_of_input=True)
    assert [message["key"] for message in jobs.landed()] == [b"a"]
