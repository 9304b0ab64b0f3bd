"""A world: operators, jobs and job folders on one clock, with one set of threads, in one storage."""

from __future__ import annotations

import gc
from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
    ValueState,
    clock,
    threads,
)
from headrace.errors import ConfigError, StorageError
from headrace.readers.job_at import JobAtCheckpoint
from headrace.testing import KeyedHarness, World

pytestmark = pytest.mark.delta

MINUTE = 60_000


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    amount: int = 1


class Total(Struct, frozen=True):
    id: str
    amount: int


class Totals(KeyedProcessFunction[Order, Total]):
    """Adds up amounts, and emits the total again after a minute of processing time."""

    amount = ValueState("amount", int)

    async def process(self, order, ctx, /):
        amount = (await self.amount.value() or 0) + order.amount
        await self.amount.update(amount)
        ctx.timers.register_processing_time(ctx.processing_time + MINUTE)
        ctx.collect(Total(order.id, amount), RowKind.UPDATE_AFTER)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Total(ctx.key, 100 + await self.amount.value()), RowKind.UPDATE_AFTER)


def totals():
    results = Pipeline("shop").source("orders", Order, event_time="at").key_by("id").process("totals", Totals())
    return results.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",)).sink("totals")


def by_id(order):
    return order.id


def test_operators_and_jobs_share_the_clock():
    class Slow(AsyncFunction[Order, Order]):
        async def invoke(self, order, /):
            await clock.sleep_async(60)
            return [order]

    with World(now=5) as world:
        job = world.job(totals())
        keyed = world.operator(Totals(), key=by_id)
        service = world.operator(Slow(), timeout=timedelta(hours=1))
        rows = world.operator(Total, primary_key=("id",))
        job.feed("orders", [Order("a", 1)])
        job.run()
        keyed.process(Order("b", 1))
        service.process(Order("c", 1))
        assert keyed.output() == [Total("b", 1)]
        keyed.clock.advance(MINUTE)
        assert (keyed.output(), service.output()) == ([Total("b", 101)], [Order("c", 1)])
        job.run()
        assert job.sink("totals") == [Total("a", 101)]
        assert {harness.clock.now() for harness in (job, keyed, service, rows, world)} == {MINUTE + 5}


def test_pause_of_one_operator_passes_for_all():
    with World(now=0) as world:
        paused, other = world.operator(Totals(), key=by_id), world.operator(Totals(), key=by_id)
        other.process(Order("a", 1))
        paused.pause(MINUTE)
        assert other.output() == [Total("a", 1), Total("a", 101)]
        assert world.clock.now() == MINUTE


def test_operator_continues_from_a_snapshot():
    with World(now=0) as first:
        h = first.operator(Totals(), key=by_id)
        h.process(Order("a", 1, 7))
        first.clock.advance(10)
        snapshot = h.snapshot()
    with World(now=MINUTE) as second:
        h = second.operator(Totals(), key=by_id, snapshot=snapshot)
        assert h.clock.now() == MINUTE
        assert h.output() == [Total("a", 107)]


def test_block_gives_clock_and_threads_back():
    before = clock.use(clock.VirtualClock(7)), threads.use(threads.SystemThreads())
    try:
        with World(now=1) as world:
            job = world.job(totals())
            world.operator(Totals(), key=by_id)
            job.run()
            assert clock.now() == 1
        assert clock.now() == 7
    finally:
        assert isinstance(threads.use(before[1]), threads.SystemThreads)
        clock.use(before[0])


def test_failure_in_the_block_ends_the_world():
    def fail_inside():
        with World(now=1) as world:
            world.operator(Totals(), key=by_id)
            raise KeyError

    before = clock.now()
    with pytest.raises(KeyError):
        fail_inside()
    assert clock.now() >= before > 1


def test_seed_decides_order_and_chance():
    def course(seed):
        order = []
        with World(seed):
            threads.in_parallel(order.append, range(9))
            return order, clock.jitter()

    assert course(1) == course(1)
    assert sorted(course(1)[0]) == sorted(course(2)[0]) == [*range(9)]
    assert course(1) != course(2)


