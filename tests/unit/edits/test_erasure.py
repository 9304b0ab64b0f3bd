"""Erasure of one key from the state of a job, in memory: only rows of the key are removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.edits.erase import erase, find_key
from headrace.edits.erased_key import ErasedKey
from headrace.edits.restore import drop_savepoint, restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.facts import JobWork, OperatorFacts
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, KEYED_STATE, QUARANTINE, STATE_TABLES
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.erasure_job import (
    changes_of,
    commit_rows,
    held,
    places_with,
    quarantined,
    rows_of_all_tables,
    state,
    waiting,
)
from tests.unit.support.fuzzing import examples
from tests.unit.support.memory_job import RETENTION, MemoryJob, killed_at

ANNA, WHY = ErasedKey("anna"), "request 17"
PLACES = ("erasure.prepared", "commit.before", "commit.after", "erasure.committed", "purge.listed", "purge.committed")


def with_mentions(key):
    return ErasedKey(key, with_mentions=True)


@pytest.fixture
def job(memory_job):
    """A job with `bob` at checkpoint 1, `anna` since 2, and `bob` again at 3."""
    with memory_job.open() as opened:
        commit_rows(opened, rows_of_all_tables("bob", "bob"))
        commit_rows(opened, rows_of_all_tables("anna", "anna"))
        commit_rows(opened, {KEYED_STATE: [state("bob", "2")]})
    return memory_job


def keys_of(job):
    return {row["key"] for rows in changes_of(job.config).values() for row in rows}


def without(changes, key):
    return {table: [row for row in rows if row["key"] != key] for table, rows in changes.items()}


def test_erasure_removes_rows_of_all_tables(job):
    before = changes_of(job.config)
    checkpoint = erase(job.config, "dpo", ANNA, why=WHY).checkpoint
    assert (checkpoint.kind, checkpoint.note, checkpoint.metrics) == (Kind.ERASURE, WHY, {"rows_erased": 8})
    assert changes_of(job.config) == without(before, '"anna"')


def test_finding_a_key_writes_nothing(job):
    files = job.files("")
    survey = find_key(job.config, ANNA)
    assert {(row.table, row.rows, row.live) for row in survey.rows} == {
        (name, 2 if name in {"keyed_state", "timers"} else 1, 2 if name in {"keyed_state", "timers"} else 1)
        for name in STATE_TABLES
    }
    assert [holder.checkpoint_id for holder in survey.holders] == [2, 3]
    assert (job.files(""), job.last.checkpoint_id) == (files, 3)


def test_unknown_key_changes_nothing(job):
    assert erase(job.config, "dpo", ErasedKey("nobody"), why=WHY, purge=False).checkpoint is None
    assert find_key(job.config, ErasedKey("nobody")).is_empty
    assert job.last.checkpoint_id == 3


def test_erasing_twice_does_nothing_more(job):
    erase(job.config, "dpo", ANNA, why=WHY)
    assert erase(job.config, "dpo", ANNA, why=WHY).checkpoint is None
    assert job.last.checkpoint_id == 4


def test_erasure_can_select_one_operator(job):
    erase(job.config, "dpo", ErasedKey("anna", operator="lines"), why=WHY)
    survey = find_key(job.config, ANNA)
    assert {row.operator for row in survey.rows} == {"customers", "ask", "purchases"}


def test_erasure_removes_keys_only_in_old_versions(job):
    with job.open() as opened:
        rows = {name: [] for name in STATE_TABLES}
        versions = {name: opened.replace_table(name, changes) for name, changes in rows.items()}
        opened.commit(Kind.COMPACTION, versions=versions)
    survey = find_key(job.config, ANNA)
    assert (survey.rows, [holder.checkpoint_id for holder in survey.holders]) == ([], [2, 3])
    checkpoint = erase(job.config, "dpo", ANNA, why=WHY).checkpoint
    assert (checkpoint.versions, checkpoint.erased) == (job.log.get(4).versions, ((2, 3),))


@pytest.mark.parametrize("key", ["null", " null ", "", " "])
def test_empty_key_is_refused(key):
    with pytest.raises(ConfigError, match="cannot be erased"):
        ErasedKey(key)


@pytest.mark.parametrize("why", ["anna wrote to us", "for <Anna>, anna.", 'key "anna"'])
def test_reason_must_not_name_the_key(job, why):
    with pytest.raises(ConfigError, match="kept for ever"):
        erase(job.config, "dpo", ANNA, why=why)
    assert job.last.checkpoint_id == 3
    assert erase(job.config, "dpo", ErasedKey("17"), why="article 17, for joanna").checkpoint is None


def test_held_job_refuses_an_erasure(job):
    with job.open("nightly"), pytest.raises(FencedError, match="nightly"):
        erase(job.config, "dpo", ANNA, why=WHY)


def test_restore_to_an_erased_key_is_refused(job):
    erase(job.config, "dpo", ANNA, why=WHY)
    for target in (2, 3):
        with pytest.raises(ConfigError, match=f"checkpoint {target} has rows of a key that checkpoint 4 erased"):
            restore(job.config, target, "oops", "run")
    assert job.last.checkpoint_id == 4
    assert restore(job.config, 1, "before her time", "run").restored_from == 1
    assert keys_of(job) == {'"bob"'}


def test_erased_key_can_be_brought_back(job):
    erase(job.config, "dpo", ANNA, why=WHY)
    restore(job.config, 3, "a disaster", "run", brings_back_erased=True)
    assert '"anna"' in keys_of(job)
    checkpoint = erase(job.config, "dpo", ANNA, why=WHY).checkpoint
    assert checkpoint.erased == ((2, 3), (5, 5))
    assert keys_of(job) == {'"bob"'}


def test_vacuum_removes_the_bytes_after_retention(job, clock):
    erase(job.config, "dpo", ANNA, why=WHY)
    clock.advance(1000)
    gone_after = find_key(job.config, ANNA).gone_after
    assert gone_after == job.last.committed_at + job.config.retention.hours * 3_600_000
    clock.advance(gone_after - clock.now())
    vacuum(job.config, "too early", dry_run=False)
    assert places_with(job.config, "anna")
    clock.advance(1)
    vacuum(job.config, "weekly", dry_run=False)
    assert places_with(job.config, "anna") == set()


def test_savepoint_keeps_bytes_until_it_is_dropped(job, clock):
    savepoint(job.config, "kept", "", "run")
    erase(job.config, "dpo", ANNA, why=WHY)
    clock.advance(RETENTION)
    vacuum(job.config, "weekly", dry_run=False)
    assert places_with(job.config, "anna")
    drop_savepoint(job.config, "kept", WHY, "run")
    vacuum(job.config, "weekly", dry_run=False)
    assert places_with(job.config, "anna") == set()


def test_local_copies_of_the_operators_are_dropped(job, tmp_path, monkeypatch):
    from headrace.config import JobConfig

    copies = {name: {"0-127": f"3-f2-{name}"} for name in ("customers", "other")}
    for name in copies:
        (tmp_path / name / "0-127" / copies[name]["0-127"]).mkdir(parents=True)
    monkeypatch.setattr(JobConfig, "local_folder", property(lambda _: tmp_path))
    with job.open() as opened:
        commit_rows(
            opened,
            {KEYED_STATE: [state("anna", "9")]},
            operators={name: OperatorFacts(local_copies=own) for name, own in copies.items()},
        )
    checkpoint = erase(job.config, "dpo", ANNA, why=WHY).checkpoint
    assert (checkpoint.local_copies("customers"), checkpoint.local_copies("other")) == ({}, copies["other"])
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_erased_elements_are_no_longer_pending(memory_job):
    with memory_job.open() as opened:
        elements = [waiting("anna", "{}", 1), waiting("anna", "{}", 2, deleted=True), waiting("bob", "{}", 3)]
        commit_rows(opened, {ASYNC_REQUESTS: elements}, work=JobWork(held=1, pending=2, due=5))
    first = erase(memory_job.config, "dpo", ANNA, why=WHY).checkpoint
    assert first.work == JobWork(held=1, pending=1, due=5)
    last = erase(memory_job.config, "dpo", ErasedKey("bob"), why=WHY).checkpoint
    assert last.work == JobWork(held=1)


MENTIONING = {
    ASYNC_REQUESTS: [waiting("order 1", '{"by":"anna"}', 1), waiting("order 2", '{"by":"joanna"}', 2)],
    BUFFERED_REQUESTS: [held("order 3", '{"value":{"by":["anna"]}}')],
    QUARANTINE: [quarantined('{"by":"anna","at":"x"}'), quarantined("[bold]", "b:1", error="by is 'anna'")],
    KEYED_STATE: [state("order 1", '{"by":"anna"}'), state("anna lee", "1")],
}


def test_mentions_are_reported_but_not_erased(memory_job):
    with memory_job.open() as opened:
        commit_rows(opened, MENTIONING)
    survey = find_key(memory_job.config, ANNA)
    assert survey.is_empty
    assert {(mention.table, mention.key, mention.rows) for mention in survey.mentions} == {
        (ASYNC_REQUESTS, '"order 1"', 1),
        (BUFFERED_REQUESTS, '"order 3"', 1),
        (QUARANTINE, "null", 2),
        (KEYED_STATE, '"order 1"', 1),
        (KEYED_STATE, '"anna lee"', 1),
    }


def test_mentions_are_erased_on_request(memory_job):
    with memory_job.open() as opened:
        commit_rows(opened, MENTIONING)
    done = erase(memory_job.config, "dpo", with_mentions("anna"), why=WHY)
    assert {(row.table, row.rows) for row in done.survey.rows} == {
        (ASYNC_REQUESTS, 1),
        (BUFFERED_REQUESTS, 1),
        (QUARANTINE, 2),
    }
    assert keys_of(memory_job) == {'"order 2"', '"order 1"', '"anna lee"'}
    assert {mention.table for mention in done.survey.mentions} == {KEYED_STATE}


def test_mention_in_a_late_change_erases_the_entry(memory_job):
    with memory_job.open() as opened:
        commit_rows(opened, {ASYNC_REQUESTS: [waiting("order 1", "{}", 1)]})
        commit_rows(opened, {ASYNC_REQUESTS: [waiting("order 1", "{}", 1, last_error="no anna here")]})
    erase(memory_job.config, "dpo", with_mentions("anna"), why=WHY)
    assert keys_of(memory_job) == set()


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("42", 42),
        ("42", "42"),
        ("42", 42.0),
        ('"42"', "42"),
        ('["UA", 15]', ["UA", 15]),
        ("müller", "müller"),
        ("日本 🎌", "日本 🎌"),
        ('say "hi"', 'say "hi"'),
        ("back\\slash", "back\\slash"),
        ("a.b*c", "a.b*c"),
        ("O'Hara", "O'Hara"),
        ("true", True),
        ("-1.5", -1.5),
        ("line\nbreak", "line\nbreak"),
    ],
)
def test_keys_are_found_in_written_forms(memory_job, key, stored):
    with memory_job.open() as opened:
        commit_rows(opened, rows_of_all_tables(stored, "x"))
        commit_rows(opened, {KEYED_STATE: [state("other", "1")], QUARANTINE: [quarantined('{"by":"axb*c"}')]})
    erase(memory_job.config, "dpo", with_mentions(key), why=WHY)
    assert keys_of(memory_job) == {'"other"', "null"}


@pytest.mark.parametrize("key", ['""', "-", '" "', "[]"])
def test_very_common_keys_are_not_reported_as_mentions(memory_job, key):
    with memory_job.open() as opened:
        commit_rows(opened, {QUARANTINE: [quarantined('{"a": "", "b": " - ", "c": true, "d": [" "]}')]})
    assert find_key(memory_job.config, with_mentions(key)).rows == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("purge", [False, True])
def test_erasure_survives_a_crash_at_any_step(job, place, purge):
    kept = without(changes_of(job.config), '"anna"')
    with killed_at(job.disk, place):
        erase(job.config, "dies", ANNA, why=WHY, purge=purge)
    job.disk.lose_power()
    with job.open("next") as opened:
        assert opened.last.checkpoint_id in {3, 4, 5}
    erase(job.config, "dpo", ANNA, why=WHY, purge=purge)
    assert changes_of(job.config) == kept
    assert job.last.checkpoint_id <= 5
    if purge:
        assert places_with(job.config, "anna") == set()
    with job.open("goes on") as opened:
        commit_rows(opened, {KEYED_STATE: [state("bob", "3")]})
    assert find_key(job.config, ANNA).rows == []


def test_purged_checkpoint_error_names_the_purge(job):
    erase(job.config, "dpo", ANNA, why=WHY, purge=True)
    with pytest.raises(StorageError, match="checkpoint 2 can no longer be read or restored.*request 17"):
        restore(job.config, 2, "oops", "run", brings_back_erased=True)
    assert restore(job.config, 1, "clean", "run").restored_from == 1


KEYS = st.sampled_from(["anna", "bob", "ann", "anna ", 42, "42", ["anna", 1]])
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(sorted(STATE_TABLES)), KEYS), min_size=1, max_size=4), min_size=1, max_size=5
)


@pytest.mark.slow
@examples(25)
@given(BATCHES, st.booleans())
def test_other_keys_equal_job_without_erased_key(batches, purge):
    with_her, without_her = MemoryJob("with"), MemoryJob("without")
    try:
        take_in(with_her, batches)
        take_in(without_her, [[row for row in batch if row[1] != "anna"] for batch in batches])
        erase(with_her.config, "dpo", ANNA, why=WHY, purge=purge)
        assert changes_of(with_her.config) == changes_of(without_her.config)
        assert with_her.entries() == without_her.entries()
        if purge:
            assert find_key(with_her.config, ANNA).is_empty
    finally:
        forget_disk("with")
        forget_disk("without")


def take_in(job, batches):
    """Commit a micro-batch for each batch of tables and keys. Each entry has the name of its key."""
    with job.open() as opened:
        for batch in batches:
            rows = {table: [] for table in STATE_TABLES}
            for table, key in dict.fromkeys(map(tuple_of, batch)):
                rows[table].append(rows_of_all_tables(key, "x")[table][0])
            commit_rows(opened, rows)


def tuple_of(row):
    table, key = row
    return table, tuple(key) if isinstance(key, list) else key
