"""Reconciliation on a local disk and on an object store, with Delta's logs (no JVM)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.reconcile import compare, reconcile
from headrace.errors import SinkMismatchError
from headrace.log.log import CheckpointLog
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from tests.jobs.home import Home
from tests.unit.support.purchase_job import SINK, commit_purchase


def run(config, *customers):
    with open_job(config, "run", create=True) as job:
        for customer in customers:
            commit_purchase(job, customer)


def in_sink(config):
    sink = JobFolder.of(config).at(config.sinks[SINK].path).table().latest()
    return sink.read(sink.schema)["customer"].to_pylist()


def remove(config, uri):
    files, path = JobFolder.of(config).at(uri).file_system()
    files.delete_dir(path)


def assert_whole(config, customer, last_id):
    assert (in_sink(config), compare(config).last_id) == ([customer], last_id)
    assert compare(config).agrees
    assert [finding for finding in verify(config) if not finding.ok] == []


@pytest.mark.slow
def test_missing_sink_is_filled_again(new_job):
    config = new_job
    run(config, "ann", "bob")
    remove(config, config.sinks[SINK].path)
    with pytest.raises(SinkMismatchError, match="is gone, but checkpoint 1 was published to it"):
        run(config)
    checkpoint = reconcile(config, "operator", "the lake is gone")
    assert (checkpoint.checkpoint_id, checkpoint.restored_from) == (3, 0)
    run(config, "ann")
    assert_whole(config, "ann", 4)


@pytest.mark.slow
def test_folder_without_checkpoints_is_refused(new_job):
    config = new_job
    run(config, "ann")
    remove(config, config.job_folder)
    with pytest.raises(SinkMismatchError, match="has no checkpoints"):
        reconcile(config, "operator", "")
    assert in_sink(config) == ["ann"]


@pytest.fixture
def config(tmp_path):
    """A job on a local disk after one checkpoint, with a copy of its folder beside it."""
    config = Home(tmp_path).config()
    run(config, "ann")
    shutil.copytree(config.job_folder, tmp_path / "copy")
    return config


def bring_back_folder(config):
    shutil.rmtree(config.job_folder)
    shutil.copytree(Path(config.home) / "copy", config.job_folder)


def incarnation(config):
    return DeltaTable(config.sinks[SINK].path).transaction_version(f"purchases/{SINK}/incarnation")


@pytest.mark.slow
@pytest.mark.parametrize("with_log_checkpoints", [False, True])
def test_folder_is_brought_back_again_and_again(config, with_log_checkpoints):
    """Incarnations are Delta transactions: they grow, and a log checkpoint keeps them."""
    numbers = [incarnation(config)]
    for round_number in range(3):
        run(config, "bob", "cyd")
        if with_log_checkpoints:
            DeltaTable(config.sinks[SINK].path).create_checkpoint()
        bring_back_folder(config)
        checkpoint = reconcile(config, "operator", "the folder came from a backup")
        assert (checkpoint.restored_from, checkpoint.checkpoint_id) == (1, 4 + 3 * round_number)
        assert_whole(config, "ann", checkpoint.checkpoint_id)
        numbers.append(incarnation(config))
    assert numbers == sorted(set(numbers))
    run(config, "dee")
    assert_whole(config, "dee", 11)


def test_commits_of_sinks_name_the_incarnation(config):
    sink = Storage(config.sinks[SINK].path).table().latest()
    own = CheckpointLog(JobFolder(config.job_folder)).incarnation
    assert [commit.info.published_by for commit in sink.history()] == [(own,), ()]


def test_sink_without_its_first_versions_limits_the_target(config):
    """The sink's log begins after the publication of checkpoint 1, so the sink cannot return to it."""
    run(config, "bob", "cyd")
    sink = DeltaTable(config.sinks[SINK].path)
    sink.create_checkpoint()
    for version in range(3):
        (Path(config.sinks[SINK].path) / f"_delta_log/{version:020d}.json").unlink()
    bring_back_folder(config)
    comparison = compare(config)
    assert comparison.plan is None
    assert "no checkpoint of job 'purchases' fits all its tables" in comparison.refusal
    assert f"the history of sink '{SINK}' has no version" in comparison.refusal
