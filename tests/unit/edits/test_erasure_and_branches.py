"""An erasure and the branches of a job exclude each other; a purge that says the bytes are gone has left none (in memory).

`places_with` is the judge: it reads all bytes below the job's folder, Parquet files as rows, and knows no log.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import clock as engine_clock
from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.edits.erase import erase, find_key
from headrace.edits.erased_key import ErasedKey
from headrace.edits.fork import drop_branch, fork
from headrace.edits.promote import promoting
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, HeadraceError, StorageError
from headrace.log.branches import Branches
from headrace.log.checkpoint import Kind
from headrace.sources.kafka.landed import MESSAGES, landed_folder
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.erasure_job import commit_rows, places_with, rows_of_all_tables, state
from tests.unit.support.fuzzing import examples
from tests.unit.support.memory_job import RETENTION, MemoryJob, killed_at

ANNA, WHY = ErasedKey("anna", with_mentions=True), "request 17"
ERASURE_PLACES = (
    "erasure.prepared",
    "commit.before",
    "commit.after",
    "erasure.committed",
    "purge.listed",
    "purge.committed",
)
FORK_PLACES = ("fork.listed", "fork.tables")
disks = (f"erasure-and-branches-{number}" for number in itertools.count())


@pytest.fixture
def job(memory_job):
    """A job with `bob` at checkpoint 1 and `anna` since 2."""
    take_in(memory_job.config, "bob")
    take_in(memory_job.config, "anna")
    return memory_job


def take_in(config, key, name="taker"):
    with open_job(config, name, create=config.branch is None) as opened:
        return commit_rows(opened, rows_of_all_tables(key, key))


def purge(job):
    return erase(job.config, "dpo", ANNA, why=WHY, purge=True)


def assert_gone(job):
    assert places_with(job.config, "anna") == set()
    assert find_key(job.config, ANNA, in_all_texts=True).is_empty


def once(place, act):
    """Return an observer that acts when a place is reached first."""
    done = []

    def observe(reached):
        if reached == place and not done:
            done.append(reached)
            act()

    return observe


def with_branch(job):
    fork(job.config, "other", 1, "somebody")
    take_in(job.config.on_branch("other"), "anna")


@pytest.mark.parametrize("place", ["branch.dropped", "delete job/state/purchases/lines/other"])
def test_remains_of_a_killed_drop_are_erased(job, place):
    with_branch(job)
    with killed_at(job.disk, place):
        drop_branch(job.config, "other", "somebody")
    purge(job)
    assert_gone(job)


def test_remains_of_a_drop_are_found_without_purge(job):
    with_branch(job)
    with killed_at(job.disk, "branch.dropped"):
        drop_branch(job.config, "other", "somebody")
    survey = find_key(job.config, ANNA)
    assert {file.mend for file in survey.others} == {"'headrace branch drop purchases other' removes it"}
    drop_branch(job.config, "other", "somebody")
    assert find_key(job.config, ANNA).others == []


@pytest.mark.parametrize("place", FORK_PLACES)
def test_half_made_branch_refuses_an_erasure(job, place):
    with killed_at(job.disk, place):
        fork(job.config, "other", None, "somebody")
    with pytest.raises(ConfigError, match="headrace branch drop purchases other"):
        purge(job)
    drop_branch(job.config, "other", "somebody")
    purge(job)
    assert_gone(job)


@pytest.mark.slow
@pytest.mark.parametrize("place", ERASURE_PLACES)
@pytest.mark.parametrize("at", [1, 2])
def test_branch_made_during_an_erasure_is_seen(job, place, at):
    """Either the branch is refused, or the erasure says that the branch is to be dropped."""
    refusals = []

    def make():
        try:
            fork(job.config, "other", at, "somebody")
            take_in(job.config.on_branch("other"), "anna", "on the branch")
        except (ConfigError, StorageError, FencedError) as error:
            refusals.append(error)

    with crash_points.observed(once(place, make)):
        if at == 2 and place not in {"erasure.prepared", "commit.before"}:
            purge(job)
            assert "erased key" in str(refusals[0]) or "of a key that checkpoint" in str(refusals[0])
        else:
            with pytest.raises(ConfigError, match="headrace branch drop purchases other"):
                purge(job)
            assert not refusals
            drop_branch(job.config, "other", "somebody")
            purge(job)
    assert_gone(job)
    take_in(job.config, "bob")


@pytest.mark.parametrize("place", FORK_PLACES)
def test_erasure_during_a_fork_is_seen(job, place):
    def erase_meanwhile():
        with pytest.raises(ConfigError, match="headrace branch drop purchases other"):
            purge(job)

    with crash_points.observed(once(place, erase_meanwhile)):
        fork(job.config, "other", None, "somebody")


def test_fork_gives_way_to_an_erasure_before_it(job, monkeypatch):
    def add(self, branch):
        monkeypatch.setattr(Branches, "add", before)
        purge(job)
        before(self, branch)

    before = Branches.add
    monkeypatch.setattr(Branches, "add", add)
    with pytest.raises(StorageError, match="its files had rows of an erased key"):
        fork(job.config, "other", 2, "somebody")
    assert Branches(job.config).open == []
    assert_gone(job)


@pytest.mark.parametrize("place", FORK_PLACES)
def test_fork_that_was_dropped_meanwhile_says_so(job, place):
    def drop_and_erase():
        drop_branch(job.config, "other", "somebody else")
        purge(job)

    expected = pytest.raises((FencedError, StorageError), match="dropped it meanwhile|rows of an erased key")
    with crash_points.observed(once(place, drop_and_erase)), expected:
        fork(job.config, "other", 2, "somebody")
    assert_gone(job)


def test_late_files_of_a_dropped_branch_are_erased(job):
    with_branch(job)
    on_branch = job.config.on_branch("other")
    drop_branch(job.config, "other", "somebody")
    Storage(on_branch.job_folder).stage("keyed_state/late.parquet", pa.table({"key": ['"anna"']}))
    purge(job)
    assert_gone(job)


def stage_stream(folder, path, rows, size=None):
    """Write rows as tasks write those in transit; with a `size`, only so many bytes."""
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(rows)
    folder.write(path, content.getvalue().to_pybytes()[:size])


@pytest.mark.parametrize("size", [0, 100, 500, None])
def test_torn_rows_in_transit_may_have_the_key(job, size):
    rows = pa.table({"rows": [[{"by": "anna"}] * 100]})
    stage_stream(Storage(job.config.job_folder), "transit/a1/rows.arrows", rows, size)
    assert [file.path for file in find_key(job.config, ANNA).others] == ["transit/a1/rows.arrows"]
    purge(job)
    assert find_key(job.config, ANNA, in_all_texts=True).others == []


@pytest.mark.parametrize(
    ("path", "mend"),
    [
        (
            "landed/orders/orders-0@00000000000000000120-00000000000000000499-1f3a9c2e-7b0c41d2.parquet",
            "takes its messages in",
        ),
        ("responses/staged.parquet", None),
        ("transit/a1/rows.parquet", None),
        ("transit/a1/rows.arrows", None),
        ("archive/rows.json", "delete it yourself"),
    ],
)
def test_other_folders_are_searched(job, path, mend):
    folder, _, name = path.rpartition("/")
    if name.endswith(".json"):
        Storage(job.config.job_folder).write(path, rb'{"rows": "{\"by\": \"anna\"}"}')
    elif folder.startswith("landed"):
        message = {"key": b"anna", "value": b"{}", "offset": 120, "headers": [{"key": "by", "value": b"x"}]}
        rows = pa.Table.from_pylist([{**dict.fromkeys(MESSAGES.names), **message}], MESSAGES)
        landed_folder(JobFolder.of(job.config), "orders").stage(name, rows)
        with job.open() as opened:
            from headrace.sources.position import FolderPosition, SourceFacts

            commit_rows(opened, {}, sources={"orders": SourceFacts(position=FolderPosition(begun=(name,)))})
    elif name.endswith(".arrows"):
        stage_stream(Storage(job.config.job_folder), path, pa.table({"rows": [[{"by": "anna"}] * 100]}))
    else:
        Storage(job.config.job_folder).stage(path, pa.table({"rows": [[{"by": "anna"}]]}))
    assert [file.path for file in find_key(job.config, ANNA).others] == [path]
    purge(job)
    left = find_key(job.config, ANNA, in_all_texts=True).others
    assert [file.path for file in left] == ([] if mend is None else [path])
    assert places_with(job.config, "anna") == {file.path for file in left}
    assert all(mend in file.mend for file in left)


def test_mentions_that_stay_are_named(memory_job):
    with memory_job.open() as opened:
        commit_rows(opened, {KEYED_STATE: [state("anna"), state("order 1", '{"by":"anna"}')]})
        commit_rows(opened, {KEYED_STATE: [state("order 1", '{"by":"bob"}')]})
    purge(memory_job)
    left = find_key(memory_job.config, ANNA, in_all_texts=True)
    assert not any(left.files.values())
    assert (
        {file.path for file in left.others}
        == {p for p in places_with(memory_job.config, "anna") if "@" not in p}
        != set()
    )


def test_notes_that_name_the_key_are_reported(job):
    restore(job.config, 1, "anna has asked for it", "somebody")
    fork(job.config, "other", None, "somebody", "without anna")
    drop_branch(job.config, "other", "somebody", "anna again")
    purge(job)
    assert find_key(job.config, ANNA).notes == ["checkpoint 3", "branch 'other'"]


NAMES = st.sampled_from(["one", "two"])
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("take_in"), st.sampled_from(["anna", "bob"]), st.none()),
        st.tuples(st.just("fork"), NAMES, st.sampled_from([None, None, *FORK_PLACES])),
        st.tuples(st.just("run"), NAMES, st.sampled_from(["anna", "bob"])),
        st.tuples(st.just("drop"), NAMES, st.sampled_from([None, "branch.dropped"])),
        st.tuples(
            st.just("promote"),
            NAMES,
            st.sampled_from(
                [None, "promotion.begun", "promotion.prepared", "promotion.committed", "promotion.removed"]
            ),
        ),
        st.tuples(st.just("restore"), st.integers(0, 9), st.none()),
        st.tuples(st.just("compact"), st.none(), st.sampled_from([None, "compaction.prepared"])),
        st.tuples(st.just("vacuum"), st.none(), st.sampled_from([None, "vacuum.listed", "vacuum.committed"])),
        st.tuples(st.just("erase"), st.none(), st.sampled_from([None, None, *ERASURE_PLACES])),
    ),
    min_size=3,
    max_size=14,
)


class Program:
    """A job, and a plain model of it: the keys that each checkpoint has."""

    def __init__(self, clock):
        self.name, self.clock = next(disks), clock
        self.job = MemoryJob(self.name)
        take_in(self.job.config, "bob")
        self.keys = {0: set(), 1: {"bob"}}
        self.branches = {}

    def play(self, what, detail, more):
        with suppress(HeadraceError):
            getattr(self, what)(detail, more)
        self.check()

    def check(self):
        with self.job.open("looks") as opened:
            last = opened.last
        assert keys_of(self.job.config) == self.keys[last.checkpoint_id], last

    def _note(self, keys):
        """Record the keys that all checkpoints have which the last command has added."""
        self.keys |= {c.checkpoint_id: set(keys) for c in self.job.log.checkpoints if c.checkpoint_id not in self.keys}

    @property
    def now(self):
        return self.keys[self.job.last.checkpoint_id]

    def take_in(self, key, _):
        self.clock.advance(1000)
        take_in(self.job.config, key)
        self._note(self.now_before | {key})

    @property
    def now_before(self):
        return self.keys[max(self.keys)]

    def fork(self, name, place):
        at = self.job.last.checkpoint_id
        self._killed(place, lambda: fork(self.job.config, name, at, "somebody"))
        if any(branch.name == name and branch.fork_id == at for branch in Branches(self.job.config).open):
            self.branches.setdefault(name, set(self.keys[at]))

    def run(self, name, key):
        from headrace.commit.branch_code import on_branch

        take_in(on_branch(self.job.config, name), key)
        self.branches[name].add(key)
        assert keys_of(self.job.config.on_branch(name)) == self.branches[name]

    def drop(self, name, place):
        self._killed(place, lambda: drop_branch(self.job.config, name, "somebody"))
        if all(branch.name != name for branch in Branches(self.job.config).open):
            self.branches.pop(name, None)

    def promote(self, name, place):
        def promote():
            with promoting(self.job.config, name, "promotion") as promotion:
                promotion.promote()

        self._killed(place, promote)
        if self.job.last.checkpoint_id not in self.keys:
            self._note(self.branches.pop(name))

    def restore(self, at, _):
        restore(self.job.config, at, "as it was", "somebody", brings_back_erased=True)
        self._note(self.keys[at])

    def compact(self, _, place):
        before = self.now
        self._killed(place, lambda: compact(self.job.config, "nightly"))
        self._note(before)

    def vacuum(self, _, place):
        before = self.now
        self.clock.advance(RETENTION)
        self._killed(place, lambda: vacuum(self.job.config, "weekly", dry_run=False))
        self._note(before)

    def erase(self, _, place):
        before = self.now
        try:
            self._killed(place, lambda: purge(self.job))
        finally:
            added = [c for c in self.job.log.checkpoints if c.checkpoint_id not in self.keys]
            self._note(before - {"anna"} if any(c.kind in {Kind.ERASURE, Kind.VACUUM} for c in added) else before)
        if place is None:
            assert_gone(self.job)
        elif find_key(self.job.config, ANNA, in_all_texts=True).is_empty:
            assert places_with(self.job.config, "anna") == set()

    def _killed(self, place, act):
        if place is None:
            act()
        else:
            with killed_at(self.job.disk, place):
                act()


def keys_of(config):
    from headrace.edits.fork import log_of

    rows = JobFolder(config.job_folder).view(KEYED_STATE, log_of(config).last.versions[KEYED_STATE]).live_rows()
    return {row["key"].strip('"') for row in rows}


@pytest.mark.slow  # each example takes about a second
@examples(5)
@given(PROGRAMS)
def test_random_programs_leave_no_byte(steps):
    clock = engine_clock.VirtualClock(1_000_000)
    before = engine_clock.use(clock)
    program = Program(clock)
    try:
        for step in [*steps, ("drop", "one", None), ("drop", "two", None), ("erase", None, None)]:
            program.play(*step)
        assert_gone(program.job)
    finally:
        engine_clock.use(before)
        forget_disk(program.name)