def test_parallel_work_ends_before_its_error():
    done = []

    def work(item):
        done.append(item)
        if item % 2:
            raise ValueError(item)
        return item

    with World(3):
        assert threads.in_parallel(work, [4, 2]) == [4, 2]
        with pytest.raises(ValueError, match="^1$"):
            threads.in_parallel(work, [0, 1, 2, 3])
    assert sorted(done) == [0, 1, 2, 2, 3, 4]


def test_repeated_work_waits_for_a_beat():
    beats = []
    with World() as world:
        with threads.repeating(1, lambda: beats.append(clock.now()), "work"), threads.lock():
            world.clock.advance(5_000)
            assert beats == []
            world.threads.beat()
        world.threads.beat()
        assert beats == [world.clock.now()]


@pytest.mark.parametrize("place", ["task.half", "commit.before", "commit.after", "publish.after"])
@pytest.mark.parametrize("backend", ["hashmap", "delta"])
def test_crash_in_memory_changes_no_results(place, backend):
    with World() as world:
        job = world.job(totals(), backend=backend)
        job.feed("orders", [Order("a", 1), Order("b", 2, 5)])
        assert job.run(crash_at=place) is None
        job.feed("orders", [Order("a", 3, 2)])
        job.run()
        assert sorted(job.sink("totals"), key=by_id) == [Total("a", 3), Total("b", 5)]
        assert job.table("keyed_state").num_rows > 0
        assert not (job.folder / "state").exists()


def test_jobs_of_one_name_share_nothing_stored():
    with World() as world:
        first, second = world.job(totals()), world.job(totals(), storage=None)
        first.feed("orders", [Order("a", 1)])
        first.run()
        assert (second.sink("totals"), second.facts) == ([], [])
        second.feed("orders", [Order("b", 1)])
        second.run()
        assert (first.sink("totals"), second.sink("totals")) == ([Total("a", 1)], [Total("b", 1)])
        assert (second.folder / "state").exists()


def test_jobs_keep_their_storage_without_the_world():
    job = World().job(totals())
    job.feed("orders", [Order("a", 1)])
    job.run()
    gc.collect()
    assert job.sink("totals") == [Total("a", 1)]


def test_storage_may_refuse_a_step():
    def refuse(step, path):
        if step == "commit" and path.endswith("/checkpoints"):
            raise PermissionError(13, "Permission denied", path)

    with World() as world:
        job = world.job(totals())
        job.feed("orders", [Order("a", 1)])
        with world.disk.failing(refuse), pytest.raises(StorageError, match="Permission denied"):
            job.run()
        job.run()
        assert job.sink("totals") == [Total("a", 1)]


def test_snapshot_in_memory_is_restored_elsewhere():
    with World() as world:
        job, other = world.job(totals()), World().job(totals())
        job.feed("orders", [Order("a", 1)])
        job.run()
        snapshot = job.snapshot()
        job.feed("orders", [Order("a", 2, 8)])
        job.run()
        for restored in (job, other):
            restored.restore(snapshot)
            assert restored.sink("totals") == [Total("a", 1)]
            restored.feed("orders", [Order("a", 2, 1)])
            restored.run()
            assert restored.sink("totals") == [Total("a", 2)]


def test_operators_wait_for_a_restored_clock():
    with World(now=0) as world:
        job, operator = world.job(totals()), world.operator(Totals(), key=by_id)
        snapshot = job.snapshot()
        operator.process(Order("a", 1))
        world.clock.advance(MINUTE - 1)
        job.restore(snapshot)
        assert world.clock.now() == 0
        world.clock.advance(MINUTE - 1)
        assert operator.output() == [Total("a", 1)]
        world.clock.advance(1)
        assert operator.output() == [Total("a", 101)]


def test_facts_are_those_of_all_checkpoints():
    with World() as world:
        job = world.job(totals())
        assert job.facts == []
        job.feed("orders", [Order("a", 5)])
        job.run(end_of_input=True)
        assert [(facts.checkpoint_id, facts.kind.value) for facts in job.facts[:2]] == [(0, "initial"), (1, "batch")]
        assert job.facts[1].metrics["rows_in"] == 1


