"""A change of the stored format: one migration, on deltalake, as a later format would add it; and folders of other programs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from headrace.commit import migrations
from headrace.commit.migrations import MIGRATIONS, FormatMigration
from headrace.commit.protocol import open_job
from headrace.edits.restore import restore_in
from headrace.errors import ConfigError
from headrace.log import log as log_module
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, FORMAT_VERSION, STATE_TABLES, TIMERS
from tests.jobs.home import Home
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.memory_job import timer_row

NOTE = pa.field("note", pa.string())


@pytest.fixture
def config(tmp_path):
    """A job of format 1, with a timer."""
    config = Home(tmp_path).config()
    with open_job(config, "first", create=True) as opened:
        opened.commit(Kind.BATCH, files={TIMERS: [timer_row(opened, "ann")]})
    return config


@pytest.fixture
def next_format(config, monkeypatch):
    """Have the program know format 2 from here on, in which timers have a note."""
    timers = STATE_TABLES[TIMERS]
    with_note = replace(timers, schema=timers.schema.append(NOTE))
    for tables in (STATE_TABLES, ALL_TABLES):
        monkeypatch.setitem(tables, TIMERS, with_note)

    def prepare(tables, versions):
        return {**versions, TIMERS: tables.add_columns(TIMERS, [NOTE], versions[TIMERS])}

    monkeypatch.setattr(migrations, "MIGRATIONS", (FormatMigration(2, "timers have a note", prepare),))
    monkeypatch.setattr(log_module, "FORMAT_VERSION", 2)


def timers(config, versions):
    return [
        (row["key"], row["note"]) for row in JobFolder(config.job_folder).view(TIMERS, versions[TIMERS]).live_rows()
    ]


def columns(config, versions):
    return Storage(config.job_folder).table(TIMERS).at(versions[TIMERS]).schema.names


def formats(config):
    return [(point.kind, point.format_version) for point in CheckpointLog(JobFolder(config.job_folder)).checkpoints]


def test_steps_are_numbered_without_a_gap():
    assert [step.number for step in MIGRATIONS] == [*range(2, FORMAT_VERSION + 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("next_format")
def test_opening_a_job_migrates_it_once(config):
    events = []
    for _ in range(2):
        with open_job(config, "new", notify=lambda kind, detail: events.append((kind, detail))) as opened:
            assert "note" in columns(config, opened.versions)
            before = opened.checkpoint(1).versions
            assert timers(config, opened.versions) == timers(config, before) == [('"ann"', None)]
            assert "note" not in columns(config, before)
    assert formats(config) == [(Kind.INITIAL, 1), (Kind.BATCH, 1), (Kind.MIGRATION, 2)]
    assert events == [("migrated", "checkpoint 2: format 2: timers have a note")]


@pytest.mark.usefixtures("next_format")
def test_restore_undoes_the_migration_and_repeats_it(config):
    with open_job(config, "new") as opened:
        restored = restore_in(opened, 1, "why not")
        assert restored.kind is Kind.RESTORE
        assert timers(config, opened.versions) == [('"ann"', None)]
        assert "note" in columns(config, opened.versions)
        restore_in(opened, 2, "undone")
        assert timers(config, opened.versions) == [('"ann"', None)]
    steps = [(Kind.MIGRATION, 2), (Kind.RESTORE, 1), (Kind.MIGRATION, 2), (Kind.RESTORE, 2)]
    assert formats(config)[2:] == steps


PLACES = ["migration.before", "migration.prepared", "commit.before", "commit.after", "publish.after"]


@pytest.mark.slow
@pytest.mark.usefixtures("next_format")
@pytest.mark.parametrize("place", PLACES)
def test_crash_leaves_old_or_new_format(config, place):
    with pytest.raises(Killed), dying_at(place), open_job(config, "killed"):
        pass
    last = CheckpointLog(JobFolder(config.job_folder)).last
    assert last.format_version == (2 if place in {"commit.after", "publish.after"} else 1)
    assert timers(config, last.versions) == [('"ann"', None)]
    with open_job(config, "next", force=True) as opened:
        assert "note" in columns(config, opened.versions)
        assert timers(config, opened.versions) == [('"ann"', None)]
    assert formats(config) == [(Kind.INITIAL, 1), (Kind.BATCH, 1), (Kind.MIGRATION, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.BATCH.value, "a kind of the future"])
def test_newer_format_is_refused(config, kind):
    log = CheckpointLog(JobFolder(config.job_folder))
    row = {**msgspec.to_builtins(log.last), "kind": kind, "checkpoint_id": 9, "format_version": 3}
    log._append([row], "a test")
    with pytest.raises(ConfigError, match="it has format 3, and this program knows up to 1. Nothing was changed"):
        CheckpointLog(JobFolder(config.job_folder))
