"""Branches of a job that reads a topic: they take in the messages of each micro-batch of the job, from the files that it has landed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import dropwhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.commit.branch_code import on_branch
from headrace.config import with_settings
from headrace.edits.fork import fork
from headrace.edits.promote import promoting
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, SourceError
from headrace.local.tasks import LocalTasks
from headrace.log.branches import Branches
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.fuzzing import examples
from tests.unit.support.topic_job import TopicJob, merged_by_hand, message

pytestmark = pytest.mark.delta

HOURS = 3_600_000
PLACES = (
    *("promotion.begun", "promotion.staged", "promotion.prepared", "commit.before", "commit.after", "publish.half"),
    *("promotion.committed", "promotion.landed", "promotion.removed"),
)


class BranchedTopicJob(TopicJob):
    """The job of `TopicJob`, and its branches."""

    def __init__(self, partitions=1, **source):
        super().__init__(partitions, **source)
        self.sent = [[] for _ in range(partitions)]

    @property
    def config(self):
        return self.harness.config

    def send(self, rows):
        """Append messages, given as (partition, seconds)."""
        for partition, at in rows:
            name = f"{partition}.{len(self.sent[partition])}"
            self.sent[partition].append((name, at))
            self.topic.append([message(name, at)], partition=partition)

    def lapse(self):
        """Expire the messages that the job has landed."""
        for partition, position in self.positions().items() if self.log.last.sources else ():
            self.topic.expire(position, partition=partition)

    def fork(self, name="other", at=None):
        with self.on_its_clock():
            return fork(self.config, name, at, "fork")

    def run_branch(self, name="other", crash_at=None, settings=None, **options):
        config = with_settings(on_branch(self.config, name), settings or {})
        with self.on_its_clock(), crashing(crash_at):
            wishes = RunOptions(run_id="branch", parallelism=2, **options)
            run_on(LocalTasks(), config, wishes, lambda _: None, topics=self.harness.topics)

    def promote(self, name="other", crash_at=None):
        with self.on_its_clock(), crashing(crash_at), promoting(self.config, name, "promotion") as promotion:
            promotion.promote()

    def on_its_clock(self):
        """Use the clock of the harness for a block."""
        return self.harness.on_its_clock()

    def cuts(self, name=None):
        """Return where each micro-batch of the job, or of a branch, has ended, by id of the job's checkpoint."""
        config = self.config if name is None else self.config.on_branch(name)
        line = CheckpointLog(JobFolder(config.job_folder)).lineage.checkpoints
        if name is not None:
            # Before the fork is a copy of the job's line, which may have followed an earlier branch's.
            line = [*dropwhile(lambda checkpoint: checkpoint.kind is not Kind.FORK, line)]
        return {
            checkpoint.checkpoint_id if name is None else checkpoint.follows: [
                (number, place.number, place.next, place.begun, place.rows)
                for number, place in checkpoint.sources["rows"].partitions.items()
            ]
            for checkpoint in line
            if checkpoint.kind is Kind.BATCH and (name is None or checkpoint.follows is not None)
        }

    def arrived_on(self, name="other"):
        snapshot = Storage(self.config.on_branch(name).sinks["arrived"].table_path).table().latest()
        rows = sorted(snapshot.read(snapshot.schema).to_pylist(), key=lambda row: row["number"])
        assert [row["number"] for row in rows] == list(range(len(rows)))
        return [row["name"] for row in rows]


@contextmanager
def crashing(place):
    """End the block as a crash does when it reaches a place."""
    with suppress(Killed), dying_at(place):
        yield


ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=1, max_size=5)


@pytest.mark.slow
@examples(2)
@given(data=st.data())
def test_any_promotion_loses_and_repeats_no_message(data):
    draw = data.draw
    job = BranchedTopicJob(2, max_rows_per_batch=draw(st.sampled_from([2, 4, 10]), "limit"))
    job.send(draw(ROWS, "messages"))
    job.run(max_batches=2)
    for number in range(draw(st.integers(1, 2), "branches")):
        name = f"branch{number}"
        at = draw(
            st.sampled_from([stop.checkpoint_id for stop in job.log.lineage.checkpoints if stop.has_state]), "fork"
        )
        job.fork(name, at)
        for step in draw(st.lists(st.sampled_from(["send", "run", "branch", "crash", "lapse"]), max_size=6), "steps"):
            steps = {
                "send": lambda: job.send(draw(ROWS, "messages")),
                "run": lambda: job.run(max_batches=2),
                "branch": lambda name=name: job.run_branch(name, max_batches=2),
                "crash": lambda name=name: job.run_branch(name, crash_at="commit.before"),
                "lapse": job.lapse,
            }
            steps[step]()
        job.run_branch(name)
        live, followed = job.cuts(), job.cuts(name)
        assert followed == {checkpoint: live[checkpoint] for checkpoint in followed}
        job.promote(name, crash_at=draw(st.one_of(st.none(), st.sampled_from(PLACES)), "crash"))
        if any(branch.name == name for branch in Branches(job.config).open):
            job.promote(name)
        job.send(draw(ROWS, "messages"))
        job.run(max_batches=2)
    job.run(end_of_input=True)
    assert job.arrived() == merged_by_hand(job.sent)


