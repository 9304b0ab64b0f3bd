"""Promotion: the state and the sinks of a branch become those of the job."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import Pipeline, Struct, crash_points
from headrace.commit.branch_code import on_branch
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.fork import drop_branch, fork
from headrace.edits.promote import promoting
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, SinkMismatchError, StorageError
from headrace.log.branches import Branches, finish_promotion
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.sinks.layout import folder_name
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from tests.unit.support.branched_job import CUSTOMERS, BranchedJob, Order
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.fuzzing import examples
from tests.unit.support.purchase_job import SINK, after_retention, commit_purchase

FILES = st.lists(
    st.lists(st.tuples(st.sampled_from(CUSTOMERS), st.integers(0, 9)), min_size=1, max_size=6), min_size=1, max_size=3
)


SMALL = pa.schema([pa.field("customer", pa.string()), pa.field("why", pa.string())])


class Small(Struct, frozen=True):
    """A small order."""

    customer: str


class SmallAndWhy(Struct, frozen=True):
    """A small order with a reason."""

    customer: str
    why: str | None = None


def with_column(has_reason):
    """Return a pipeline whose only sink has an additional column, or not."""
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    if has_reason:
        return orders.map(lambda order: SmallAndWhy(order.customer, "small"), record=SmallAndWhy).sink("small")
    return orders.map(lambda order: Small(order.customer), record=Small).sink("small")


@pytest.fixture
def job():
    """Return a job with a branch that has taken in more than the job."""
    result = BranchedJob()
    result.feed(("ann", 1), ("bob", 2), ("cyd", 7))
    result.run()
    fork(result.config, "other", None, "somebody")
    result.feed(("ann", 5), ("bob", 0), ("dee", 2))
    result.run("other")
    return result


def promote(job, name="other"):
    """Promote a branch."""
    with promoting(job.config, name, "promotion") as promotion:
        return promotion.promote("it is right")


def sound(job):
    """Tell whether all checks of `headrace verify` hold."""
    return [result for result in verify(job.config) if not result.ok] == []


@pytest.mark.slow
@examples(2)  # five seconds each; test_promoted_backfills draws more
@given(
    before=FILES,
    live=FILES,
    corrected=FILES,
    more=FILES,
    backend=st.sampled_from(("hashmap", "rocksdb", "delta")),
    compacts=st.sampled_from(("neither", "job", "branch", "both")),
)
def test_promoted_job_continues_as_the_branch(before, live, corrected, more, backend, compacts):
    job = BranchedJob(backend=backend, files_per_batch=1)
    straight = BranchedJob(backend=backend, files_per_batch=1)
    for orders in before:
        job.feed(*orders)
        straight.feed(*orders)
    job.run()
    fork(job.config, "other", None, "somebody")
    for orders in live:
        job.feed(*orders)
    job.run()
    if compacts in {"job", "both"}:
        job.compact()
    for number, orders in enumerate(corrected[: len(live)]):
        job.correct(len(before) + number + 1, *orders)
    for orders in corrected[: len(live)] + live[len(corrected) :]:
        straight.feed(*orders)
    job.run("other")
    if compacts in {"branch", "both"}:
        job.compact("other")
    expected = job.content("other")
    promote(job)
    assert job.content() == expected
    assert sound(job)
    for orders in more:
        job.feed(*orders)
        straight.feed(*orders)
    job.run()
    straight.run()
    assert job.content(with_expired=False) == straight.content(with_expired=False)
    assert sound(job)


@pytest.mark.slow
def test_promotion_continues_from_the_fork(job):
    promoted = promote(job)
    log = CheckpointLog(JobFolder(job.config.job_folder))
    line = [(checkpoint.kind, checkpoint.has_state) for checkpoint in log.lineage.checkpoints]
    assert line == [(Kind.INITIAL, True), (Kind.BATCH, True), (Kind.BATCH, False), (Kind.PROMOTION, True)]
    assert (promoted.restored_from, promoted.name, promoted.note) == (1, "other", "it is right")


@pytest.mark.slow
def test_rows_of_a_promoted_line_count_once(job):
    promoted = promote(job)
    line = CheckpointLog(JobFolder(job.config.job_folder)).lineage.checkpoints
    assert sum(checkpoint.metrics.get("rows_in", 0) for checkpoint in line) == 6
    assert promoted.metrics["rows_brought"] == 3


@pytest.mark.slow
def test_promotion_removes_the_branch(job):
    folder = job.config.on_branch("other").job_folder
    promote(job)
    assert Storage(str(folder)).files() == set()
    with pytest.raises(ConfigError, match="branch 'other' of job .* was promoted already"):
        promote(job)


@pytest.mark.slow
def test_restore_undoes_a_promotion(job):
    before, last = job.content(), job.last().checkpoint_id
    promote(job)
    restore(job.config, last, "it was wrong", "somebody")
    assert job.content() == before
    assert sound(job)


@pytest.mark.slow
def test_promotion_can_be_restored(job):
    promoted = promote(job)
    content = job.content()
    job.feed(("eve", 9))
    job.run()
    restore(job.config, promoted.checkpoint_id, "back to it", "somebody")
    assert job.content() == content
    assert sound(job)


@pytest.mark.slow
def test_promoted_checkpoints_have_no_state(job):
    promoted = promote(job)
    with pytest.raises(ConfigError, match="the promotion of that branch did not keep its state"):
        restore(job.config, promoted.parent_id, "into the middle", "somebody")


@pytest.mark.slow
def test_branch_behind_the_job_is_refused(job):
    job.run()
    job.feed(("eve", 3))
    job.run()
    before = job.content(), job.versions()
    with pytest.raises(ConfigError, match="branch 'other' is behind: job 'shop' has taken in more input"):
        promote(job)
    assert job.content() == before[0]
    job.run("other")
    expected = job.content("other")
    promote(job)
    assert job.content() == expected


@pytest.mark.slow
def test_branch_runs_on_while_the_job_is_held(job):
    job.run()
    job.feed(("eve", 3))
    job.run()
    with promoting(job.config, "other", "promotion") as promotion:
        assert promotion.is_behind
        job.run("other")
        assert not promotion.is_behind
        promotion.promote()
    assert sound(job)


@pytest.mark.slow
def test_branch_with_other_settings_is_refused(job):
    job.run("other", settings={"watermark.bucket": "500"})
    with pytest.raises(
        ConfigError, match="would go on with other code or settings than the branch had.*watermark.bucket 500"
    ):
        promote(job)


@pytest.mark.slow
def test_empty_run_leaves_results_of_other_settings(job):
    job.feed(("eve", 3))
    job.run("other", settings={"watermark.bucket": "500"})
    job.run("other", settings={"watermark.bucket": "2"})
    with pytest.raises(
        ConfigError,
        match=r"ran with watermark.bucket 500 up to checkpoint \d+, .* says 2. Nothing was changed. Compute the branch anew .*: 'headrace "
        r"branch drop shop other', 'headrace branch create shop other --at \d+', then 'headrace run shop --branch other'",
    ):
        promote(job)
    fork_id = Branches(job.config).get("other").fork_id
    drop_branch(job.config, "other", "somebody")
    fork(job.config, "other", fork_id, "somebody")
    job.run("other")
    expected = job.content("other")
    promote(job)
    assert job.content() == expected


@pytest.mark.slow
def test_restored_branch_forgets_results_of_other_settings(job):
    job.feed(("eve", 3))
    job.run("other", settings={"watermark.bucket": "500"})
    restore(on_branch(job.config, "other"), job.last("other").checkpoint_id - 1, "again", "somebody")
    job.run("other", settings={"watermark.bucket": "2"})
    promote(job)
    assert sound(job)


@pytest.mark.slow
def test_promotion_keeps_new_columns_of_the_branch():
    """The branch's first run adds a column while the promotion holds the job."""
    job = BranchedJob(with_column(False))
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    job.feed(("bob", 2))
    job.harness.change(pipeline=with_column(True))
    job.config = job.harness.config
    with promoting(job.config, "other", "promotion") as promotion:
        job.run("other")
        promotion.promote()
    rows = Storage(job.config.sinks["small"].table_path).table().latest().read(SMALL).to_pylist()
    assert sorted((row["customer"], row["why"]) for row in rows) == [("ann", None), ("bob", "small")]
    assert sound(job)


