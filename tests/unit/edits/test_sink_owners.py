"""A sink's table belongs to one sink of one job: claims, refusals, take-overs and new names (in memory)."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from headrace import crash_points
from headrace.commit.branch_code import on_branch
from headrace.commit.protocol import open_job
from headrace.commit.run_check import stored_problems
from headrace.commit.verify import verify
from headrace.edits.drop_job import drop_job, droppable_job
from headrace.edits.fork import fork
from headrace.edits.reconcile import compare, reconcile
from headrace.edits.restore import restore
from headrace.edits.sink_owners import rename_sink, take_over
from headrace.errors import ConfigError, SinkMismatchError
from headrace.log.sink_history import owner_number
from headrace.plan.loader import plan_of
from headrace.storage.storage import Storage
from headrace.storage.table import OWNER
from headrace.testing._memory_disk import forget_disk, memory_disk
from tests.unit.edits.shared_tables import Sharer, customers_at, delete, lake_of, owner_at
from tests.unit.support.memory_job import BOARD, REMINDERS, killed_at

DISK = "owners"


@pytest.fixture
def jobs(clock):
    """Two jobs whose boards are one table. Neither was run."""
    yield Sharer(DISK, "one", "board"), Sharer(DISK, "two", "board")
    forget_disk(DISK)


@pytest.fixture
def without_claims(monkeypatch):
    """Have jobs run without owners: they claim nothing, and ask for no owner."""

    @contextmanager
    def patched():
        with monkeypatch.context() as context:
            for module in ("publish", "sink_position"):
                context.setattr(f"headrace.commit.{module}.claim_of", lambda *_, **__: None)
            context.setattr("headrace.commit.sink_position.SinkPosition.owned_by_another", None)
            yield

    return patched


def problems_of(job):
    return [text for _, text in stored_problems(job.config, job.log, plan_of(job.config.code))]


def refused(command, message):
    before = lake_of(DISK)
    with pytest.raises(SinkMismatchError, match=message) as error:
        command()
    assert error.value.exit_code == 10
    assert lake_of(DISK) == before


def test_second_job_is_refused_before_it_writes(jobs):
    one, two = jobs
    one.run()
    refused(two.run, re.escape(f"sink '{BOARD}' at {two.path} is the table of sink '{BOARD}' of job 'one'"))
    assert two.log.last is None
    (problem,) = problems_of(two)
    assert "is the table of sink" in problem
    assert "headrace sink take-over two lines_by_item" in problem
    assert problems_of(one) == []


def test_no_command_touches_the_table_of_another_job(jobs):
    one, two = jobs
    two.table = "elsewhere"
    first, second = two.run(), two.run()
    one.run()
    two.table = "board"
    message = "is the table of sink 'lines_by_item' of job 'one'"
    refused(lambda: restore(two.config, 0, "", "somebody"), message)
    refused(lambda: reconcile(two.config, "somebody", ""), message)
    refused(lambda: drop_job(two.config, "", "somebody", sinks=True), message)
    assert message in compare(two.config).refusal
    assert any(message in finding.detail for finding in verify(two.config) if not finding.ok)
    assert [sink.refusal is not None for sink in droppable_job(two.config).sinks] == [True, False]
    two.table = "elsewhere"
    assert customers_at(two.path) == [first, second]


def test_copy_of_a_job_writes_to_no_table(jobs):
    one, _ = jobs
    customers = [one.run(), one.run()]
    copy = one.copied("three")
    assert len(copy.log.checkpoints) == 3
    message = "is the table of job 'one', of which the folder .* is a copy: two jobs would write to one table"
    for command in (
        copy.run,
        lambda: reconcile(copy.config, "somebody", ""),
        lambda: restore(copy.config, 1, "", "somebody"),
    ):
        refused(command, message)
    refused(lambda: drop_job(copy.config, "", "somebody", sinks=True), "was never written by job 'three'")
    assert re.search(message, compare(copy.config).refusal)
    assert any(re.search(message, problem) for problem in problems_of(copy))
    with pytest.raises(ConfigError, match=message):
        take_over(copy.config, BOARD, "mine", "somebody")
    assert customers_at(one.path) == customers
    assert one.run() in customers_at(one.path)


def test_job_keeps_its_table_under_another_name(jobs):
    one, _ = jobs
    customers = [one.run()]
    renamed = replace(one.config, job="three", state=replace(one.config.state, name="one"))
    customers.append(one.run(renamed))
    assert customers_at(one.path) == customers


def test_claim_is_in_the_first_version(jobs):
    one, _ = jobs
    one.run()
    store = Storage(one.path).table()
    assert store.at(0).transaction(OWNER) == owner_number(one.log.lineage.uid, BOARD)
    assert store.at(0).history()[0].info.claim.job == "one"
    assert store.latest().version == 1


def test_claim_outlives_restores_and_reconciliations(jobs):
    one, _ = jobs
    one.run()
    owner = owner_at(one.path)
    restore(one.config, 0, "", "somebody")
    delete(one.path)
    reconcile(one.config, "somebody", "")
    customer = one.run()
    assert (owner_at(one.path), customers_at(one.path)) == (owner, [customer])
    store = Storage(one.path).table()
    store.restore(store.latest().version, 0)
    assert owner_at(one.path) == owner


def test_old_table_is_claimed_at_the_first_run(jobs, without_claims):
    one, two = jobs
    with without_claims():
        one.run()
    assert owner_at(one.path) is None
    refused(two.run, "has rows of another sink, or of another job")
    assert problems_of(one) == []
    one.run()
    assert owner_at(one.path) == owner_number(one.log.lineage.uid, BOARD)
    refused(two.run, "of job 'one'")


def test_first_of_two_old_jobs_keeps_the_table(jobs, without_claims):
    one, two = jobs
    with without_claims():
        one.run()
        two.run()
    two.run()
    refused(one.run, "of job 'two'")


@pytest.mark.parametrize("place", ["create.half", "claim.created"])
def test_killed_first_run_leaves_no_foreign_claim(jobs, place):
    one, two = jobs
    with killed_at(memory_disk(DISK), place):
        one.run()
    customer = one.run()
    assert customers_at(one.path) == [customer]
    refused(two.run, "of job 'one'")


def test_one_of_two_new_jobs_gets_the_table(jobs):
    one, two = jobs
    winners = []

    def begin_other(place):
        if place == "create.half" and not winners:
            winners.append(None)
            winners[0] = one.run()

    with (
        crash_points.observed(begin_other),
        pytest.raises(SinkMismatchError, match="which has claimed the table meanwhile"),
    ):
        two.run()
    assert customers_at(two.path) == winners
    refused(two.run, "of job 'one'")


def test_claim_is_a_compare_and_set(jobs):
    one, two = jobs
    Storage(one.path).table().create(Sharer(DISK, "x", "x").board_schema())
    winners = []

    def begin_other(step, path):
        if (step, path) == ("commit", "lake/board") and not winners:
            winners.append(None)
            winners[0] = one.run()

    with memory_disk(DISK).failing(begin_other), pytest.raises(SinkMismatchError, match="meanwhile"):
        two.run()
    assert customers_at(two.path) == winners


def test_taken_over_table_begins_empty(jobs):
    one, two = jobs
    one.run()
    checkpoint = take_over(two.config, BOARD, "one is not needed", "somebody")
    assert customers_at(two.path) == []
    assert re.search("took over .* of job 'one': one is not needed", checkpoint.note)
    refused(one.run, "of job 'two'")
    customer = two.run()
    assert customers_at(two.path) == [customer]
    restore(two.config, 0, "", "somebody")
    assert customers_at(two.path) == []
    refused(lambda: restore(one.config, 1, "", "somebody"), "of job 'two'")


def test_job_that_returns_fills_its_table_again(jobs):
    one, two = jobs
    first = one.run()
    take_over(two.config, BOARD, "", "somebody")
    two.run()
    take_over(one.config, BOARD, "", "somebody")
    refused(one.run, "reconcile")
    reconcile(one.config, "somebody", "")
    assert customers_at(one.path) == [first]
    second = one.run()
    assert customers_at(one.path) == [first, second]


def test_tables_are_taken_over_in_turn(jobs):
    one, two = jobs
    one.run()
    drop_job(one.config, "", "somebody")
    config = replace(two.config, sinks=one.config.sinks)
    take_over(config, BOARD, "", "somebody")
    refused(lambda: two.run(config), "take-over two reminders")
    take_over(config, REMINDERS, "", "somebody")
    customer = two.run(config)
    assert customers_at(two.path) == [customer]
    assert all(finding.ok for finding in verify(config))


def test_new_life_of_a_job_takes_over(jobs):
    one, _ = jobs
    for _ in range(3):
        one.run()
    drop_job(one.config, "", "somebody")
    one.life += 1
    with pytest.raises(SinkMismatchError):
        one.run()
    take_over(one.config, BOARD, "", "somebody")
    customer = one.run()
    assert customers_at(one.path) == [customer]
    assert all(finding.ok for finding in verify(one.config))


@pytest.mark.parametrize("place", ["take_over.before", "take_over.after", "commit.before", "commit.after"])
def test_killed_take_over_can_be_repeated(jobs, place):
    one, two = jobs
    first = one.run()
    with killed_at(memory_disk(DISK), place):
        take_over(two.config, BOARD, "", "somebody")
    if customers_at(two.path) == [first]:
        take_over(two.config, BOARD, "", "somebody")
    with pytest.raises(ConfigError, match="nothing to take over"):
        take_over(two.config, BOARD, "", "somebody")
    customer = two.run()
    assert customers_at(two.path) == [customer]
    refused(one.run, "of job 'two'")


def test_run_writes_nothing_after_a_take_over(jobs):
    one, two = jobs
    one.run()
    with open_job(one.config, "run") as opened:
        take_over(two.config, BOARD, "", "somebody")
        customer = two.run()
        with pytest.raises(SinkMismatchError, match="which has claimed the table meanwhile"):
            one.commit_in(opened)
    assert customers_at(one.path) == [customer]


def test_drop_with_sinks_frees_the_place(jobs):
    one, two = jobs
    one.run()
    drop_job(one.config, "", "somebody", sinks=True)
    customer = two.run()
    assert customers_at(two.path) == [customer]


def test_interrupted_drop_spares_tables_of_others(jobs):
    one, two = jobs
    one.run()
    two.table = "elsewhere"
    two.run()
    with killed_at(memory_disk(DISK), "drop.half"):
        drop_job(two.config, "", "somebody")
    two.table = "board"
    refused(lambda: drop_job(two.config, "", "somebody", sinks=True), "of job 'one'")
    two.table = "elsewhere"
    drop_job(two.config, "", "somebody", sinks=True)
    assert customers_at(two.path) is None


def test_branch_claims_nothing(jobs):
    one, _ = jobs
    one.run()
    fork(one.config, "trial", None, "somebody")
    on_trial = on_branch(one.config, "trial")
    before = lake_of(DISK)
    one.run(on_trial)
    assert owner_at(on_trial.sinks[BOARD].path) is None
    assert lake_of(DISK) == before


@pytest.fixture
def renamed(jobs):
    """A job whose code and file have another name for a sink since its last run."""
    one, _ = jobs
    one.run()
    one.run()
    one.sink, one.pipeline = "board", "tests.jobs.purchases:other_sink"
    return one


def test_renamed_sink_is_refused_until_it_is_moved(renamed):
    job = renamed
    refused(job.run, "state rename one --sink lines_by_item --to board")
    before = customers_at(job.path)
    checkpoint = rename_sink(job.config, BOARD, "board", "somebody", "a shorter name")
    assert checkpoint.note == "sink 'lines_by_item' is 'board' now: a shorter name"
    assert customers_at(job.path) == before
    customer = job.run()
    assert customers_at(job.path) == sorted([*before, customer])
    assert all(finding.ok for finding in verify(job.config))
    restore(job.config, 1, "", "somebody")
    assert customers_at(job.path) == before[:1]
    restore(job.config, 3, "", "somebody")
    assert customers_at(job.path) == before


@pytest.mark.parametrize("place", ["sink_rename.before", "sink_rename.after", "commit.before", "commit.after"])
def test_killed_rename_of_a_sink_loses_nothing(renamed, place):
    job = renamed
    before = customers_at(job.path)
    with killed_at(memory_disk(DISK), place):
        rename_sink(job.config, BOARD, "board", "somebody")
    if problems_of(job):
        rename_sink(job.config, BOARD, "board", "somebody")
    customer = job.run()
    assert customers_at(job.path) == sorted([*before, customer])
    assert all(finding.ok for finding in verify(job.config))


def test_rename_publishes_the_last_checkpoint_first(jobs):
    one, _ = jobs
    first = one.run()
    with killed_at(memory_disk(DISK), "commit.after"):
        one.run()
    one.sink, one.pipeline = "board", "tests.jobs.purchases:other_sink"
    rename_sink(one.config, BOARD, "board", "somebody")
    assert customers_at(one.path) == [first, "one0-2"]


@pytest.mark.parametrize("order", [("board", "calls"), ("calls", "board")])
def test_several_sinks_are_renamed_one_by_one(jobs, order):
    one, _ = jobs
    first = one.run()
    with killed_at(memory_disk(DISK), "commit.after"):
        one.run()
    before = one.config
    former = {"board": BOARD, "calls": REMINDERS}
    config = replace(
        before,
        pipeline="tests.jobs.purchases:other_sinks",
        sinks={new: before.sinks[old] for new, old in former.items()},
    )
    for new in order:
        refused(lambda: restore(config, 0, "", "somebody"), "headrace state rename one --sink")
        rename_sink(config, former[new], new, "somebody")
    assert all(finding.ok for finding in verify(config))
    assert customers_at(one.path) == customers_at(config.sinks["calls"].path) == [first, "one0-2"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lines", "board", "no sink 'lines' at its last"),
        (BOARD, "nothing", "no sink 'nothing'"),
        ("board", "board", "still has sink"),
    ],
)
def test_wrong_names_of_sinks_are_refused(renamed, old, new, message):
    before = lake_of(DISK)
    with pytest.raises(ConfigError, match=message):
        rename_sink(renamed.config, old, new, "somebody")
    assert lake_of(DISK) == before


def test_swapped_sinks_are_refused(jobs):
    one, two = jobs
    two.table = "elsewhere"
    config = one.config
    paths = {"reminders": one.path, BOARD: config.sinks["reminders"].path}
    one.run()
    swapped = replace(config, sinks={name: replace(sink, path=paths[name]) for name, sink in config.sinks.items()})
    with pytest.raises((SinkMismatchError, ConfigError)):
        one.run(swapped)
    assert "is the table of this job's sink" in compare(swapped).refusal
