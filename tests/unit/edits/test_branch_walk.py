"""Whatever a killed command has left of a branch, each command works, or names the command that mends it; and that command does.

setup     0 initial --- 1 ann --- 2 bob --- 3 cyd              branch `old`: forked at 2, with `dee`
kill      a command at each of its places
then      each command, with the commands that its errors name, until it works or its wish is void
"""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from headrace import clock as engine_clock
from headrace.commit.branch_code import on_branch
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.erase import erase, find_key
from headrace.edits.erased_key import ErasedKey
from headrace.edits.fork import branch_usages, drop_branch, fork
from headrace.edits.promote import promoting
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, HeadraceError, StorageError
from headrace.log.branches import Branches
from headrace.readers.job_at import JobAtCheckpoint
from headrace.sources.interval import Interval
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.memory_job import RETENTION, MemoryJob, commit_batch, killed_at, places_of

DAY = Interval(0, 86_400_000)
VOID = re.compile(
    r"has no branch '\w+'|has a branch '\w+' already|was promoted|was dropped|no branch can begin at checkpoint \d+:|cannot be restored:"
)
"""Refusals that are right: there is nothing (any more) that the command could do."""


def promote(job, name="old"):
    with promoting(job.config, name, "promotion") as promotion:
        promotion.promote("it is right")


def run_branch(job, name):
    with open_job(on_branch(job.config, name), "on the branch") as opened:
        commit_batch(opened, "eve")


def vacuum_all(job):
    engine_clock.sleep(RETENTION / 1000)
    vacuum(job.config, "weekly", dry_run=False)


def erase_ann(job):
    erase(job.config, "dpo", ErasedKey("ann"), why="request 17", purge=True)


def renew(job):
    """Replace a backfill's branch, as `headrace backfill --renew` does."""
    drop_branch(job.config, "old", "backfill", requested=DAY)
    fork(job.config, "old", 1, "backfill", requested=DAY)


def status(job):
    """Read what `status` and `branch list` show."""
    job.log.resolve(job.config)
    for usage in branch_usages(job.config):
        if usage.problem is not None:
            drop_or_create = re.findall(r"headrace branch (?:create|drop) purchases \w+", usage.problem)
            assert drop_or_create, usage.problem


def check(job):
    job.run()  # publishes what is committed
    assert [finding for finding in verify(job.config) if not finding.ok] == []


KILLED = {
    "create": lambda job: fork(job.config, "new", 1, "killed"),
    "drop": lambda job: drop_branch(job.config, "old", "killed"),
    "renew": renew,
    "promote": promote,
    "vacuum": vacuum_all,
    "compact": lambda job: compact(job.config, "nightly"),
    "restore": lambda job: restore(job.config, 1, "as it was", "killed"),
    "run": lambda job: job.run("fay"),
    "run of the branch": lambda job: run_branch(job, "old"),
}
LATER = {
    "status": status,
    "check": check,
    "vacuum": vacuum_all,
    "dry vacuum": lambda job: vacuum(job.config, "weekly", dry_run=True),
    "run": lambda job: job.run("zoe"),
    "restore": lambda job: restore(job.config, 2, "as it was", "later"),
    "erase": erase_ann,
    "create new": lambda job: fork(job.config, "new", None, "later"),
    "create old": lambda job: fork(job.config, "old", None, "later"),
    "drop new": lambda job: drop_branch(job.config, "new", "later"),
    "drop old": lambda job: drop_branch(job.config, "old", "later"),
    "promote new": lambda job: promote(job, "new"),
    "promote old": promote,
    "run new": lambda job: run_branch(job, "new"),
    "run old": lambda job: run_branch(job, "old"),
    "read new": lambda job: JobAtCheckpoint(on_branch(job.config, "new")),
    "read old": lambda job: JobAtCheckpoint(on_branch(job.config, "old")),
}
NAMED = {
    r"headrace branch drop purchases (\w+)": lambda job, name: drop_branch(job.config, name, "mends"),
    r"headrace branch create purchases (\w+)": lambda job, name: fork(job.config, name, None, "mends"),
    r"headrace run purchases --branch (\w+)": run_branch,
    r"headrace run (purchases)'": lambda job, _: job.run(),
}