@pytest.mark.slow
def test_column_the_job_alone_added_is_refused():
    job = BranchedJob(with_column(False))
    job.feed(("ann", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    job.run("other")
    job.harness.change(pipeline=with_column(True))
    job.config = job.harness.config
    job.feed(("bob", 2))
    job.run()
    job.harness.change(pipeline=with_column(False))
    job.config = job.harness.config
    table_before = Storage(job.config.sinks["small"].table_path).table().latest().version
    job.run("other")
    with pytest.raises(ConfigError, match="branch 'other' cannot be promoted: sink 'small' .*got the column why"):
        promote(job)
    assert Storage(job.config.sinks["small"].table_path).table().latest().version == table_before


@pytest.mark.slow
def test_rows_of_other_writers_are_kept(job):
    sink = Storage(job.config.sinks["small"].table_path).table()
    latest = sink.latest()
    sink.append_rows(latest.version, latest.read(latest.schema)[:1])
    with pytest.raises(SinkMismatchError, match="somebody else has written to sink 'small'"):
        promote(job)


@pytest.mark.slow
def test_optimized_sink_is_no_reason_to_refuse(job):
    sink = Storage(job.config.sinks["small"].table_path).table()
    sink.optimize(sink.latest().version, 1 << 20, ["customer"])
    promote(job)
    assert sound(job)


@pytest.mark.slow
def test_branch_of_a_line_left_behind_is_refused(job):
    restore(job.config, 0, "anew", "somebody")
    with pytest.raises(ConfigError, match="begins at checkpoint 1, which job 'shop' has left behind since"):
        promote(job)


@pytest.mark.slow
def test_second_branch_cannot_be_promoted_behind_the_first(job):
    fork(job.config, "second", 1, "somebody")
    job.run("second")
    promote(job)
    with pytest.raises(ConfigError, match="has changed the state of job .shop. since the fork .promotion"):
        promote(job, "second")


@pytest.mark.slow
def test_running_branch_is_not_promoted(job):
    with (
        open_job(job.config.on_branch("other"), "a run"),
        pytest.raises(FencedError),
    ):
        promote(job)


@pytest.mark.slow
def test_missing_fork_files_leave_job_unchanged(job):
    job.run()
    job.compact()
    table = Storage(job.config.job_folder).table("keyed_state")
    lost = sorted(table.at(CheckpointLog(JobFolder(job.config.job_folder)).get(1).versions["keyed_state"]).files())
    before = job.content()
    Storage(table.uri).delete(lost)
    with pytest.raises(StorageError):
        promote(job)
    assert job.content() == before


@pytest.mark.slow
def test_savepoints_survive_a_promotion_and_a_vacuum(job):
    savepoint(job.config, "before", "to come back", "somebody")
    content = job.content()
    promote(job)
    with after_retention(job.config):
        vacuum(job.config, "vacuum", dry_run=False)
        restore(job.config, "before", "back", "somebody")
    assert job.content() == content


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        *("promotion.begun", "promotion.staged", "prepare.before", "prepare.half", "prepare.after"),
        *("promotion.prepared", "commit.before", "commit.after", "publish.half", "publish.after", "promotion.removed"),
    ],
)
def test_next_run_finishes_a_promotion(job, place):
    expected = job.content("other")
    before = job.content()

    with pytest.raises(Killed), dying_at(place):
        promote(job)
    committed = CheckpointLog(JobFolder(job.config.job_folder)).last.kind is Kind.PROMOTION
    assert [branch.name for branch in Branches(job.config).open] == ([] if committed else ["other"])
    with open_job(job.config, "the next one"):
        pass
    assert job.content() == (expected if committed else before)
    assert Storage(job.config.on_branch("other").job_folder).files() == set() or not committed
    if not committed:
        promote(job)
        assert job.content() == expected
    assert sound(job)


