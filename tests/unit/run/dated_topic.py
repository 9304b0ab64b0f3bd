"""A job that reads a topic by intervals. Days count from 1 March 2024, and messages have chosen times."""

from __future__ import annotations

from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.run.dated_table import DAY, FIRST, IntervalJob, at
from tests.unit.support.table_job import pipeline
from tests.unit.support.topic_job import message

COMMITTED = {"by": "committed"}


class DatedTopic(MemoryTopic):
    """A topic whose messages are sent at days: `send(1.5, "a")` has the time of noon of the second day, also as event time."""

    def send(self, when, *names, partition=0, event=None):
        """Append a message for each name, all of one time; return the offset of the first."""
        seconds = at(when if event is None else event) // 1000
        return self.append([message(name, seconds) for name in names], partition=partition, timestamp=at(when))


class TopicIntervalJob(IntervalJob):
    """A job over a topic that runs by intervals, at the end of each."""

    def __init__(self, topic, *more, harness=None, sources=None, **source):
        self.topic = topic
        job = {"sources": {"rows": {"interval": COMMITTED, **source}, **(sources or {})}}
        options = {"now": FIRST, "topics": {"rows": topic}, **(harness or {})}
        self.harness = PipelineHarness(pipeline(*more), job=job, **options)

    def sealed(self, days, **options):
        """Run all days up to this one, each when partitions without later messages are idle."""
        self.harness.clock.advance(max(0, FIRST + days * DAY + 60_000 - self.harness.clock.now()))
        for day in range(days):
            self.days(day, **options)
        return self.arrived()

    def positions(self):
        """The next offset to read, by partition."""
        return {number: partition.next for number, partition in self.facts.partitions.items()}