@pytest.mark.parametrize("storage", [{}, {"storage": None}], ids=["memory", "folder"])
def test_branch_runs_beside_its_job(storage):
    with World() as world:
        job = world.job(totals(), **storage)
        job.feed("orders", [Order("a", 1)])
        job.run()
        job.feed("orders", [Order("a", 2, 10)])
        branch = job.branch("trial")
        assert branch.run(crash_at="commit.after") is None
        branch.run()
        assert (job.sink("totals"), branch.sink("totals")) == ([Total("a", 1)], [Total("a", 11)])
        assert [facts.kind.value for facts in branch.facts][-2:] == ["fork", "batch"]
        assert branch.promote().kind.value == "promotion"
        assert job.sink("totals") == [Total("a", 11)]
        assert job.run().rows_in == 0
        with pytest.raises(ConfigError, match="branch 'trial' of job 'shop' was promoted already"):
            branch.run()


def test_branch_has_settings_and_a_beginning():
    with World() as world:
        job = world.job(totals())
        for amount in (1, 10):
            job.feed("orders", [Order("a", amount, amount)])
            job.run()
        branch = job.branch("early", at=1, settings={"watermark.bucket": "7"})
        assert (branch.config.watermark.bucket, job.config.watermark.bucket) == (7, 1000)
        assert branch.sink("totals") == [Total("a", 1)]
        branch.run()
        assert branch.sink("totals") == [Total("a", 11)]


ROW = {"operator": "totals", "state": "amount"}


def test_folder_has_the_given_rows_and_facts():
    with World(now=9) as world:
        folder = world.folder(
            rows={"keyed_state": [{**ROW, "key": '"a"', "value": "1"}, {**ROW, "key": '"b"', "value": "2"}]},
            facts={"watermark": 5, "note": "by hand"},
        )
        folder.commit(rows={"keyed_state": [{**ROW, "key": '"a"', "deleted": True}]}, metrics={"rows_in": 1})
        assert [(row["key"], row["value"], row["checkpoint_id"]) for row in folder.live("keyed_state")] == [
            ('"b"', "2", 1)
        ]
        facts = folder.log.checkpoints
        assert [(f.kind.value, f.watermark, f.note) for f in facts] == [
            ("initial", None, None),
            ("batch", 5, "by hand"),
            ("batch", 5, None),
        ]
        assert {f.committed_at for f in facts} == {9}


def test_folder_may_get_whole_tables_and_times():
    with World() as world:
        folder = world.folder()
        timer = {"operator": "totals", "key": '"a"', "domain": "event_time", "timestamp": 1_500}
        folder.write({"timers": [timer, {**timer, "timestamp": 2_500}]})
        folder.write({"timers": [timer]}, whole=True)
        assert folder.commit("compaction").kind.value == "compaction"
        (row,) = folder.live("timers")
        assert row["timestamp"] == 1_500
        with pytest.raises(ValueError, match="nonsense"):
            folder.commit("nonsense")


def test_readers_open_jobs_in_memory():
    with World() as world:
        job = world.job(totals())
        job.feed("orders", [Order("a", 1)])
        job.run()
        assert JobAtCheckpoint(job.config).count_live("keyed_state") == 1


def test_world_drives_operators_alone():
    with (
        World() as world,
        pytest.raises(TypeError, match="a harness takes an instance of a class derived from KeyedProcessFunction"),
    ):
        world.operator(print, key=by_id)  # type: ignore[call-overload]
    with World() as world:
        assert isinstance(world.operator(Totals(), key=by_id), KeyedHarness)


def test_retries_of_an_operator_wait_for_the_world():
    class Failing(AsyncFunction[Order, Order]):
        calls = 0

        async def invoke(self, order, /):
            self.calls += 1
            if self.calls == 1:
                raise ConnectionError
            return [order]

    with World() as world:
        h = world.operator(Failing(), timeout=None, retry=FixedDelay(max_retries=1, delay=timedelta(seconds=60)))
        h.process(Order("a", 1))
        world.clock.advance(MINUTE - 1)
        assert h.output() == []
        world.clock.advance(1)
        assert h.output() == [Order("a", 1)]