def at(place, act):
    """Call a function the first time that a place is reached."""
    pending = [act]
    return crash_points.observed(lambda reached: pending.pop()() if reached == place and pending else None)


def take_over(job):
    """Take the branch from the process that holds it, as if that process had slept for longer than its lease."""
    with open_job(job.config.on_branch("other"), "another run", force=True):
        pass


@pytest.mark.slow
def test_promotion_notices_another_run_of_its_branch(job):
    before = job.content()
    with at("promotion.begun", lambda: take_over(job)), pytest.raises(FencedError, match="run another run, attempt"):
        promote(job)
    assert job.content() == before
    promote(job)
    assert sound(job)


@pytest.mark.slow
def test_promotion_notices_that_its_branch_is_another(job):
    before = job.content()

    def fork_anew():
        take_over(job)
        drop_branch(job.config, "other", "somebody")
        fork(job.config, "other", None, "somebody")

    with at("promotion.staged", fork_anew), pytest.raises(FencedError, match="lost"):
        promote(job)
    assert job.content() == before
    assert [branch.name for branch in Branches(job.config).open] == ["other"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["promotion.committed", "promotion.landed", "promotion.removed"])
def test_late_promotion_cleanup_spares_a_new_branch(job, place):
    def finish_and_fork():
        finish_promotion(job.config, job.last())
        fork(job.config, "other", None, "somebody")

    with at(place, finish_and_fork):
        promote(job)
    assert [branch.name for branch in Branches(job.config).open] == ["other"]
    assert job.content("other") == job.content()


