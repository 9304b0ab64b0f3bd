"""A job whose micro-batches record their files instead of processing them: runs without a JVM on real checkpoints."""

from __future__ import annotations

from headrace.local.tasks import LocalTasks
from headrace.log.checkpoint import Kind
from headrace.log.facts import OperatorFacts
from headrace.log.lineage import Lineage
from headrace.records.watermarks import advance
from headrace.run import batch_sequence, job_run
from headrace.run.options import RunOptions
from headrace.run.result import BatchResult, TimelineResult
from tests.jobs.home import Home
from tests.jobs.outcome import checkpoints
from tests.jobs.purchase_files import day_name, day_start, purchases_of, write_rows


class Job:
    """A job, the files of each checkpoint, and the events of its last run."""

    def __init__(self, home):
        self.home = home
        self.files = {}
        self.inputs = {}
        self.events = []
        self._runs = 0
        self.write(*range(4))

    def write(self, *numbers):
        for number in numbers:
            write_rows(self.home.input, day_name(number), [])

    def rewrite(self, number):
        """Write a file again with other content."""
        write_rows(self.home.input, day_name(number), purchases_of(number, rows=1))

    def run(self, **options):
        self._runs += 1
        self.events.clear()
        wishes = RunOptions(**{"run_id": f"run {self._runs}", **options})
        return job_run.run_on(LocalTasks(), self.home.config(), wishes, self.events.append)

    def days(self, first, end=None, **options):
        interval = {"interval_start": day_start(first), "interval_end": day_start(first + 1 if end is None else end)}
        return self.run(mode="interval", **interval, **options)

    def straight(self, end=3):
        for number in range(end):
            self.days(number)

    @property
    def rows(self):
        """Return the rows that each slice of the line took from its files, and the ordinal of the first."""
        lineage = Lineage(checkpoints(self.home.config())).checkpoints
        return [self.inputs[c.checkpoint_id] for c in lineage if c.kind is Kind.BATCH]

    @property
    def contents(self):
        """Return the files of the line to the last checkpoint, slice by slice."""
        lineage = Lineage(checkpoints(self.home.config())).checkpoints
        return [self.files[c.checkpoint_id] for c in lineage if c.kind is Kind.BATCH]

    def messages(self, kind="warning"):
        return " ".join(event.message for event in self.events if event.kind == kind)


def noted_job(folder, monkeypatch, **changes):
    """Return a job on four days of input."""
    actual = Job(Home(folder))
    if changes:
        actual.home.configure(changes)

    class NotedBatch:
        def __init__(self, _spark, opened, plan, **_options):
            self.opened, self.plan, self.state_ttl = opened, plan, opened.last.state_ttl

        def run(self, taken):
            actual.files[self.opened.next_id] = [file.name for file in taken.files]
            actual.inputs[self.opened.next_id] = [
                (file.source, file.name, file.first_row, file.taken, file.first_ordinal) for file in taken.files
            ]
            result = BatchResult()
            for line in taken.timelines:
                after, watermarks = line.after, line.watermarks
                if after is None:
                    after, watermarks = advance(line.before, {}, line.rows, size=20, lag=1, watermark=None)
                last = self.opened.last.timeline(line.sources).watermark
                last = watermarks[-1][1] if watermarks else last
                result.timelines[line.sources] = TimelineResult(after, watermarks, last, last)
            result.metrics["rows_in"] = taken.rows
            return result

        def operators_after(self, _result):
            return {name: OperatorFacts(timeline=line) for name, line in self.plan.timelines().items()}

        def open_steps(self, _result):
            return ()

    monkeypatch.setattr(batch_sequence, "MicroBatch", NotedBatch)
    return actual
