"""The instructions of docs/changing-jobs.md for renaming and copying a job, followed step by step on local disks."""

from __future__ import annotations

import shutil

import pytest

from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.config import load_job
from headrace.edits.restore import restore
from headrace.errors import ConfigError, SinkMismatchError
from headrace.log.log import CheckpointLog
from headrace.sinks.registry import sink_of
from headrace.tables.folder import JobFolder
from tests.jobs.home import PURCHASES, Home
from tests.unit.support.purchase_job import SINK, commit_purchase


def commit(config, *customers):
    with open_job(config, "run", create=True) as job:
        for customer in customers:
            commit_purchase(job, customer)
        return job.last


def customer_in(config):
    sink = sink_of(config, SINK).latest()
    return sink.read(sink.schema)["customer"].to_pylist()


def all_is_well(config):
    return [finding for finding in verify(config) if not finding.ok] == []


def renamed(home, **state):
    """Rename the job's file, and change its name in it."""
    shutil.move(home.folder / "conf/jobs/purchases.yaml", home.folder / "conf/jobs/sales.yaml")
    other = Home(home.folder, {**PURCHASES, "job": "sales", "state": {**PURCHASES.get("state", {}), **state}})
    return other.config()


@pytest.mark.slow
def test_renamed_job_continues_with_its_stored_name(tmp_path):
    home = Home(tmp_path)
    before = home.config()
    last = commit(before, "ann", "bob")
    after = renamed(home, name="purchases")
    assert (after.job, after.stored_name, after.job_folder) == ("sales", "purchases", before.job_folder)
    assert after.local_folder == before.local_folder
    checkpoint = commit(after, "cyd")
    assert (checkpoint.parent_id, checkpoint.incarnation) == (last.checkpoint_id, last.incarnation)
    assert customer_in(after) == ["cyd"]
    restore(after, 1, "back to ann", "somebody")
    assert customer_in(after) == ["ann"]
    assert all_is_well(after)


def test_changed_name_without_stored_name_is_refused(tmp_path):
    home = Home(tmp_path)
    before = home.config()
    commit(before, "ann")
    after = renamed(home)
    assert after.job_folder.endswith("/sales")
    with pytest.raises(
        SinkMismatchError, match=r"is the table of sink 'lines_by_item' of job 'purchases'.*state\.name"
    ):
        commit(after, "bob")
    assert not CheckpointLog(JobFolder(after.job_folder)).checkpoints
    assert customer_in(before) == ["ann"]
    assert all_is_well(before)


@pytest.mark.parametrize("name", ["Sales", "../sales", "a/b"])
def test_invalid_stored_name_is_refused(tmp_path, name):
    home = Home(tmp_path)
    home.configure({"state": {"name": name}})
    with pytest.raises(ConfigError, match=r"state\.name"):
        load_job("purchases", tmp_path)


def copied(folder, elsewhere):
    """Copy state, sinks and configuration to another home, as `cp -a` does."""
    shutil.copytree(folder, elsewhere, symlinks=True)
    return load_job("purchases", elsewhere)


@pytest.mark.slow
def test_copy_and_original_continue_independently(tmp_path):
    original = Home(tmp_path / "shop").config()
    commit(original, "ann")
    copy = copied(tmp_path / "shop", tmp_path / "trial")
    assert all_is_well(copy)
    assert str(tmp_path / "shop") not in " ".join([copy.job_folder, *(sink.path for sink in copy.sinks.values())])
    commit(original, "bob")
    commit(copy, "cyd", "dee")
    assert (customer_in(original), customer_in(copy)) == (["bob"], ["dee"])
    assert [len(CheckpointLog(JobFolder(config.job_folder)).checkpoints) for config in (original, copy)] == [3, 4]
    assert all_is_well(original)
    assert all_is_well(copy)
    restore(copy, 1, "back to ann", "somebody")
    assert (customer_in(original), customer_in(copy)) == (["bob"], ["ann"])


def test_copy_survives_the_end_of_the_original(tmp_path):
    original = Home(tmp_path / "shop").config()
    commit(original, "ann")
    copy = copied(tmp_path / "shop", tmp_path / "trial")
    shutil.rmtree(tmp_path / "shop")
    commit(copy, "bob")
    restore(copy, 1, "back to ann", "somebody")
    assert (customer_in(copy), all_is_well(copy)) == (["ann"], True)


def test_copy_over_the_same_sinks_is_refused(tmp_path):
    home = Home(tmp_path / "shop")
    original = home.config()
    commit(original, "ann")
    copied(tmp_path / "shop", tmp_path / "trial")
    other = Home(tmp_path / "trial")
    other.configure({"sinks": {SINK: {"path": original.sinks[SINK].path}}})
    commit(original, "bob")
    with pytest.raises(SinkMismatchError, match="has what checkpoint 2 of this job published"):
        commit(other.config(), "cyd")