@pytest.mark.slow
def test_half_made_branch_is_not_promoted(job):
    Branches(job.config).add(replace(Branches(job.config).get("other"), name="half"))
    with pytest.raises(ConfigError, match="branch 'half' of job 'shop' is not ready"):
        promote(job, "half")


@pytest.mark.slow
def test_sinks_with_keys_are_promoted_anywhere(new_job):
    with open_job(new_job, "first", create=True) as opened:
        commit_purchase(opened, "ann")
        commit_purchase(opened, "bob")
    fork(new_job, "other", 1, "somebody")
    with open_job(new_job.on_branch("other"), "second") as opened:
        commit_purchase(opened, "cyd")
    with promoting(new_job, "other", "promotion") as promotion:
        promotion.promote()
    sink = JobFolder.of(new_job).at(new_job.sinks[SINK].table_path).table().latest()
    assert sink.read(sink.schema)["customer"].to_pylist() == ["cyd"]


@pytest.mark.slow
def test_partitioned_sinks_are_promoted():
    job = BranchedJob(job={"sinks": {name: {"partition_by": ["customer"]} for name in ("small", "totals")}})
    job.feed(("a b", 1), ("bob", 2), ("\u00fc/%20", 1))
    job.run()
    fork(job.config, "other", None, "somebody")
    job.feed(("a b", 5), ("bob", 0), ("x=y", 2))
    job.run()
    job.correct(2, ("a b", 1), ("\u00fc/%20", 0), ("x+y", 2))
    job.run("other")
    expected = job.content("other")
    promote(job)
    assert job.content() == expected
    assert sound(job)
    table = JobFolder.of(job.config).at(job.config.sinks["small"].table_path).table().latest()
    customers = table.read(table.schema)["customer"].to_pylist()
    assert {file.rpartition("/")[0] for file in table.files()} == {folder_name("customer", name) for name in customers}
