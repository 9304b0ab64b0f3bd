"""A job that reads a topic and numbers its messages as they arrive, by shop."""

from __future__ import annotations

from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.table_job import ReadingJob, pipeline


def message(name, at=0, shop="a", **more):
    """A message of the topic; `at` in seconds."""
    return {"shop": shop, "at": 1000 * at, "name": name, **more}


class TopicJob(ReadingJob):
    """The job over a topic in memory."""

    def __init__(self, partitions=1, *more, declared=None, **source):
        self.topic = MemoryTopic("shop.rows", partitions)
        self.harness = PipelineHarness(
            pipeline(*more, **(declared or {})), topics={"rows": self.topic}, job={"sources": {"rows": source}}
        )

    def put(self, *names, at=0, partition=0, **more):
        """Append messages a second apart; return the offset of the first."""
        rows = [message(name, at + number, **more) for number, name in enumerate(names)]
        return self.topic.append(rows, partition=partition)

    def positions(self):
        """The next offset to read, by partition."""
        return {number: partition.next for number, partition in self.facts.partitions.items()}

    def landed(self):
        """Names of the landed files."""
        return sorted(file.name for file in (self.harness.folder / "state/reader/landed/rows").glob("*-*@*.parquet"))


def merged_by_hand(partitions):
    """Return the names of messages in arrival order, by (running maximum of event time, partition, offset)."""
    placed = []
    for partition, messages in enumerate(partitions):
        key = -(1 << 63)
        for offset, (name, at) in enumerate(messages):
            key = max(key, at)
            placed.append((key, partition, offset, name))
    return [name for *_, name in sorted(placed)]
