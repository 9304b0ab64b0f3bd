"""Publishing a checkpoint to its sinks: exactly once, also after crashes (in memory)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.commit.publish import Publisher
from headrace.edits.restore import restore
from headrace.errors import ConfigError, SinkMismatchError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.declared import to_schemas
from headrace.log.sink_history import version_of
from headrace.sinks.sink import SparkWriters
from headrace.storage.storage import Storage
from headrace.storage.table import CommitInfo
from tests.unit.support.memory_job import BOARD, REMINDERS, board, commit_batch, killed_at, reminder


@pytest.fixture
def job(memory_job):
    """A job with one checkpoint that both sinks have."""
    memory_job.run("ann")
    return memory_job


@pytest.fixture
def unpublished(job):
    """A job whose second checkpoint is committed but not published."""
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        commit_batch(opened, "bob")
    return job


def publisher(job, **options):
    return Publisher(job.config, to_schemas(job.last.sink_tables), **options)


def customers(job):
    return job.sink_rows(BOARD, "customer"), job.sink_rows(REMINDERS, "customer")


def test_rows_are_appended_and_merged(job):
    assert customers(job) == (["ann"], ["ann"])
    job.run("bob", "cyd")
    assert customers(job) == (["cyd"], ["ann", "bob", "cyd"])
    assert (job.published(BOARD), job.published(REMINDERS)) == (3, 3)


def test_publication_names_its_checkpoint(job):
    for sink in (BOARD, REMINDERS):
        (latest,) = job.sink(sink).history(1)
        assert (latest.version, latest.info.checkpoint_id) == (1, 1)


def test_merge_deletes_rows(job):
    with job.open() as opened:
        commit_batch(opened, "bob", item="bread")
        commit_batch(opened, "ann", kind="-D")
    assert job.sink_rows(BOARD, "item") == ["bread"]


def test_merge_reads_all_staged_files(job):
    with job.open() as opened:
        files = [*board(opened, "bob", item="bread")[BOARD], *board(opened, "cyd", item="cheese")[BOARD]]
        opened.commit(Kind.BATCH, outputs={BOARD: files})
    assert job.sink_rows(BOARD, "item") == ["apples", "bread", "cheese"]


def test_published_checkpoint_is_not_published_again(job):
    assert publisher(job).publish(job.last, job.log.lineage) == 0
    with job.open() as opened:
        assert opened.publish() == 0
    assert (job.sink(BOARD).version, job.sink(REMINDERS).version) == (1, 1)


def test_next_run_publishes_missing_checkpoints(unpublished):
    assert customers(unpublished) == (["ann"], ["ann"])
    assert publisher(unpublished).publish(unpublished.last, unpublished.log.lineage) == 2
    assert customers(unpublished) == (["bob"], ["ann", "bob"])
    unpublished.run()
    assert unpublished.sink(REMINDERS).version == 2


def test_sink_published_before_a_crash_is_left(job):
    with killed_at(job.disk, "publish.half", visit=2), job.open() as opened:
        commit_batch(opened, "bob")
    assert customers(job) == (["bob"], ["ann"])
    assert publisher(job).publish(job.last, job.log.lineage) == 1
    assert (job.sink(BOARD).version, customers(job)) == (2, (["bob"], ["ann", "bob"]))


def test_sink_standing_names_version_and_checkpoint(job):
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=reminder(opened, "bob"))
        opened.publish()
        assert opened.sink_status() == {BOARD: (1, 1), REMINDERS: (2, 2)}


def test_sinks_without_outputs_are_not_written(job):
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=reminder(opened, "bob"))
        opened.commit(Kind.SAVEPOINT, versions=opened.versions, name="here")
    assert (job.published(BOARD), job.published(REMINDERS)) == (1, 2)


def test_merge_without_effect_is_recorded(job):
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=board(opened, "nobody", "-D", "eggs"))
        assert opened.publish() == 0
    assert (job.published(), job.sink_rows(BOARD, "customer")) == (2, ["ann"])
    (latest,) = job.sink().history(1)
    assert (latest.version, latest.info) == (2, CommitInfo(checkpoint_id=2, published_by=(job.last.incarnation,)))


def test_overtaken_run_never_lowers_the_record(job):
    """A run sleeps between its write to a sink and reading the recorded checkpoint; meanwhile another run publishes more."""
    path, acts = f"lake/{BOARD}", []

    def overtake_after_the_write(step, of):
        published = job.disk.tables[path][-1].transactions.get(f"purchases/{BOARD}")
        if (step, of, published) == ("open", path, 2) and not acts:
            acts.append(step)
            with job.open("winner", force=True) as winner:
                commit_batch(winner, "cyd")

    with job.disk.failing(overtake_after_the_write):
        job.run("bob")
    assert acts
    assert job.published() == 3
    job.run("dee")
    assert customers(job) == (["dee"], ["ann", "bob", "cyd", "dee"])


def test_restore_brings_sinks_back(job):
    job.run("bob", "cyd")
    restore(job.config, 2, "", "somebody")
    assert customers(job) == (["bob"], ["ann", "bob"])
    assert (job.published(BOARD), job.published(REMINDERS)) == (4, 4)
    job.run("dee")
    assert customers(job) == (["dee"], ["ann", "bob", "dee"])


def test_restore_to_present_content_is_recorded(job):
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=reminder(opened, "bob"))
    restore(job.config, 1, "", "somebody")
    assert (job.published(BOARD), job.sink(BOARD).version) == (3, 2)
    assert customers(job) == (["ann"], ["ann"])


def test_restore_before_the_first_output_empties_sinks(job):
    restore(job.config, 0, "", "somebody")
    assert customers(job) == ([], [])


def test_restored_sink_follows_the_line(job):
    """1 ann - 2 bob - 3 (to 1) - 4 cyd - 5 (to 3)."""
    job.run("bob")
    restore(job.config, 1, "", "somebody")
    job.run("cyd")
    restore(job.config, 3, "", "somebody")
    assert customers(job) == (["ann"], ["ann"])


def test_versions_belong_to_checkpoints(job):
    job.run("bob")
    table, lineage = job.sink(), job.log.lineage
    assert [version_of(table, BOARD, lineage.to(job.log.get(number))) for number in range(3)] == [0, 1, 2]


def test_checkpoint_that_never_reached_a_sink_is_refused(unpublished):
    with pytest.raises(SinkMismatchError, match=f"checkpoint 2 wrote never reached sink '{BOARD}'"):
        version_of(unpublished.sink(), BOARD, unpublished.log.lineage)


@pytest.mark.parametrize(("threshold", "merges"), [(0, 1), (1, 0)])
def test_large_merges_go_through_spark(unpublished, threshold, merges):
    class LargeMerge:
        """Merges through Spark: the part that publishing sees."""

        def __init__(self):
            self.calls = []

        def __call__(self, rows):
            self.calls.append((rows.uri, len(rows.files), rows.keys, *rows.transaction))
            store = Storage(rows.uri).table()
            store.append(store.latest().version, pa.schema([]), [], CommitInfo(transaction=rows.transaction))

    job, spark = unpublished, LargeMerge()
    job.config = replace(job.config, publish=replace(job.config.publish, spark_above_rows=threshold))
    assert publisher(job, writers=SparkWriters(write=spark)).publish(job.last, job.log.lineage) == 2
    expected = (job.config.sinks[BOARD].path, 1, ("item",), f"purchases/{BOARD}", 2)
    assert spark.calls == [expected] * merges
    assert (job.published(BOARD), job.published(REMINDERS)) == (2, 2)


def test_next_run_publishes_after_sink_error(job):
    def refusing(path, *, times=1):
        left = [OSError("read-only")] * times

        def fail(step, reached):
            if step == "commit" and reached == path and left:
                raise left.pop()

        return fail

    with (
        job.disk.failing(refusing(f"lake/{REMINDERS}")),
        pytest.raises(StorageError, match=f"checkpoint 2 in sink '{REMINDERS}' at .*: read-only") as refused,
    ):
        job.run("bob")
    assert refused.value.exit_code == 8
    assert (job.last.checkpoint_id, customers(job)) == (2, (["bob"], ["ann"]))
    job.run()
    assert customers(job) == (["bob"], ["ann", "bob"])


def overtaken(job, act):
    """Let another process act between the look at a sink and its commit."""

    def overtake(step, path):
        if (step, path) == ("commit", f"lake/{REMINDERS}"):
            job.disk.fault = lambda *_: None
            act()

    return job.disk.failing(overtake)


def test_publication_by_another_run_meanwhile_counts(unpublished):
    job = unpublished
    with overtaken(job, lambda: publisher(job).publish(job.last, job.log.lineage)):
        assert publisher(job).publish(job.last, job.log.lineage) == 2
    assert (job.sink(REMINDERS).version, customers(job)) == (2, (["bob"], ["ann", "bob"]))


def test_foreign_commit_meanwhile_is_refused(unpublished):
    job = unpublished
    store = Storage(job.config.sinks[REMINDERS].path).table()
    with (
        overtaken(job, lambda: store.append(1, store.latest().schema, [])),
        pytest.raises(StorageError, match=f"sink '{REMINDERS}' .* refused checkpoint 2"),
    ):
        publisher(job).publish(job.last, job.log.lineage)
    assert customers(job) == (["bob"], ["ann"])
    job.run()
    assert customers(job) == (["bob"], ["ann", "bob"])


def test_sink_that_vanishes_in_a_run_is_refused(job):
    with job.open() as opened:
        del job.disk.tables[f"lake/{BOARD}"]
        with pytest.raises(SinkMismatchError, match=f"sink '{BOARD}' .* disappeared after the job was opened"):
            commit_batch(opened, "bob")


def test_sinks_with_other_columns_are_refused(memory_job):
    store = Storage(memory_job.config.sinks[BOARD].path).table()
    store.create(pa.schema([pa.field("other", pa.string())]))
    with pytest.raises(ConfigError, match=f"sink '{BOARD}' .* has the columns other; the pipeline writes item"):
        memory_job.run()
    assert memory_job.log.last is None
