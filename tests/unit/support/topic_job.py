"""A job that reads a topic and numbers its messages as they arrive, by shop."""

from __future__ import annotations

import json

import msgspec

from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.records.watermarks import Timeline
from headrace.sources.intake import Intake
from headrace.sources.kafka.messages import read_messages
from headrace.sources.position import SourceFacts
from headrace.sources.slices import JobPosition, SliceRequest
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.table_job import pipeline


def message(name, at=0, shop="a", **more):
    """A message of the topic; `at` in seconds."""
    return {"shop": shop, "at": 1000 * at, "name": name, **more}


class TopicJob:
    """The job in a harness, over a topic in memory."""

    def __init__(self, partitions=1, *more, declared=None, **source):
        self.topic = MemoryTopic("shop.rows", partitions)
        self.source = source
        self.harness = PipelineHarness(
            pipeline(*more, **(declared or {})), topics={"rows": self.topic}, job={"sources": {"rows": source}}
        )

    def put(self, *names, at=0, partition=0, **more):
        """Append messages a second apart; return the offset of the first."""
        rows = [message(name, at + number, **more) for number, name in enumerate(names)]
        return self.topic.append(rows, partition=partition)

    def configure(self, **source):
        """Change the job's file."""
        self.source |= source
        self.harness.change(job={"sources": {"rows": self.source}})
        return self

    def run(self, **options):
        return self.harness.run(**options)

    def took(self, **options):
        """Run, and return the names of the rows that arrived."""
        before = len(self.arrived())
        self.run(**options)
        return self.arrived()[before:]

    def arrived(self, shop="a"):
        """Return the names of rows in the order of arrival at the operator."""
        if not self.harness.sink_table("arrived").num_rows:
            return []
        rows = sorted((row for row in self.harness.sink("arrived") if row.shop == shop), key=lambda item: item.number)
        assert [row.number for row in rows] == list(range(len(rows)))
        return [(row.kind if row.kind != "+I" else "") + row.name for row in rows]

    @property
    def log(self):
        return CheckpointLog(JobFolder(self.harness.config.job_folder))

    @property
    def facts(self):
        return self.log.last.sources["rows"]

    def positions(self):
        """The next offset to read, by partition."""
        return {number: partition.next for number, partition in self.facts.partitions.items()}

    def landed(self):
        """Names of the landed files."""
        return sorted(file.name for file in (self.harness.folder / "state/reader/landed/rows").glob("*-*@*.parquet"))

    def quarantine(self):
        view = JobFolder(self.harness.config.job_folder).view(QUARANTINE, self.log.last.versions[QUARANTINE])
        return sorted((row["position"], row["error"], row["raw"]) for row in view.live_rows())


class TopicSlices:
    """Plans slices of the job's source without running it, and reads their messages."""

    def __init__(self, partitions, **source):
        self.job = TopicJob(partitions, **source)
        self.topic = self.job.topic
        self._config = self.job.harness.config
        self._plan = plan_of(self._config.code)
        self.restart()
        self.facts, self.timelines = {}, {}
        self.watermarks = []
        self.names = {}
        """By ordinal."""

    def restart(self):
        """Forget everything that is not in the facts."""
        self._intake = Intake(self._plan, self._config, topics={"rows": self.topic})

    def take_in(self, *, crashes=False, ends=False):
        """Take the next slice in, or crash before its commit; return whether there was one."""
        at = JobPosition(self.facts, self.timelines, {}, 0, 0, Storage(str(self.job.harness.folder / "transit")))
        taken = self._intake.next(at, SliceRequest(ends=ends))
        if crashes:
            self.restart()
        if taken is None or crashes:
            return taken is not None
        for file in taken.files:
            values = read_messages(Storage(file.path))["value"].to_pylist()[
                file.first_row : file.first_row + file.taken
            ]
            first = file.first_ordinal
            ordinals = range(first, first + file.taken)
            if file.ordinals is not None:
                ordinals = Storage(str(file.ordinals)).parquet().column(0).to_pylist()
            self.names |= {at: json.loads(value)["name"] for at, value in zip(ordinals, values, strict=True)}
        (line,) = taken.timelines
        self.watermarks += line.watermarks
        former = self.timelines.get("rows", Timeline())
        watermark = line.watermarks[-1][1] if line.watermarks else former.watermark
        self.timelines = {"rows": Timeline(("rows",), line.after, watermark)}
        self.facts = {"rows": msgspec.json.decode(msgspec.json.encode(taken.sources["rows"]), type=SourceFacts)}
        return True

    def arrived(self):
        """Return the names in arrival order."""
        assert sorted(self.names) == list(range(len(self.names)))
        return [self.names[at] for at in range(len(self.names))]


def merged_by_hand(partitions):
    """Return the names of messages in arrival order, by (running maximum of event time, partition, offset)."""
    placed = []
    for partition, messages in enumerate(partitions):
        key = -(1 << 63)
        for offset, (name, at) in enumerate(messages):
            key = max(key, at)
            placed.append((key, partition, offset, name))
    return [name for *_, name in sorted(placed)]