def settle(job, command, depth=3):
    """Call a command, and those that its errors name, until it works or is void."""
    for _ in range(4):
        message = refusal(job, command)
        if message is None or VOID.search(message):
            return
        mends = [(match.start(), act, match[1]) for text, act in NAMED.items() if (match := re.search(text, message))]
        assert mends, message
        assert depth, message
        _, act, name = min(mends, key=lambda mend: mend[0])
        settle(job, lambda job, act=act, name=name: act(job, name), depth - 1)
    raise AssertionError("the named commands do not help")


def refusal(job, command):
    """Return the message with which a command is refused; None if it works."""
    try:
        command(job)
    except HeadraceError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def setup():
    """Return the job, its disk after the setup, and its clock: another one would give the same ids again."""
    clock = engine_clock.VirtualClock(1_000_000)
    before = engine_clock.use(clock)
    job = MemoryJob("branch-walk", retention_hours=24)
    job.run("ann", "bob", "cyd")
    fork(job.config, "old", 2, "setup")
    with open_job(on_branch(job.config, "old"), "setup") as opened:
        commit_batch(opened, "dee")
    engine_clock.use(before)
    yield job, job.copy(), clock
    forget_disk("branch-walk")


@pytest.fixture
def job(setup):
    result, disk, clock = setup
    with engine_clock.installed(clock):
        disk.bring_back()
        yield result


def places(job, act):
    """Return the places of the protocol that a command reaches, each once."""
    reached = []
    with places_of(job.disk, reached), suppress(HeadraceError):
        act(job)
    return dict.fromkeys(place for place, _ in reached if " " not in place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", [pytest.param(name, marks=[] if name in {"create", "drop"} else pytest.mark.slow) for name in KILLED]
)
def test_every_command_works_after_a_kill(job, setup, killed):
    """Walk over all pairs for commands on branches; of the other commands, over every fifth."""
    _, whole, _ = setup
    stride = 1 if killed in {"create", "drop"} else 5
    for number, place in enumerate(places(job, KILLED[killed])):
        whole.bring_back()
        with killed_at(job.disk, place):
            KILLED[killed](job)
        torn = job.copy()
        for name, command in [*LATER.items()][number % stride :: stride]:
            torn.bring_back()
            try:
                settle(job, command)
                status(job)
                check(job)
            except BaseException as error:
                error.add_note(f"killed: {killed} at {place}; then: {name}")
                raise


def lost_at_fork(job):
    """Kill a fork whose checkpoint a vacuum deletes between its looks: its row is written for files that are gone."""
    drop_branch(job.config, "old", "setup")
    compact(job.config, "nightly")
    with killed_at(job.disk, "fork.listed"):
        fork(job.config, "new", 1, "killed")
    hidden = Branches(job.config).open[0]
    drop_branch(job.config, "new", "hides it from the vacuum")
    vacuum_all(job)
    Branches(job.config).add(hidden)


@pytest.mark.parametrize("name", LATER)
def test_every_command_works_beside_a_lost_fork(job, name):
    lost_at_fork(job)
    (branch,) = Branches(job.config).open
    assert branch.name == "new"
    with pytest.raises(StorageError, match="'headrace branch drop purchases new' removes the branch"):
        vacuum(job.config, "weekly", dry_run=False)
    status(job)
    assert ["gone" in usage.problem for usage in branch_usages(job.config)] == [True]
    settle(job, LATER[name])
    check(job)


def test_fork_looks_for_files_first(job):
    drop_branch(job.config, "old", "setup")
    compact(job.config, "nightly")
    vacuum_all(job)
    reached = []
    with places_of(job.disk, reached), pytest.raises(StorageError, match="no branch can begin at checkpoint 1"):
        fork(job.config, "new", 1, "somebody")
    assert reached == []
    assert Branches(job.config).all[-1].name == "old"


def test_name_of_a_branch_waits_for_its_promotion(job):
    """A branch of the same name must not remove what the interrupted promotion still has to take over."""
    with killed_at(job.disk, "promotion.committed"):
        promote(job)
    fork(job.config, "old", None, "somebody")
    assert job.last.kind.value == "promotion"
    assert [branch.fork_id for branch in Branches(job.config).open] == [job.last.checkpoint_id]
    check(job)


def test_half_made_branch_is_no_empty_job(job):
    with killed_at(job.disk, "fork.tables"):
        fork(job.config, "new", 1, "killed")
    with pytest.raises(ConfigError, match="is not ready: .*headrace branch create purchases new"):
        JobAtCheckpoint(on_branch(job.config, "new"))
    assert find_key(job.config, ErasedKey("ann")).rows
