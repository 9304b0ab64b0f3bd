"""The contract of each append sink, for every format (in memory)."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest

from headrace import crash_points
from headrace.commit.publish import Publisher
from headrace.commit.verify import verify
from headrace.edits.reconcile import reconcile
from headrace.edits.restore import restore, restore_in
from headrace.errors import FencedError, SinkMismatchError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.declared import to_schemas
from headrace.storage.storage import Storage
from tests.unit.support.memory_job import REMINDERS, board, killed_at, places_of, reminder


@pytest.fixture
def job(appending_job):
    """A job with one checkpoint, published to its sinks."""
    appending_job.run("ann")
    return appending_job


def publish(job):
    return Publisher(job.config, to_schemas(job.last.sink_tables)).publish(job.last, job.log.lineage)


def wrong(job):
    return [finding for finding in verify(job.config) if not finding.ok]


@contextmanager
def meanwhile(place, act):
    """Let another process act when the process of the block first reaches a place."""
    left = [act]

    def reached(name):
        if name == place and left:
            left.pop()()

    with crash_points.observed(reached):
        yield
    assert not left


def test_each_checkpoint_is_appended_once(job):
    job.run("bob", "cyd")
    assert job.seen() == ["ann", "bob", "cyd"]
    assert publish(job) == 0
    assert job.seen() == ["ann", "bob", "cyd"]
    assert not wrong(job)


def from_commit(places):
    """Return the places after a commit: the places of its publication."""
    return places[[place for place, _ in places].index("commit.after") :]


@pytest.mark.slow
@pytest.mark.parametrize("power", ["stays", "fails"])
def test_next_run_completes_killed_publications(job, power):
    """The process dies at each place of a publication, with and without a power failure."""
    before, places = job.copy(), []
    with places_of(job.disk, places):
        job.run("bob")
    for place, visit in from_commit(places):
        before.bring_back()
        with killed_at(job.disk, place, visit):
            job.run("bob")
        if power == "fails":
            job.disk.lose_power()
        assert job.seen() in (["ann"], ["ann", "bob"])
        with job.open():
            pass
        assert job.seen() == ["ann", "bob"], (place, visit)
        assert not wrong(job), (place, visit)


@pytest.mark.slow
@pytest.mark.parametrize("power", ["stays", "fails"])
def test_next_run_completes_killed_restores(job, power):
    job.run("bob")
    before, places = job.copy(), []
    with places_of(job.disk, places):
        restore(job.config, 1, "test", "run")
    for place, visit in from_commit(places):
        before.bring_back()
        with killed_at(job.disk, place, visit):
            restore(job.config, 1, "test", "run")
        if power == "fails":
            job.disk.lose_power()
        with job.open():
            pass
        assert job.seen() == ["ann"], (place, visit)
        assert not wrong(job), (place, visit)


def test_restores_remove_rows_and_add_them_again(job):
    job.run("bob", "cyd")
    restore(job.config, 1, "test", "run")
    assert job.seen() == ["ann"]
    job.run("dan")
    assert job.seen() == ["ann", "dan"]
    restore(job.config, 3, "test", "run")
    assert job.seen() == ["ann", "bob", "cyd"]
    assert not wrong(job)


@pytest.mark.parametrize("place", ["commit.after", "publish.half", "publish.after"])
def test_two_publishers_publish_once(job, place):
    with meanwhile(place, lambda: publish(job)):
        job.run("bob")
    assert job.seen() == ["ann", "bob"]
    job.run("cyd")
    assert job.seen() == ["ann", "bob", "cyd"]
    assert not wrong(job)


def test_overtaken_publisher_restores_no_rows(job):
    """The publisher is suspended while it publishes; meanwhile another process takes the job and restores it."""

    def overtake():
        with job.open("other", force=True) as other:
            restore_in(other, 1, "test")

    place = "publish.half" if job.config.sinks[REMINDERS].format == "delta" else "deliver.half"
    with meanwhile(place, overtake), suppress(FencedError, StorageError), job.open() as opened:
        outputs = [file for name in ("bob", "cyd") for file in reminder(opened, name)[REMINDERS]]
        opened.commit(Kind.BATCH, outputs={**board(opened, "bob"), REMINDERS: outputs})
    assert job.seen() == ["ann"]
    assert not wrong(job)
    job.run("dan")
    assert job.seen() == ["ann", "dan"]


def test_foreign_writers_are_refused(job):
    sink = job.sink(REMINDERS)

    def write(step, path):
        if step == "commit" and path.endswith(sink.uri.partition("//")[2].partition("/")[2]):
            job.disk.fault = before
            store.append(sink.version, sink.schema, [])

    store, before = Storage(sink.uri).table(), job.disk.fault
    job.disk.fault = write
    with pytest.raises(StorageError, match="refused checkpoint 2, since somebody else wrote to it"):
        job.run("bob")
    assert job.seen() == ["ann"]
    with job.open():
        pass
    assert job.seen() == ["ann", "bob"]


def test_sink_of_another_incarnation_is_refused(job):
    job.disk.files = {path: file for path, file in job.disk.files.items() if not path.startswith("state/")}
    job.disk.tables = {path: table for path, table in job.disk.tables.items() if not path.startswith("state/")}
    with pytest.raises(SinkMismatchError, match="has what checkpoint 1 of this job published, but"):
        job.run("bob")
    assert job.seen() == ["ann"]


def test_older_job_and_sinks_are_reconciled(job):
    copy = job.copy()
    state = {path: list(table) for path, table in job.disk.tables.items() if path.startswith("state/")}
    job.run("bob")
    job.disk.tables.update(state)
    with pytest.raises(SinkMismatchError, match="has what checkpoint 2 of this job published, but the log"):
        job.run("cyd")
    reconcile(job.config, "test", "run")
    assert job.seen() == ["ann"]
    job.run("cyd")
    assert job.seen() == ["ann", "cyd"]
    assert not wrong(job)
    copy.bring_back()


def test_missing_sink_is_refused(job):
    path = job.sink(REMINDERS).uri.partition("//")[2].partition("/")[2]
    del job.disk.tables[path]
    with pytest.raises(SinkMismatchError, match="is gone, but checkpoint 1 was published to it"):
        job.run("bob")