@pytest.mark.slow
def test_branch_reads_messages_that_the_topic_has_lost():
    job = BranchedTopicJob(2, max_rows_per_batch=2, start="earliest")
    job.put("a", "b", "c", partition=0)
    job.put("x", "y", partition=1)
    job.run()
    job.fork(at=0)
    job.topic.expire(3, partition=0)
    job.topic.compact(0, partition=1)
    reads = job.topic.reads
    job.run_branch()
    assert job.topic.reads == reads
    assert job.cuts("other") == job.cuts()
    assert job.arrived_on() == job.arrived()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["earliest", "latest", "2020-01-01T00:00:05Z"])
def test_branch_begins_where_the_job_began(start):
    job = BranchedTopicJob(1, start=start)
    job.put("before")
    job.harness.clock.advance(10_000)
    job.topic.append([message("after", 1)])
    job.run()
    job.topic.grow()
    job.put("new", at=2, partition=1)
    job.run()
    job.put("last", at=3)
    job.run()
    job.fork(at=0)
    job.run_branch()
    assert job.cuts("other") == job.cuts()
    assert job.arrived_on() == job.arrived()


@pytest.mark.slow
def test_messages_that_nobody_has_are_named():
    job = BranchedTopicJob()
    job.put("a", "b")
    job.run()
    job.fork(at=0)
    for file in job.landed():
        (job.harness.folder / "state/reader/landed/rows" / file).unlink()
    job.topic.expire(1)
    before = job.log.last
    with pytest.raises(
        SourceError, match=r"the branch needs offsets 0 of partition 0 .*the job is unchanged.*skip_offsets=0:0"
    ):
        job.run_branch()
    assert job.log.last == before
    job.run_branch(settings={"sources.rows.skip_offsets": "0:0"})
    assert job.arrived_on() == ["b"]
    job.fork("later", before.checkpoint_id)
    job.put("c")
    job.run_branch("later")
    job.promote("later")
    assert job.took() == []
    assert job.arrived() == ["a", "b", "c"]


@pytest.mark.slow
def test_missing_files_are_landed_again_under_their_names():
    job = BranchedTopicJob(2, max_rows_per_batch=8)
    job.put("a", "b", "c", "d", partition=0, at=1)
    job.put("x", at=2, partition=1)
    job.run()
    assert job.facts.begun
    job.fork(at=0)
    for file in job.landed():
        (job.harness.folder / "state/reader/landed/rows" / file).unlink()
    job.run_branch()
    assert job.cuts("other") == job.cuts()
    job.promote()
    job.put("y", at=9, partition=1)
    job.run()
    assert job.arrived() == ["a", "b", "x", "c", "d"]


@pytest.mark.slow
def test_vacuum_keeps_messages_for_a_branch():
    job = BranchedTopicJob()
    job.put("a")
    job.run()
    job.fork(at=0)
    job.put("b")
    job.run()
    job.topic.expire(2)
    job.harness.clock.advance(30 * 24 * HOURS)
    with job.on_its_clock():
        vacuum(job.config, "vacuum", dry_run=False)
    job.run_branch()
    assert job.arrived_on() == ["a", "b"]


@pytest.mark.slow
def test_branch_ahead_takes_rest_of_landed_file():
    job = BranchedTopicJob()
    job.put("a")
    job.run()
    job.fork()
    job.put("b")
    job.run_branch()
    job.put("c", "d")
    job.run()  # one range from b to d; the branch has b
    job.topic.expire(4)
    job.run_branch()
    job.promote()
    job.put("e")
    assert job.run().rows_in == 1
    assert job.arrived() == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
def test_branch_without_the_last_messages_is_not_promoted():
    job = BranchedTopicJob()
    job.put("a")
    job.run()
    job.fork()
    job.put("b")
    job.run()
    with pytest.raises(ConfigError, match="branch 'other' is behind"):
        job.promote()


@pytest.mark.slow
def test_promoted_messages_can_be_read_after_a_restore():
    job = BranchedTopicJob()
    job.put("a")
    job.run()
    at = job.log.last.checkpoint_id
    job.fork()
    job.put("b")
    job.run_branch()
    job.promote()
    job.topic.expire(2)
    with job.on_its_clock():
        restore(job.config, at, "restore", "again")
    assert job.took() == ["b"]
